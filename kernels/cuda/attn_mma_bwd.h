/*
 * The backward kernels. Scores are recomputed from the log-sum-exps; do·vᵀ is common to both maps, so each group makes
 * half of it and the groups exchange through shared memory, lane by lane. No atomics: results repeat bit for bit.
 *   keys:     a block owns keys; dk of its map stays in a group's registers, and D columns of dv
 *   queries:  a block owns queries; dq of its map stays in a group's registers
 */
#ifndef DTX_KERNELS_CUDA_ATTN_MMA_BWD_H
#define DTX_KERNELS_CUDA_ATTN_MMA_BWD_H

#include "kernels/cuda/attn_mma.h"

template <int D, int MAPS> struct attn_bwd_plan : attn_width<D, MAPS> {
    typedef attn_width<D, MAPS> base;
    enum {
        STEP = ATTN_TILE_QUERIES, /* rows of a stage */
        OWN_ELEMENTS = base::ROWS * base::PITCH,
        STAGE_ELEMENTS = STEP * base::PITCH,
        TILE_BYTES = 2 * (2 * OWN_ELEMENTS + 2 * 2 * STAGE_ELEMENTS),
        ROW_BYTES = 2 * (2 * MAPS + 1) * STEP * 4, /* lse and dsum of each map, first key: two stages */
        HALF = STEP / MAPS,                        /* columns of do·vᵀ that a group makes */
        P_FLOATS = STEP / 2,
        DP_FLOATS = HALF / 2, /* a lane's share of a tile */
        KEYS_SHARED_BYTES = TILE_BYTES + ROW_BYTES + (MAPS == 2 ? (P_FLOATS + DP_FLOATS) * ATTN_THREADS * 4 : 0),
        QUERIES_SHARED_BYTES = TILE_BYTES + (MAPS == 2 ? DP_FLOATS * ATTN_THREADS * 4 : 0)
    };
};

template <int D, int MAPS> DTX_KERNEL(ATTN_THREADS, (D > 64 ? 1 : 2)) attn_bwd_keys_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef attn_bwd_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, PITCH = plan::PITCH, ROWS = plan::ROWS, STEP = plan::STEP, HALF = plan::HALF;
    constexpr int STATS = (2 * MAPS + 1) * STEP;
    DTX_SHARED_DYNAMIC(memory);
    dtx_bf16 *tile_k = (dtx_bf16 *)memory, *tile_v = tile_k + plan::OWN_ELEMENTS;
    dtx_bf16 *stages = tile_v + plan::OWN_ELEMENTS;         /* stage: q [STEP], do [STEP] */
    float *stats = (float *)(memory + plan::TILE_BYTES);    /* stage: lse [MAPS][STEP], dsum [MAPS][STEP], first key */
    float *exchange = stats + 2 * STATS + (int)threadIdx.x; /* [P_FLOATS + DP_FLOATS][threads] */
    float *partner = stats + 2 * STATS + (int)(threadIdx.x ^ 128);
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int map = MAPS == 2 ? warp >> 2 : 0, row0 = (MAPS == 2 ? warp & 3 : warp) * 16;
    const int j0 = (int)blockIdx.x * ROWS, kv_head = (int)blockIdx.y, b = (int)blockIdx.z;
    const int group = p.heads / p.kv_heads;
    const int64_t q_stride = (int64_t)p.heads * WIDTH, kv_stride = (int64_t)p.kv_heads * WIDTH;
    const int64_t kv_base = b * p.tk * kv_stride + (int64_t)kv_head * WIDTH;
    const float lambda = MAPS == 2 ? *(const float *)p.lambda : 0.f;

    /* Steps: for each head of the group, the tiles of queries from the first that sees a key of this block. */
    const int tiles = (p.tq + STEP - 1) / STEP, low = j0 - p.shift > 0 ? (j0 - p.shift) / STEP : 0;
    const int per_head = tiles > low ? tiles - low : 0, steps = per_head * group;
    auto next_visible = [&](int step) {
        while (step < steps && p.doc_start &&
               p.tile_first[b * tiles + low + step % per_head] >= j0 + (DTX_MUTANT(cuda_attn_tile_lost) ? 0 : ROWS))
            step++;
        return step;
    };
    auto load = [&](int step, int stage) {
        const int head = kv_head * group + step / per_head, i0 = (low + step % per_head) * STEP;
        const int64_t base = b * p.tq * q_stride + (int64_t)head * WIDTH;
        dtx_bf16 *to = stages + stage * 2 * plan::STAGE_ELEMENTS;
        attn_tile_copy<STEP, WIDTH>(to, (const dtx_bf16 *)p.q + base, q_stride, i0, p.tq);
        attn_tile_copy<STEP, WIDTH>(to + plan::STAGE_ELEMENTS, (const dtx_bf16 *)p.do_ + base, q_stride, i0, p.tq);
        for (int x = tid; x < STATS; x += ATTN_THREADS) {
            const int what = x / STEP, i = i0 + x % STEP; /* what: lse of each map, dsum of each map, first key */
            const int64_t at = ((int64_t)b * p.heads * MAPS + head * MAPS + what % MAPS) * p.tq + i;
            float value = what < MAPS ? INFINITY : 0.f;
            if (i < p.tq && what < 2 * MAPS)
                value = what < MAPS ? ((const float *)p.lse_in)[at] * ATTN_LOG2E : ((const float *)p.dsum)[at];
            if (what == 2 * MAPS)
                value = dtx_float_of((uint32_t)attn_first_key(p, b, i));
            stats[stage * STATS + x] = value;
        }
    };
    attn_tile_copy<ROWS, WIDTH>(tile_k, (const dtx_bf16 *)p.k + kv_base, kv_stride, j0, p.tk);
    attn_tile_copy<ROWS, WIDTH>(tile_v, (const dtx_bf16 *)p.v + kv_base, kv_stride, j0, p.tk);
    int step = next_visible(0), stage = 0;
    if (step < steps)
        load(step, 0);
    dtx_copy_commit();

    const float scale = (float)p.scale * ATTN_LOG2E;
    const int row = j0 + row0 + (lane >> 2), column = lane % 4 * 2;
    float dk[D / 8][4], dv[D / 8][4];
    attn_clear(dk);
    attn_clear(dv);
    while (step < steps) {
        const int next = next_visible(step + 1), i0 = (low + step % per_head) * STEP;
        if (next < steps)
            load(next, stage ^ 1);
        dtx_copy_commit();
        dtx_copy_wait<1>();
        dtx_block_sync();
        const dtx_bf16 *tile_q = stages + stage * 2 * plan::STAGE_ELEMENTS, *tile_do = tile_q + plan::STAGE_ELEMENTS;
        const float *lse = stats + stage * STATS, *dsum = lse + MAPS * STEP, *first = lse + 2 * MAPS * STEP;
        float s[STEP / 8][4], dp[STEP / 8][4]; /* [key, query] */
        attn_clear(s);
        attn_clear(dp);
        attn_mma_rows<STEP, D, PITCH>(s, tile_k + row0 * PITCH + map * D, tile_q + map * D);
        const bool masked = p.doc_start || j0 + ROWS - 1 > i0 + p.shift;
        DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
        {
            DTX_UNROLL for (int x = 0; x < 4; x++)
            {
                const int c = n * 8 + column + x % 2, j = row + x / 2 * 8;
                s[n][x] = dtx_exp2(s[n][x] * scale - lse[map * STEP + c]);
                if (masked && (j > i0 + c + p.shift || j < (int)dtx_bits_of(first[c])))
                    s[n][x] = 0.f;
            }
        }
        float combined[STEP / 8][4]; /* p1 − λ·p2 */
        if (MAPS == 2) {
            float half[HALF / 8][4];
            attn_clear(half);
            attn_mma_rows<HALF, WIDTH, PITCH>(half, tile_v + row0 * PITCH, tile_do + map * HALF * PITCH);
            DTX_UNROLL for (int x = 0; x < plan::P_FLOATS; x++) exchange[x * ATTN_THREADS] = s[x / 4][x % 4];
            DTX_UNROLL for (int x = 0; x < plan::DP_FLOATS; x++) exchange[(plan::P_FLOATS + x) * ATTN_THREADS] =
                half[x / 4][x % 4];
            if (!DTX_MUTANT(cuda_attn_exchange_early))
                dtx_block_sync_some(1 + (warp & 3), 64);
            DTX_UNROLL for (int x = 0; x < plan::P_FLOATS; x++)
            {
                float theirs = partner[x * ATTN_THREADS], mine = s[x / 4][x % 4];
                combined[x / 4][x % 4] = map == 0 ? mine - lambda * theirs : theirs - lambda * mine;
            }
            DTX_UNROLL for (int x = 0; x < plan::DP_FLOATS; x++)
            {
                float theirs = partner[(plan::P_FLOATS + x) * ATTN_THREADS], mine = half[x / 4][x % 4];
                dp[x / 4][x % 4] = map == 0 ? mine : theirs;
                dp[(x + plan::DP_FLOATS) / 4 % (STEP / 8)][x % 4] = map == 0 ? theirs : mine;
            }
        } else {
            attn_mma_rows<STEP, WIDTH, PITCH>(dp, tile_v + row0 * PITCH, tile_do);
        }
        uint32_t operand[STEP / 16][4];
        attn_to_operand<STEP>(operand, MAPS == 2 ? combined : s);
        attn_mma_columns<D, STEP, PITCH>(dv, operand, tile_do + map * D);
        const float sign = map == 1 && !DTX_MUTANT(cuda_attn_ds_sign) ? -lambda : 1.f;
        DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
        {
            DTX_UNROLL for (int x = 0; x < 4; x++) s[n][x] *=
                sign * dp[n][x] - dsum[map * STEP + n * 8 + column + x % 2];
        }
        attn_to_operand<STEP>(operand, s);
        attn_mma_columns<D, STEP, PITCH>(dk, operand, tile_q + map * D);
        dtx_block_sync(); /* before the next copies overwrite this stage */
        step = next;
        stage ^= 1;
    }
    dtx_copy_wait<0>();
    DTX_UNROLL for (int x = 0; x < 4; x += 2)
    {
        const int j = row + x / 2 * 8;
        if (j < p.tk)
            DTX_UNROLL for (int n = 0; n < D / 8; n++)
            {
                const int64_t at = kv_base + j * kv_stride + map * D + n * 8 + column;
                const float f = (float)p.scale;
                attn_put(p.dk, at, dk[n][x] * f, dk[n][x + 1] * f, p.parts, p.parts);
                attn_put(p.dv, at, dv[n][x], dv[n][x + 1], p.parts, p.parts);
            }
    }
}

template <int D, int MAPS> DTX_KERNEL(ATTN_THREADS, (D > 64 ? 1 : 2)) attn_bwd_queries_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef attn_bwd_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, PITCH = plan::PITCH, ROWS = plan::ROWS, STEP = plan::STEP, HALF = plan::HALF;
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(int, scratch, 32);
    dtx_bf16 *tile_q = (dtx_bf16 *)memory, *tile_do = tile_q + plan::OWN_ELEMENTS;
    dtx_bf16 *stages = tile_do + plan::OWN_ELEMENTS;                           /* stage: k [STEP], v [STEP] */
    float *exchange = (float *)(memory + plan::TILE_BYTES) + (int)threadIdx.x; /* [DP_FLOATS][threads] */
    float *partner = (float *)(memory + plan::TILE_BYTES) + (int)(threadIdx.x ^ 128);
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int map = MAPS == 2 ? warp >> 2 : 0, row0 = (MAPS == 2 ? warp & 3 : warp) * 16;
    const int i0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    const int head = (int)blockIdx.y, b = (int)blockIdx.z, kv_head = head / (p.heads / p.kv_heads);
    const int64_t q_stride = (int64_t)p.heads * WIDTH, kv_stride = (int64_t)p.kv_heads * WIDTH;
    const int64_t q_base = b * p.tq * q_stride + (int64_t)head * WIDTH;
    const dtx_bf16 *k = (const dtx_bf16 *)p.k + b * p.tk * kv_stride + (int64_t)kv_head * WIDTH;
    const dtx_bf16 *v = (const dtx_bf16 *)p.v + b * p.tk * kv_stride + (int64_t)kv_head * WIDTH;

    const attn_tiles seen = attn_tiles_seen<ROWS, STEP>(p, b, i0, scratch);
    auto load = [&](int tile) {
        dtx_bf16 *to = stages + (tile & 1) * 2 * plan::STAGE_ELEMENTS;
        attn_tile_copy<STEP, WIDTH>(to, k, kv_stride, tile * STEP, p.tk);
        attn_tile_copy<STEP, WIDTH>(to + plan::STAGE_ELEMENTS, v, kv_stride, tile * STEP, p.tk);
    };
    attn_tile_copy<ROWS, WIDTH>(tile_q, (const dtx_bf16 *)p.q + q_base, q_stride, i0, p.tq);
    attn_tile_copy<ROWS, WIDTH>(tile_do, (const dtx_bf16 *)p.do_ + q_base, q_stride, i0, p.tq);
    if (seen.begin < seen.end)
        load(seen.begin);
    dtx_copy_commit();

    const float scale = (float)p.scale * ATTN_LOG2E, sign = map == 1 ? -*(const float *)p.lambda : 1.f;
    const int row = i0 + row0 + (lane >> 2), column = lane % 4 * 2;
    int lowest[2];
    float lse[2], dsum[2], dq[D / 8][4];
    attn_clear(dq);
    DTX_UNROLL for (int e = 0; e < 2; e++)
    {
        const int i = row + 8 * e;
        const int64_t at = ((int64_t)b * p.heads * MAPS + head * MAPS + map) * p.tq + i;
        lowest[e] = attn_first_key(p, b, i);
        lse[e] = i < p.tq ? ((const float *)p.lse_in)[at] * ATTN_LOG2E : INFINITY;
        dsum[e] = i < p.tq ? ((const float *)p.dsum)[at] : 0.f;
    }
    for (int tile = seen.begin; tile < seen.end; tile++) {
        if (tile + 1 < seen.end)
            load(tile + 1);
        dtx_copy_commit();
        dtx_copy_wait<1>();
        dtx_block_sync();
        const dtx_bf16 *tile_k = stages + (tile & 1) * 2 * plan::STAGE_ELEMENTS,
                       *tile_v = tile_k + plan::STAGE_ELEMENTS;
        const int j0 = tile * STEP;
        float s[STEP / 8][4], dp[STEP / 8][4];
        attn_clear(s);
        attn_clear(dp);
        attn_mma_rows<STEP, D, PITCH>(s, tile_q + row0 * PITCH + map * D, tile_k + map * D);
        if (MAPS == 2) {
            float half[HALF / 8][4];
            attn_clear(half);
            attn_mma_rows<HALF, WIDTH, PITCH>(half, tile_do + row0 * PITCH, tile_v + map * HALF * PITCH);
            DTX_UNROLL for (int x = 0; x < plan::DP_FLOATS; x++) exchange[x * ATTN_THREADS] = half[x / 4][x % 4];
            dtx_block_sync_some(1 + (warp & 3), 64);
            DTX_UNROLL for (int x = 0; x < plan::DP_FLOATS; x++)
            {
                float theirs = partner[x * ATTN_THREADS], mine = half[x / 4][x % 4];
                dp[x / 4][x % 4] = map == 0 ? mine : theirs;
                dp[(x + plan::DP_FLOATS) / 4 % (STEP / 8)][x % 4] = map == 0 ? theirs : mine;
            }
        } else {
            attn_mma_rows<STEP, WIDTH, PITCH>(dp, tile_do + row0 * PITCH, tile_v);
        }
        const bool masked = p.doc_start || j0 + STEP > p.tk || j0 + STEP - 1 > i0 + row0 + p.shift;
        DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
        {
            DTX_UNROLL for (int x = 0; x < 4; x++)
            {
                const int j = j0 + n * 8 + column + x % 2;
                float probability = dtx_exp2(s[n][x] * scale - lse[x / 2]);
                if (masked && (j > row + x / 2 * 8 + p.shift || j < lowest[x / 2] || j >= p.tk))
                    probability = 0.f;
                s[n][x] = probability * (sign * dp[n][x] - dsum[x / 2]);
            }
        }
        uint32_t operand[STEP / 16][4];
        attn_to_operand<STEP>(operand, s);
        attn_mma_columns<D, STEP, PITCH>(dq, operand, tile_k + map * D);
        dtx_block_sync(); /* before the next copies overwrite this stage */
    }
    dtx_copy_wait<0>();
    DTX_UNROLL for (int x = 0; x < 4; x += 2)
    {
        const int i = row + x / 2 * 8;
        if (i < p.tq)
            DTX_UNROLL for (int n = 0; n < D / 8; n++)
            {
                const int64_t at = q_base + i * q_stride + map * D + n * 8 + column;
                attn_put(p.dq, at, dq[n][x] * (float)p.scale, dq[n][x + 1] * (float)p.scale, p.parts, p.parts);
            }
    }
}

template <int D, int MAPS> static int attn_bwd_start(void *stream, const attn_job &job)
{
    typedef attn_bwd_plan<D, MAPS> plan;
    const unsigned heads = (unsigned)job.heads, kv_heads = (unsigned)job.kv_heads, b = (unsigned)job.b;
    const unsigned rows = (unsigned)(job.tq + plan::ROWS - 1) / plan::ROWS;
    const unsigned keys = (unsigned)(job.tk + plan::ROWS - 1) / plan::ROWS;
    int code = dtx_launch(stream, attn_bwd_keys_kernel<D, MAPS>, dim3(keys, kv_heads, b), ATTN_THREADS,
                          plan::KEYS_SHARED_BYTES, job);
    if (!code)
        code = dtx_launch(stream, attn_bwd_queries_kernel<D, MAPS>, dim3(rows, heads, b), ATTN_THREADS,
                          plan::QUERIES_SHARED_BYTES, job);
    return code;
}

#endif
