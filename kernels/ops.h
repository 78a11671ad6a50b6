/*
 * Operations on tensors in a backend's memory. Each call checks its shapes once for all backends (ops_check.c), then
 * runs the backend's function on the queue. Operations neither allocate, read back nor synchronise; what changes from
 * step to step comes in tensors. Outputs are overwritten unless the comment says "accumulated".
 *
 * Dtypes: "act" is the activation dtype (f64, f32 or bf16); "master" is f64 beside f64 and f32 otherwise
 * (dtx_dtype_master). Sums are made in fp32 (f64 in f64) or better; bf16 results are rounded once. No result depends
 * on the number of threads.
 *
 * Shapes: b batch, t positions, h heads, d head width of one map, n rows (b·t), D model width, V vocabulary columns.
 */
#ifndef DTX_KERNELS_OPS_H
#define DTX_KERNELS_OPS_H

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

struct dtx_queue;

/* 8-bit floats (OCP OFP8) to which a product's operands may be rounded: 448 and 57344 are the largest numbers. */
enum dtx_fp8 { DTX_FP8_NONE, DTX_FP8_E4M3, DTX_FP8_E5M2 };

/* c = op(a)·op(b), or c += with `accumulate`. a: [m,k] ([k,m] with transpose_a), b: [k,n] ([n,k] with transpose_b),
 * both of one dtype; c: [m,n] of act or master dtype. The optional scale [1] (master) multiplies the product; the
 * optional amax [1] (master) receives max |c|. A row of c does not depend on m.
 * fp8 (a, b f32 or bf16): a is rounded to this kind and b to E4M3 first, each with one scale for the tensor,
 *   x̂ = s·round(x/s), s = max|x| / largest number; to nearest, ties to even; sums in fp32 (kernels/round.h)
 * An infinity or NaN in a or b makes c NaN where it reaches, infinities all of c. A row of c then depends on all of a.
 */
struct dtx_matmul_args {
    struct dtx_tensor a, b, c;
    bool transpose_a, transpose_b, accumulate;
    struct dtx_tensor scale, amax;
    enum dtx_fp8 fp8;
    struct dtx_tensor work; /* u8 */
};

/* z = alpha·x + y, rounded once to z's dtype; y may be absent. x, y, z: equal counts, each act or master; z may be x or
 * y. So: residual add, gradient accumulation, cast, scaling.
 * stochastic: fp32 to bf16 goes up with the probability of the part that is cut off, as a hash of the fp32 bits has it
 * (kernels/round.h): the same value always rounds alike, on every mesh and after a resume. Else to nearest, ties to
 * even. */
struct dtx_add_args {
    struct dtx_tensor x, y, z;
    double alpha;
    bool stochastic;
};

/* out[i] = table[tokens[i] − first] where that row is held here, else 0. tokens: i32 [n]; table: act [V,D];
 * out: act or master [n,D]. */
struct dtx_embed_fwd_args {
    struct dtx_tensor tokens, table, out;
    int64_t first;
};

/* dtable[tokens[i] − first] += dout[i], in ascending i. dout: act or master [n,D]; dtable: master [V,D]. */
struct dtx_embed_bwd_args {
    struct dtx_tensor tokens, dout, dtable;
    int64_t first;
};

/* y = out_scale · gain ⊙ x · rstd, rstd = 1/√(mean(x²) + eps). x, y: act [n,w]; gain: master [w] or absent (ones);
 * rstd: master [n]. */
struct dtx_rmsnorm_fwd_args {
    struct dtx_tensor x, gain, y, rstd;
    double eps, out_scale;
};

/* dx = rmsnorm backward (+ residual, optional act [n,w], may be dx). dgain (master [w], or absent) is accumulated over
 * fixed blocks of rows. dy, x, dx: act [n,w]. */
struct dtx_rmsnorm_bwd_args {
    struct dtx_tensor dy, x, gain, rstd, residual, dx, dgain;
    double out_scale;
    struct dtx_tensor work;
};

/* Rotates interleaved pairs (2i, 2i+1) of every head by the angle of the row's position; `inverse` rotates back (the
 * backward pass). x, y: act [b,t,heads,d], y may be x; table: master [positions,d], row p holding cos, sin of pair 0,
 * cos, sin of pair 1, …; the position of row j is positions[b,j] (i32 [b,t]) or, when absent, first + j. */
struct dtx_rope_args {
    struct dtx_tensor x, y, table, positions;
    int64_t first;
    bool inverse;
};

/* h = silu(g) ⊙ u. All act, equal counts. */
struct dtx_swiglu_fwd_args {
    struct dtx_tensor g, u, h;
};

/* dg, du from dh; dg may be g and du may be u. */
struct dtx_swiglu_bwd_args {
    struct dtx_tensor dh, g, u, dg, du;
};

/* lambda = exp(q1·k1) − exp(q2·k2) + lambda_init. q1 … k2: master [d]; lambda: master [1]. */
struct dtx_lambda_fwd_args {
    struct dtx_tensor q1, k1, q2, k2, lambda;
    double lambda_init;
};

/* dlambda: master [h], one term per head, summed here in head order; dq1 … dk2: master [d], accumulated. */
struct dtx_lambda_bwd_args {
    struct dtx_tensor q1, k1, q2, k2, dlambda, dq1, dk1, dq2, dk2;
};

/* The norm behind attention, absent without y: each row of o is normed over its dv elements and multiplied,
 *   y = out_scale·gain ⊙ o·rstd, rstd = 1/√(mean(o²) + eps)      (differential attention: out_scale = 1 − λ_init)
 * of o as it is written, rounded, for that is what the backward pass reads: rmsnorm_fwd of o, on the CPU bit for bit.
 * y: act [b,tq,h,dv], not o; gain: master [dv] or absent (ones); rstd: master [b,tq,h]. */
struct dtx_attn_norm {
    struct dtx_tensor gain, y, rstd;
    double eps, out_scale;
};

/*
 * Attention of `maps` softmax maps over one v: maps 1 is plain attention, maps 2 is differential attention
 *   o = softmax(q1 k1ᵀ·scale) v − λ·softmax(q2 k2ᵀ·scale) v      (paper eq. 1; head j's maps are sub-heads 2j, 2j+1)
 * Causal: query at position p sees keys at positions doc_start … p. Softmax in fp32 (f64 in f64).
 *   q: act [b,tq,maps·h,d]   k: act [b,tk,maps·hkv,d]   v: act [b,tk,hkv,dv]   head j uses kv head j/(h/hkv)
 *   lambda: master [1], maps 2 only     doc_start: i32 [b,tq] global positions, or absent (0)
 *   q_first, k_first: global position of the piece's first query and key
 *   o: act [b,tq,h,dv]; o2 (maps 2): act [b,tq,h,dv], map 2's own output; lse: master [b,maps·h,tq], natural log
 * With `parts` o is map 1's own output instead of the difference, and o, o2 are master dtype (for merging key pieces);
 * then there is no norm.
 * A row with no visible key gives o = 0 and lse = −inf. Memory grows with t, not t².
 */
struct dtx_attn_fwd_args {
    struct dtx_tensor q, k, v, lambda, doc_start;
    int64_t q_first, k_first;
    int maps;
    bool parts;
    double scale;
    struct dtx_tensor o, o2, lse;
    struct dtx_tensor work;
    struct dtx_attn_norm norm;
};

/* Row sums for the backward pass: r = Σ do·o, s = Σ do·o2; dsum (master [b,maps·h,tq]) = r + λs for map 1, −λs for
 * map 2; dlambda (master [h], accumulated, maps 2) −= Σ s over b and tq. do_, o, o2: act [b,tq,h,dv]. */
struct dtx_attn_dots_args {
    struct dtx_tensor do_, o, o2, lambda, dsum, dlambda;
    int maps;
};

/* Merges the parts of a further piece of keys (o, o2, lse as attn_fwd makes them with `parts`) into the running ones
 * into_o, into_o2, into_lse: softmax over both pieces. All master: o [b,tq,h,dv], lse [b,maps·h,tq]. */
struct dtx_attn_merge_args {
    struct dtx_tensor o, o2, lse, into_o, into_o2, into_lse;
    int maps;
};

/* Parts of all keys → what attn_fwd makes without `parts`: o = o1 − λ·o2 and o2 (maps 1: o = o1), rounded once; y.
 * o1, part_o2: master, o, o2: act, all [b,tq,h,dv]; lambda: master [1], maps 2 only. */
struct dtx_attn_finish_args {
    struct dtx_tensor o1, part_o2, lambda, o, o2;
    int maps;
    struct dtx_attn_norm norm;
};

/* dq, dk, dv (shapes and dtype of q, k, v) from do_, the final lse and dsum. With `parts` (q, k, v are a piece of
 * queries and one of keys) dq, dk, dv are master dtype and accumulated. */
struct dtx_attn_bwd_args {
    struct dtx_tensor q, k, v, lambda, doc_start;
    int64_t q_first, k_first;
    int maps;
    double scale;
    struct dtx_tensor do_, lse, dsum, dq, dk, dv;
    struct dtx_tensor work;
    bool parts;
};

/*
 * Cross-entropy over a vocabulary cut in columns. logits: master [n,V], of which the first `valid` columns exist;
 * column c is token first + c; targets: i32 [n], −1 = no target. Steps: xent_max, all-reduce max of `max`; xent_sum,
 * all-reduce sum of `sums`; xent_bwd.
 */
struct dtx_xent_max_args {
    struct dtx_tensor logits, max; /* max: master [n] */
    int64_t valid;
};

/* sums (master [n,2]): Σ exp(logit − max), and the target's logit where it is held here, else 0. */
struct dtx_xent_sum_args {
    struct dtx_tensor logits, max, targets, sums;
    int64_t first, valid;
};

/* loss (f64 [n]) = log Σ + max − target logit, 0 without a target. dlogits (act [n,V], may be absent, may share the
 * memory of logits when of the same dtype) = (softmax − onehot)·scale, 0 in rows without target and in columns from
 * `valid` on. scale: master [1]. */
struct dtx_xent_bwd_args {
    struct dtx_tensor logits, max, sums, targets, scale, loss, dlogits;
    int64_t first, valid;
};

/* sum (f64 [1]) = Σ x², by fixed blocks of 1,024 elements, each in fp64 in index order, the blocks added in order.
 * x: master [n]; blocks: f64 [⌈n/1024⌉], scratch that holds the blocks' sums afterwards. */
struct dtx_sqnorm_args {
    struct dtx_tensor x, blocks, sum;
};

/* One AdamW step, decoupled decay (Loshchilov & Hutter): g = clip·grad; m, v updated; master −= lr·lr_mult·(m̂/(√v̂ +
 * eps) + decay·master); weight = master rounded (stochastic: as in add). master, m, v, grad: master dtype [n]; weight:
 * act [n] or absent. hyper: f64 [4] = {lr, clip, 1 − β1^step, 1 − β2^step}. */
struct dtx_adamw_args {
    struct dtx_tensor master, m, v, grad, weight, hyper;
    double beta1, beta2, eps, decay, lr_mult;
    bool stochastic;
};

#define DTX_OP(name)                                                                                                   \
    enum dtx_status dtx_##name(struct dtx_queue *queue, const struct dtx_##name##_args *args);                         \
    enum dtx_status dtx_##name##_check(struct dtx_ctx *ctx, const struct dtx_##name##_args *args);
/* Bytes of workspace that the call will need; only shapes and dtypes of args are read. */
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t dtx_##name##_work_bytes(struct dtx_queue *queue, const struct dtx_##name##_args *args);
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK

#endif
