/* test: label=unit timeout=60 */
/* The emulator finds planted faults and says where; and it runs what is right. */
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "kernels/device/block.h"
#include "kernels/device/launch.h"
#include "kernels/device/mma.h"

enum fault {
    NONE,
    NO_BARRIER,
    BARRIER_IN_BRANCH,
    TWO_BARRIERS,
    HALF_A_WARP,
    TWO_COLLECTIVES,
    WAIT_TOO_SHORT,
    NO_WAIT_AT_END,
    COPY_OUTSIDE,
    COPY_MISALIGNED,
    WRITE_BEHIND,
    SHARED_BEHIND,
    SHARED_UNSET,
    READ_UNDER_COPY,
    FAULTS
};

struct job {
    const float *in;
    float *out;
    int fault, n;
};

/* out[i] = in[i] + in[mirror of i in the block] + sum of the block: with copies, barriers and shuffles. */
DTX_KERNEL(64, 1) mirror(DTX_ARGUMENT(job) p)
{
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(float, scratch, 32);
    float *tile = (float *)memory, *spare = tile + 64;
    int i = (int)threadIdx.x, first = (int)blockIdx.x * 64;
    int shift = p.fault == COPY_OUTSIDE && blockIdx.x + 1 == gridDim.x ? 4 : 0;
    if (i < 16)
        dtx_copy_16(tile + 4 * i, p.in + first + 4 * i + shift + (p.fault == COPY_MISALIGNED), true);
    dtx_copy_commit();
    if (i < 16)
        dtx_copy_16(spare + 4 * i, p.in + first + 4 * i, false);
    dtx_copy_commit();
    if (p.fault == WAIT_TOO_SHORT)
        dtx_copy_wait<2>();
    else
        dtx_copy_wait<1>();
    if (p.fault == BARRIER_IN_BRANCH) {
        if (i < 40)
            dtx_block_sync();
        else
            dtx_block_sync();
    } else if (p.fault != NO_BARRIER) {
        dtx_block_sync();
    }
    float mine = tile[i], other = tile[63 - i];
    if (p.fault == HALF_A_WARP && i < 16)
        mine += dtx_warp_sum(mine);
    if (p.fault == TWO_COLLECTIVES)
        mine += i & 1 ? dtx_warp_swap(mine, 1) : dtx_warp_take(mine, 0);
    if (p.fault == TWO_BARRIERS && i >= 32)
        dtx_block_sync();
    if (p.fault == SHARED_BEHIND)
        tile[128] = mine;
    if (p.fault == SHARED_UNSET && blockIdx.x > 0)
        other += 0.f * scratch[i % 2]; /* what the last block left there is no NaN */
    float sum = dtx_block_sum(mine, scratch);
    if (p.fault == READ_UNDER_COPY && i < 16) {
        dtx_copy_16(tile + 4 * i, p.in + first + 4 * i, true);
        sum += 0.f * tile[4 * i]; /* its old value is no NaN */
    }
    dtx_copy_commit();
    if (p.fault != NO_WAIT_AT_END)
        dtx_copy_wait<0>();
    dtx_block_sync();
    p.out[first + i + (p.fault == WRITE_BEHIND ? 64 : 0)] = mine + other + sum + spare[i];
}

struct outcome {
    int code;
    bool right;
    const char *text;
};

static outcome run(int fault, dtx_simt_order order)
{
    enum { N = 192 };
    dtx_simt_settings settings = {};
    settings.order = order;
    settings.seed = 3;
    settings.architecture = 80;
    dtx_simt_set(&settings);
    float *in = (float *)dtx_simt_alloc(N * sizeof(float)), *out = (float *)dtx_simt_alloc(N * sizeof(float));
    for (int i = 0; i < N; i++)
        in[i] = (float)(i * i % 101);
    int code = dtx_launch(nullptr, mirror, N / 64, 64, 128 * sizeof(float), job{in, out, fault, N});
    bool right = true;
    for (int b = 0; b < N; b += 64) {
        float sum = 0;
        for (int i = 0; i < 64; i++)
            sum += in[b + i];
        for (int i = 0; i < 64; i++)
            right = right && out[b + i] == in[b + i] + in[b + 63 - i] + sum;
    }
    if (fault == WRITE_BEHIND && code) /* the guard holds what was written: give it back whole */
        memset(out + N, 0xFB, 64 * sizeof(float));
    dtx_simt_free(in);
    dtx_simt_free(out);
    return {code, right, dtx_simt_fault_text()};
}

static const dtx_simt_order orders[] = {DTX_SIMT_FIFO, DTX_SIMT_LIFO, DTX_SIMT_RANDOM};

static void right_kernel(void **)
{
    for (dtx_simt_order order : orders) {
        outcome o = run(NONE, order);
        if (o.code || !o.right)
            fail_msg("order %d: code %d, %s: %s", order, o.code, o.right ? "right" : "wrong", o.text);
    }
}

/* Faults that every order reports, with words of the report. */
static void reported(void **)
{
    const struct {
        int fault;
        const char *words[2];
    } list[] = {
        {BARRIER_IN_BRANCH, {"block barrier while others wait", "faults.cc"}},
        {TWO_BARRIERS, {"block barrier", "faults.cc"}},
        {HALF_A_WARP, {"shuffle", "faults.cc"}},
        {TWO_COLLECTIVES, {"lane", "faults.cc"}},
        {NO_WAIT_AT_END, {"asynchronous copies under way", ""}},
        {COPY_OUTSIDE, {"outside shared and device memory", "faults.cc"}},
        {COPY_MISALIGNED, {"not a multiple of 16", "faults.cc"}},
#if !defined(__SANITIZE_ADDRESS__)
        {WRITE_BEHIND, {"byte 768 of an allocation of 768 bytes", ""}},
        {SHARED_BEHIND, {"byte 512 of 512 bytes of shared memory", ""}},
#endif
    };
    for (const auto &f : list)
        for (dtx_simt_order order : orders) {
            outcome o = run(f.fault, order);
            if (o.code != DTX_SIMT_FAULT || !strstr(o.text, f.words[0]) || !strstr(o.text, f.words[1]))
                fail_msg("fault %d, order %d: code %d, '%s' without '%s' or '%s'", f.fault, order, o.code, o.text,
                         f.words[0], f.words[1]);
        }
}

/* Faults that show as wrong results: in every order, or in at least one. */
static void wrong_results(void **)
{
    for (dtx_simt_order order : orders) {
        assert_false(run(WAIT_TOO_SHORT, order).right);
        assert_false(run(SHARED_UNSET, order).right);
        assert_false(run(READ_UNDER_COPY, order).right);
    }
    int wrong = 0;
    for (dtx_simt_order order : orders)
        wrong += !run(NO_BARRIER, order).right;
    assert_true(wrong > 0);
}

/* Tensor-core fragments: a product of small whole numbers, exact; operands by both matrix loads. */
DTX_KERNEL(32, 1) product(const dtx_bf16 *a, const dtx_bf16 *b, float *c)
{
    DTX_SHARED(uint32_t, memory, 256);
    dtx_bf16 *sa = (dtx_bf16 *)memory, *sb = sa + 256; /* a [16,16], b [16,16] */
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 32; i += 32)
        dtx_copy_16(sa + 8 * i, a + 8 * i, true), dtx_copy_16(sb + 8 * i, b + 8 * i, true);
    dtx_copy_commit();
    dtx_copy_wait<0>();
    dtx_block_sync();
    uint32_t fa[4], fb[4];
    dtx_matrix_load(fa, sa + lane % 16 * 16 + lane / 16 * 8);
    dtx_matrix_load_transposed(fb, sb + lane % 16 * 16 + lane / 16 * 8);
    for (int half = 0; half < 2; half++) {
        float sum[4] = {0, 0, 0, 0};
        dtx_mma_bf16(sum, fa, fb[2 * half], fb[2 * half + 1]);
        for (int x = 0; x < 4; x++)
            c[(lane / 4 + x / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + x % 2] = sum[x];
    }
}

static void tensor_core(void **)
{
    dtx_bf16 *a = (dtx_bf16 *)dtx_simt_alloc(512), *b = (dtx_bf16 *)dtx_simt_alloc(512);
    float *c = (float *)dtx_simt_alloc(1024);
    for (int i = 0; i < 256; i++) {
        dtx_store(a + i, (float)(i * 7 % 13 - 6));
        dtx_store(b + i, (float)(i * 5 % 11 - 5));
    }
    if (dtx_launch(nullptr, product, 1, 32, 0, a, b, c))
        fail_msg("%s", dtx_simt_fault_text());
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += dtx_load(a + i * 16 + k) * dtx_load(b + k * 16 + j);
            assert_true(c[i * 16 + j] == sum);
        }
    dtx_simt_free(a);
    dtx_simt_free(b);
    dtx_simt_free(c);
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_kernel), cmocka_unit_test(reported),
                                       cmocka_unit_test(wrong_results), cmocka_unit_test(tensor_core)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
