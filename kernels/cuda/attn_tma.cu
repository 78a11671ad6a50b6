/*
 * The forward kernel of sm_90a: a warp group starts tile loads of k and v, two others multiply (wgmma). As in
 * attn_mma_fwd.h each of the two works for one map on the same 64 rows, or with one map on 64 rows of its own.
 */
#include "kernels/cuda/attn_mma_fwd.h"
#include "kernels/cuda/attn_tma.h"

enum { THREADS = 384, KEYS = 64, KEY_PANEL_BYTES = KEYS * 128 };

template <int D, int MAPS> struct attn_tma_plan : attn_width<D, MAPS> {
    typedef attn_width<D, MAPS> base;
    enum {
        PANELS = base::WIDTH / 64,
        STAGES = PANELS > 2 ? 3 : 4,
        ROW_PANEL_BYTES = base::ROWS * 128,
        Q_BYTES = PANELS * ROW_PANEL_BYTES,
        STAGE_BYTES = PANELS * KEY_PANEL_BYTES, /* of k, and of v */
        SHARED_BYTES = Q_BYTES + STAGES * 2 * STAGE_BYTES + (1 + 4 * STAGES) * 8
    };
};

/* Barriers in shared memory: k and v of each stage loaded, and free again. */
template <int STAGES> struct attn_tma_barriers {
    uint64_t q, k_full[STAGES], v_full[STAGES], k_free[STAGES], v_free[STAGES];
};

template <int PANELS>
DTX_FN void load_panels(unsigned char *to, int panel_bytes, const dtx_tile_map *map, uint64_t *barrier, int head,
                        int row, int b)
{
    dtx_arrive_expecting(barrier, PANELS * panel_bytes);
    for (int x = 0; x < PANELS; x++)
        dtx_tile_load(to + x * panel_bytes, map, barrier, x * 64, head, row, b);
}

template <int D, int MAPS>
DTX_KERNEL(THREADS, 1)
attn_tma_kernel(DTX_ARGUMENT(attn_job) p, DTX_ARGUMENT(dtx_tile_map) q_map, DTX_ARGUMENT(dtx_tile_map) k_map,
                DTX_ARGUMENT(dtx_tile_map) v_map)
{
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef attn_tma_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, ROWS = plan::ROWS, PANELS = plan::PANELS, STAGES = plan::STAGES;
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(int, scratch, 32);
    unsigned char *tile_q = memory, *tiles_k = tile_q + plan::Q_BYTES, *tiles_v = tiles_k + STAGES * plan::STAGE_BYTES;
    auto *bar = (attn_tma_barriers<STAGES> *)(tiles_v + STAGES * plan::STAGE_BYTES);
    const int tid = (int)threadIdx.x, lane = tid & 31, member = tid >> 7; /* 0 loads, 1 and 2 multiply */
    const int i0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    const int head = (int)blockIdx.y, b = (int)blockIdx.z, kv_head = head / (p.heads / p.kv_heads);

    int first = 0, last = attn_last_key(p, i0 + ROWS - 1 < p.tq ? i0 + ROWS - 1 : p.tq - 1);
    if (p.doc_start)
        first = -dtx_block_max(i0 + tid < p.tq && tid < ROWS ? -attn_first_key(p, b, i0 + tid) : -p.tk, scratch);
    const int begin = first / KEYS, n = last < first ? 0 : last / KEYS + 1 - begin;
    if (tid == 0) {
        dtx_arrival_init(&bar->q, 1);
        for (int s = 0; s < STAGES; s++) {
            dtx_arrival_init(&bar->k_full[s], 1);
            dtx_arrival_init(&bar->v_full[s], 1);
            dtx_arrival_init(&bar->k_free[s], 256);
            dtx_arrival_init(&bar->v_free[s], 256);
        }
        dtx_arrival_init_done();
    }
    dtx_block_sync();
    if (member == 0) {
        dtx_registers_give<24>();
        if (tid == 0) {
            load_panels<PANELS>(tile_q, plan::ROW_PANEL_BYTES, &q_map, &bar->q, head, i0, b);
            for (int x = 0; x < n; x++) {
                const int s = x % STAGES, round = x / STAGES, j0 = (begin + x) * KEYS;
                if (round > 0)
                    dtx_arrival_wait(&bar->k_free[s], (round - 1) & 1);
                load_panels<PANELS>(tiles_k + s * plan::STAGE_BYTES, KEY_PANEL_BYTES, &k_map, &bar->k_full[s], kv_head,
                                    j0, b);
                if (round > 0)
                    dtx_arrival_wait(&bar->v_free[s], (round - 1) & 1);
                load_panels<PANELS>(tiles_v + s * plan::STAGE_BYTES, KEY_PANEL_BYTES, &v_map, &bar->v_full[s], kv_head,
                                    j0, b);
            }
        }
        return;
    }
    dtx_registers_take<240>();
    const int map = MAPS == 2 ? member - 1 : 0, half = MAPS == 2 ? 0 : member - 1; /* half: of the block's rows */
    const int row = i0 + half * 64 + (tid >> 5 & 3) * 16 + (lane >> 2);
    const int lowest[2] = {attn_first_key(p, b, row), attn_first_key(p, b, row + 8)};
    const float scale = (float)p.scale * ATTN_LOG2E;
    const unsigned char *my_q = tile_q + map * (D / 64) * plan::ROW_PANEL_BYTES + half * 64 * 128;
    float o[WIDTH / 8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
    attn_clear(o);
    dtx_arrival_wait(&bar->q, 0);
    for (int x = 0; x < n; x++) {
        const int s = x % STAGES, parity = x / STAGES & 1, j0 = (begin + x) * KEYS;
        const unsigned char *tile_k = tiles_k + s * plan::STAGE_BYTES + map * (D / 64) * KEY_PANEL_BYTES;
        const unsigned char *tile_v = tiles_v + s * plan::STAGE_BYTES;
        float score[KEYS / 8][4], keep[2];
        dtx_arrival_wait(&bar->k_full[s], parity);
        attn_clear(score);
        dtx_group_mma_begin(score);
        DTX_UNROLL for (int k = 0; k < D / 16; k++)
            dtx_group_mma_rows(score, dtx_panel(my_q + k / 4 * plan::ROW_PANEL_BYTES + k % 4 * 32),
                               dtx_panel(tile_k + k / 4 * KEY_PANEL_BYTES + k % 4 * 32), true);
        dtx_group_mma_commit();
        if (!DTX_MUTANT(cuda_attn_products_unwaited))
            dtx_group_mma_wait<0>(score);
        dtx_arrive(&bar->k_free[s]);
        if (p.doc_start || j0 + KEYS > p.tk || j0 + KEYS - 1 > i0 + half * 64 + p.shift)
            attn_mask<KEYS>(p, score, j0, row, lowest);
        attn_softmax_step<KEYS>(score, max, sum, keep, scale);
        DTX_UNROLL for (int c = 0; c < WIDTH / 8; c++)
        {
            DTX_UNROLL for (int e = 0; e < 4; e++) o[c][e] *= keep[e / 2];
        }
        uint32_t operand[KEYS / 16][4];
        attn_to_operand<KEYS>(operand, score);
        dtx_arrival_wait(&bar->v_full[s], parity);
        dtx_group_mma_begin(o);
        DTX_UNROLL for (int k = 0; k < KEYS / 16; k++)
            dtx_group_mma_columns(o, operand[k], dtx_panel(tile_v + k * 2048, KEY_PANEL_BYTES));
        dtx_group_mma_commit();
        dtx_group_mma_wait<0>(o);
        dtx_arrive(&bar->v_free[s]);
    }
    attn_fwd_finish<D, MAPS>(p, o, max, sum, b, head, map, row, (float *)memory);
#endif
}

template <int D, int MAPS> int DTX_DEVICE(attn_tma)<D, MAPS>::fwd(void *stream, const attn_job &job)
{
    typedef attn_tma_plan<D, MAPS> plan;
    dtx_tile_map q, k, v;
    int code = attn_tile_map(&q, job.q, plan::WIDTH, job.heads, job.tq, job.b, plan::ROWS);
    if (!code)
        code = attn_tile_map(&k, job.k, plan::WIDTH, job.kv_heads, job.tk, job.b, KEYS);
    if (!code)
        code = attn_tile_map(&v, job.v, plan::WIDTH, job.kv_heads, job.tk, job.b, KEYS);
    if (code)
        return code;
    dim3 grid((unsigned)((job.tq + plan::ROWS - 1) / plan::ROWS), (unsigned)job.heads, (unsigned)job.b);
    return dtx_launch(stream, attn_tma_kernel<D, MAPS>, grid, THREADS, plan::SHARED_BYTES, job, q, k, v);
}

template int DTX_DEVICE(attn_tma)<64, 1>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 1>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<64, 2>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 2>::fwd(void *stream, const attn_job &job);
