/* Tiled attention backward, each score computed once. Included per dtype by loops_act.h. */

/* One thread's buffers, in order; sizes in elements of M. */
struct FN(tile_grad) {
    M *k_columns[2], *k_rows[2]; /* operands of q·kᵀ and ds·k */
    M *v_columns;                /* of do·vᵀ */
    M *q[2], *q_rows[2];         /* operands of q·kᵀ and dsᵀ·q */
    M *do_, *do_rows;            /* of do·vᵀ and pᵀ·do */
    M *score[2], *dp;            /* [TILE_Q, TILE_K]; score becomes ds when !PAIRS, dp the weights of dv */
    M *ds[2];                    /* words of ds along keys: [TILE_Q, TILE_K/PER] */
    M *ds_rows[2], *p_rows;      /* words along queries [TILE_Q/PER, TILE_K], read transposed */
    M *dk[2], *dv;               /* [TILE_K, dp], [TILE_K, dvp] */
};

static struct FN(tile_grad) FN(tile_buffers)(const struct dtx_cpu_attn_tiles *job, M *at)
{
    struct FN(tile_grad) g;
    int64_t square = TILE_Q * TILE_K, wide = TILE_K * job->dp, value = TILE_K * job->dvp;
    g.v_columns = at;
    g.do_ = g.v_columns + value;
    g.do_rows = PER == 1 ? g.do_ : g.do_ + value;
    g.dv = g.do_ + 2 * value;
    g.dp = g.dv + value;
    g.p_rows = PER == 1 ? g.dp : g.dp + square;
    at = g.dp + 2 * square;
    for (int m = 0; m < 2; m++) {
        g.k_columns[m] = at;
        g.k_rows[m] = at + wide;
        g.q[m] = at + 2 * wide;
        g.q_rows[m] = PER == 1 ? g.q[m] : at + 3 * wide;
        g.dk[m] = at + 4 * wide;
        g.score[m] = at + 5 * wide;
        g.ds[m] = PER == 1 ? g.score[m] : g.score[m] + square;
        g.ds_rows[m] = PER == 1 ? g.score[m] : g.score[m] + 2 * square;
        at = g.score[m] + 3 * square;
    }
    return g;
}

/* Rows r and r + 1 (r even) of the score and dp tiles → ds and the weights of dv. */
INLINE void FN(tile_ds)(const struct FN(tile_grad) * g, int maps, int64_t r, M scale, M lambda, M lambda_v,
                        const M *lse, const M *dsum, int64_t key, const int64_t *j0, const int64_t *j1)
{
    for (int64_t i = 0; i < TILE_K; i += W) {
        V ds[2][2], weight[2] = {{0}};
        for (int e = 0; e < 2; e++) {
            int64_t at = (r + e) * TILE_K + i;
            bool masked = key < j0[r + e] || key + TILE_K > j1[r + e];
            V dp = LOADM(g->dp + at, W);
            for (int m = 0; m < maps; m++) {
                V x = LOADM(g->score[m] + at, W) * scale - lse[m * TILE_Q + r + e];
                if (masked)
                    x = FN(tile_mask)(x, key + i, j0[r + e], j1[r + e]);
                V p = CAT(expneg, MST)(x);
                ds[m][e] = p * ((m ? -lambda * dp : dp) - dsum[m * TILE_Q + r + e]);
                weight[e] = m ? weight[e] - lambda_v * p : p;
            }
        }
#if PAIRS
        for (int m = 0; m <= maps; m++) { /* m = maps: the weights, which only go along queries */
            V *x = m < maps ? ds[m] : weight;
            __m256i even = (__m256i)_mm512_cvtneps_pbh((__m512)x[0]), odd = (__m256i)_mm512_cvtneps_pbh((__m512)x[1]);
            __m512i both =
                _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            _mm512_storeu_si512((m < maps ? g->ds_rows[m] : g->p_rows) + r / 2 * TILE_K + i, both);
            if (m < maps) {
                _mm256_storeu_si256((__m256i *)(g->ds[m] + (r * TILE_K + i) / 2), even);
                _mm256_storeu_si256((__m256i *)(g->ds[m] + ((r + 1) * TILE_K + i) / 2), odd);
            }
        }
#else
        for (int e = 0; e < 2; e++) {
            int64_t at = (r + e) * TILE_K + i;
            for (int m = 0; m < maps; m++)
                STOREM(g->ds[m] + at, ds[m][e], W);
            STOREM(g->p_rows + at, weight[e], W);
        }
#endif
    }
}

/* One query tile against the packed key tile whose first key is `key`. dq: [maps] of this tile's rows [TILE_Q, dp]. */
static void FN(tile_backward)(const struct dtx_cpu_attn_tiles *job, const struct FN(tile_grad) * g, int64_t b,
                              int64_t head, int64_t row, int64_t key, M *const *dq)
{
    const struct dtx_attn_bwd_args *args = job->args;
    const struct dtx_cpu_attn_shape *s = &job->s;
    int64_t rows = dtx_min64(TILE_Q, s->tq - row), all = dtx_round_up(rows, TILE_ROWS), dp = job->dp, dvp = job->dvp;
    int64_t j0[TILE_Q] = {0}, j1[TILE_Q] = {0};
    bool any = false;
    M lse[2 * TILE_Q] = {0}, dsum[2 * TILE_Q] = {0}, lambda = s->maps == 2 ? *(const M *)args->lambda.data : 0;
    M lambda_v = DTX_MUTANT(attn_dv_without_lambda) ? 1 : lambda;
    for (int64_t r = 0; r < rows; r++) {
        dtx_cpu_attn_visible(s, b, row + r, &j0[r], &j1[r]);
        any = any || (j0[r] < j1[r] && j0[r] < key + TILE_K && j1[r] > key);
        for (int m = 0; m < s->maps; m++) {
            int64_t stat = ((b * s->heads + head) * s->maps + m) * s->tq + row + r;
            lse[m * TILE_Q + r] = ((const M *)args->lse.data)[stat];
            dsum[m * TILE_Q + r] = ((const M *)args->dsum.data)[stat];
        }
    }
    if (!any)
        return;
    int64_t step = s->heads * s->dv, q_step = s->heads * s->maps * s->d;
    const T *do_ = (const T *)args->do_.data + (b * s->tq + row) * step + head * s->dv;
    FN(tile_pack)(do_, step, rows, s->dv, dvp, all, g->do_);
    if (PER == 2)
        FN(tile_pack_rows)(do_, step, rows, s->dv, dvp, all, g->do_rows);
    FN(tile_product)(all, TILE_K, dvp / PER, g->do_, dvp / PER, 1, g->v_columns, TILE_K, g->dp, TILE_K, false);
    for (int m = 0; m < s->maps; m++) {
        const T *q = (const T *)args->q.data + (b * s->tq + row) * q_step + (head * s->maps + m) * s->d;
        FN(tile_pack)(q, q_step, rows, s->d, dp, all, g->q[m]);
        if (PER == 2)
            FN(tile_pack_rows)(q, q_step, rows, s->d, dp, all, g->q_rows[m]);
        FN(tile_product)
        (all, TILE_K, dp / PER, g->q[m], dp / PER, 1, g->k_columns[m], TILE_K, g->score[m], TILE_K, false);
    }
    for (int64_t r = 0; r < all; r += 2)
        FN(tile_ds)(g, s->maps, r, (M)args->scale, lambda, lambda_v, lse, dsum, key, j0, j1);
    FN(tile_product)(TILE_K, dvp, all / PER, g->p_rows, 1, TILE_K, g->do_rows, dvp, g->dv, dvp, true);
    for (int m = 0; m < s->maps; m++) {
        FN(tile_product)(TILE_K, dp, all / PER, g->ds_rows[m], 1, TILE_K, g->q_rows[m], dp, g->dk[m], dp, true);
        FN(tile_product)(all, dp, TILE_K / PER, g->ds[m], TILE_K / PER, 1, g->k_rows[m], dp, dq[m], dp, true);
    }
}

/* Rows of a gradient from element `at` on (attn_loops.h). */
static void FN(tile_give)(const struct dtx_attn_bwd_args *args, const struct dtx_tensor *to, int64_t at, int64_t step,
                          int64_t rows, int64_t n, const M *from, int64_t width, M factor)
{
    for (int64_t r = 0; r < rows; r++)
        FN(attn_give)(args, to, at + r * step, from + r * width, factor, n);
}

/* Where the share of dq of one piece, head and map begins: [q_tiles·TILE_Q, dp]. */
static M *FN(tile_dq)(const struct dtx_cpu_attn_tiles *job, int64_t piece, int64_t b, int64_t head, int64_t map)
{
    const struct dtx_cpu_attn_shape *s = &job->s;
    return (M *)job->dq + (((piece * s->b + b) * s->heads + head) * s->maps + map) * job->q_tiles * TILE_Q * job->dp;
}

/* The first query tile that can see the key tile. */
static int64_t FN(tile_start)(const struct dtx_cpu_attn_tiles *job, int64_t k_tile)
{
    int64_t start = dtx_max64(0, job->s.k_first + k_tile * TILE_K - job->s.q_first) / TILE_Q;
    return dtx_min64(start, job->q_tiles);
}

/* Unit: a piece of the keys of one kv head, flat over [b,hkv,pieces]; within it key tiles, heads, query tiles ascend.
 */
static void FN(attn_tiles_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_cpu_attn_tiles *job = a;
    const struct dtx_attn_bwd_args *args = job->args;
    const struct dtx_cpu_attn_shape *s = &job->s;
    struct FN(tile_grad) g = FN(tile_buffers)(job, (M *)job->threads + omp_get_thread_num() * job->thread_elements);
    int64_t k_step = s->kv_heads * s->maps * s->d, v_step = s->kv_heads * s->dv, dp = job->dp, dvp = job->dvp;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t piece = unit % job->pieces, kv = unit / job->pieces % s->kv_heads, b = unit / job->pieces / s->kv_heads;
        int64_t begin = FN(tile_start)(job, piece * job->piece_tiles) * TILE_Q * dp;
        for (int64_t sub = 0; sub < s->heads * s->maps; sub++)
            if (dtx_cpu_attn_kv_head(s, sub / s->maps) == kv)
                memset(FN(tile_dq)(job, piece, b, sub / s->maps, sub % s->maps) + begin, 0,
                       (size_t)(job->q_tiles * TILE_Q * dp - begin) * sizeof(M));
        int64_t end = dtx_min64(job->k_tiles, (piece + 1) * job->piece_tiles);
        for (int64_t tile = piece * job->piece_tiles; tile < end; tile++) {
            int64_t key = tile * TILE_K, rows = dtx_min64(TILE_K, s->tk - key), row = b * s->tk + key;
            const T *k = (const T *)args->k.data + row * k_step + kv * s->maps * s->d;
            const T *v = (const T *)args->v.data + row * v_step + kv * s->dv;
            FN(tile_pack_columns)(v, v_step, rows, s->dv, dvp, TILE_K, g.v_columns);
            memset(g.dv, 0, (size_t)(TILE_K * dvp) * sizeof(M));
            for (int m = 0; m < s->maps; m++) {
                FN(tile_pack_columns)(k + m * s->d, k_step, rows, s->d, dp, TILE_K, g.k_columns[m]);
                FN(tile_pack_rows)(k + m * s->d, k_step, rows, s->d, dp, TILE_K, g.k_rows[m]);
                memset(g.dk[m], 0, (size_t)(TILE_K * dp) * sizeof(M));
            }
            for (int64_t head = 0; head < s->heads; head++) {
                if (dtx_cpu_attn_kv_head(s, head) != kv)
                    continue;
                for (int64_t q_tile = FN(tile_start)(job, tile); q_tile < job->q_tiles; q_tile++) {
                    M *dq[2];
                    for (int m = 0; m < s->maps; m++)
                        dq[m] = FN(tile_dq)(job, piece, b, head, m) + q_tile * TILE_Q * dp;
                    FN(tile_backward)(job, &g, b, head, q_tile * TILE_Q, key, dq);
                }
            }
            FN(tile_give)(args, &args->dv, row * v_step + kv * s->dv, v_step, rows, s->dv, g.dv, dvp, 1);
            for (int m = 0; m < s->maps; m++)
                FN(tile_give)
            (args, &args->dk, row * k_step + (kv * s->maps + m) * s->d, k_step, rows, s->d, g.dk[m], dp,
             (M)args->scale);
        }
    }
}

/* dq = scale · the pieces' shares, in order. Unit: a row (b, tq). */
static void FN(attn_tiles_dq)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_cpu_attn_tiles *job = a;
    const struct dtx_attn_bwd_args *args = job->args;
    const struct dtx_cpu_attn_shape *s = &job->s;
    for (int64_t row = first; row < last; row++) {
        int64_t pieces = 0; /* that this row can see: the first ones */
        while (pieces < job->pieces && FN(tile_start)(job, pieces * job->piece_tiles) <= row % s->tq / TILE_Q)
            pieces++;
        for (int64_t sub = 0; sub < s->heads * s->maps; sub++) {
            int64_t at = (row * s->heads * s->maps + sub) * s->d;
            for (int64_t i = 0; i < s->d; i += W) {
                V sum = {0};
                for (int64_t piece = 0; piece < pieces; piece++)
                    sum += LOADM(FN(tile_dq)(job, piece, row / s->tq, sub / s->maps, sub % s->maps) +
                                     row % s->tq * job->dp + i,
                                 W);
                sum *= (M)args->scale;
                if (args->parts)
                    STOREM((M *)args->dq.data + at + i, LOADM((M *)args->dq.data + at + i, s->d - i) + sum, s->d - i);
                else
                    STORE((T *)args->dq.data + at + i, sum, s->d - i);
            }
        }
    }
}
