/* test: label=unit timeout=60 */
/* Pieces of an arena: aligned, never over one another, at the first place that fits; what is given back is one with its
 * neighbours; an arena that is full says so, and what is given back twice is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/arena.h"
#include "kernels/base/rng.h"

enum { ALIGN = DTX_PIECE_ALIGN };

static size_t cut(struct dtx_arena *a, size_t bytes)
{
    struct dtx_ctx ctx;
    size_t first;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_arena_cut(&ctx, a, bytes, &first), DTX_OK);
    return first;
}

static void piece_bytes(void **state)
{
    (void)state;
    assert_int_equal(dtx_piece_bytes(0), ALIGN);
    assert_int_equal(dtx_piece_bytes(1), ALIGN);
    assert_int_equal(dtx_piece_bytes(ALIGN), ALIGN);
    assert_int_equal(dtx_piece_bytes(ALIGN + 1), 2 * ALIGN);
    assert_int_equal(dtx_piece_bytes(((size_t)1 << 40) - 1), (size_t)1 << 40);
}

/* An arena of as many bytes as its pieces take holds them all, and not one more. */
static void fills(void **state)
{
    (void)state;
    static const size_t bytes[] = {1, 0, 256, 257, 4096, 1000};
    struct dtx_arena a = {0};
    size_t at = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        a.bytes += dtx_piece_bytes(bytes[i]);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        assert_int_equal(cut(&a, bytes[i]), at);
        at += dtx_piece_bytes(bytes[i]);
    }
    assert_true(cut(&a, 1) == DTX_ARENA_FULL);
    assert_true(cut(&a, 0) == DTX_ARENA_FULL);
    dtx_arena_free(&a);
}

static void no_room(void **state)
{
    (void)state;
    struct dtx_arena none = {0}, small = {.bytes = 4 * ALIGN};
    assert_true(cut(&none, 0) == DTX_ARENA_FULL);
    assert_true(cut(&small, 4 * ALIGN + 1) == DTX_ARENA_FULL);
    assert_true(cut(&small, SIZE_MAX) == DTX_ARENA_FULL);
    assert_true(cut(&small, SIZE_MAX - ALIGN + 2) == DTX_ARENA_FULL);
    assert_int_equal(cut(&small, 4 * ALIGN), 0);
    assert_true(dtx_arena_join(&small, 0));
    dtx_arena_free(&small);
}

/* Three neighbours given back in every order are one piece again. */
static void joins(void **state)
{
    (void)state;
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        struct dtx_arena a = {.bytes = 8 * ALIGN};
        size_t front = cut(&a, ALIGN), middle[3];
        for (int i = 0; i < 3; i++)
            middle[i] = cut(&a, 2 * ALIGN);
        size_t back = cut(&a, 1);
        assert_int_equal(back, 7 * ALIGN);
        for (int i = 0; i < 3; i++) {
            assert_true(cut(&a, 6 * ALIGN) == DTX_ARENA_FULL);
            assert_true(dtx_arena_join(&a, middle[orders[o][i]]));
            assert_false(dtx_arena_join(&a, middle[orders[o][i]])); /* a second time */
        }
        assert_int_equal(cut(&a, 6 * ALIGN), ALIGN);
        assert_true(dtx_arena_join(&a, front) && dtx_arena_join(&a, back));
        assert_false(dtx_arena_join(&a, 2 * ALIGN)); /* within a piece */
        dtx_arena_free(&a);
    }
}

/* The first place that fits, not the first that is free. */
static void first_fit(void **state)
{
    (void)state;
    struct dtx_arena a = {.bytes = 16 * ALIGN};
    size_t small = cut(&a, 2 * ALIGN);
    cut(&a, ALIGN);
    size_t large = cut(&a, 4 * ALIGN);
    cut(&a, ALIGN);
    assert_true(dtx_arena_join(&a, small) && dtx_arena_join(&a, large));
    assert_int_equal(cut(&a, 3 * ALIGN), large);
    assert_int_equal(cut(&a, 2 * ALIGN), small);
    assert_int_equal(cut(&a, 1), large + 3 * ALIGN);
    dtx_arena_free(&a);
}

/* At random, against a map of who has which unit. */
static void random_pieces(void **state)
{
    enum { UNITS = 96, PIECES = 200, TURNS = 20000 };
    (void)state;
    struct dtx_arena a = {.bytes = UNITS * ALIGN};
    const uint64_t key = dtx_rng_key(7, "arena");
    int owner[UNITS] = {0}; /* 0: free */
    size_t first[PIECES + 1], units[PIECES + 1];
    memset(first, 0xff, sizeof first);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        int k = 1 + (int)(dtx_rng_uniform(key, 2 * turn) * PIECES);
        if (first[k] != DTX_ARENA_FULL) {
            assert_true(dtx_arena_join(&a, first[k]));
            for (size_t u = 0; u < units[k]; u++)
                owner[first[k] / ALIGN + u] = 0;
            first[k] = DTX_ARENA_FULL;
            continue;
        }
        size_t bytes = (size_t)(dtx_rng_uniform(key, 2 * turn + 1) * 12 * ALIGN), at = 0, run = 0;
        units[k] = dtx_piece_bytes(bytes) / ALIGN;
        for (; at < UNITS && run < units[k]; at++)
            run = owner[at] ? 0 : run + 1;
        first[k] = cut(&a, bytes);
        assert_true(first[k] == (run == units[k] ? (at - run) * ALIGN : DTX_ARENA_FULL));
        for (size_t u = 0; u < units[k] && first[k] != DTX_ARENA_FULL; u++)
            owner[first[k] / ALIGN + u] = k;
    }
    dtx_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(piece_bytes), cmocka_unit_test(fills),
                                       cmocka_unit_test(no_room),     cmocka_unit_test(joins),
                                       cmocka_unit_test(first_fit),   cmocka_unit_test(random_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
