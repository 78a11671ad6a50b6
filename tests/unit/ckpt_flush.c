/* test: label=unit ranks=1 timeout=60 */
/* What a thread sends to the disk while a file is written: what was written, each byte once and in order, though small
 * boxes go into gaps further back. The system's call is this test's own. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/flush.h"
#include "kernels/base/clock.h"

enum { FILE_NUMBER = 77, BYTES = 100000 };

static struct {
    pthread_mutex_t mutex;
    int64_t sent; /* from the beginning on */
    int calls, wrong, syncs, error;
    bool held; /* the calls do not come back */
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER};

int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags)
{
    pthread_mutex_lock(&disk.mutex);
    disk.calls++;
    disk.wrong += fd != FILE_NUMBER || offset != disk.sent || bytes <= 0 || flags != SYNC_FILE_RANGE_WRITE;
    disk.sent = offset + bytes;
    while (disk.held) {
        pthread_mutex_unlock(&disk.mutex);
        dtx_clock_sleep(1e-3);
        pthread_mutex_lock(&disk.mutex);
    }
    pthread_mutex_unlock(&disk.mutex);
    return 0;
}

int fsync(int fd)
{
    dtx_clock_sleep(5e-3);
    disk.syncs += fd == FILE_NUMBER;
    errno = disk.error;
    return disk.error ? -1 : 0;
}

static void hold(bool held)
{
    pthread_mutex_lock(&disk.mutex);
    disk.held = held;
    pthread_mutex_unlock(&disk.mutex);
}

static int64_t sent(void)
{
    pthread_mutex_lock(&disk.mutex);
    int64_t bytes = disk.sent;
    pthread_mutex_unlock(&disk.mutex);
    return bytes;
}

/* The thread gets there. */
static void await(int64_t bytes)
{
    double end = dtx_clock_now() + 20;
    while (sent() != bytes && dtx_clock_now() < end)
        dtx_clock_sleep(1e-3);
    assert_int_equal(sent(), bytes);
}

static void each_byte_goes_once(void **state)
{
    (void)state;
    struct dtx_flush flush;
    dtx_flush_begin(&flush, FILE_NUMBER, 1);
    assert_true(flush.threaded);
    for (int64_t at = 2000; at < BYTES; at += 1000) {
        dtx_flush_reach(&flush, at, 1000);
        if (at % 3000 == 0)
            await(at + 1000);
        dtx_flush_reach(&flush, at / 1000, 20); /* a small box in a gap */
        if (at % 7000 == 0)
            dtx_clock_sleep(2e-3);
    }
    await(BYTES);
    dtx_flush_end(&flush);
    assert_int_equal(disk.wrong, 0);
    assert_true(disk.calls > 30);
}

/* What comes last, while the disk is busy, is a box in a gap. */
static void a_gap_comes_last(void **state)
{
    (void)state;
    struct dtx_flush flush;
    disk.sent = 0;
    dtx_flush_begin(&flush, FILE_NUMBER, 1);
    hold(true);
    dtx_flush_reach(&flush, 0, 1000);
    await(1000);
    dtx_flush_reach(&flush, 4000, 1000);
    dtx_flush_reach(&flush, 2000, 20);
    hold(false);
    await(5000);
    assert_int_equal(dtx_flush_end(&flush), 0);
    assert_int_equal(disk.wrong, 0);
}

/* Many small boxes go together. */
static void it_waits_for_enough(void **state)
{
    (void)state;
    struct dtx_flush flush;
    disk.sent = disk.calls = 0;
    dtx_flush_begin(&flush, FILE_NUMBER, BYTES / 2);
    for (int64_t at = 0; at < BYTES; at += 1000) {
        dtx_flush_reach(&flush, at, 1000);
        if (at == BYTES / 10)
            dtx_clock_sleep(0.05); /* the thread could */
        if (at == BYTES / 2 - 1000)
            await(BYTES / 2);
    }
    await(BYTES);
    assert_int_equal(dtx_flush_end(&flush), 0);
    assert_int_equal(disk.calls, 2);
    assert_int_equal(disk.wrong, 0);
}

/* Nobody waits for what was not sent. */
static void it_ends_at_any_time(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct dtx_flush flush;
        dtx_flush_begin(&flush, FILE_NUMBER, 1);
        if (i % 2)
            dtx_flush_reach(&flush, 0, 1000);
        assert_int_equal(dtx_flush_end(&flush), 0);
    }
    assert_int_equal(disk.syncs, 0);
}

/* The sync goes on beside the caller; who ends waits for it and hears of its failure. */
static void it_syncs(void **state)
{
    (void)state;
    for (int error = 0; error <= EIO; error += EIO) {
        struct dtx_flush flush;
        disk.syncs = 0;
        disk.error = error;
        dtx_flush_begin(&flush, FILE_NUMBER, 1);
        dtx_flush_reach(&flush, 0, 1000);
        dtx_flush_sync(&flush);
        assert_int_equal(dtx_flush_end(&flush), error);
        assert_int_equal(disk.syncs, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_byte_goes_once), cmocka_unit_test(a_gap_comes_last),
                                       cmocka_unit_test(it_waits_for_enough), cmocka_unit_test(it_ends_at_any_time),
                                       cmocka_unit_test(it_syncs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
