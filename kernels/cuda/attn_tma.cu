/*
 * The forward kernel of sm_90a: a warp group starts tile loads of k and v, two others multiply (wgmma). As in
 * attn_mma_fwd.h each of the two works for one map on the same 64 rows, or with one map on 64 rows of its own.
 */
#include "kernels/cuda/attn_mma_fwd.h"
#include "kernels/cuda/attn_tma.h"

template <int D, int MAPS> struct fwd_plan : attn_width<D, MAPS> {
    typedef attn_width<D, MAPS> base;
    enum {
        PANELS = base::WIDTH / 64,
        KEYS = PANELS > 2 ? 64 : 128, /* of a tile: as many as registers hold scores of */
        KEY_PANEL = KEYS * 128,
        STAGES = 3,
        ROW_PANEL = base::ROWS * 128,
        Q_BYTES = PANELS * ROW_PANEL,
        STAGE_BYTES = PANELS * KEY_PANEL, /* of k, and of v */
        SHARED_BYTES = Q_BYTES + STAGES * 2 * STAGE_BYTES + (1 + 4 * STAGES) * 8
    };
};

template <int D, int MAPS>
DTX_KERNEL(ATTN_TMA_THREADS, 1)
attn_tma_kernel(DTX_ARGUMENT(attn_job) p, DTX_ARGUMENT(dtx_tile_map) q_map, DTX_ARGUMENT(dtx_tile_map) k_map,
                DTX_ARGUMENT(dtx_tile_map) v_map)
{
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef fwd_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, ROWS = plan::ROWS, PANELS = plan::PANELS, STAGES = plan::STAGES;
    constexpr int KEYS = plan::KEYS, KEY_PANEL = plan::KEY_PANEL;
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(int, scratch, 32);
    unsigned char *tile_q = memory, *tiles_k = tile_q + plan::Q_BYTES, *tiles_v = tiles_k + STAGES * plan::STAGE_BYTES;
    uint64_t *q_full = (uint64_t *)(tiles_v + STAGES * plan::STAGE_BYTES);
    auto *ring_k = (attn_ring<STAGES> *)(q_full + 1), *ring_v = ring_k + 1;
    const int tid = (int)threadIdx.x, lane = tid & 31, member = tid >> 7; /* 0 loads, 1 and 2 multiply */
    const int i0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    const int head = (int)blockIdx.y, b = (int)blockIdx.z, kv_head = head / (p.heads / p.kv_heads);

    const attn_tiles seen = attn_tiles_seen<ROWS, KEYS>(p, b, i0, scratch);
    const int begin = seen.begin, n = seen.end - begin;
    if (tid == 0) {
        dtx_arrival_init(q_full, 1);
        attn_ring_init(ring_k, 1);
        attn_ring_init(ring_v, 1);
        dtx_arrival_init_done();
    }
    dtx_block_sync();
    if (member == 0) {
        dtx_registers_give<24>();
        if (tid == 0) {
            dtx_arrive_expecting(q_full, plan::Q_BYTES);
            attn_tile_load<PANELS>(tile_q, plan::ROW_PANEL, &q_map, q_full, head, i0, b);
            for (int x = 0; x < n; x++) {
                const int s = x % STAGES, j0 = (begin + x) * KEYS;
                attn_ring_claim(ring_k, x);
                dtx_arrive_expecting(&ring_k->full[s], plan::STAGE_BYTES);
                attn_tile_load<PANELS>(tiles_k + s * plan::STAGE_BYTES, KEY_PANEL, &k_map, &ring_k->full[s], kv_head,
                                       j0, b);
                attn_ring_claim(ring_v, x);
                dtx_arrive_expecting(&ring_v->full[s], plan::STAGE_BYTES);
                attn_tile_load<PANELS>(tiles_v + s * plan::STAGE_BYTES, KEY_PANEL, &v_map, &ring_v->full[s], kv_head,
                                       j0, b);
            }
        }
        return;
    }
    dtx_registers_take<240>();
    const int map = MAPS == 2 ? member - 1 : 0, half = MAPS == 2 ? 0 : member - 1; /* half: of the block's rows */
    const int row0 = i0 + half * 64, row = row0 + (tid >> 5 & 3) * 16 + (lane >> 2);
    const int lowest[2] = {attn_first_key(p, b, row), attn_first_key(p, b, row + 8)};
    const float scale = (float)p.scale * ATTN_LOG2E;
    const unsigned char *my_q = tile_q + map * (D / 64) * plan::ROW_PANEL + half * 64 * 128;
    float o[WIDTH / 8][4], score[KEYS / 8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, keep[2];
    uint32_t operand[KEYS / 16][4]; /* probabilities of the tile before */
    attn_clear(o);
    dtx_arrival_wait(q_full, 0);
    auto start_scores = [&](int x) {
        attn_ring_wait(ring_k, x);
        attn_tma_rows<D>(score, my_q, plan::ROW_PANEL,
                         tiles_k + x % STAGES * plan::STAGE_BYTES + map * (D / 64) * KEY_PANEL, KEY_PANEL);
    };
    auto make_probabilities = [&](int x) {
        const int j0 = (begin + x) * KEYS;
        attn_ring_release(ring_k, x);
        if (p.doc_start || j0 + KEYS > p.tk || j0 + KEYS - 1 > row0 + p.shift)
            attn_mask<KEYS>(p, score, j0, row, lowest);
        attn_softmax_step<KEYS>(score, max, sum, keep, scale);
    };
    auto start_output = [&](int x) {
        attn_ring_wait(ring_v, x);
        attn_tma_columns(o, operand, tiles_v + x % STAGES * plan::STAGE_BYTES, KEY_PANEL);
    };
    if (n > 0) {
        start_scores(0);
        dtx_group_mma_wait<0>(score);
        make_probabilities(0);
        attn_to_operand<KEYS>(operand, score);
        /* While a tile's probabilities are made, those of the tile before are multiplied with v. */
        for (int x = 1; x < n; x++) {
            start_scores(x);
            start_output(x - 1);
            if (!DTX_MUTANT(cuda_attn_products_unwaited))
                dtx_group_mma_wait<1>(score);
            make_probabilities(x);
            if (DTX_MUTANT(cuda_attn_operand_early))
                attn_to_operand<KEYS>(operand, score);
            dtx_group_mma_wait<0>(o);
            attn_ring_release(ring_v, x - 1);
            DTX_UNROLL for (int c = 0; c < WIDTH / 8; c++)
            {
                DTX_UNROLL for (int e = 0; e < 4; e++) o[c][e] *= keep[e / 2];
            }
            attn_to_operand<KEYS>(operand, score);
        }
        start_output(n - 1);
        dtx_group_mma_wait<0>(o);
    }
    attn_fwd_finish<D, MAPS>(p, o, max, sum, b, head, map, row, (float *)memory);
#endif
}

template <int D, int MAPS> int DTX_DEVICE(attn_tma)<D, MAPS>::fwd(void *stream, const attn_job &job)
{
    typedef fwd_plan<D, MAPS> plan;
    static_assert(plan::SHARED_BYTES + 1024 <= 227 * 1024);
    dtx_tile_map q, k, v;
    int code = attn_tile_map(&q, job.q, plan::WIDTH, job.heads, job.tq, job.b, plan::ROWS);
    if (!code)
        code = attn_tile_map(&k, job.k, plan::WIDTH, job.kv_heads, job.tk, job.b, plan::KEYS);
    if (!code)
        code = attn_tile_map(&v, job.v, plan::WIDTH, job.kv_heads, job.tk, job.b, plan::KEYS);
    if (code)
        return code;
    dim3 grid((unsigned)((job.tq + plan::ROWS - 1) / plan::ROWS), (unsigned)job.heads, (unsigned)job.b);
    return dtx_launch(stream, attn_tma_kernel<D, MAPS>, grid, ATTN_TMA_THREADS, plan::SHARED_BYTES, job, q, k, v);
}

template int DTX_DEVICE(attn_tma)<64, 1>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 1>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<64, 2>::fwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 2>::fwd(void *stream, const attn_job &job);
