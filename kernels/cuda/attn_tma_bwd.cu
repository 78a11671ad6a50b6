/*
 * The backward kernels of sm_90a. As in attn_mma_bwd.h, one by keys and one by queries, but a warp group owns 64 keys
 * or queries of its own and works for all maps, one after the other. Only dk and dv of two maps of 128 do not fit into
 * the registers of a group: there both groups own the same 64 keys, each for its map and for half of the columns of dv,
 * and exchange probabilities and half of do·vᵀ through shared memory, lane by lane.
 */
#include "kernels/cuda/attn_tma.h"

enum { STEP = ATTN_TMA_STEP, STEP_PANEL = ATTN_TMA_STEP_PANEL };

struct tile_maps {
    dtx_tile_map q, k, v, do_;
};

template <int D, int MAPS> struct keys_plan {
    enum {
        WIDTH = D * MAPS,
        PANELS = WIDTH / 64,
        SPLIT = WIDTH > 128,            /* maps are split over the groups */
        MINE = SPLIT ? 1 : MAPS,        /* maps of a group */
        DV = SPLIT ? D : WIDTH,         /* columns of dv of a group */
        ROWS = SPLIT ? 64 : 128,        /* keys of a block */
        HALF = SPLIT ? STEP / 2 : STEP, /* queries of do·vᵀ that a group makes */
        STAGES = SPLIT ? 2 : 3,
        ROW_PANEL = ROWS * 128,
        OWN_BYTES = PANELS * ROW_PANEL,         /* of k, and of v */
        STAGE_BYTES = PANELS * STEP_PANEL,      /* of q, and of do */
        STATS = (2 * MAPS + 1) * STEP,          /* of a stage: lse and dsum of each map, first key */
        SPARE_WORDS = MAPS == 2 ? STEP / 2 : 0, /* of a thread: one map's share of p1 − λ·p2 until the other is there */
        STATS_AT = 2 * OWN_BYTES + STAGES * 2 * STAGE_BYTES,
        SPARE_AT = STATS_AT + STAGES * STATS * 4,
        BARRIERS_AT = SPARE_AT + SPARE_WORDS * 256 * 4,
        SHARED_BYTES = BARRIERS_AT + (1 + 2 * STAGES) * 8
    };
};

/* Which tiles of queries a block of keys meets, in order: for each head of its group, from the first that sees a key.
 */
struct query_steps {
    int low, per_head, steps, end; /* end: the first key behind the block */
};
template <int ROWS> DTX_FN query_steps query_steps_of(const attn_job &p, int j0)
{
    const int tiles = (p.tq + STEP - 1) / STEP, low = j0 - p.shift > 0 ? (j0 - p.shift) / STEP : 0;
    const int per_head = tiles > low ? tiles - low : 0;
    return {low, per_head, per_head * (p.heads / p.kv_heads), j0 + ROWS};
}
/* The next step from `step` on that sees a key. */
DTX_FN int next_visible(const attn_job &p, const query_steps &list, int b, int step)
{
    const int tiles = (p.tq + ATTN_TILE_QUERIES - 1) / ATTN_TILE_QUERIES;
    for (; p.doc_start && step < list.steps; step++) {
        const int tile = (list.low + step % list.per_head) * (STEP / ATTN_TILE_QUERIES);
        const int *first = p.tile_first + (int64_t)b * tiles + tile;
        if (first[0] < list.end || (tile + 1 < tiles && first[1] < list.end))
            break;
    }
    return step;
}

/* One warp: lse and dsum of each map and the first key of the queries of a tile → stats. */
template <int MAPS> DTX_FN void load_stats(const attn_job &p, float *stats, int head, int i0, int b)
{
    const int lane = (int)threadIdx.x & 31;
    for (int m = 0; m < MAPS; m++) {
        const int64_t at = ((int64_t)(b * p.heads + head) * MAPS + m) * p.tq + i0;
        const float *lse = (const float *)p.lse_in + at, *dsum = (const float *)p.dsum + at;
        for (int c = lane; c < STEP; c += 32) {
            stats[m * STEP + c] = i0 + c < p.tq ? lse[c] * ATTN_LOG2E : INFINITY;
            stats[(MAPS + m) * STEP + c] = i0 + c < p.tq ? dsum[c] : 0.f;
        }
    }
    for (int c = lane; c < STEP; c += 32)
        stats[2 * MAPS * STEP + c] = dtx_float_of((uint32_t)attn_first_key(p, b, i0 + c));
}

/* Scores [key, query] → probabilities. row: the lane's first key; lse, first: of the tile's queries. */
DTX_FN void keys_probabilities(const attn_job &p, float (&s)[STEP / 8][4], const float *lse, const float *first,
                               int row, int i0, bool masked)
{
    const float scale = (float)p.scale * ATTN_LOG2E;
    const int column = (int)threadIdx.x % 4 * 2;
    DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
    {
        DTX_UNROLL for (int x = 0; x < 4; x++) s[n][x] = dtx_exp2(s[n][x] * scale - lse[n * 8 + column + x % 2]);
    }
    if (!masked)
        return;
    DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
    {
        DTX_UNROLL for (int x = 0; x < 4; x++)
        {
            const int c = n * 8 + column + x % 2, j = row + x / 2 * 8;
            if (j > i0 + c + p.shift || j < (int)dtx_bits_of(first[c]))
                s[n][x] = 0.f;
        }
    }
}

/* combined = weight·s + what stands in `spare` ([STEP / 2][256]), rounded. */
DTX_FN void combine(uint32_t (&combined)[4][4], const float (&s)[STEP / 8][4], float weight, const float *spare)
{
    DTX_UNROLL for (int y = 0; y < 16; y++)
    {
        const float *pair = &s[y / 2][y % 2 * 2];
        combined[y / 4][y % 4] =
            dtx_pack_bf16(weight * pair[0] + spare[2 * y * 256], weight * pair[1] + spare[(2 * y + 1) * 256]);
    }
}

template <int D, int MAPS>
DTX_KERNEL(ATTN_TMA_THREADS, 1)
attn_tma_keys_kernel(DTX_ARGUMENT(attn_job) p, DTX_ARGUMENT(tile_maps) maps)
{
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef keys_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, PANELS = plan::PANELS, ROWS = plan::ROWS, STAGES = plan::STAGES;
    constexpr int MINE = plan::MINE, DV = plan::DV, HALF = plan::HALF, ROW_PANEL = plan::ROW_PANEL;
    DTX_SHARED_DYNAMIC(memory);
    unsigned char *own_k = memory, *own_v = own_k + plan::OWN_BYTES, *stages = own_v + plan::OWN_BYTES;
    float *stats = (float *)(memory + plan::STATS_AT);
    uint64_t *own = (uint64_t *)(memory + plan::BARRIERS_AT);
    auto *ring = (attn_ring<STAGES> *)(own + 1);
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5, member = tid >> 7;
    const int j0 = (int)blockIdx.x * ROWS, kv_head = (int)blockIdx.y, b = (int)blockIdx.z;
    const query_steps list = query_steps_of<ROWS>(p, j0);
    if (tid == 0) {
        dtx_arrival_init(own, 1);
        attn_ring_init(ring, 2);
        dtx_arrival_init_done();
    }
    dtx_block_sync();
    if (member == 0) {
        dtx_registers_give<24>();
        if (tid == 0) {
            dtx_arrive_expecting(own, 2 * plan::OWN_BYTES);
            attn_tile_load<PANELS>(own_k, ROW_PANEL, &maps.k, own, kv_head, j0, b);
            attn_tile_load<PANELS>(own_v, ROW_PANEL, &maps.v, own, kv_head, j0, b);
        }
        int step = next_visible(p, list, b, 0);
        for (int x = 0; (tid == 0 || warp == 1) && step < list.steps; x++, step = next_visible(p, list, b, step + 1)) {
            const int head = kv_head * (p.heads / p.kv_heads) + step / list.per_head, s = x % STAGES;
            const int i0 = (list.low + step % list.per_head) * STEP;
            unsigned char *to = stages + s * 2 * plan::STAGE_BYTES;
            attn_ring_claim(ring, x);
            if (tid == 0) {
                dtx_arrive_expecting(&ring->full[s], 2 * plan::STAGE_BYTES);
                attn_tile_load<PANELS>(to, STEP_PANEL, &maps.q, &ring->full[s], head, i0, b);
                attn_tile_load<PANELS>(to + plan::STAGE_BYTES, STEP_PANEL, &maps.do_, &ring->full[s], head, i0, b);
            }
            if (warp == 1) {
                load_stats<MAPS>(p, stats + s * plan::STATS, head, i0, b);
                dtx_warp_sync();
                if (lane == 0)
                    dtx_arrive(&ring->full[s]);
            }
        }
        return;
    }
    dtx_registers_take<240>();
    const int map = plan::SPLIT ? member - 1 : 0, half = plan::SPLIT ? 0 : member - 1; /* half: of the block's keys */
    const int row = j0 + half * 64 + (warp & 3) * 16 + (lane >> 2), column = lane % 4 * 2;
    const unsigned char *my_k = own_k + map * (D / 64) * ROW_PANEL + half * 64 * 128, *my_v = own_v + half * 64 * 128;
    const float lambda = MAPS == 2 ? *(const float *)p.lambda : 0.f;
    float *mine = (float *)(memory + plan::SPARE_AT) + (tid - 128);
    const float *theirs = (const float *)(memory + plan::SPARE_AT) + ((tid - 128) ^ 128);
    float dk[MINE][D / 8][4], dv[DV / 8][4];
    DTX_UNROLL for (int m = 0; m < MINE; m++) attn_clear(dk[m]);
    attn_clear(dv);
    dtx_arrival_wait(own, 0);
    int step = next_visible(p, list, b, 0);
    for (int x = 0; step < list.steps; x++, step = next_visible(p, list, b, step + 1)) {
        const int i0 = (list.low + step % list.per_head) * STEP;
        const unsigned char *tile_q = stages + x % STAGES * 2 * plan::STAGE_BYTES;
        const unsigned char *tile_do = tile_q + plan::STAGE_BYTES, *my_q = tile_q + map * (D / 64) * STEP_PANEL;
        const float *lse = stats + x % STAGES * plan::STATS, *dsum = lse + MAPS * STEP, *first = dsum + MAPS * STEP;
        const bool masked = p.doc_start || j0 + half * 64 + 63 > i0 + p.shift;
        float s[STEP / 8][4], dp[HALF / 8][4];
        uint32_t combined[4][4], operand[4][4]; /* p1 − λ·p2; ds */
        attn_ring_wait(ring, x);
        if (j0 + half * 64 > i0 + STEP - 1 + p.shift) { /* only the other group's keys are seen */
            attn_ring_release(ring, x);
            continue;
        }
        if constexpr (!plan::SPLIT) {
            attn_tma_rows<D>(s, my_k + (MINE - 1) * (D / 64) * ROW_PANEL, ROW_PANEL,
                             my_q + (MINE - 1) * (D / 64) * STEP_PANEL, STEP_PANEL);
            attn_tma_rows<WIDTH>(dp, my_v, ROW_PANEL, tile_do, STEP_PANEL);
            DTX_UNROLL for (int m = MINE - 1; m >= 0; m--)
            {
                if (m == MINE - 1)
                    dtx_group_mma_wait<1>(s);
                else
                    dtx_group_mma_wait<0>(s); /* and dk of the map before: its operand would keep registers */
                keys_probabilities(p, s, lse + m * STEP, first, row, i0, masked);
                dtx_group_mma_wait<0>(dp);
                if (m == 1)
                    DTX_UNROLL for (int y = 0; y < STEP / 2; y++) mine[y * 256] = -lambda * s[y / 4][y % 4];
                else if (MAPS == 2)
                    combine(combined, s, 1.f, mine);
                else
                    attn_to_operand<STEP>(combined, s);
                if (m == 0)
                    attn_tma_columns(dv, combined, tile_do, STEP_PANEL);
                DTX_UNROLL for (int n = 0; n < STEP / 8; n++)
                {
                    DTX_UNROLL for (int y = 0; y < 4; y++) s[n][y] *=
                        (m == 1 ? -lambda : 1.f) * dp[n][y] - dsum[m * STEP + n * 8 + column + y % 2];
                }
                attn_to_operand<STEP>(operand, s);
                attn_tma_columns(dk[m], operand, my_q + m * (D / 64) * STEP_PANEL, STEP_PANEL);
                if (m > 0)
                    attn_tma_rows<D>(s, my_k, ROW_PANEL, my_q, STEP_PANEL);
            }
        } else {
            const float weight = map == 1 ? -lambda : 1.f;
            const int pair = 1 + (warp & 3); /* the barrier with the same rows' warp of the other group */
            attn_tma_rows<D>(s, my_k, ROW_PANEL, my_q, STEP_PANEL);
            attn_tma_rows<WIDTH>(dp, my_v, ROW_PANEL, tile_do + map * HALF * 128, STEP_PANEL);
            dtx_group_mma_wait<1>(s);
            keys_probabilities(p, s, lse + map * STEP, first, row, i0, masked);
            dtx_block_sync_some(pair, 64); /* it has read the last tile's do·vᵀ */
            DTX_UNROLL for (int y = 0; y < STEP / 2; y++) mine[y * 256] = weight * s[y / 4][y % 4];
            dtx_block_sync_some(pair, 64);
            combine(combined, s, weight, theirs);
            dtx_group_mma_wait<0>(dp);
            attn_tma_columns(dv, combined, tile_do + map * (D / 64) * STEP_PANEL, STEP_PANEL);
            if (!DTX_MUTANT(cuda_attn_pair_unsynced))
                dtx_block_sync_some(pair, 64); /* it has read the probabilities */
            DTX_UNROLL for (int y = 0; y < HALF / 2; y++) mine[y * 256] = dp[y / 4][y % 4];
            dtx_block_sync_some(pair, 64);
            DTX_UNROLL for (int y = 0; y < HALF / 2; y++)
            {
                const float a = dp[y / 4][y % 4], other = theirs[y * 256];
                const float *d = dsum + map * STEP + y / 4 * 8 + column + y % 2;
                s[y / 4][y % 4] *= weight * (map == 0 ? a : other) - d[0];
                s[HALF / 8 + y / 4][y % 4] *= weight * (map == 0 ? other : a) - d[HALF];
            }
            attn_to_operand<STEP>(operand, s);
            attn_tma_columns(dk[0], operand, my_q, STEP_PANEL);
        }
        if (DTX_MUTANT(cuda_attn_stage_freed_early))
            attn_ring_release(ring, x);
        dtx_group_mma_wait<0>(dv);
        if (!DTX_MUTANT(cuda_attn_stage_freed_early))
            attn_ring_release(ring, x);
    }
    const int64_t kv_stride = (int64_t)p.kv_heads * WIDTH;
    DTX_UNROLL for (int x = 0; x < 4; x += 2)
    {
        const int j = row + x / 2 * 8;
        const int64_t at = (b * (int64_t)p.tk + j) * kv_stride + (int64_t)kv_head * WIDTH + map * D + column;
        const float f = (float)p.scale;
        if (j < p.tk) {
            DTX_UNROLL for (int n = 0; n < MINE * D / 8; n++)
            {
                const float *pair = &dk[n / (D / 8)][n % (D / 8)][x];
                attn_put(p.dk, at + n * 8, pair[0] * f, pair[1] * f, p.parts, p.parts);
            }
            DTX_UNROLL for (int n = 0; n < DV / 8; n++)
                attn_put(p.dv, at + n * 8, dv[n][x], dv[n][x + 1], p.parts, p.parts);
        }
    }
#endif
}

/* Probabilities [query, key] of what a row does not see become 0. */
DTX_FN void mask_probabilities(const attn_job &p, float (&s)[STEP / 8][4], int j0, int row, const int (&lowest)[2])
{
    const int column = (int)threadIdx.x % 4 * 2;
    DTX_UNROLL for (int c = 0; c < STEP / 8; c++)
    {
        DTX_UNROLL for (int y = 0; y < 4; y++)
        {
            const int j = j0 + c * 8 + column + y % 2;
            if (j > row + y / 2 * 8 + p.shift || j < lowest[y / 2] || j >= p.tk)
                s[c][y] = 0.f;
        }
    }
}

template <int D, int MAPS> struct queries_plan {
    enum {
        WIDTH = D * MAPS,
        PANELS = WIDTH / 64,
        ROWS = 128,
        K_STAGES = WIDTH > 128 ? 2 : 3,
        V_STAGES = WIDTH > 128 ? 1 : 3,
        ROW_PANEL = ROWS * 128,
        OWN_BYTES = PANELS * ROW_PANEL,    /* of q, and of do */
        STAGE_BYTES = PANELS * STEP_PANEL, /* of k, and of v */
        BARRIERS_AT = 2 * OWN_BYTES + (K_STAGES + V_STAGES) * STAGE_BYTES,
        SHARED_BYTES = BARRIERS_AT + (1 + 2 * K_STAGES + 2 * V_STAGES) * 8
    };
};

template <int D, int MAPS>
DTX_KERNEL(ATTN_TMA_THREADS, 1)
attn_tma_queries_kernel(DTX_ARGUMENT(attn_job) p, DTX_ARGUMENT(tile_maps) maps)
{
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef queries_plan<D, MAPS> plan;
    constexpr int WIDTH = plan::WIDTH, PANELS = plan::PANELS, ROWS = plan::ROWS, ROW_PANEL = plan::ROW_PANEL;
    constexpr int K_STAGES = plan::K_STAGES, V_STAGES = plan::V_STAGES;
    DTX_SHARED_DYNAMIC(memory);
    DTX_SHARED(int, scratch, 32);
    unsigned char *own_q = memory, *own_do = own_q + plan::OWN_BYTES, *tiles_k = own_do + plan::OWN_BYTES;
    unsigned char *tiles_v = tiles_k + K_STAGES * plan::STAGE_BYTES;
    uint64_t *own = (uint64_t *)(memory + plan::BARRIERS_AT);
    auto *ring_k = (attn_ring<K_STAGES> *)(own + 1);
    auto *ring_v = (attn_ring<V_STAGES> *)(ring_k + 1);
    const int tid = (int)threadIdx.x, lane = tid & 31, warp = tid >> 5, member = tid >> 7;
    const int i0 = (int)(gridDim.x - 1 - blockIdx.x) * ROWS; /* the longest rows first */
    const int head = (int)blockIdx.y, b = (int)blockIdx.z, kv_head = head / (p.heads / p.kv_heads);
    const attn_tiles seen = attn_tiles_seen<ROWS, STEP>(p, b, i0, scratch);
    const int begin = seen.begin, tiles = seen.end - begin;
    if (tid == 0) {
        dtx_arrival_init(own, 1);
        attn_ring_init(ring_k, 1);
        attn_ring_init(ring_v, 1);
        dtx_arrival_init_done();
    }
    dtx_block_sync();
    if (member == 0) {
        dtx_registers_give<24>();
        if (tid == 0) {
            dtx_arrive_expecting(own, 2 * plan::OWN_BYTES);
            attn_tile_load<PANELS>(own_q, ROW_PANEL, &maps.q, own, head, i0, b);
            attn_tile_load<PANELS>(own_do, ROW_PANEL, &maps.do_, own, head, i0, b);
            for (int x = 0; x < tiles; x++) {
                const int j0 = (begin + x) * STEP;
                uint64_t *full_k = &ring_k->full[x % K_STAGES], *full_v = &ring_v->full[x % V_STAGES];
                attn_ring_claim(ring_k, x);
                dtx_arrive_expecting(full_k, plan::STAGE_BYTES);
                attn_tile_load<PANELS>(tiles_k + x % K_STAGES * plan::STAGE_BYTES, STEP_PANEL, &maps.k, full_k, kv_head,
                                       j0, b);
                attn_ring_claim(ring_v, x);
                dtx_arrive_expecting(full_v, plan::STAGE_BYTES);
                attn_tile_load<PANELS>(tiles_v + x % V_STAGES * plan::STAGE_BYTES, STEP_PANEL, &maps.v, full_v, kv_head,
                                       j0, b);
            }
        }
        return;
    }
    dtx_registers_take<240>();
    const int row0 = i0 + (member - 1) * 64, row = row0 + (warp & 3) * 16 + (lane >> 2), column = lane % 4 * 2;
    const int lowest[2] = {attn_first_key(p, b, row), attn_first_key(p, b, row + 8)};
    const unsigned char *my_q = own_q + (member - 1) * 64 * 128, *my_do = own_do + (member - 1) * 64 * 128;
    const float scale = (float)p.scale * ATTN_LOG2E, lambda = MAPS == 2 ? *(const float *)p.lambda : 0.f;
    float lse[MAPS][2], dsum[MAPS][2], dq[MAPS][D / 8][4];
    DTX_UNROLL for (int m = 0; m < MAPS; m++)
    {
        attn_clear(dq[m]);
        DTX_UNROLL for (int e = 0; e < 2; e++)
        {
            const int i = row + 8 * e;
            const int64_t at = ((int64_t)(b * p.heads + head) * MAPS + m) * p.tq + i;
            lse[m][e] = i < p.tq ? ((const float *)p.lse_in)[at] * ATTN_LOG2E : INFINITY;
            dsum[m][e] = i < p.tq ? ((const float *)p.dsum)[at] : 0.f;
        }
    }
    dtx_arrival_wait(own, 0);
    for (int x = 0; x < tiles; x++) {
        const int j0 = (begin + x) * STEP;
        const unsigned char *tile_k = tiles_k + x % K_STAGES * plan::STAGE_BYTES;
        const unsigned char *tile_v = tiles_v + x % V_STAGES * plan::STAGE_BYTES;
        const bool masked = p.doc_start || j0 + STEP > p.tk || j0 + STEP - 1 > row0 + p.shift;
        float s[STEP / 8][4], dp[STEP / 8][4];
        uint32_t operand[4][4];
        attn_ring_wait(ring_k, x);
        if (j0 > row0 + 63 + p.shift) { /* only the other group's rows see it */
            attn_ring_wait(ring_v, x);
            attn_ring_release(ring_v, x);
            attn_ring_release(ring_k, x);
            continue;
        }
        attn_tma_rows<D>(s, my_q + (MAPS - 1) * (D / 64) * ROW_PANEL, ROW_PANEL,
                         tile_k + (MAPS - 1) * (D / 64) * STEP_PANEL, STEP_PANEL);
        attn_ring_wait(ring_v, x);
        attn_tma_rows<WIDTH>(dp, my_do, ROW_PANEL, tile_v, STEP_PANEL);
        DTX_UNROLL for (int m = MAPS - 1; m >= 0; m--)
        {
            dtx_group_mma_wait<1>(s);
            DTX_UNROLL for (int c = 0; c < STEP / 8; c++)
            {
                DTX_UNROLL for (int y = 0; y < 4; y++) s[c][y] = dtx_exp2(s[c][y] * scale - lse[m][y / 2]);
            }
            if (masked)
                mask_probabilities(p, s, j0, row, lowest);
            dtx_group_mma_wait<0>(dp); /* do·vᵀ, or the last map's dq: `operand` is free */
            if (m == MAPS - 1)
                attn_ring_release(ring_v, x);
            DTX_UNROLL for (int c = 0; c < STEP / 8; c++)
            {
                DTX_UNROLL for (int y = 0; y < 4; y++) s[c][y] *=
                    (m == 1 && !DTX_MUTANT(cuda_attn_dq_sign) ? -lambda : 1.f) * dp[c][y] - dsum[m][y / 2];
            }
            attn_to_operand<STEP>(operand, s);
            if (m > 0)
                attn_tma_rows<D>(s, my_q, ROW_PANEL, tile_k, STEP_PANEL);
            attn_tma_columns(dq[m], operand, tile_k + m * (D / 64) * STEP_PANEL, STEP_PANEL);
        }
        dtx_group_mma_wait<0>(dq[0]);
        attn_ring_release(ring_k, x);
    }
    const int64_t q_stride = (int64_t)p.heads * WIDTH;
    DTX_UNROLL for (int x = 0; x < 4; x += 2)
    {
        const int i = row + x / 2 * 8;
        const int64_t at = (b * (int64_t)p.tq + i) * q_stride + (int64_t)head * WIDTH + column;
        if (i < p.tq)
            DTX_UNROLL for (int n = 0; n < WIDTH / 8; n++)
            {
                const float *pair = &dq[n / (D / 8)][n % (D / 8)][x], f = (float)p.scale;
                attn_put(p.dq, at + n * 8, pair[0] * f, pair[1] * f, p.parts, p.parts);
            }
    }
#endif
}

template <int D, int MAPS> int DTX_DEVICE(attn_tma)<D, MAPS>::bwd(void *stream, const attn_job &job)
{
    typedef keys_plan<D, MAPS> keys;
    typedef queries_plan<D, MAPS> queries;
    static_assert(keys::SHARED_BYTES <= 227 * 1024 && queries::SHARED_BYTES + 1024 <= 227 * 1024);
    /* By keys a block owns rows of k and v, by queries rows of q and do. */
    auto make = [&](tile_maps *maps, int q_rows, int k_rows) {
        int code = attn_tile_map(&maps->q, job.q, D * MAPS, job.heads, job.tq, job.b, q_rows);
        if (!code)
            code = attn_tile_map(&maps->do_, job.do_, D * MAPS, job.heads, job.tq, job.b, q_rows);
        if (!code)
            code = attn_tile_map(&maps->k, job.k, D * MAPS, job.kv_heads, job.tk, job.b, k_rows);
        return code ? code : attn_tile_map(&maps->v, job.v, D * MAPS, job.kv_heads, job.tk, job.b, k_rows);
    };
    const unsigned heads = (unsigned)job.heads, kv_heads = (unsigned)job.kv_heads, b = (unsigned)job.b;
    tile_maps maps;
    int code = make(&maps, STEP, keys::ROWS);
    if (!code)
        code = dtx_launch(stream, attn_tma_keys_kernel<D, MAPS>,
                          dim3((unsigned)(job.tk + keys::ROWS - 1) / keys::ROWS, kv_heads, b), ATTN_TMA_THREADS,
                          keys::SHARED_BYTES, job, maps);
    if (!code)
        code = make(&maps, queries::ROWS, STEP);
    if (!code)
        code = dtx_launch(stream, attn_tma_queries_kernel<D, MAPS>,
                          dim3((unsigned)(job.tq + queries::ROWS - 1) / queries::ROWS, heads, b), ATTN_TMA_THREADS,
                          queries::SHARED_BYTES, job, maps);
    return code;
}

template int DTX_DEVICE(attn_tma)<64, 1>::bwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 1>::bwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<64, 2>::bwd(void *stream, const attn_job &job);
template int DTX_DEVICE(attn_tma)<128, 2>::bwd(void *stream, const attn_job &job);
