/* Tiled attention forward: online softmax over key tiles, both maps on one packed v. Included per dtype by loops_act.h.
 */

/* Packs one key tile of one kv head. Unit: flat over [b,hkv,k_tiles]. */
static void FN(attn_pack)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_cpu_attn_tiles *job = a;
    const struct dtx_attn_fwd_args *args = job->args;
    const struct dtx_cpu_attn_shape *s = &job->s;
    int64_t step = s->kv_heads * s->maps * s->d;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t key = unit % job->k_tiles * TILE_K, kv = unit / job->k_tiles % s->kv_heads;
        int64_t row = unit / job->k_tiles / s->kv_heads * s->tk + key, rows = dtx_min64(TILE_K, s->tk - key);
        M *to = (M *)job->packed + unit * job->packed_tile;
        for (int m = 0; m < s->maps; m++)
            FN(tile_pack_columns)
        ((const T *)args->k.data + row * step + (kv * s->maps + m) * s->d, step, rows, s->d, job->dp, TILE_K,
         to + m * job->dp * TILE_K);
        FN(tile_pack_rows)
        ((const T *)args->v.data + (row * s->kv_heads + kv) * s->dv, s->kv_heads * s->dv, rows, s->dv, job->dvp, TILE_K,
         to + s->maps * job->dp * TILE_K);
    }
}

/* The running state of one map of a query tile. */
struct FN(tile_state) {
    M *score; /* [TILE_Q, TILE_K]; becomes the probabilities */
    M *p;     /* words of the probabilities [TILE_Q, TILE_K/PER]: score itself unless PAIRS */
    M *o;     /* [TILE_Q, dvp] */
    M *most;  /* [TILE_Q] */
    V *total; /* [TILE_Q] sums by lane */
};

/* Row r of a score tile → probabilities, by the row's new maximum; sums and o are scaled to it. */
INLINE void FN(tile_softmax)(struct FN(tile_state) * state, int64_t r, M scale, int64_t key, int64_t first,
                             int64_t last, int64_t dvp)
{
    enum { N = TILE_K / CAT(lanes, MST) };
    V x[N], most = SPLAT((M)-INFINITY);
    bool masked = key < first || key + TILE_K > last;
    M *score = state->score + r * TILE_K, *o = state->o + r * dvp;
    for (int64_t i = 0; i < N; i++) {
        x[i] = LOADM(score + i * W, W) * scale;
        if (masked)
            x[i] = FN(tile_mask)(x[i], key + i * W, first, last);
        most = MAXV(most, x[i]);
    }
    M top = CAT(top, MST)(most);
    if (top > state->most[r]) {
        M factor = EXP(SPLAT(state->most[r] - top))[0];
        state->most[r] = top;
        state->total[r] *= factor;
        for (int64_t i = 0; i < dvp; i += W)
            STOREM(o + i, LOADM(o + i, W) * factor, W);
    }
    M base = state->most[r] == (M)-INFINITY ? 0 : state->most[r];
    V sum = state->total[r];
    for (int64_t i = 0; i < N; i++) {
        x[i] = CAT(expneg, MST)(x[i] - base);
        sum += x[i];
        if (PER == 1)
            STOREM(score + i * W, x[i], W);
    }
    state->total[r] = sum;
#if PAIRS
    for (int64_t i = 0; i < N; i += 2)
        _mm512_storeu_si512(state->p + r * (TILE_K / PER) + i / 2 * W,
                            (__m512i)_mm512_cvtne2ps_pbh((__m512)x[i + 1], (__m512)x[i]));
#endif
}

/* Asks for the memory of a row of the outputs: the rows of a head lie too far apart for the processor to foresee. */
INLINE void FN(tile_ask)(const struct dtx_attn_fwd_args *args, int64_t row)
{
    const struct dtx_tensor *out[] = {&args->o, &args->o2, &args->norm.y};
    int64_t bytes = args->o.dim[3] * (int64_t)(args->parts ? sizeof(M) : sizeof(T));
    for (int i = 0; i < 3; i++)
        for (int64_t at = 0; out[i]->data && at < bytes; at += 64)
            __builtin_prefetch((char *)out[i]->data + row * bytes + at, 1);
}

/* Writes o, o2, lse and y of a finished query tile. */
static void FN(tile_finish)(const struct dtx_attn_fwd_args *args, const struct dtx_cpu_attn_tiles *job, int64_t b,
                            int64_t head, int64_t row, int64_t rows, struct FN(tile_state) * state)
{
    const struct dtx_cpu_attn_shape *s = &job->s;
    M lambda = s->maps == 2 ? *(const M *)args->lambda.data : 0;
    for (int64_t r = 0; r < rows; r++) {
        M inverse[2] = {0, 0};
        int64_t at = ((b * s->tq + row + r) * s->heads + head) * s->dv;
        if (r + TILE_AHEAD < rows)
            FN(tile_ask)(args, at / s->dv + TILE_AHEAD * s->heads);
        for (int m = 0; m < s->maps; m++) {
            M total = SUMV(state[m].total[r]);
            inverse[m] = total > 0 ? 1 / total : total; /* NaN stays */
            ((M *)args->lse.data)[((b * s->heads + head) * s->maps + m) * s->tq + row + r] =
                total == 0 ? (M)-INFINITY : (M)((double)state[m].most[r] + log((double)total));
        }
        for (int64_t i = 0; i < s->dv; i += W) {
            V o[2] = {LOADM(state[0].o + r * job->dvp + i, W) * inverse[0]};
            if (s->maps == 2) {
                o[1] = LOADM(state[1].o + r * job->dvp + i, W) * inverse[1];
                if (!args->parts)
                    o[0] -= lambda * o[1];
            }
            for (int m = 0; m < s->maps; m++) {
                void *out = m ? args->o2.data : args->o.data;
                if (args->parts)
                    STOREM((M *)out + at + i, o[m], s->dv - i);
                else
                    STORE((T *)out + at + i, o[m], s->dv - i);
            }
        }
        FN(attn_norm)(&args->norm, &args->o, at / s->dv);
    }
}

/* Unit: a query tile, flat over [b,h,q_tiles]. */
static void FN(attn_tiles_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_cpu_attn_tiles *job = a;
    const struct dtx_attn_fwd_args *args = job->args;
    const struct dtx_cpu_attn_shape *s = &job->s;
    M *at = (M *)job->threads + omp_get_thread_num() * job->thread_elements;
    struct FN(tile_state) state[2];
    M *q[2], most[2][TILE_Q];
    V total[2][TILE_Q];
    for (int m = 0; m < 2; m++) {
        q[m] = at;
        state[m].score = q[m] + TILE_Q * job->dp;
        state[m].p = PER == 1 ? state[m].score : state[m].score + TILE_Q * TILE_K;
        state[m].o = state[m].score + 2 * TILE_Q * TILE_K;
        state[m].most = most[m];
        state[m].total = total[m];
        at = state[m].o + TILE_Q * job->dvp;
    }
    for (int64_t unit = first; unit < last; unit++) {
        int64_t row = unit % job->q_tiles * TILE_Q, head = unit / job->q_tiles % s->heads;
        int64_t b = unit / job->q_tiles / s->heads, rows = dtx_min64(TILE_Q, s->tq - row), lo = s->tk, hi = 0;
        int64_t kv = dtx_cpu_attn_kv_head(s, head), all = dtx_round_up(rows, TILE_ROWS), j0[TILE_Q], j1[TILE_Q];
        for (int64_t r = 0; r < rows; r++) {
            dtx_cpu_attn_visible(s, b, row + r, &j0[r], &j1[r]);
            lo = j0[r] < j1[r] ? dtx_min64(lo, j0[r]) : lo;
            hi = j0[r] < j1[r] ? dtx_max64(hi, j1[r]) : hi;
        }
        for (int m = 0; m < s->maps; m++) {
            int64_t step = s->heads * s->maps * s->d;
            const T *from = (const T *)args->q.data + (b * s->tq + row) * step + (head * s->maps + m) * s->d;
            FN(tile_pack)(from, step, rows, s->d, job->dp, all, q[m]);
            memset(state[m].o, 0, (size_t)(TILE_Q * job->dvp) * sizeof(M));
            for (int64_t r = 0; r < TILE_Q; r++) {
                most[m][r] = (M)-INFINITY;
                total[m][r] = (V){0};
            }
        }
        for (int64_t tile = lo / TILE_K; tile * TILE_K < hi; tile++) {
            const M *k = (const M *)job->packed + ((b * s->kv_heads + kv) * job->k_tiles + tile) * job->packed_tile;
            const M *v = k + s->maps * job->dp * TILE_K;
            for (int m = 0; m < s->maps; m++) {
                FN(tile_product)
                (all, TILE_K, job->dp / PER, q[m], job->dp / PER, 1, k + m * job->dp * TILE_K, TILE_K, state[m].score,
                 TILE_K, false);
                for (int64_t r = 0; r < rows; r++)
                    FN(tile_softmax)(&state[m], r, (M)args->scale, tile * TILE_K, j0[r], j1[r], job->dvp);
                FN(tile_product)
                (all, job->dvp, TILE_K / PER, state[m].p, TILE_K / PER, 1, v, job->dvp, state[m].o, job->dvp, true);
            }
        }
        FN(tile_finish)(args, job, b, head, row, rows, state);
    }
}
