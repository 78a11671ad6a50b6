/*
 * References of the operations in plain loops, independent of the product. Every function exists in three precisions of
 * arithmetic; values come and go as double. `ref_exact(act)` is the reference for activations of dtype act (double;
 * long double for f64); `ref_naive(act)` is the textbook loop with sums in index order in fp32 (f64: double), whose
 * error is the yardstick. Nothing is rounded at the end: the harness rounds naive results to the output's dtype once.
 */
#ifndef DTX_TESTS_REF_REF_H
#define DTX_TESTS_REF_REF_H

#include "kernels/base/tensor.h"

struct ref_attn {
    int64_t b, tq, tk, h, hkv, d, dv, q_first, k_first;
    int maps;
    double scale, lambda;
    const double *q, *k, *v;  /* [b,tq,maps·h,d], [b,tk,maps·hkv,d], [b,tk,hkv,dv] */
    const int32_t *doc_start; /* [b,tq] or NULL */
};

struct ref_ops {
    /* out = scale·op(a)·op(b) + c (c may be NULL) */
    void (*matmul)(int64_t m, int64_t n, int64_t k, bool ta, bool tb, const double *a, const double *b, const double *c,
                   double scale, double *out);
    void (*rmsnorm_fwd)(int64_t n, int64_t w, const double *x, const double *gain, double eps, double out_scale,
                        double *y, double *rstd);
    /* dgain: + initial values already there */
    void (*rmsnorm_bwd)(int64_t n, int64_t w, const double *dy, const double *x, const double *gain, const double *rstd,
                        const double *residual, double out_scale, double *dx, double *dgain);
    void (*rope)(int64_t rows, int64_t heads, int64_t d, const double *x, const double *table, const int32_t *positions,
                 bool inverse, double *y);
    void (*swiglu_fwd)(int64_t n, const double *g, const double *u, double *h);
    void (*swiglu_bwd)(int64_t n, const double *dh, const double *g, const double *u, double *dg, double *du);
    /* o1, o2: each map's own output [b,tq,h,dv]; o = o1 − λ·o2; lse [b,maps·h,tq] */
    void (*attn_fwd)(const struct ref_attn *a, double *o1, double *o2, double *o, double *lse);
    /* From o and o2: dsum [b,maps·h,tq]; dlambda [h], terms Σ|s| in `terms` [h]. */
    void (*attn_dots)(const struct ref_attn *a, const double *do_, const double *o, const double *o2, double *dsum,
                      double *dlambda, double *terms);
    /* sizes: not the sums but those of their terms' absolute values, a term being ds·k, ds·q or (p1 − λ·p2)·do. */
    void (*attn_bwd)(const struct ref_attn *a, const double *do_, const double *lse, const double *dsum, bool sizes,
                     double *dq, double *dk, double *dv);
    void (*xent)(int64_t n, int64_t columns, int64_t valid, int64_t first, const double *logits, const int32_t *targets,
                 double scale, double *max, double *sums, double *loss, double *dlogits);
    /* master, m, v in place; hyper as in ops.h */
    void (*adamw)(int64_t n, double *master, double *m, double *v, const double *grad, const double *hyper,
                  double beta1, double beta2, double eps, double decay, double lr_mult);
};

const struct ref_ops *ref_exact(enum dtx_dtype act);
const struct ref_ops *ref_naive(enum dtx_dtype act);

/* value rounded to dtype, back as double. */
double ref_round(double value, enum dtx_dtype dtype);

#endif
