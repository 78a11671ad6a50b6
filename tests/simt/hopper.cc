/* test: label=unit timeout=60 */
/* Planted faults with tile loads, arrival barriers and products of a group of threads: the emulator finds them. */
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

#include "kernels/device/block.h"
#include "kernels/device/hopper.h"
#include "kernels/device/launch.h"

enum fault {
    NONE,
    TILE_NOT_AWAITED,
    WRONG_PHASE,
    TOO_MANY_BYTES,
    ARRIVAL_TOO_MANY,
    PRODUCT_NOT_AWAITED,
    WAIT_TOO_SHORT,
    NO_WAIT_AT_END,
    OTHER_PRODUCT,
    PRODUCT_LEFT_OUT,
    OPERAND_OVERWRITTEN,
    REGISTERS_OVERWRITTEN,
    NO_FENCE,
    TILE_OUTSIDE
};
enum { N = 64, ROUNDS = 2, PANEL = N * 128, ORDERS = 3 };

struct job {
    float *out;
    int fault;
};

/* out [64,64] = Σ a·bᵀ over two pairs of tiles [64,64]. */
DTX_KERNEL(128, 1) tiles(DTX_ARGUMENT(job) p, DTX_ARGUMENT(dtx_tile_map) a_map, DTX_ARGUMENT(dtx_tile_map) b_map)
{
    DTX_SHARED_DYNAMIC(memory);
    unsigned char *a = memory, *b = memory + PANEL;
    uint64_t *full = (uint64_t *)(memory + 2 * PANEL);
    const int tid = (int)threadIdx.x, lane = tid % 32, row = tid / 32 * 16 + lane / 4;
    float sum[N / 8][4] = {};
    if (tid == 0)
        dtx_arrival_init(full, 1);
    dtx_arrival_init_done();
    dtx_block_sync();
    for (int round = 0; round < ROUNDS; round++) {
        if (tid == 0) {
            dtx_arrive_expecting(full, 2 * PANEL + (p.fault == TOO_MANY_BYTES ? 16 : 0));
            if (p.fault == ARRIVAL_TOO_MANY)
                dtx_arrive(full);
            dtx_tile_load(a + (p.fault == TILE_OUTSIDE ? 2 * PANEL : 0), &a_map, full, 0, 0, round * N, 0);
            dtx_tile_load(b, &b_map, full, 0, 0, round * N, 0);
        }
        if (p.fault != TILE_NOT_AWAITED)
            dtx_arrival_wait(full, p.fault == WRONG_PHASE ? 1 - round % 2 : round % 2);
        if (p.fault != NO_FENCE || round == 0)
            dtx_group_mma_begin(sum);
        for (int k = 0; k < N / 16 - (p.fault == PRODUCT_LEFT_OUT && tid == 77); k++)
            dtx_group_mma_rows(sum, dtx_panel(a + k * 32),
                               dtx_panel(b + (p.fault == OTHER_PRODUCT && tid == 77 ? 0 : k * 32)), true);
        uint32_t rows[4] = {};
        if (p.fault == REGISTERS_OVERWRITTEN)
            dtx_group_mma_columns(sum, rows, dtx_panel(b));
        dtx_group_mma_commit();
        rows[3] = tid == 77;
        if (p.fault == OPERAND_OVERWRITTEN && tid == 0)
            memset(a, 0, 128);
        if (p.fault == WAIT_TOO_SHORT)
            dtx_group_mma_wait<1>(sum);
        else if (p.fault != PRODUCT_NOT_AWAITED && (p.fault != NO_WAIT_AT_END || round == 0))
            dtx_group_mma_wait<0>(sum);
        dtx_block_sync();
    }
    for (int n = 0; n < N / 8; n++)
        for (int x = 0; x < 4; x++)
            p.out[(row + x / 2 * 8) * N + n * 8 + lane % 4 * 2 + x % 2] = sum[n][x];
    if (p.fault == PRODUCT_NOT_AWAITED || p.fault == WAIT_TOO_SHORT)
        dtx_group_mma_wait<0>(sum);
}

struct outcome {
    int code;
    bool right;
    const char *text;
};

static outcome run(int fault, dtx_simt_order order)
{
    dtx_simt_settings settings = {};
    settings.order = order;
    settings.seed = 5;
    settings.architecture = 90;
    dtx_simt_set(&settings);
    const size_t count = ROUNDS * N * N;
    dtx_bf16 *a = (dtx_bf16 *)dtx_simt_alloc(count * 2), *b = (dtx_bf16 *)dtx_simt_alloc(count * 2);
    float *out = (float *)dtx_simt_alloc(N * N * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        dtx_store(a + i, (float)(i * 7 % 13) - 6);
        dtx_store(b + i, (float)(i * 5 % 11) - 5);
    }
    const dtx_tile_map a_map = {a, {N, 1, ROUNDS * N, 1}, {1, N, N, (int64_t)count}, {N, 1, N, 1}};
    const dtx_tile_map b_map = {b, {N, 1, ROUNDS * N, 1}, {1, N, N, (int64_t)count}, {N, 1, N, 1}};
    int code = dtx_launch(nullptr, tiles, 1, 128, 2 * PANEL + 64, job{out, fault}, a_map, b_map);
    bool right = code == 0;
    for (int i = 0; i < N && right; i++)
        for (int j = 0; j < N && right; j++) {
            float sum = 0;
            for (int round = 0; round < ROUNDS; round++)
                for (int k = 0; k < N; k++)
                    sum += dtx_load(a + (round * N + i) * N + k) * dtx_load(b + (round * N + j) * N + k);
            right = out[i * N + j] == sum;
        }
    dtx_simt_free(a);
    dtx_simt_free(b);
    dtx_simt_free(out);
    return {code, right, dtx_simt_fault_text()};
}

static const dtx_simt_order orders[ORDERS] = {DTX_SIMT_FIFO, DTX_SIMT_LIFO, DTX_SIMT_RANDOM};

static void right_kernel(void **)
{
    for (dtx_simt_order order : orders) {
        outcome o = run(NONE, order);
        if (!o.right)
            fail_msg("order %d: code %d: %s", order, o.code, o.text);
    }
}

/* Faults that every order reports, with words of the report. */
static void reported(void **)
{
    const struct {
        int fault;
        const char *words;
    } list[] = {{TOO_MANY_BYTES, "wait in wait for arrivals at"},
                {ARRIVAL_TOO_MANY, "arrival at a barrier that expects none"},
                {NO_WAIT_AT_END, "products under way"},
                {PRODUCT_LEFT_OUT, "committed different numbers of products"},
                {REGISTERS_OVERWRITTEN, "registers of lane 77 changed"},
                {NO_FENCE, "product without a fence"},
                {OTHER_PRODUCT, "the threads of a group issue different products"},
                {TILE_OUTSIDE, "tile load of 8192 bytes outside"}};
    for (const auto &f : list)
        for (dtx_simt_order order : orders) {
            outcome o = run(f.fault, order);
            if (o.code != DTX_SIMT_FAULT || !strstr(o.text, f.words))
                fail_msg("fault %d, order %d: code %d, '%s' without '%s'", f.fault, order, o.code, o.text, f.words);
        }
}

/* Faults that show as wrong results: `least` orders of the three at least. */
static void wrong_results(void **)
{
    const struct {
        int fault, least;
    } list[] = {{TILE_NOT_AWAITED, 2},
                {WRONG_PHASE, 2},
                {PRODUCT_NOT_AWAITED, ORDERS},
                {WAIT_TOO_SHORT, ORDERS},
                {OPERAND_OVERWRITTEN, ORDERS}};
    for (const auto &f : list) {
        int wrong = 0;
        for (dtx_simt_order order : orders)
            wrong += !run(f.fault, order).right;
        if (wrong < f.least)
            fail_msg("fault %d: wrong in %d orders", f.fault, wrong);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_kernel), cmocka_unit_test(reported),
                                       cmocka_unit_test(wrong_results)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
