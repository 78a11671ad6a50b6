/* test: label=unit timeout=60 */
/* Device memory from an arena, with the code of the CUDA backend on the emulator: cut from it, zeroed, 256-byte
 * aligned, given back only when the device is done with it; what does not fit beside it, counted; all of it back at the
 * end. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/backend.h"

enum { ALIGN = DTX_PIECE_ALIGN, KIB = 1024 };

static struct dtx_ctx ctx;

static struct dtx_backend *open_backend(const char *streams)
{
    struct dtx_backend *b;
    setenv("DTX_EMU_STREAMS", streams, 1);
    dtx_ctx_init(&ctx);
    if (dtx_backend_open(&ctx, "emu", 1, DTX_ISA_PLAIN, &b) != DTX_OK)
        fail_msg("%s", ctx.error.text);
    return b;
}

static void reserve(struct dtx_backend *b, size_t bytes)
{
    if (b->memory->reserve(b, bytes) != DTX_OK)
        fail_msg("%s", ctx.error.text);
}

static unsigned char *take(struct dtx_backend *b, size_t bytes)
{
    void *p;
    if (b->memory->alloc(b, bytes, &p) != DTX_OK)
        fail_msg("%s", ctx.error.text);
    return p;
}

static size_t left(struct dtx_backend *b)
{
    size_t bytes, total;
    assert_int_equal(b->memory->left(b, &bytes, &total), DTX_OK);
    return bytes;
}

/* The arena is taken once and pieces are of it; then memory is taken beside it. */
static void pieces(void **state)
{
    (void)state;
    struct dtx_backend *b = open_backend("now");
    static const size_t bytes[] = {1, 0, 256, 1000, 511};
    enum { N = sizeof bytes / sizeof *bytes };
    unsigned char *p[N];
    size_t sum = 0, before = left(b);
    for (int i = 0; i < N; i++)
        sum += dtx_piece_bytes(bytes[i]);
    reserve(b, sum);
    size_t with = left(b);
    assert_int_equal(before - with, sum);
    for (int i = 0; i < N; i++) {
        p[i] = take(b, bytes[i]);
        assert_int_equal((uintptr_t)p[i] % ALIGN, 0);
    }
    assert_int_equal(left(b), with);
    assert_int_equal(b->allocated_bytes, sum);
    assert_int_equal(b->outside_bytes, 0);
    unsigned char *beside = take(b, 300);
    assert_int_equal(left(b), with - 300);
    assert_int_equal(b->outside_bytes, 512);
    b->memory->free(b, beside);
    assert_int_equal(left(b), with);
    for (int i = 0; i < N; i++)
        b->memory->free(b, p[i]);
    assert_int_equal(b->allocated_bytes, 0);
    take(b, sum - 1); /* whole again */
    assert_int_equal(left(b), with);
    assert_int_equal(b->outside_bytes, 512);
    dtx_backend_close(b);
}

/* A larger plan makes the arena larger, when nothing is cut from it; a smaller one leaves it. */
static void grows(void **state)
{
    (void)state;
    struct dtx_backend *b = open_backend("now");
    size_t before = left(b);
    reserve(b, 4 * KIB);
    reserve(b, 2 * KIB);
    assert_int_equal(before - left(b), 4 * KIB);
    reserve(b, 8 * KIB);
    assert_int_equal(before - left(b), 8 * KIB);
    unsigned char *p = take(b, 10);
    reserve(b, 16 * KIB);
    assert_int_equal(before - left(b), 8 * KIB);
    b->memory->free(b, p);
    reserve(b, 16 * KIB);
    assert_int_equal(before - left(b), 16 * KIB);
    dtx_backend_close(b);
}

enum { N = 1000 };

/* Room for one piece of N bytes, cut from again and again by a queue that works as late as it may. */
static struct dtx_backend *open_late(struct dtx_queue **queue)
{
    struct dtx_backend *b = open_backend("late");
    assert_int_equal(b->queues->create(b, queue), DTX_OK);
    reserve(b, dtx_piece_bytes(N));
    return b;
}

/* Fills a piece that must be zero, and gives it back while that is still to be done. */
static unsigned char *zero_then_ones(struct dtx_backend *b, struct dtx_queue *queue)
{
    unsigned char ones[N], got[N];
    unsigned char *p = take(b, N);
    memset(ones, 1, N);
    assert_int_equal(b->memory->copy_out(queue, got, p, N), DTX_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(got[i], 0);
    assert_int_equal(b->memory->copy_in(queue, p, ones, N), DTX_OK);
    b->memory->free(b, p);
    return p;
}

/* Memory that was used before is zero, and work of a queue that still writes into a piece when it is given back does
 * not write into the next owner's. */
static void reused(void **state)
{
    (void)state;
    struct dtx_queue *queue;
    struct dtx_backend *b = open_late(&queue);
    unsigned char *first = zero_then_ones(b, queue);
    for (int turn = 0; turn < 2; turn++)
        assert_ptr_equal(zero_then_ones(b, queue), first);
    b->queues->free(queue);
    dtx_backend_close(b);
}

/* Memory given back twice is left alone, and an error line says so. */
static void twice(void **state)
{
    (void)state;
    char text[512];
    struct dtx_backend *b = open_backend("now");
    reserve(b, 4 * ALIGN);
    unsigned char *p = take(b, 10), *other = take(b, 10);
    b->memory->free(b, p);
    int before = dup(STDERR_FILENO), file = open(".", O_TMPFILE | O_RDWR, 0600);
    assert_true(before >= 0 && file >= 0 && dup2(file, STDERR_FILENO) == STDERR_FILENO);
    b->memory->free(b, p);
    dup2(before, STDERR_FILENO);
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    close(file);
    close(before);
    if (!strstr(text, "is not allocated"))
        fail_msg("the report is '%s'", text);
    assert_int_equal(b->allocated_bytes, ALIGN);
    b->memory->free(b, other);
    dtx_backend_close(b);
}

/* Even what was forgotten goes back with the backend. */
static void closed(void **state)
{
    (void)state;
    struct dtx_backend *b = open_backend("now");
    size_t before = left(b);
    reserve(b, 4 * ALIGN);
    take(b, 2 * ALIGN);
    take(b, 4 * ALIGN);
    dtx_backend_close(b);
    b = open_backend("now");
    assert_int_equal(left(b), before);
    dtx_backend_close(b);
}

/* DTX_ARENA=0: each its own. */
static void switched_off(void **state)
{
    (void)state;
    setenv("DTX_ARENA", "0", 1);
    struct dtx_backend *b = open_backend("now");
    unsetenv("DTX_ARENA");
    size_t before = left(b);
    reserve(b, 4 * ALIGN);
    assert_int_equal(left(b), before);
    take(b, 100);
    assert_int_equal(before - left(b), 100);
    assert_int_equal(b->outside_bytes, 0);
    dtx_backend_close(b);
}

/* What the device has not is refused, with figures; the backend goes on without. */
static void refused(void **state)
{
    (void)state;
    void *p;
    struct dtx_backend *b = open_backend("now");
    setenv("DTX_EMU_MEMORY", "10000", 1);
    reserve(b, 4 * KIB);
    assert_int_equal(b->memory->reserve(b, 12 * KIB), DTX_E_MEMORY);
    if (!strstr(ctx.error.text, "12288 bytes cannot be allocated beside the 0 in use"))
        fail_msg("the report is '%s'", ctx.error.text);
    dtx_error_clear(&ctx);
    take(b, 9 * KIB);
    assert_int_equal(b->memory->alloc(b, KIB, &p), DTX_E_MEMORY);
    assert_non_null(strstr(ctx.error.text, "1024 bytes cannot be allocated beside the 9216 in use"));
    unsetenv("DTX_EMU_MEMORY");
    dtx_backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces), cmocka_unit_test(grows),        cmocka_unit_test(reused), cmocka_unit_test(twice),
        cmocka_unit_test(closed), cmocka_unit_test(switched_off), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
