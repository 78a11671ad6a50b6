/*
 * Attention row by row in plain loops: two passes over the visible keys, no workspace. Included per dtype by
 * loops_act.h. Sub-head of head j in map m: j·maps + m; of its keys: kv·maps + m.
 */

static M FN(attn_dot)(const T *x, const T *y, int64_t n)
{
    V sum = {0};
    for (int64_t i = 0; i < n; i += W)
        sum += LOAD(x + i, n - i) * LOAD(y + i, n - i);
    return SUMV(sum);
}

/* sum[i] += factor·x[i] */
static void FN(attn_axpy)(M *sum, M factor, const T *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        STOREM(sum + i, LOADM(sum + i, n - i) + factor * LOAD(x + i, n - i), n - i);
}

static void FN(attn_store)(T *to, const M *from, M factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        STORE(to + i, factor * LOADM(from + i, n - i), n - i);
}

/* Row `at` of a gradient: act dtype, or with `parts` master dtype and added to. */
INLINE void FN(attn_give)(const struct dtx_attn_bwd_args *args, const struct dtx_tensor *to, int64_t at, const M *from,
                          M factor, int64_t n)
{
    if (args->parts)
        for (int64_t i = 0; i < n; i += W) {
            M *sum = (M *)to->data + at + i;
            STOREM(sum, LOADM(sum, n - i) + factor * LOADM(from + i, n - i), n - i);
        }
    else
        FN(attn_store)((T *)to->data + at, from, factor, n);
}

/* The norm, if there is one, of row `row` of o, flat over [b,tq,h]. */
INLINE void FN(attn_norm)(const struct dtx_attn_norm *norm, const struct dtx_tensor *o, int64_t row)
{
    int64_t dv = o->dim[3], heads = o->dim[2], tq = o->dim[1];
    if (!norm->y.data)
        return;
    M *rstd = (M *)norm->rstd.data + (DTX_MUTANT(attn_rstd_by_head) ? row % heads * tq + row / heads : row);
    *rstd = FN(norm_row)((const T *)o->data + row * dv, norm->gain.data, dv, norm->eps, norm->out_scale,
                         (T *)norm->y.data + row * dv);
}

/* Unit: a row of o, flat over [b,h,tq]. */
static void FN(attn_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_fwd_args *args = a;
    struct dtx_cpu_attn_shape s =
        dtx_cpu_attn_shape(&args->q, &args->k, &args->v, args->maps, args->q_first, args->k_first, &args->doc_start);
    M lambda = s.maps == 2 ? *(const M *)args->lambda.data : 0;
    const T *k = args->k.data, *v = args->v.data;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t i = unit % s.tq, head = unit / s.tq % s.heads, b = unit / s.tq / s.heads;
        int64_t kv = dtx_cpu_attn_kv_head(&s, head), j0, j1;
        dtx_cpu_attn_visible(&s, b, i, &j0, &j1);
        M most[2] = {(M)-INFINITY, (M)-INFINITY}, total[2] = {0, 0};
        const T *q = (const T *)args->q.data + ((b * s.tq + i) * s.heads + head) * s.maps * s.d;
        for (int m = 0; m < s.maps; m++) {
            const T *km = k + (b * s.tk * s.kv_heads + kv) * s.maps * s.d + m * s.d;
            int64_t step = s.kv_heads * s.maps * s.d;
            for (int64_t j = j0; j < j1; j++)
                most[m] =
                    (M)fmax((double)most[m], (double)(FN(attn_dot)(q + m * s.d, km + j * step, s.d) * (M)args->scale));
            double sum = 0;
            for (int64_t j = j0; j < j1; j++)
                sum += exp((double)(FN(attn_dot)(q + m * s.d, km + j * step, s.d) * (M)args->scale - most[m]));
            total[m] = (M)sum;
            ((M *)args->lse.data)[((b * s.heads + head) * s.maps + m) * s.tq + i] =
                j0 < j1 ? (M)((double)most[m] + log(sum)) : (M)-INFINITY;
        }
        for (int64_t c = 0; c < s.dv; c += ATTN_CHUNK) {
            int64_t n = dtx_min64(ATTN_CHUNK, s.dv - c), at = ((b * s.tq + i) * s.heads + head) * s.dv + c;
            M sum[2][ATTN_CHUNK] = {{0}};
            for (int64_t j = j0; j < j1; j++) {
                const T *kj = k + ((b * s.tk + j) * s.kv_heads + kv) * s.maps * s.d;
                const T *vj = v + ((b * s.tk + j) * s.kv_heads + kv) * s.dv + c;
                for (int m = 0; m < s.maps; m++) {
                    M score = FN(attn_dot)(q + m * s.d, kj + m * s.d, s.d) * (M)args->scale;
                    FN(attn_axpy)(sum[m], (M)(exp((double)(score - most[m])) / (double)total[m]), vj, n);
                }
            }
            if (s.maps == 2 && !args->parts)
                for (int64_t e = 0; e < n; e++)
                    sum[0][e] -= lambda * sum[1][e];
            for (int m = 0; m < s.maps; m++) {
                void *o = m ? args->o2.data : args->o.data;
                if (args->parts)
                    memcpy((M *)o + at, sum[m], (size_t)n * sizeof(M));
                else
                    FN(attn_store)((T *)o + at, sum[m], 1, n);
            }
        }
        FN(attn_norm)(&args->norm, &args->o, (b * s.tq + i) * s.heads + head);
    }
}

/* Unit: a row of o, flat over [b,h,tq]. A piece in which the row sees no key (lse −inf) changes nothing. */
static void FN(attn_merge)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_merge_args *args = a;
    int64_t t = args->o.dim[1], heads = args->o.dim[2], dv = args->o.dim[3];
    for (int64_t unit = first; unit < last; unit++) {
        int64_t i = unit % t, head = unit / t % heads, b = unit / t / heads, at = ((b * t + i) * heads + head) * dv;
        for (int m = 0; m < args->maps; m++) {
            int64_t stat = ((b * heads + head) * args->maps + m) * t + i;
            M *into = (M *)(m ? &args->into_o2 : &args->into_o)->data + at, *lse = (M *)args->into_lse.data + stat;
            const M *o = (const M *)(m ? &args->o2 : &args->o)->data + at;
            M here = ((const M *)args->lse.data)[stat], most = here > *lse ? here : *lse;
            if (here == (M)-INFINITY)
                continue;
            double old = exp((double)(*lse - most)), more = exp((double)(here - most)), total = old + more;
            if (DTX_MUTANT(merge_without_lse)) {
                old = more = 1;
                total = 2;
            }
            for (int64_t e = 0; e < dv; e += W)
                STOREM(into + e, LOADM(into + e, dv - e) * (M)(old / total) + LOADM(o + e, dv - e) * (M)(more / total),
                       dv - e);
            *lse = (M)((double)most + log(total));
        }
    }
}

/* Unit: a row (b, t) of all heads. */
static void FN(attn_finish)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_finish_args *args = a;
    int64_t heads = args->o.dim[2], n = heads * args->o.dim[3];
    M lambda = args->maps == 2 ? *(const M *)args->lambda.data : 0;
    for (int64_t row = first; row < last; row++) {
        for (int64_t i = row * n; i < (row + 1) * n; i += W) {
            int64_t left = (row + 1) * n - i;
            V o = LOADM((const M *)args->o1.data + i, left);
            if (args->maps == 2) {
                V o2 = LOADM((const M *)args->part_o2.data + i, left);
                STORE((T *)args->o2.data + i, o2, left);
                o -= lambda * o2;
            }
            STORE((T *)args->o.data + i, o, left);
        }
        for (int64_t head = 0; head < heads; head++)
            FN(attn_norm)(&args->norm, &args->o, row * heads + head);
    }
}

/* Unit: a head, over all samples and rows in order. */
static void FN(attn_dots)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_dots_args *args = a;
    int64_t b = args->do_.dim[0], t = args->do_.dim[1], heads = args->do_.dim[2], dv = args->do_.dim[3];
    int64_t maps = args->maps;
    M lambda = maps == 2 ? *(const M *)args->lambda.data : 0, *dsum = args->dsum.data;
    for (int64_t head = first; head < last; head++) {
        double total = 0;
        for (int64_t row = 0; row < b * t; row++) {
            int64_t at = (row * heads + head) * dv, to = (row / t * heads + head) * maps * t + row % t;
            const T *do_ = (const T *)args->do_.data + at;
            M r = FN(attn_dot)(do_, (const T *)args->o.data + at, dv);
            if (maps == 1) {
                dsum[to] = r;
                continue;
            }
            M s = FN(attn_dot)(do_, (const T *)args->o2.data + at, dv);
            dsum[to] = r + lambda * s;
            dsum[to + t] = DTX_MUTANT(attn_d2_without_lambda) ? -s : -lambda * s;
            total += (double)s;
        }
        if (maps == 2)
            ((M *)args->dlambda.data)[head] -= (M)total;
    }
}

/* One (query, key) pair of one map: p and ds = p·(dp − D). dov = do·v; map 2 counts −λ times. */
static void FN(attn_pair)(const struct dtx_attn_bwd_args *args, M score, int64_t stat, M dov, M *p, M *ds)
{
    *p = (M)exp((double)(score * (M)args->scale - ((const M *)args->lse.data)[stat]));
    *ds = *p * (dov - ((const M *)args->dsum.data)[stat]);
}

/* Unit: a row of dq for all maps of a head, flat over [b,h,tq]. */
static void FN(attn_bwd_q)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_bwd_args *args = a;
    struct dtx_cpu_attn_shape s =
        dtx_cpu_attn_shape(&args->q, &args->k, &args->v, args->maps, args->q_first, args->k_first, &args->doc_start);
    M lambda = s.maps == 2 ? *(const M *)args->lambda.data : 0;
    for (int64_t unit = first; unit < last; unit++) {
        int64_t i = unit % s.tq, head = unit / s.tq % s.heads, b = unit / s.tq / s.heads;
        int64_t kv = dtx_cpu_attn_kv_head(&s, head), j0, j1, row = (b * s.tq + i) * s.heads + head;
        dtx_cpu_attn_visible(&s, b, i, &j0, &j1);
        const T *do_ = (const T *)args->do_.data + row * s.dv;
        for (int64_t c = 0; c < s.d * s.maps; c += dtx_min64(ATTN_CHUNK, s.d - c % s.d)) {
            int64_t m = c / s.d, n = dtx_min64(ATTN_CHUNK, s.d - c % s.d);
            const T *q = (const T *)args->q.data + (row * s.maps + m) * s.d;
            M sum[ATTN_CHUNK] = {0}, p, ds;
            for (int64_t j = j0; j < j1; j++) {
                int64_t key = (b * s.tk + j) * s.kv_heads + kv;
                const T *k = (const T *)args->k.data + (key * s.maps + m) * s.d;
                M dov = FN(attn_dot)(do_, (const T *)args->v.data + key * s.dv, s.dv) * (m ? -lambda : 1);
                FN(attn_pair)
                (args, FN(attn_dot)(q, k, s.d), ((b * s.heads + head) * s.maps + m) * s.tq + i, dov, &p, &ds);
                FN(attn_axpy)(sum, ds, k + c % s.d, n);
            }
            FN(attn_give)(args, &args->dq, row * s.maps * s.d + c, sum, (M)args->scale, n);
        }
    }
}

/* Unit: a row of dk (all maps) and dv, flat over [b,tk,hkv]; heads, then queries in ascending order. */
static void FN(attn_bwd_kv)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_attn_bwd_args *args = a;
    struct dtx_cpu_attn_shape s =
        dtx_cpu_attn_shape(&args->q, &args->k, &args->v, args->maps, args->q_first, args->k_first, &args->doc_start);
    M lambda = s.maps == 2 ? *(const M *)args->lambda.data : 0;
    M lambda_v = DTX_MUTANT(attn_dv_without_lambda) ? 1 : lambda;
    for (int64_t key = first; key < last; key++) {
        int64_t j = key / s.kv_heads % s.tk, b = key / s.kv_heads / s.tk;
        const T *k = (const T *)args->k.data + key * s.maps * s.d, *v = (const T *)args->v.data + key * s.dv;
        for (int64_t c = 0; c < dtx_max64(s.d, s.dv); c += ATTN_CHUNK) {
            M dk[2][ATTN_CHUNK] = {{0}}, dv[ATTN_CHUNK] = {0};
            int64_t nk = dtx_max64(0, dtx_min64(ATTN_CHUNK, s.d - c));
            int64_t nv = dtx_max64(0, dtx_min64(ATTN_CHUNK, s.dv - c));
            for (int64_t pair = 0; pair < s.heads * s.tq; pair++) {
                int64_t head = pair / s.tq, i = pair % s.tq, j0, j1, row = (b * s.tq + i) * s.heads + head;
                if (dtx_cpu_attn_kv_head(&s, head) != key % s.kv_heads)
                    continue;
                dtx_cpu_attn_visible(&s, b, i, &j0, &j1);
                if (j < j0 || j >= j1)
                    continue;
                const T *do_ = (const T *)args->do_.data + row * s.dv;
                M dov = FN(attn_dot)(do_, v, s.dv), p[2], ds;
                for (int m = 0; m < s.maps; m++) {
                    const T *q = (const T *)args->q.data + (row * s.maps + m) * s.d;
                    FN(attn_pair)
                    (args, FN(attn_dot)(q, k + m * s.d, s.d), ((b * s.heads + head) * s.maps + m) * s.tq + i,
                     m ? -lambda * dov : dov, &p[m], &ds);
                    FN(attn_axpy)(dk[m], ds, q + c, nk);
                }
                FN(attn_axpy)(dv, s.maps == 2 ? p[0] - lambda_v * p[1] : p[0], do_ + c, nv);
            }
            for (int m = 0; m < s.maps; m++)
                FN(attn_give)(args, &args->dk, (key * s.maps + m) * s.d + c, dk[m], (M)args->scale, nk);
            FN(attn_give)(args, &args->dv, key * s.dv + c, dv, 1, nv);
        }
    }
}
