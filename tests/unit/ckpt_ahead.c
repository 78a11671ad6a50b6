/* test: label=unit ranks=1 timeout=60 */
/* Bytes read ahead by a thread are those of the ranges asked for, in their order, whatever the pieces they are taken
 * in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/ahead.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

enum { FILES = 3, BYTES = 24 << 20 }; /* more than the thread keeps */

struct fixture {
    struct dtx_ctx ctx;
    char path[FILES][64];
    uint8_t *taken;
};

static uint8_t byte_at(int file, int64_t i)
{
    return (uint8_t)((uint64_t)i * 2654435761u >> 13 ^ (uint64_t)file * 97);
}

static void start(struct fixture *f)
{
    void *memory;
    dtx_ctx_init(&f->ctx);
    assert_int_equal(dtx_mem_alloc(&f->ctx, BYTES, 1, &memory), DTX_OK);
    f->taken = memory;
    for (int file = 0; file < FILES; file++) {
        snprintf(f->path[file], sizeof f->path[file], "/tmp/dtx-ahead-%d-%d", (int)getpid(), file);
        for (int64_t i = 0; i < BYTES; i++)
            f->taken[i] = byte_at(file, i);
        FILE *out = fopen(f->path[file], "w");
        assert_non_null(out);
        assert_int_equal(fwrite(f->taken, 1, BYTES, out), BYTES);
        fclose(out);
    }
}

static void finish(struct fixture *f)
{
    for (int file = 0; file < FILES; file++)
        unlink(f->path[file]);
    dtx_mem_free(f->taken);
}

static enum dtx_status open_one(struct dtx_ctx *ctx, const void *self, int file, char path[DTX_DISK_PATH], int *fd)
{
    snprintf(path, DTX_DISK_PATH, "%s", ((const struct fixture *)self)->path[file]);
    return dtx_disk_open_read(ctx, path, fd);
}

static void ranges_come_in_order(void **state)
{
    (void)state;
    static const struct dtx_ahead_range ranges[] = {{0, 5, 1},    {0, 3, 0},         {0, 100, BYTES - 100},
                                                    {1, 0, 4096}, {2, BYTES - 7, 7}, {0, 1, (9 << 20) + 3}};
    struct fixture f;
    struct dtx_ahead *ahead;
    start(&f);
    assert_int_equal(dtx_ahead_begin(&f.ctx, ranges, 6, false, open_one, &f, &ahead), DTX_OK);
    for (int r = 0; r < 6; r++) {
        for (int64_t at = 0, n = 1; at < ranges[r].bytes; at += n, n = n * 7 % 3000017) {
            n = dtx_min64(n, ranges[r].bytes - at);
            assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken + at, n), DTX_OK);
            if (n > 2000000)
                dtx_clock_sleep(0.02); /* the thread gets ahead, as far as it may */
        }
        for (int64_t i = 0; i < ranges[r].bytes; i++)
            if (f.taken[i] != byte_at(ranges[r].file, ranges[r].offset + i))
                fail_msg("range %d: byte %lld differs", r, (long long)i);
    }
    dtx_ahead_end(ahead);
    finish(&f);
}

/* What lies before the fault is given. */
static void a_fault_comes_at_its_byte(void **state)
{
    (void)state;
    struct dtx_ahead_range ranges[] = {{0, 0, 1000}, {0, BYTES - 10, 20}, {1, 0, 1000}};
    struct fixture f;
    struct dtx_ahead *ahead;
    start(&f);
    assert_int_equal(dtx_ahead_begin(&f.ctx, ranges, 3, false, open_one, &f, &ahead), DTX_OK);
    assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken, 1000), DTX_OK);
    assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken, 20), DTX_E_FORMAT);
    assert_non_null(strstr(f.ctx.error.text, "ends at byte 25165824"));
    assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken, 1), DTX_E_FORMAT);
    dtx_ahead_end(ahead);

    dtx_error_clear(&f.ctx);
    ranges[0].file = 1;
    unlink(f.path[1]);
    assert_int_equal(dtx_ahead_begin(&f.ctx, ranges, 1, false, open_one, &f, &ahead), DTX_OK);
    assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken, 1), DTX_E_IO);
    assert_non_null(strstr(f.ctx.error.text, f.path[1]));
    dtx_ahead_end(ahead);
    finish(&f);
}

/* Nobody waits for what will not come, and an end does not wait for what is not wanted. */
static void it_ends_early_and_late(void **state)
{
    (void)state;
    struct dtx_ahead_range range = {0, 0, BYTES};
    struct fixture f;
    struct dtx_ahead *ahead;
    start(&f);
    assert_int_equal(dtx_ahead_begin(&f.ctx, &range, 1, false, open_one, &f, &ahead), DTX_OK);
    dtx_ahead_end(ahead);
    range.bytes = 10;
    assert_int_equal(dtx_ahead_begin(&f.ctx, &range, 1, false, open_one, &f, &ahead), DTX_OK);
    assert_int_equal(dtx_ahead_take(ahead, &f.ctx, f.taken, 11), DTX_E_INTERNAL);
    dtx_ahead_end(ahead);
    dtx_ahead_end(NULL);
    finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_come_in_order),
                                       cmocka_unit_test(a_fault_comes_at_its_byte),
                                       cmocka_unit_test(it_ends_early_and_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
