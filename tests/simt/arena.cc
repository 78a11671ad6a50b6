/* test: label=unit timeout=60 */
/* Pieces of one arena in the emulator: a kernel that reads or writes beside its own is found, though a neighbour lies
 * there on a device; the neighbour keeps what it has; and a piece cut anew holds nothing of what was there. */
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

#include "kernels/device/block.h"
#include "kernels/device/launch.h"
#include "kernels/device/copy.h"

enum { N = 64, BYTES = N * sizeof(float), ROOM = 3 * BYTES };

struct job {
    const float *in;
    float *out;
    int shift;
    bool copied;
};

/* out[i + shift] = in[i], or by asynchronous copies in[i + shift] to out[i]. */
DTX_KERNEL(64, 1) shifted(DTX_ARGUMENT(job) p)
{
    DTX_SHARED_DYNAMIC(memory);
    float *tile = (float *)memory;
    int i = (int)threadIdx.x;
    if (p.copied && i < N / 4)
        dtx_copy_16(tile + 4 * i, p.in + 4 * i + p.shift, true);
    dtx_copy_commit();
    dtx_copy_wait<0>();
    dtx_block_sync();
    if (p.copied)
        p.out[i] = tile[i];
    else
        p.out[i + p.shift] = p.in[i];
}

struct three {
    void *arena;
    float *piece[3];
};

static three open_three()
{
    dtx_simt_settings settings = {};
    settings.architecture = 80;
    dtx_simt_set(&settings);
    dtx_simt_fault_clear();
    three t = {dtx_simt_arena(ROOM), {}};
    for (int k = 0; k < 3; k++) {
        t.piece[k] = (float *)dtx_simt_cut(t.arena, k * BYTES, BYTES);
        assert_int_equal((uintptr_t)t.piece[k] % 256, 0);
    }
    return t;
}

static void close_three(three *t)
{
    for (float *p : t->piece)
        dtx_simt_join(p);
    dtx_simt_arena_free(t->arena, ROOM);
}

static int run(const job &j)
{
    return dtx_launch(nullptr, shifted, 1, N, BYTES, j);
}

static void within(void **)
{
    three t = open_three();
    for (int i = 0; i < N; i++)
        t.piece[0][i] = (float)i;
    for (bool copied : {false, true}) {
        assert_int_equal(run({t.piece[0], t.piece[1], 0, copied}), 0);
        assert_memory_equal(t.piece[0], t.piece[1], BYTES);
    }
    close_three(&t);
}

/* A quarter of a piece too far, to either side. */
static void beside(void **)
{
    const int quarter = N / 4;
    for (int shift : {-quarter, quarter}) {
        three t = open_three();
        for (float *p : t.piece)
            memset(p, 0, BYTES);
        assert_int_equal(run({t.piece[1], t.piece[0], shift, true}), DTX_SIMT_FAULT);
        if (!strstr(dtx_simt_fault_text(), "outside shared and device memory"))
            fail_msg("shift %d: '%s'", shift, dtx_simt_fault_text());
        close_three(&t);
#if !defined(__SANITIZE_ADDRESS__)
        t = open_three();
        for (float *p : t.piece)
            memset(p, 0, BYTES);
        for (int i = 0; i < N; i++)
            t.piece[0][i] = 1;
        assert_int_equal(run({t.piece[0], t.piece[1], shift, false}), DTX_SIMT_FAULT);
        if (!strstr(dtx_simt_fault_text(), "of an allocation of 256 bytes was written"))
            fail_msg("shift %d: '%s'", shift, dtx_simt_fault_text());
        for (int i = 0; i < N; i++)
            if (t.piece[2][i] != 0 || t.piece[0][i] != 1)
                fail_msg("shift %d: a neighbour was written", shift);
        memset((char *)t.piece[1] - 256, 0xFB, 256);
        memset((char *)t.piece[1] + BYTES, 0xFB, 256);
        close_three(&t);
#endif
    }
}

/* Without the check, what is read beside a piece is not the neighbour's either. */
static void plain_read(void **)
{
#if !defined(__SANITIZE_ADDRESS__)
    three t = open_three();
    for (float *p : t.piece)
        memset(p, 0, BYTES);
    assert_int_equal(run({t.piece[0] + N / 4, t.piece[2], 0, false}), 0);
    for (int i = N - N / 4; i < N; i++)
        assert_true(t.piece[2][i] < -1e30f);
    close_three(&t);
#endif
}

static void cut_again(void **)
{
    three t = open_three();
    for (int k : {0, 1})
        for (int i = 0; i < N; i++)
            t.piece[k][i] = 1;
    dtx_simt_join(t.piece[0]);
    dtx_simt_join(t.piece[1]);
    t.piece[0] = (float *)dtx_simt_cut(t.arena, 0, 2 * BYTES);
    for (int i = 0; i < 2 * N; i++)
        assert_true(t.piece[0][i] != t.piece[0][i]);
    t.piece[1] = t.piece[0];
    assert_int_equal(run({t.piece[0] + N, t.piece[2], 0, true}), 0); /* one piece, not two */
    dtx_simt_join(t.piece[0]);
    dtx_simt_join(t.piece[2]);
    dtx_simt_arena_free(t.arena, ROOM);
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(within), cmocka_unit_test(beside), cmocka_unit_test(plain_read),
                                       cmocka_unit_test(cut_again)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
