/* One shape contract per operation, for all backends. A message names the operation, the tensor, what it is and what it
 * must be. */
#include <stdio.h>

#include "kernels/backend.h"
#include "kernels/base/mem.h"

enum { TEXT = 128, ANY = -1 };

static const char *describe(const struct dtx_tensor *t, char *text)
{
    int n = snprintf(text, TEXT, "%s [", dtx_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && n < TEXT; i++)
        n += snprintf(text + n, (size_t)(TEXT - n), i ? ",%lld" : "%lld", (long long)t->dim[i]);
    if (n < TEXT)
        snprintf(text + n, (size_t)(TEXT - n), "]");
    return text;
}

enum dtx_status dtx_need_work(struct dtx_queue *queue, const char *op, const struct dtx_tensor *work, size_t bytes)
{
    size_t have = work->data ? dtx_tensor_bytes(work) : 0;
    if (have < bytes || (bytes && work->dtype != DTX_U8))
        return dtx_fail(queue->backend->ctx, DTX_E_RANGE,
                        "%s: tensor work is %s with %zu bytes but must be u8 with %zu (ask dtx_%s_work_bytes)", op,
                        dtx_dtype_name(work->dtype), have, bytes, op);
    return DTX_OK;
}

static bool is_act(enum dtx_dtype dtype)
{
    return dtype == DTX_F64 || dtype == DTX_F32 || dtype == DTX_BF16;
}

static enum dtx_status present(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t)
{
    char text[TEXT];
    if (!t->data && dtx_tensor_count(t) != 0)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tensor %s (%s) has no memory", op, name, describe(t, text));
    return DTX_OK;
}

/* `t` must have exactly this dtype and shape; ANY matches every size. */
static enum dtx_status expect(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t,
                              enum dtx_dtype dtype, int ndim, const int64_t *dim)
{
    struct dtx_tensor want = {.dtype = dtype, .ndim = ndim};
    bool same = t->dtype == dtype && t->ndim == ndim;
    for (int i = 0; i < ndim; i++) {
        want.dim[i] = dim[i] == ANY && i < t->ndim ? t->dim[i] : dim[i];
        same = same && t->dim[i] == want.dim[i] && t->dim[i] >= 0;
    }
    char is[TEXT], must[TEXT];
    if (!same)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tensor %s is %s but must be %s", op, name, describe(t, is),
                        describe(&want, must));
    return present(ctx, op, name, t);
}

/* The same with either of two dtypes. */
static enum dtx_status expect_either(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t,
                                     enum dtx_dtype one, enum dtx_dtype other, int ndim, const int64_t *dim)
{
    return expect(ctx, op, name, t, t->dtype == other ? other : one, ndim, dim);
}

static enum dtx_status expect_act(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t)
{
    char text[TEXT];
    if (!is_act(t->dtype))
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tensor %s is %s but must be f64, f32 or bf16", op, name,
                        describe(t, text));
    return DTX_OK;
}

static enum dtx_status expect_count(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t,
                                    enum dtx_dtype one, enum dtx_dtype other, int64_t count)
{
    char text[TEXT];
    if ((t->dtype != one && t->dtype != other) || dtx_tensor_count(t) != count)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tensor %s is %s but must be %s%s%s with %lld elements", op, name,
                        describe(t, text), dtx_dtype_name(one), one == other ? "" : " or ",
                        one == other ? "" : dtx_dtype_name(other), (long long)count);
    return present(ctx, op, name, t);
}

/* OP is the operation's name in the enclosing function; shapes are written as DIMS(…). */
#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define EXPECT(field, dtype, ...) DTX_TRY(ctx, expect(ctx, op, #field, &args->field, dtype, DIMS(__VA_ARGS__)))
#define EXPECT_EITHER(field, one, other, ...)                                                                          \
    DTX_TRY(ctx, expect_either(ctx, op, #field, &args->field, one, other, DIMS(__VA_ARGS__)))
#define EXPECT_ACT(field)                  DTX_TRY(ctx, expect_act(ctx, op, #field, &args->field))
#define EXPECT_COUNT(field, one, other, n) DTX_TRY(ctx, expect_count(ctx, op, #field, &args->field, one, other, n))
#define EXPECT_TRUE(condition, ...)                                                                                    \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return dtx_fail(ctx, DTX_E_RANGE, __VA_ARGS__);                                                            \
    } while (0)

enum dtx_status dtx_matmul_check(struct dtx_ctx *ctx, const struct dtx_matmul_args *args)
{
    const char *op = "matmul";
    const struct dtx_tensor *a = &args->a, *b = &args->b;
    enum dtx_dtype act = a->dtype, master = dtx_dtype_master(act);
    EXPECT_ACT(a);
    EXPECT(a, act, ANY, ANY);
    int64_t m = a->dim[args->transpose_a ? 1 : 0], k = a->dim[args->transpose_a ? 0 : 1];
    EXPECT(b, act, args->transpose_b ? ANY : k, args->transpose_b ? k : ANY);
    int64_t n = b->dim[args->transpose_b ? 0 : 1];
    EXPECT_EITHER(c, act, master, m, n);
    EXPECT_TRUE(!args->fp8 || act != DTX_F64, "matmul: fp8 of f64 operands; they must be f32 or bf16");
    if (args->scale.data)
        EXPECT(scale, master, 1);
    if (args->amax.data)
        EXPECT(amax, master, 1);
    return DTX_OK;
}

enum dtx_status dtx_add_check(struct dtx_ctx *ctx, const struct dtx_add_args *args)
{
    const char *op = "add";
    EXPECT_ACT(x);
    EXPECT_ACT(z);
    /* bf16 and f32 may be mixed; f64 stands alone. */
    bool f64 = args->x.dtype == DTX_F64;
    enum dtx_dtype one = f64 ? DTX_F64 : DTX_F32, other = f64 ? DTX_F64 : DTX_BF16;
    int64_t n = dtx_tensor_count(&args->x);
    EXPECT_COUNT(x, one, other, n);
    EXPECT_COUNT(z, one, other, n);
    if (args->y.data)
        EXPECT_COUNT(y, one, other, n);
    return DTX_OK;
}

enum dtx_status dtx_embed_fwd_check(struct dtx_ctx *ctx, const struct dtx_embed_fwd_args *args)
{
    const char *op = "embed_fwd";
    enum dtx_dtype act = args->table.dtype;
    EXPECT_ACT(table);
    EXPECT(table, act, ANY, ANY);
    EXPECT(tokens, DTX_I32, ANY);
    EXPECT_EITHER(out, act, dtx_dtype_master(act), args->tokens.dim[0], args->table.dim[1]);
    EXPECT_TRUE(args->first >= 0, "%s: first row is %lld", op, (long long)args->first);
    return DTX_OK;
}

enum dtx_status dtx_embed_bwd_check(struct dtx_ctx *ctx, const struct dtx_embed_bwd_args *args)
{
    const char *op = "embed_bwd";
    EXPECT_ACT(dout);
    EXPECT(tokens, DTX_I32, ANY);
    EXPECT(dout, args->dout.dtype, args->tokens.dim[0], ANY);
    EXPECT(dtable, dtx_dtype_master(args->dout.dtype), ANY, args->dout.dim[1]);
    EXPECT_TRUE(args->first >= 0, "%s: first row is %lld", op, (long long)args->first);
    return DTX_OK;
}

/* What the norm's forward and backward share: x, gain and rstd. */
static enum dtx_status check_norm(struct dtx_ctx *ctx, const char *op, const struct dtx_rmsnorm_fwd_args *args)
{
    enum dtx_dtype act = args->x.dtype, master = dtx_dtype_master(act);
    EXPECT_ACT(x);
    EXPECT(x, act, ANY, ANY);
    int64_t n = args->x.dim[0], w = args->x.dim[1];
    EXPECT_TRUE(w > 0, "%s: tensor x has rows of %lld elements", op, (long long)w);
    EXPECT(rstd, master, n);
    if (args->gain.data)
        EXPECT(gain, master, w);
    return DTX_OK;
}

enum dtx_status dtx_rmsnorm_fwd_check(struct dtx_ctx *ctx, const struct dtx_rmsnorm_fwd_args *args)
{
    const char *op = "rmsnorm_fwd";
    DTX_TRY(ctx, check_norm(ctx, op, args));
    EXPECT(y, args->x.dtype, args->x.dim[0], args->x.dim[1]);
    return DTX_OK;
}

enum dtx_status dtx_rmsnorm_bwd_check(struct dtx_ctx *ctx, const struct dtx_rmsnorm_bwd_args *args)
{
    const char *op = "rmsnorm_bwd";
    struct dtx_rmsnorm_fwd_args common = {.x = args->x, .gain = args->gain, .rstd = args->rstd};
    DTX_TRY(ctx, check_norm(ctx, op, &common));
    enum dtx_dtype act = args->x.dtype;
    int64_t n = args->x.dim[0], w = args->x.dim[1];
    EXPECT(dy, act, n, w);
    EXPECT(dx, act, n, w);
    if (args->residual.data)
        EXPECT(residual, act, n, w);
    if (args->dgain.data)
        EXPECT(dgain, dtx_dtype_master(act), w);
    return DTX_OK;
}

enum dtx_status dtx_rope_check(struct dtx_ctx *ctx, const struct dtx_rope_args *args)
{
    const char *op = "rope";
    enum dtx_dtype act = args->x.dtype;
    EXPECT_ACT(x);
    EXPECT(x, act, ANY, ANY, ANY, ANY);
    const int64_t *dim = args->x.dim;
    EXPECT_TRUE(dim[3] % 2 == 0, "%s: head width %lld is odd", op, (long long)dim[3]);
    EXPECT(y, act, dim[0], dim[1], dim[2], dim[3]);
    EXPECT(table, dtx_dtype_master(act), ANY, dim[3]);
    if (args->positions.data)
        EXPECT(positions, DTX_I32, dim[0], dim[1]);
    else
        EXPECT_TRUE(args->first >= 0 && args->first + dim[1] <= args->table.dim[0],
                    "%s: positions %lld to %lld, but the table has %lld rows", op, (long long)args->first,
                    (long long)(args->first + dim[1] - 1), (long long)args->table.dim[0]);
    return DTX_OK;
}

enum dtx_status dtx_swiglu_fwd_check(struct dtx_ctx *ctx, const struct dtx_swiglu_fwd_args *args)
{
    const char *op = "swiglu_fwd";
    enum dtx_dtype act = args->g.dtype;
    int64_t n = dtx_tensor_count(&args->g);
    EXPECT_ACT(g);
    EXPECT_COUNT(g, act, act, n);
    EXPECT_COUNT(u, act, act, n);
    EXPECT_COUNT(h, act, act, n);
    return DTX_OK;
}

enum dtx_status dtx_swiglu_bwd_check(struct dtx_ctx *ctx, const struct dtx_swiglu_bwd_args *args)
{
    const char *op = "swiglu_bwd";
    enum dtx_dtype act = args->g.dtype;
    int64_t n = dtx_tensor_count(&args->g);
    EXPECT_ACT(g);
    EXPECT_COUNT(g, act, act, n);
    EXPECT_COUNT(u, act, act, n);
    EXPECT_COUNT(dh, act, act, n);
    EXPECT_COUNT(dg, act, act, n);
    EXPECT_COUNT(du, act, act, n);
    return DTX_OK;
}

static enum dtx_status expect_master(struct dtx_ctx *ctx, const char *op, const char *name, const struct dtx_tensor *t)
{
    char text[TEXT];
    if (t->dtype != DTX_F64 && t->dtype != DTX_F32)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tensor %s is %s but must be f64 or f32", op, name, describe(t, text));
    return DTX_OK;
}
#define EXPECT_MASTER(field) DTX_TRY(ctx, expect_master(ctx, op, #field, &args->field))

/* What λ and its gradient share: the four vectors. */
static enum dtx_status check_lambda(struct dtx_ctx *ctx, const char *op, const struct dtx_lambda_fwd_args *args)
{
    enum dtx_dtype master = args->q1.dtype;
    EXPECT_MASTER(q1);
    EXPECT(q1, master, ANY);
    int64_t d = args->q1.dim[0];
    EXPECT(k1, master, d);
    EXPECT(q2, master, d);
    EXPECT(k2, master, d);
    return DTX_OK;
}

enum dtx_status dtx_lambda_fwd_check(struct dtx_ctx *ctx, const struct dtx_lambda_fwd_args *args)
{
    const char *op = "lambda_fwd";
    DTX_TRY(ctx, check_lambda(ctx, op, args));
    EXPECT(lambda, args->q1.dtype, 1);
    return DTX_OK;
}

enum dtx_status dtx_lambda_bwd_check(struct dtx_ctx *ctx, const struct dtx_lambda_bwd_args *args)
{
    const char *op = "lambda_bwd";
    struct dtx_lambda_fwd_args common = {.q1 = args->q1, .k1 = args->k1, .q2 = args->q2, .k2 = args->k2};
    DTX_TRY(ctx, check_lambda(ctx, op, &common));
    enum dtx_dtype master = args->q1.dtype;
    int64_t d = args->q1.dim[0];
    EXPECT(dlambda, master, ANY);
    EXPECT(dq1, master, d);
    EXPECT(dk1, master, d);
    EXPECT(dq2, master, d);
    EXPECT(dk2, master, d);
    return DTX_OK;
}

/* What attention forward and backward share: q, k, v, λ and the documents. */
static enum dtx_status check_attn(struct dtx_ctx *ctx, const char *op, const struct dtx_attn_fwd_args *args)
{
    enum dtx_dtype act = args->q.dtype;
    int64_t maps = args->maps;
    EXPECT_ACT(q);
    EXPECT(q, act, ANY, ANY, ANY, ANY);
    EXPECT(k, act, args->q.dim[0], ANY, ANY, args->q.dim[3]);
    EXPECT(v, act, args->q.dim[0], args->k.dim[1], ANY, ANY);
    EXPECT_TRUE(maps == 1 || maps == 2, "%s: %d maps; there are one or two", op, args->maps);
    int64_t heads = args->q.dim[2], kv_heads = args->v.dim[2];
    EXPECT_TRUE(heads > 0 && heads % maps == 0, "%s: tensor q has %lld sub-heads, which %d maps do not divide", op,
                (long long)heads, args->maps);
    EXPECT_TRUE(kv_heads > 0 && args->k.dim[2] == maps * kv_heads,
                "%s: tensor k has %lld sub-heads but %lld value heads with %d maps need %lld", op,
                (long long)args->k.dim[2], (long long)kv_heads, args->maps, (long long)(maps * kv_heads));
    EXPECT_TRUE(heads / maps % kv_heads == 0, "%s: %lld heads cannot be grouped over %lld key/value heads", op,
                (long long)(heads / maps), (long long)kv_heads);
    if (maps == 2)
        EXPECT(lambda, dtx_dtype_master(act), 1);
    if (args->doc_start.data)
        EXPECT(doc_start, DTX_I32, args->q.dim[0], args->q.dim[1]);
    EXPECT_TRUE(args->q_first >= 0 && args->k_first >= 0, "%s: first positions %lld (queries) and %lld (keys)", op,
                (long long)args->q_first, (long long)args->k_first);
    return DTX_OK;
}

/* o: act [b,tq,h,dv], what is normed. */
static enum dtx_status check_attn_norm(struct dtx_ctx *ctx, const char *op, const struct dtx_attn_norm *args,
                                       const struct dtx_tensor *o)
{
    enum dtx_dtype master = dtx_dtype_master(o->dtype);
    if (!args->y.data)
        return DTX_OK;
    EXPECT(y, o->dtype, o->dim[0], o->dim[1], o->dim[2], o->dim[3]);
    EXPECT(rstd, master, o->dim[0], o->dim[1], o->dim[2]);
    EXPECT_TRUE(args->y.data != o->data, "%s: tensor y is o, which the backward pass reads as it was", op);
    if (args->gain.data)
        EXPECT(gain, master, o->dim[3]);
    return DTX_OK;
}

enum dtx_status dtx_attn_fwd_check(struct dtx_ctx *ctx, const struct dtx_attn_fwd_args *args)
{
    const char *op = "attn_fwd";
    DTX_TRY(ctx, check_attn(ctx, op, args));
    enum dtx_dtype act = args->q.dtype, master = dtx_dtype_master(act), out = args->parts ? master : act;
    int64_t b = args->q.dim[0], t = args->q.dim[1], h = args->q.dim[2] / args->maps, dv = args->v.dim[3];
    EXPECT(o, out, b, t, h, dv);
    if (args->maps == 2)
        EXPECT(o2, out, b, t, h, dv);
    EXPECT(lse, master, b, args->maps * h, t);
    EXPECT_TRUE(!args->parts || !args->norm.y.data, "%s: parts cannot be normed before they are merged", op);
    return check_attn_norm(ctx, op, &args->norm, &args->o);
}

enum dtx_status dtx_attn_merge_check(struct dtx_ctx *ctx, const struct dtx_attn_merge_args *args)
{
    const char *op = "attn_merge";
    enum dtx_dtype master = args->o.dtype;
    const int64_t *dim = args->o.dim;
    EXPECT_MASTER(o);
    EXPECT_TRUE(args->maps == 1 || args->maps == 2, "%s: %d maps; there are one or two", op, args->maps);
    EXPECT(o, master, ANY, ANY, ANY, ANY);
    EXPECT(into_o, master, dim[0], dim[1], dim[2], dim[3]);
    if (args->maps == 2) {
        EXPECT(o2, master, dim[0], dim[1], dim[2], dim[3]);
        EXPECT(into_o2, master, dim[0], dim[1], dim[2], dim[3]);
    }
    EXPECT(lse, master, dim[0], args->maps * dim[2], dim[1]);
    EXPECT(into_lse, master, dim[0], args->maps * dim[2], dim[1]);
    return DTX_OK;
}

enum dtx_status dtx_attn_finish_check(struct dtx_ctx *ctx, const struct dtx_attn_finish_args *args)
{
    const char *op = "attn_finish";
    enum dtx_dtype act = args->o.dtype, master = dtx_dtype_master(act);
    const int64_t *dim = args->o.dim;
    EXPECT_ACT(o);
    EXPECT_TRUE(args->maps == 1 || args->maps == 2, "%s: %d maps; there are one or two", op, args->maps);
    EXPECT(o, act, ANY, ANY, ANY, ANY);
    EXPECT(o1, master, dim[0], dim[1], dim[2], dim[3]);
    if (args->maps == 2) {
        EXPECT(part_o2, master, dim[0], dim[1], dim[2], dim[3]);
        EXPECT(o2, act, dim[0], dim[1], dim[2], dim[3]);
        EXPECT(lambda, master, 1);
    }
    return check_attn_norm(ctx, op, &args->norm, &args->o);
}

enum dtx_status dtx_attn_dots_check(struct dtx_ctx *ctx, const struct dtx_attn_dots_args *args)
{
    const char *op = "attn_dots";
    enum dtx_dtype act = args->do_.dtype, master = dtx_dtype_master(act);
    EXPECT_ACT(do_);
    EXPECT(do_, act, ANY, ANY, ANY, ANY);
    const int64_t *dim = args->do_.dim;
    EXPECT_TRUE(args->maps == 1 || args->maps == 2, "%s: %d maps; there are one or two", op, args->maps);
    EXPECT(o, act, dim[0], dim[1], dim[2], dim[3]);
    EXPECT(dsum, master, dim[0], args->maps * dim[2], dim[1]);
    if (args->maps == 2) {
        EXPECT(o2, act, dim[0], dim[1], dim[2], dim[3]);
        EXPECT(lambda, master, 1);
        EXPECT(dlambda, master, dim[2]);
    }
    return DTX_OK;
}

enum dtx_status dtx_attn_bwd_check(struct dtx_ctx *ctx, const struct dtx_attn_bwd_args *args)
{
    const char *op = "attn_bwd";
    struct dtx_attn_fwd_args common = {.q = args->q,
                                       .k = args->k,
                                       .v = args->v,
                                       .lambda = args->lambda,
                                       .doc_start = args->doc_start,
                                       .q_first = args->q_first,
                                       .k_first = args->k_first,
                                       .maps = args->maps};
    DTX_TRY(ctx, check_attn(ctx, op, &common));
    enum dtx_dtype act = args->q.dtype, master = dtx_dtype_master(act);
    const int64_t *q = args->q.dim, *k = args->k.dim, *v = args->v.dim;
    EXPECT(do_, act, q[0], q[1], q[2] / args->maps, v[3]);
    EXPECT(lse, master, q[0], q[2], q[1]);
    EXPECT(dsum, master, q[0], q[2], q[1]);
    enum dtx_dtype out = args->parts ? master : act;
    EXPECT(dq, out, q[0], q[1], q[2], q[3]);
    EXPECT(dk, out, k[0], k[1], k[2], k[3]);
    EXPECT(dv, out, v[0], v[1], v[2], v[3]);
    return DTX_OK;
}

/* What the steps of cross-entropy share. */
static enum dtx_status check_logits(struct dtx_ctx *ctx, const char *op, const struct dtx_xent_max_args *args)
{
    EXPECT_MASTER(logits);
    EXPECT(logits, args->logits.dtype, ANY, ANY);
    EXPECT(max, args->logits.dtype, args->logits.dim[0]);
    EXPECT_TRUE(args->valid >= 0 && args->valid <= args->logits.dim[1], "%s: %lld valid of %lld columns", op,
                (long long)args->valid, (long long)args->logits.dim[1]);
    return DTX_OK;
}

enum dtx_status dtx_xent_max_check(struct dtx_ctx *ctx, const struct dtx_xent_max_args *args)
{
    return check_logits(ctx, "xent_max", args);
}

enum dtx_status dtx_xent_sum_check(struct dtx_ctx *ctx, const struct dtx_xent_sum_args *args)
{
    const char *op = "xent_sum";
    struct dtx_xent_max_args common = {args->logits, args->max, args->valid};
    DTX_TRY(ctx, check_logits(ctx, op, &common));
    EXPECT(targets, DTX_I32, args->logits.dim[0]);
    EXPECT(sums, args->logits.dtype, args->logits.dim[0], 2);
    return DTX_OK;
}

enum dtx_status dtx_xent_bwd_check(struct dtx_ctx *ctx, const struct dtx_xent_bwd_args *args)
{
    const char *op = "xent_bwd";
    struct dtx_xent_max_args common = {args->logits, args->max, args->valid};
    DTX_TRY(ctx, check_logits(ctx, op, &common));
    enum dtx_dtype master = args->logits.dtype;
    int64_t n = args->logits.dim[0], columns = args->logits.dim[1];
    EXPECT(targets, DTX_I32, n);
    EXPECT(sums, master, n, 2);
    EXPECT(scale, master, 1);
    EXPECT(loss, DTX_F64, n);
    if (args->dlogits.data)
        EXPECT_EITHER(dlogits, master, master == DTX_F64 ? DTX_F64 : DTX_BF16, n, columns);
    return DTX_OK;
}

enum dtx_status dtx_sqnorm_check(struct dtx_ctx *ctx, const struct dtx_sqnorm_args *args)
{
    const char *op = "sqnorm";
    EXPECT_MASTER(x);
    EXPECT(x, args->x.dtype, ANY);
    EXPECT(blocks, DTX_F64, dtx_div_up(args->x.dim[0], 1024));
    EXPECT(sum, DTX_F64, 1);
    return DTX_OK;
}

enum dtx_status dtx_adamw_check(struct dtx_ctx *ctx, const struct dtx_adamw_args *args)
{
    const char *op = "adamw";
    enum dtx_dtype master = args->master.dtype;
    EXPECT_MASTER(master);
    EXPECT(master, master, ANY);
    int64_t n = args->master.dim[0];
    EXPECT(m, master, n);
    EXPECT(v, master, n);
    EXPECT(grad, master, n);
    if (args->weight.data)
        EXPECT_EITHER(weight, master, master == DTX_F64 ? DTX_F64 : DTX_BF16, n);
    EXPECT(hyper, DTX_F64, 4);
    return DTX_OK;
}
