/* The forward kernel: group m makes o_m = softmax(q_m k_mᵀ) v over tiles of keys with a running maximum and sum. */
#ifndef DTX_KERNELS_CUDA_ATTN_MMA_FWD_H
#define DTX_KERNELS_CUDA_ATTN_MMA_FWD_H

#include "kernels/cuda/attn_mma.h"

template <int D, int MAPS> struct attn_fwd_plan : attn_width<D, MAPS> {
    typedef attn_width<D, MAPS> base;
    enum {
        KEYS = MAPS == 2 && D >= 64 ? 32 : 64,
        Q_ELEMENTS = base::ROWS * base::PITCH,
        KV_ELEMENTS = KEYS * base::PITCH,
        SHARED_BYTES = 2 * (Q_ELEMENTS + 2 * 2 * KV_ELEMENTS)
    };
};

/* Scores of a tile → probabilities relative to the running maximum; `max` and `sum` (of this lane) follow, and what was
 * summed before must be scaled by `keep`. Two rows a lane. */
template <int KEYS>
DTX_FN void attn_softmax_step(float (&s)[KEYS / 8][4], float (&max)[2], float (&sum)[2], float (&keep)[2], float scale)
{
    DTX_UNROLL for (int e = 0; e < 2; e++)
    {
        float tile = -INFINITY;
        DTX_UNROLL for (int n = 0; n < KEYS / 8; n++) tile = fmaxf(tile, fmaxf(s[n][2 * e], s[n][2 * e + 1]));
        float next = fmaxf(max[e], dtx_warp_max(tile, 4));
        float base = next == -INFINITY ? 0.f : next * scale, total = 0.f;
        keep[e] = max[e] == -INFINITY ? 0.f : dtx_exp2(max[e] * scale - base);
        DTX_UNROLL for (int n = 0; n < KEYS / 8; n++)
        {
            DTX_UNROLL for (int x = 2 * e; x < 2 * e + 2; x++)
            {
                s[n][x] = dtx_exp2(s[n][x] * scale - base);
                total += s[n][x];
            }
        }
        sum[e] = sum[e] * keep[e] + total;
        max[e] = next;
    }
}

/* Scores of keys that a row does not see become −∞. j0: the tile's first key; lowest: first visible key of both rows.
 */
template <int KEYS>
DTX_FN void attn_mask(const attn_job &p, float (&s)[KEYS / 8][4], int j0, int row, const int (&lowest)[2])
{
    const int column = (int)threadIdx.x % 4 * 2;
    DTX_UNROLL for (int n = 0; n < KEYS / 8; n++)
    {
        DTX_UNROLL for (int x = 0; x < 4; x++)
        {
            int j = j0 + n * 8 + column + x % 2;
            if (j > row + x / 2 * 8 + p.shift || j < lowest[x / 2] || j >= p.tk)
                s[n][x] = -INFINITY;
        }
    }
}

/* The norm of a lane's two rows of o, rounded as they are written. Four lanes have a row. */
template <int WIDTH>
DTX_FN void attn_fwd_norm(const attn_job &p, const float (&o)[WIDTH / 8][4], int b, int head, int row)
{
    const int lane = (int)threadIdx.x & 31, column = lane % 4 * 2;
    const float *gain = (const float *)p.norm.gain;
    DTX_UNROLL for (int e = 0; e < 2; e++)
    {
        float squares = 0.f;
        DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
        {
            const uint32_t pair = dtx_pack_bf16(o[n][2 * e], o[n][2 * e + 1]);
            squares += dtx_bf16_low(pair) * dtx_bf16_low(pair) + dtx_bf16_high(pair) * dtx_bf16_high(pair);
        }
        squares = dtx_warp_sum(squares, DTX_MUTANT(cuda_attn_norm_own_columns) ? 1 : 4);
        const float rstd = dtx_rsqrt(squares * (1.f / WIDTH) + (float)p.norm.eps);
        const float factor = rstd * (float)p.norm.out_scale;
        const int i = row + 8 * e;
        const int64_t at = ((int64_t)b * p.tq + i) * p.heads + head;
        if (i >= p.tq)
            continue;
        if (lane % 4 == 0)
            ((float *)p.norm.rstd)[at] = rstd;
        DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
        {
            const uint32_t pair = dtx_pack_bf16(o[n][2 * e], o[n][2 * e + 1]);
            const int c = n * 8 + column;
            attn_put(p.norm.y, at * WIDTH + c, dtx_bf16_low(pair) * factor * (gain ? gain[c] : 1.f),
                     dtx_bf16_high(pair) * factor * (gain ? gain[c + 1] : 1.f), false, false);
        }
    }
}

/* Sums of a lane's two rows → outputs and log-sum-exps. The 256 threads of both groups come here; group 1 hands its
 * output over lane by lane, so that no two lanes meet in a bank. shared: 128·WIDTH/2 floats that nobody uses any more.
 */
template <int D, int MAPS>
DTX_FN void attn_fwd_finish(const attn_job &p, float (&o)[D * MAPS / 8][4], const float (&max)[2], float (&sum)[2],
                            int b, int head, int map, int row, float *shared)
{
    constexpr int WIDTH = D * MAPS;
    const int lane = (int)threadIdx.x & 31, column = lane % 4 * 2;
    DTX_UNROLL for (int e = 0; e < 2; e++)
    {
        sum[e] = dtx_warp_sum(sum[e], 4);
        const float inverse = sum[e] == 0.f ? 0.f : 1.f / sum[e];
        DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
        {
            o[n][2 * e] *= inverse;
            o[n][2 * e + 1] *= inverse;
        }
        const int i = row + 8 * e;
        if (lane % 4 == 0 && i < p.tq)
            ((float *)p.lse)[((int64_t)b * p.heads * MAPS + head * MAPS + map) * p.tq + i] =
                sum[e] == 0.f ? -INFINITY : max[e] * (float)p.scale + logf(sum[e]);
    }
    if (MAPS == 2 && !p.parts) {
        float *other = shared + (threadIdx.x & 127);
        dtx_block_sync_some(1, 256);
        if (map == 1)
            DTX_UNROLL for (int x = 0; x < WIDTH / 2; x++) other[x * 128] = o[x / 4][x % 4];
        dtx_block_sync_some(1, 256);
        const float lambda = *(const float *)p.lambda;
        if (map == 0)
            DTX_UNROLL for (int x = 0; x < WIDTH / 2; x++) o[x / 4][x % 4] -= lambda * other[x * 128];
    }
    DTX_UNROLL for (int e = 0; e < 2; e++)
    {
        const int i = row + 8 * e;
        if (i < p.tq)
            DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
            {
                int64_t at = (((int64_t)b * p.tq + i) * p.heads + head) * WIDTH + n * 8 + column;
                attn_put(map == 1 ? p.o2 : p.o, at, o[n][2 * e], o[n][2 * e + 1], p.parts, false);
            }
    }
    if (p.norm.y && map == 0)
        attn_fwd_norm<WIDTH>(p, o, b, head, row);
}

template <int D, int MAPS> DTX_KERNEL(ATTN_THREADS, (D > 64 ? 1 : 2)) attn_fwd_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef attn_fwd_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, PITCH = plan::PITCH, ROWS = plan::ROWS, KEYS = plan::KEYS;
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(int, scratch, 32);
    dtx_bf16 *tile_q = (dtx_bf16 *)memory, *stages = tile_q + plan::Q_ELEMENTS; /* stage: k [KEYS], v [KEYS] */
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int map = MAPS == 2 ? warp >> 2 : 0, row0 = (MAPS == 2 ? warp & 3 : warp) * 16;
    const int i0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS; /* the longest rows first */
    const int head = (int)blockIdx.y, b = (int)blockIdx.z, kv_head = head / (p.heads / p.kv_heads);
    const int64_t q_stride = (int64_t)p.heads * WIDTH, kv_stride = (int64_t)p.kv_heads * WIDTH;
    const dtx_bf16 *q = (const dtx_bf16 *)p.q + b * p.tq * q_stride + (int64_t)head * WIDTH;
    const dtx_bf16 *k = (const dtx_bf16 *)p.k + b * p.tk * kv_stride + (int64_t)kv_head * WIDTH;
    const dtx_bf16 *v = (const dtx_bf16 *)p.v + b * p.tk * kv_stride + (int64_t)kv_head * WIDTH;

    const attn_tiles seen = attn_tiles_seen<ROWS, KEYS>(p, b, i0, scratch);

    auto load = [&](int tile) {
        dtx_bf16 *to = stages + (tile & 1) * 2 * plan::KV_ELEMENTS;
        attn_tile_copy<KEYS, WIDTH>(to, k, kv_stride, tile * KEYS, p.tk);
        attn_tile_copy<KEYS, WIDTH>(to + plan::KV_ELEMENTS, v, kv_stride, tile * KEYS, p.tk);
    };
    attn_tile_copy<ROWS, WIDTH>(tile_q, q, q_stride, i0, p.tq);
    if (seen.begin < seen.end)
        load(seen.begin);
    dtx_copy_commit();

    const float scale = (float)p.scale * ATTN_LOG2E;
    const int row = i0 + row0 + (lane >> 2);
    const int lowest[2] = {attn_first_key(p, b, row), attn_first_key(p, b, row + 8)};
    float o[WIDTH / 8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
    attn_clear(o);
    for (int tile = seen.begin; tile < seen.end; tile++) {
        if (tile + 1 < seen.end)
            load(tile + 1);
        dtx_copy_commit();
        if (DTX_MUTANT(cuda_attn_wait_short))
            dtx_copy_wait<2>();
        else
            dtx_copy_wait<1>();
        dtx_block_sync();
        const dtx_bf16 *tile_k = stages + (tile & 1) * 2 * plan::KV_ELEMENTS, *tile_v = tile_k + plan::KV_ELEMENTS;
        float s[KEYS / 8][4], keep[2];
        attn_clear(s);
        attn_mma_rows<KEYS, D, PITCH>(s, tile_q + row0 * PITCH + map * D, tile_k + map * D);
        const int j0 = tile * KEYS;
        if (p.doc_start || j0 + KEYS > p.tk || j0 + KEYS - 1 > i0 + row0 + p.shift)
            attn_mask<KEYS>(p, s, j0, row, lowest);
        attn_softmax_step<KEYS>(s, max, sum, keep, scale);
        DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
        {
            DTX_UNROLL for (int x = 0; x < 4; x++) o[n][x] *= DTX_MUTANT(cuda_attn_no_rescale) ? 1.f : keep[x / 2];
        }
        uint32_t operand[KEYS / 16][4];
        attn_to_operand<KEYS>(operand, s);
        attn_mma_columns<WIDTH, KEYS, PITCH>(o, operand, tile_v);
        if (!DTX_MUTANT(cuda_attn_stage_reused))
            dtx_block_sync(); /* before the next copies overwrite this stage */
    }
    dtx_copy_wait<0>();

    attn_fwd_finish<D, MAPS>(p, o, max, sum, b, head, map, row, (float *)memory);
}

template <int D, int MAPS> static int attn_fwd_start(void *stream, const attn_job &job)
{
    typedef attn_fwd_plan<D, MAPS> plan;
    dim3 grid((unsigned)((job.tq + plan::ROWS - 1) / plan::ROWS), (unsigned)job.heads, (unsigned)job.b);
    return dtx_launch(stream, attn_fwd_kernel<D, MAPS>, grid, ATTN_THREADS, plan::SHARED_BYTES, job);
}

#endif
