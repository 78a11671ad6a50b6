/* The references in arithmetic R with functions of suffix S; included three times by ref.c. */

static void S(matmul)(int64_t m, int64_t n, int64_t k, bool ta, bool tb, const double *a, const double *b,
                      const double *c, double scale, double *out)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            R sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += (R)a[ta ? p * m + i : i * k + p] * (R)b[tb ? j * k + p : p * n + j];
            sum *= (R)scale;
            if (c)
                sum += (R)c[i * n + j];
            out[i * n + j] = (double)sum;
        }
}

static void S(rmsnorm_fwd)(int64_t n, int64_t w, const double *x, const double *gain, double eps, double out_scale,
                           double *y, double *rstd)
{
    for (int64_t r = 0; r < n; r++) {
        R sum = 0;
        for (int64_t i = 0; i < w; i++)
            sum += (R)x[r * w + i] * (R)x[r * w + i];
        R f = 1 / R_SQRT(sum / (R)w + (R)eps);
        rstd[r] = (double)f;
        for (int64_t i = 0; i < w; i++)
            y[r * w + i] = (double)((R)x[r * w + i] * f * (gain ? (R)gain[i] : 1) * (R)out_scale);
    }
}

static void S(rmsnorm_bwd)(int64_t n, int64_t w, const double *dy, const double *x, const double *gain,
                           const double *rstd, const double *residual, double out_scale, double *dx, double *dgain)
{
    for (int64_t r = 0; r < n; r++) {
        R f = (R)rstd[r], dot = 0;
        for (int64_t i = 0; i < w; i++)
            dot += (R)dy[r * w + i] * (gain ? (R)gain[i] : 1) * (R)out_scale * (R)x[r * w + i] * f;
        for (int64_t i = 0; i < w; i++) {
            R e = (R)dy[r * w + i] * (gain ? (R)gain[i] : 1) * (R)out_scale;
            R v = f * (e - (R)x[r * w + i] * f * dot / (R)w);
            dx[r * w + i] = (double)(residual ? v + (R)residual[r * w + i] : v);
        }
    }
    for (int64_t i = 0; dgain && i < w; i++) {
        R sum = (R)dgain[i];
        for (int64_t r = 0; r < n; r++)
            sum += (R)dy[r * w + i] * (R)out_scale * (R)x[r * w + i] * (R)rstd[r];
        dgain[i] = (double)sum;
    }
}

static void S(rope)(int64_t rows, int64_t heads, int64_t d, const double *x, const double *table,
                    const int32_t *positions, bool inverse, double *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < d; i += 2) {
                const double *from = x + (r * heads + h) * d + i;
                double *to = y + (r * heads + h) * d + i;
                R c = (R)table[positions[r] * d + i], s = (R)table[positions[r] * d + i + 1];
                if (inverse)
                    s = -s;
                R x0 = (R)from[0], x1 = (R)from[1];
                to[0] = (double)(x0 * c - x1 * s);
                to[1] = (double)(x0 * s + x1 * c);
            }
}

static void S(swiglu_fwd)(int64_t n, const double *g, const double *u, double *h)
{
    for (int64_t i = 0; i < n; i++)
        h[i] = (double)((R)g[i] / (1 + R_EXP(-(R)g[i])) * (R)u[i]);
}

static void S(swiglu_bwd)(int64_t n, const double *dh, const double *g, const double *u, double *dg, double *du)
{
    for (int64_t i = 0; i < n; i++) {
        R s = 1 / (1 + R_EXP(-(R)g[i])), rest = 1 / (1 + R_EXP((R)g[i]));
        du[i] = (double)((R)dh[i] * (R)g[i] * s);
        dg[i] = (double)((R)dh[i] * (R)u[i] * s * (1 + (R)g[i] * rest));
    }
}

static bool S(visible)(const struct ref_attn *a, int64_t b, int64_t i, int64_t j)
{
    int64_t start = a->doc_start ? a->doc_start[b * a->tq + i] : 0;
    return a->k_first + j >= start && a->k_first + j <= a->q_first + i;
}

static R S(score)(const struct ref_attn *a, int64_t b, int64_t head, int m, int64_t i, int64_t j)
{
    int64_t kv = head / (a->h / a->hkv);
    const double *q = a->q + ((b * a->tq + i) * a->h * a->maps + head * a->maps + m) * a->d;
    const double *k = a->k + ((b * a->tk + j) * a->hkv * a->maps + kv * a->maps + m) * a->d;
    R sum = 0;
    for (int64_t e = 0; e < a->d; e++)
        sum += (R)q[e] * (R)k[e];
    return sum * (R)a->scale;
}

static void S(attn_row)(const struct ref_attn *a, int64_t b, int64_t head, int m, int64_t i, double *o, double *lse)
{
    R most = -R_INF, total = 0;
    for (int64_t j = 0; j < a->tk; j++)
        if (S(visible)(a, b, i, j)) {
            R s = S(score)(a, b, head, m, i, j);
            most = s > most ? s : most;
        }
    for (int64_t j = 0; j < a->tk; j++)
        if (S(visible)(a, b, i, j))
            total += R_EXP(S(score)(a, b, head, m, i, j) - most);
    *lse = total > 0 ? (double)(most + R_LOG(total)) : -INFINITY;
    for (int64_t e = 0; e < a->dv; e++)
        o[e] = 0;
    if (!(total > 0))
        return;
    R *p = calloc((size_t)a->tk, sizeof(R));
    for (int64_t j = 0; j < a->tk; j++)
        if (S(visible)(a, b, i, j))
            p[j] = R_EXP(S(score)(a, b, head, m, i, j) - most) / total;
    int64_t kv = head / (a->h / a->hkv);
    for (int64_t e = 0; e < a->dv; e++) {
        R sum = 0;
        for (int64_t j = 0; j < a->tk; j++)
            sum += p[j] * (R)a->v[((b * a->tk + j) * a->hkv + kv) * a->dv + e];
        o[e] = (double)sum;
    }
    free(p);
}

static void S(attn_fwd)(const struct ref_attn *a, double *o1, double *o2, double *o, double *lse)
{
    for (int64_t b = 0; b < a->b; b++)
        for (int64_t i = 0; i < a->tq; i++)
            for (int64_t head = 0; head < a->h; head++) {
                int64_t at = ((b * a->tq + i) * a->h + head) * a->dv;
                for (int m = 0; m < a->maps; m++)
                    S(attn_row)
                (a, b, head, m, i, (m ? o2 : o1) + at, &lse[((b * a->h + head) * a->maps + m) * a->tq + i]);
                for (int64_t e = 0; e < a->dv; e++)
                    o[at + e] = a->maps == 2 ? (double)((R)o1[at + e] - (R)a->lambda * (R)o2[at + e]) : o1[at + e];
            }
}

static void S(attn_dots)(const struct ref_attn *a, const double *do_, const double *o, const double *o2, double *dsum,
                         double *dlambda, double *terms)
{
    for (int64_t head = 0; head < a->h; head++) {
        R total = 0, sizes = 0;
        for (int64_t row = 0; row < a->b * a->tq; row++) {
            int64_t b = row / a->tq, i = row % a->tq, at = (row * a->h + head) * a->dv;
            R r = 0, s = 0;
            for (int64_t e = 0; e < a->dv; e++) {
                r += (R)do_[at + e] * (R)o[at + e];
                if (a->maps == 2) {
                    s += (R)do_[at + e] * (R)o2[at + e];
                    sizes += R_ABS((R)do_[at + e] * (R)o2[at + e]);
                }
            }
            double *to = dsum + (b * a->h + head) * a->maps * a->tq + i;
            to[0] = (double)(a->maps == 2 ? r + (R)a->lambda * s : r);
            if (a->maps == 2)
                to[a->tq] = (double)(-(R)a->lambda * s);
            total += s;
        }
        if (a->maps == 2) {
            dlambda[head] = (double)((R)dlambda[head] - total);
            terms[head] = (double)sizes;
        }
    }
}

static R S(term)(R x, bool size)
{
    return size ? R_ABS(x) : x;
}

/* Sums over keys for dq, over (head, query) for dk and dv: dense loops over all pairs of one element at a time would be
 * slow, so pairs are the outer loop and R arrays hold the sums. */
static void S(attn_bwd)(const struct ref_attn *a, const double *do_, const double *lse, const double *dsum, bool sizes,
                        double *dq, double *dk, double *dv)
{
    int64_t nq = a->b * a->tq * a->h * a->maps * a->d, nk = a->b * a->tk * a->hkv * a->maps * a->d;
    int64_t nv = a->b * a->tk * a->hkv * a->dv;
    R *sq = calloc((size_t)nq, sizeof(R)), *sk = calloc((size_t)nk, sizeof(R)), *sv = calloc((size_t)nv, sizeof(R));
    for (int64_t b = 0; b < a->b; b++)
        for (int64_t head = 0; head < a->h; head++)
            for (int64_t i = 0; i < a->tq; i++)
                for (int64_t j = 0; j < a->tk; j++) {
                    if (!S(visible)(a, b, i, j))
                        continue;
                    int64_t kv = head / (a->h / a->hkv);
                    int64_t vat = ((b * a->tk + j) * a->hkv + kv) * a->dv,
                            oat = ((b * a->tq + i) * a->h + head) * a->dv;
                    R dov = 0, weight = 0;
                    for (int64_t e = 0; e < a->dv; e++)
                        dov += (R)do_[oat + e] * (R)a->v[vat + e];
                    for (int m = 0; m < a->maps; m++) {
                        int64_t stat = ((b * a->h + head) * a->maps + m) * a->tq + i;
                        int64_t qat = ((b * a->tq + i) * a->h * a->maps + head * a->maps + m) * a->d;
                        int64_t kat = ((b * a->tk + j) * a->hkv * a->maps + kv * a->maps + m) * a->d;
                        R sign = m ? -(R)a->lambda : 1;
                        R p = R_EXP(S(score)(a, b, head, m, i, j) - (R)lse[stat]);
                        R ds = p * (sign * dov - (R)dsum[stat]) * (R)a->scale;
                        weight += sign * p;
                        for (int64_t e = 0; e < a->d; e++) {
                            sq[qat + e] += S(term)(ds * (R)a->k[kat + e], sizes);
                            sk[kat + e] += S(term)(ds * (R)a->q[qat + e], sizes);
                        }
                    }
                    for (int64_t e = 0; e < a->dv; e++)
                        sv[vat + e] += S(term)(weight * (R)do_[oat + e], sizes);
                }
    for (int64_t i = 0; i < nq; i++)
        dq[i] = (double)sq[i];
    for (int64_t i = 0; i < nk; i++)
        dk[i] = (double)sk[i];
    for (int64_t i = 0; i < nv; i++)
        dv[i] = (double)sv[i];
    free(sq);
    free(sk);
    free(sv);
}

static void S(xent)(int64_t n, int64_t columns, int64_t valid, int64_t first, const double *logits,
                    const int32_t *targets, double scale, double *max, double *sums, double *loss, double *dlogits)
{
    for (int64_t r = 0; r < n; r++) {
        const double *x = logits + r * columns;
        R most = -R_INF, total = 0;
        for (int64_t c = 0; c < valid; c++)
            most = (R)x[c] > most ? (R)x[c] : most;
        for (int64_t c = 0; c < valid; c++)
            total += R_EXP((R)x[c] - most);
        int64_t at = targets[r] - first;
        bool here = targets[r] >= 0 && at >= 0 && at < valid;
        max[r] = (double)most;
        sums[2 * r] = (double)total;
        sums[2 * r + 1] = here ? x[at] : 0;
        loss[r] = targets[r] < 0 ? 0 : (double)(R_LOG(total) + most - (R)sums[2 * r + 1]);
        for (int64_t c = 0; c < columns; c++) {
            R p = c < valid && targets[r] >= 0 ? R_EXP((R)x[c] - most) / total - (here && c == at ? 1 : 0) : 0;
            dlogits[r * columns + c] = (double)(p * (R)scale);
        }
    }
}

static void S(adamw)(int64_t n, double *master, double *m, double *v, const double *grad, const double *hyper,
                     double beta1, double beta2, double eps, double decay, double lr_mult)
{
    for (int64_t i = 0; i < n; i++) {
        R g = (R)hyper[1] * (R)grad[i];
        R m1 = (R)beta1 * (R)m[i] + (R)(1 - beta1) * g, v1 = (R)beta2 * (R)v[i] + (R)(1 - beta2) * g * g;
        R update = m1 / (R)hyper[2] / (R_SQRT(v1 / (R)hyper[3]) + (R)eps) + (R)decay * (R)master[i];
        m[i] = (double)m1;
        v[i] = (double)v1;
        master[i] = (double)((R)master[i] - (R)hyper[0] * (R)lr_mult * update);
    }
}

static const struct ref_ops S(table) = {.matmul = S(matmul),
                                        .rmsnorm_fwd = S(rmsnorm_fwd),
                                        .rmsnorm_bwd = S(rmsnorm_bwd),
                                        .rope = S(rope),
                                        .swiglu_fwd = S(swiglu_fwd),
                                        .swiglu_bwd = S(swiglu_bwd),
                                        .attn_fwd = S(attn_fwd),
                                        .attn_dots = S(attn_dots),
                                        .attn_bwd = S(attn_bwd),
                                        .xent = S(xent),
                                        .adamw = S(adamw)};
