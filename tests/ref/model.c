#include "tests/ref/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "tests/ref/ref.h"

enum { ATTN_NORM, Q, K, V, OUT, Q1, K1, Q2, K2, SUBNORM, FFN_NORM, GATE, UP, DOWN };
static const char *const names[REF_MODEL_ROWS] = {
    "attn_norm.gain", "attn.q",         "attn.k",       "attn.v",        "attn.out", "attn.lambda_q1", "attn.lambda_k1",
    "attn.lambda_q2", "attn.lambda_k2", "attn.subnorm", "ffn_norm.gain", "ffn.gate", "ffn.up",         "ffn.down"};

/* One weight. */
struct row {
    int64_t count;
    bool decays;
    double *w, *g, *m, *v;
};

/* What forward keeps of a block for its backward pass; all [n, …]. */
struct block {
    double *x, *xn, *rstd, *q, *k, *v, *lse, *o1, *o2, *o, *sub_rstd, *y, *z, *zn, *z_rstd, *gate, *up, *h;
    double lambda;
};

struct state {
    const struct ref_model *m;
    const struct ref_ops *ops;
    int64_t n, width, kv; /* rows; D; columns of k and of v */
    int n_rows;
    struct row *rows;
    struct block *blocks;
    double *rope, *last; /* [length, d]; [n, D]: the last block's output */
    int32_t *positions;
};

static double *doubles(int64_t n)
{
    return calloc((size_t)n, sizeof(double));
}

static double *w(const struct state *s, int64_t layer, int kind)
{
    return s->rows[1 + layer * REF_MODEL_ROWS + kind].w;
}

static double *g(const struct state *s, int64_t layer, int kind)
{
    return s->rows[1 + layer * REF_MODEL_ROWS + kind].g;
}

static void make_row(struct state *s, int64_t index, const char *name, int64_t count, double std, bool decays)
{
    uint64_t key = dtx_rng_key(s->m->seed, name);
    struct row *r = &s->rows[index];
    *r = (struct row){count, decays, doubles(count), doubles(count), doubles(count), doubles(count)};
    for (int64_t i = 0; i < count; i++)
        r->w[i] = std > 0 ? (float)(std * dtx_rng_normal(key, (uint64_t)i)) : 1;
}

static void make_rows(struct state *s)
{
    const struct ref_model *m = s->m;
    int64_t D = s->width, d = m->head_dim;
    double out = 0.02 / sqrt(2.0 * (double)m->layers);
    const int64_t counts[] = {D, D * D, s->kv * D, s->kv * D, D * D,      d,          d,
                              d, d,     2 * d,     D,         m->ffn * D, m->ffn * D, m->ffn * D};
    const double stds[] = {0, 0.02, 0.02, 0.02, out, 0.1, 0.1, 0.1, 0.1, 0, 0, 0.02, 0.02, out};
    s->n_rows = (int)m->layers * REF_MODEL_ROWS + 2;
    s->rows = calloc((size_t)s->n_rows, sizeof *s->rows);
    make_row(s, 0, "embed.tokens", m->vocab * D, 0.02, true);
    for (int64_t l = 0; l < m->layers; l++)
        for (int k = 0; k < REF_MODEL_ROWS; k++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%02d.%s", (int)l, names[k]);
            make_row(s, 1 + l * REF_MODEL_ROWS + k, name, counts[k], stds[k], stds[k] > 0 && stds[k] < 0.1);
        }
    make_row(s, s->n_rows - 1, "final_norm.gain", D, 0, false);
}

static void make_blocks(struct state *s)
{
    const struct ref_model *m = s->m;
    int64_t n = s->n, D = s->width;
    s->blocks = calloc((size_t)m->layers, sizeof *s->blocks);
    for (int64_t l = 0; l < m->layers; l++)
        s->blocks[l] = (struct block){.x = doubles(n * D),
                                      .xn = doubles(n * D),
                                      .rstd = doubles(n),
                                      .q = doubles(n * D),
                                      .k = doubles(n * s->kv),
                                      .v = doubles(n * s->kv),
                                      .lse = doubles(n * 2 * m->heads),
                                      .o1 = doubles(n * D),
                                      .o2 = doubles(n * D),
                                      .o = doubles(n * D),
                                      .sub_rstd = doubles(n * m->heads),
                                      .y = doubles(n * D),
                                      .z = doubles(n * D),
                                      .zn = doubles(n * D),
                                      .z_rstd = doubles(n),
                                      .gate = doubles(n * m->ffn),
                                      .up = doubles(n * m->ffn),
                                      .h = doubles(n * m->ffn)};
}

static void make_positions(struct state *s)
{
    const struct ref_model *m = s->m;
    s->rope = doubles(m->length * m->head_dim);
    s->positions = calloc((size_t)s->n, sizeof *s->positions);
    for (int64_t t = 0; t < m->length; t++)
        for (int64_t i = 0; i < m->head_dim; i += 2) {
            double angle = (double)t * pow(m->theta, -(double)i / (double)m->head_dim);
            s->rope[t * m->head_dim + i] = cos(angle);
            s->rope[t * m->head_dim + i + 1] = sin(angle);
        }
    for (int64_t i = 0; i < s->n; i++)
        s->positions[i] = (int32_t)(i % m->length);
}

static void free_all(struct state *s)
{
    for (int i = 0; i < s->n_rows; i++) {
        free(s->rows[i].w), free(s->rows[i].g), free(s->rows[i].m), free(s->rows[i].v);
    }
    for (int64_t l = 0; l < s->m->layers; l++) {
        double **all = (double **)&s->blocks[l];
        for (size_t i = 0; i < offsetof(struct block, lambda) / sizeof *all; i++)
            free(all[i]);
    }
    free(s->rows), free(s->blocks), free(s->rope), free(s->positions), free(s->last);
}

/* y [n, out] = x [n, in]·Wᵀ (+ add) */
static void linear(const struct state *s, int64_t out, int64_t in, const double *x, const double *weight,
                   const double *add, double *y)
{
    s->ops->matmul(s->n, out, in, false, true, x, weight, add, 1, y);
}

/* dw += dyᵀ·x; dx = dy·W (+ add) */
static void linear_backward(const struct state *s, int64_t out, int64_t in, const double *dy, const double *x,
                            const double *weight, const double *add, double *dw, double *dx)
{
    s->ops->matmul(out, in, s->n, true, false, dy, x, dw, 1, dw);
    s->ops->matmul(s->n, in, out, false, false, dy, weight, add, 1, dx);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double lambda_init(int64_t layer)
{
    return 0.8 - 0.6 * exp(-0.3 * (double)layer);
}

static struct ref_attn attention(const struct state *s, const struct block *b)
{
    const struct ref_model *m = s->m;
    return (struct ref_attn){.b = m->sequences,
                             .tq = m->length,
                             .tk = m->length,
                             .h = m->heads,
                             .hkv = m->kv_heads,
                             .d = m->head_dim,
                             .dv = 2 * m->head_dim,
                             .maps = 2,
                             .scale = 1 / sqrt((double)m->head_dim),
                             .lambda = b->lambda,
                             .q = b->q,
                             .k = b->k,
                             .v = b->v};
}

static void forward(struct state *s, int64_t l, double *out)
{
    const struct ref_model *m = s->m;
    struct block *b = &s->blocks[l];
    int64_t D = s->width, d = m->head_dim;
    s->ops->rmsnorm_fwd(s->n, D, b->x, w(s, l, ATTN_NORM), m->norm_eps, 1, b->xn, b->rstd);
    linear(s, D, D, b->xn, w(s, l, Q), NULL, b->q);
    linear(s, s->kv, D, b->xn, w(s, l, K), NULL, b->k);
    linear(s, s->kv, D, b->xn, w(s, l, V), NULL, b->v);
    s->ops->rope(s->n, 2 * m->heads, d, b->q, s->rope, s->positions, false, b->q);
    s->ops->rope(s->n, 2 * m->kv_heads, d, b->k, s->rope, s->positions, false, b->k);
    b->lambda = exp(dot(w(s, l, Q1), w(s, l, K1), d)) - exp(dot(w(s, l, Q2), w(s, l, K2), d)) + lambda_init(l);
    struct ref_attn a = attention(s, b);
    s->ops->attn_fwd(&a, b->o1, b->o2, b->o, b->lse);
    s->ops->rmsnorm_fwd(s->n * m->heads, 2 * d, b->o, w(s, l, SUBNORM), 1e-5, 1 - lambda_init(l), b->y, b->sub_rstd);
    linear(s, D, D, b->y, w(s, l, OUT), b->x, b->z);
    s->ops->rmsnorm_fwd(s->n, D, b->z, w(s, l, FFN_NORM), m->norm_eps, 1, b->zn, b->z_rstd);
    linear(s, m->ffn, D, b->zn, w(s, l, GATE), NULL, b->gate);
    linear(s, m->ffn, D, b->zn, w(s, l, UP), NULL, b->up);
    s->ops->swiglu_fwd(s->n * m->ffn, b->gate, b->up, b->h);
    linear(s, D, m->ffn, b->h, w(s, l, DOWN), b->z, out);
}

/* dx [n, D]: gradient of the block's output, then of its input. */
static void backward_ffn(struct state *s, int64_t l, double *dx)
{
    const struct ref_model *m = s->m;
    struct block *b = &s->blocks[l];
    int64_t D = s->width, n = s->n;
    double *dh = doubles(n * m->ffn), *dg = doubles(n * m->ffn), *du = doubles(n * m->ffn), *dzn = doubles(n * D);
    linear_backward(s, D, m->ffn, dx, b->h, w(s, l, DOWN), NULL, g(s, l, DOWN), dh);
    s->ops->swiglu_bwd(n * m->ffn, dh, b->gate, b->up, dg, du);
    linear_backward(s, m->ffn, D, dg, b->zn, w(s, l, GATE), NULL, g(s, l, GATE), dzn);
    linear_backward(s, m->ffn, D, du, b->zn, w(s, l, UP), dzn, g(s, l, UP), dzn);
    s->ops->rmsnorm_bwd(n, D, dzn, b->z, w(s, l, FFN_NORM), b->z_rstd, dx, 1, dx, g(s, l, FFN_NORM));
    free(dh), free(dg), free(du), free(dzn);
}

static void backward_lambda(struct state *s, int64_t l, double dlambda)
{
    int64_t d = s->m->head_dim;
    for (int pair = 0; pair < 2; pair++) {
        int q = pair ? Q2 : Q1, k = pair ? K2 : K1;
        double f = (pair ? -dlambda : dlambda) * exp(dot(w(s, l, q), w(s, l, k), d));
        for (int64_t i = 0; i < d; i++) {
            g(s, l, q)[i] += f * w(s, l, k)[i];
            g(s, l, k)[i] += f * w(s, l, q)[i];
        }
    }
}

static void backward_attention(struct state *s, int64_t l, double *dx)
{
    const struct ref_model *m = s->m;
    struct block *b = &s->blocks[l];
    int64_t D = s->width, n = s->n, d = m->head_dim;
    double *dy = doubles(n * D), *do_ = doubles(n * D), *dsum = doubles(n * 2 * m->heads), *dxn = doubles(n * D);
    double *dq = doubles(n * D), *dk = doubles(n * s->kv), *dv = doubles(n * s->kv);
    double *dlambda = doubles(m->heads), *terms = doubles(m->heads), total = 0;
    linear_backward(s, D, D, dx, b->y, w(s, l, OUT), NULL, g(s, l, OUT), dy);
    s->ops->rmsnorm_bwd(n * m->heads, 2 * d, dy, b->o, w(s, l, SUBNORM), b->sub_rstd, NULL, 1 - lambda_init(l), do_,
                        g(s, l, SUBNORM));
    struct ref_attn a = attention(s, b);
    s->ops->attn_dots(&a, do_, b->o, b->o2, dsum, dlambda, terms);
    for (int64_t h = 0; h < m->heads; h++)
        total += dlambda[h];
    backward_lambda(s, l, total);
    s->ops->attn_bwd(&a, do_, b->lse, dsum, false, dq, dk, dv);
    s->ops->rope(n, 2 * m->heads, d, dq, s->rope, s->positions, true, dq);
    s->ops->rope(n, 2 * m->kv_heads, d, dk, s->rope, s->positions, true, dk);
    linear_backward(s, D, D, dq, b->xn, w(s, l, Q), NULL, g(s, l, Q), dxn);
    linear_backward(s, s->kv, D, dk, b->xn, w(s, l, K), dxn, g(s, l, K), dxn);
    linear_backward(s, s->kv, D, dv, b->xn, w(s, l, V), dxn, g(s, l, V), dxn);
    s->ops->rmsnorm_bwd(n, D, dxn, b->x, w(s, l, ATTN_NORM), b->rstd, dx, 1, dx, g(s, l, ATTN_NORM));
    free(dy), free(do_), free(dsum), free(dxn), free(dq), free(dk), free(dv), free(dlambda), free(terms);
}

/* The mean loss; adds all gradients. */
static double gradients(struct state *s)
{
    const struct ref_model *m = s->m;
    int64_t n = s->n, D = s->width;
    struct row *embedding = &s->rows[0], *gain = &s->rows[s->n_rows - 1];
    double *xn = doubles(n * D), *rstd = doubles(n), *logits = doubles(n * m->vocab), *dx = doubles(n * D);
    double *dxn = doubles(n * D), *max = doubles(n), *sums = doubles(2 * n), *losses = doubles(n), loss = 0,
           targets = 0;
    for (int64_t i = 0; i < n; i++) {
        memcpy(s->blocks[0].x + i * D, embedding->w + m->tokens[i] * D, (size_t)D * sizeof(double));
        targets += m->targets[i] >= 0;
    }
    for (int64_t l = 0; l < m->layers; l++)
        forward(s, l, l + 1 < m->layers ? s->blocks[l + 1].x : s->last);
    s->ops->rmsnorm_fwd(n, D, s->last, gain->w, m->norm_eps, 1, xn, rstd);
    linear(s, m->vocab, D, xn, embedding->w, NULL, logits);
    s->ops->xent(n, m->vocab, m->vocab, 0, logits, m->targets, 1 / targets, max, sums, losses, logits);
    linear_backward(s, m->vocab, D, logits, xn, embedding->w, NULL, embedding->g, dxn);
    s->ops->rmsnorm_bwd(n, D, dxn, s->last, gain->w, rstd, NULL, 1, dx, gain->g);
    for (int64_t l = m->layers - 1; l >= 0; l--) {
        backward_ffn(s, l, dx);
        backward_attention(s, l, dx);
    }
    for (int64_t i = 0; i < n; i++) {
        loss += losses[i] / targets;
        for (int64_t c = 0; c < D; c++)
            embedding->g[m->tokens[i] * D + c] += dx[i * D + c];
    }
    free(xn), free(rstd), free(logits), free(dx), free(dxn), free(max), free(sums), free(losses);
    return loss;
}

void ref_model_steps(const struct ref_model *m, int steps, const double *lr, double *losses, double *norms,
                     double *rows)
{
    int64_t width = 2 * m->heads * m->head_dim, n = m->sequences * m->length;
    struct state s = {.m = m,
                      .ops = ref_exact(DTX_F32),
                      .n = n,
                      .width = width,
                      .kv = 2 * m->kv_heads * m->head_dim,
                      .last = doubles(n * width)};
    make_rows(&s);
    make_blocks(&s);
    make_positions(&s);
    for (int step = 0; step < steps; step++) {
        double square = 0;
        for (int i = 0; i < s.n_rows; i++)
            memset(s.rows[i].g, 0, (size_t)s.rows[i].count * sizeof(double));
        losses[step] = gradients(&s);
        for (int i = 0; i < s.n_rows; i++) {
            double sum = dot(s.rows[i].g, s.rows[i].g, s.rows[i].count);
            square += sum;
            if (step == 0)
                rows[i] = sqrt(sum);
        }
        norms[step] = sqrt(square);
        double factor = norms[step] > m->clip ? m->clip / norms[step] : 1;
        double hyper[4] = {lr[step], factor, 1 - pow(m->beta1, step + 1), 1 - pow(m->beta2, step + 1)};
        for (int i = 0; i < s.n_rows; i++) {
            struct row *r = &s.rows[i];
            s.ops->adamw(r->count, r->w, r->m, r->v, r->g, hyper, m->beta1, m->beta2, m->eps, r->decays ? m->decay : 0,
                         1);
        }
    }
    free_all(&s);
}
