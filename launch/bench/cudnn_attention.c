/* Attention as graphs of cuDNN's operations, in the form in which it knows them for one fused kernel: forward
 * O = softmax(mask(scale·Q·Kᵀ))·V with log-sum-exps, backward from these. */
#include "launch/bench/cudnn_api.h"

static struct cudnn_value in_memory(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a,
                                    enum dtx_cudnn_role role)
{
    const struct dtx_cudnn_tensor *t = &a->tensor[role];
    const int64_t dims[4] = {a->batch, t->heads, a->length, t->width};
    const int64_t steps[4] = {t->batch_step, t->head_step, t->position_step, 1};
    return dtx_cudnn_memory(p, role == DTX_CUDNN_STATS ? CUDNN_FLOAT : CUDNN_BF16, dims, steps, t->data);
}

/* The same with rows and columns exchanged: the right side of a product with rows of Q. */
static struct cudnn_value in_memory_transposed(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a,
                                               enum dtx_cudnn_role role)
{
    const struct dtx_cudnn_tensor *t = &a->tensor[role];
    const int64_t dims[4] = {a->batch, t->heads, t->width, a->length};
    const int64_t steps[4] = {t->batch_step, t->head_step, 1, t->position_step};
    return dtx_cudnn_memory(p, CUDNN_BF16, dims, steps, t->data);
}

/* fp32 [batch, heads, length, length] */
static struct cudnn_value scores(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a)
{
    return dtx_cudnn_virtual(p, CUDNN_FLOAT, a->batch, a->tensor[DTX_CUDNN_Q].heads, a->length, a->length);
}

/* fp32 [batch, heads, length, 1] */
static struct cudnn_value row(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a)
{
    return dtx_cudnn_virtual(p, CUDNN_FLOAT, a->batch, a->tensor[DTX_CUDNN_Q].heads, a->length, 1);
}

static struct cudnn_value apply(struct dtx_cudnn_plan *p, int mode, struct cudnn_value x, const struct cudnn_value *b,
                                struct cudnn_value y)
{
    dtx_cudnn_pointwise(p, mode, x, b, NULL, y, CUDNN_FLOAT, 0);
    return y;
}

/* The scores where row ≥ column, else −inf. */
static struct cudnn_value mask(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a, struct cudnn_value x)
{
    int64_t heads = a->tensor[DTX_CUDNN_Q].heads;
    struct cudnn_value rows = dtx_cudnn_virtual(p, CUDNN_INT32, a->batch, heads, a->length, a->length);
    struct cudnn_value columns = dtx_cudnn_virtual(p, CUDNN_INT32, a->batch, heads, a->length, a->length);
    struct cudnn_value seen = dtx_cudnn_virtual(p, CUDNN_BOOLEAN, a->batch, heads, a->length, a->length);
    struct cudnn_value masked = dtx_cudnn_scalar(p, &p->masked), y = scores(p, a);
    dtx_cudnn_pointwise(p, CUDNN_INDEX, x, NULL, NULL, rows, CUDNN_FLOAT, 2);
    dtx_cudnn_pointwise(p, CUDNN_INDEX, x, NULL, NULL, columns, CUDNN_FLOAT, 3);
    dtx_cudnn_pointwise(p, CUDNN_NOT_LESS, rows, &columns, NULL, seen, CUDNN_BOOLEAN, 0);
    dtx_cudnn_pointwise(p, CUDNN_SELECT, x, &masked, &seen, y, CUDNN_FLOAT, 0);
    return y;
}

/* scale·Q·Kᵀ */
static struct cudnn_value scaled_scores(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a,
                                        struct cudnn_value q, struct cudnn_value kt, const struct cudnn_value *scale)
{
    struct cudnn_value s = scores(p, a);
    dtx_cudnn_matmul(p, q, kt, s);
    return apply(p, CUDNN_MUL, s, scale, scores(p, a));
}

void dtx_cudnn_forward_graph(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a)
{
    struct cudnn_value q = in_memory(p, a, DTX_CUDNN_Q), kt = in_memory_transposed(p, a, DTX_CUDNN_K);
    struct cudnn_value v = in_memory(p, a, DTX_CUDNN_V), o = in_memory(p, a, DTX_CUDNN_O);
    struct cudnn_value stats = in_memory(p, a, DTX_CUDNN_STATS), scale = dtx_cudnn_scalar(p, &p->scale);
    struct cudnn_value s = mask(p, a, scaled_scores(p, a, q, kt, &scale));

    struct cudnn_value most = row(p, a), sum = row(p, a);
    dtx_cudnn_reduce(p, CUDNN_REDUCE_MAX, s, most);
    struct cudnn_value e = apply(p, CUDNN_EXP, apply(p, CUDNN_SUB, s, &most, scores(p, a)), NULL, scores(p, a));
    dtx_cudnn_reduce(p, CUDNN_REDUCE_ADD, e, sum);
    struct cudnn_value log_sum = apply(p, CUDNN_LOG, sum, NULL, row(p, a));
    apply(p, CUDNN_ADD, most, &log_sum, stats);
    struct cudnn_value weights =
        dtx_cudnn_virtual(p, CUDNN_BF16, a->batch, a->tensor[DTX_CUDNN_Q].heads, a->length, a->length);
    dtx_cudnn_matmul(p, apply(p, CUDNN_DIV, e, &sum, weights), v, o);
}

/* rowᵀ·x for each query head; heads that share one of `role` are added. */
static void gradient(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a, struct cudnn_value transposed,
                     struct cudnn_value x, enum dtx_cudnn_role role)
{
    struct cudnn_value out = in_memory(p, a, role);
    int64_t heads = a->tensor[DTX_CUDNN_Q].heads, width = a->tensor[role].width;
    if (a->tensor[role].heads == heads) {
        dtx_cudnn_matmul(p, transposed, x, out);
        return;
    }
    struct cudnn_value each = dtx_cudnn_virtual(p, CUDNN_BF16, a->batch, heads, a->length, width);
    dtx_cudnn_matmul(p, transposed, x, each);
    dtx_cudnn_reduce(p, CUDNN_REDUCE_ADD, each, out);
}

/* fp32 [batch, heads of q, length, width] in memory, to be bound behind the workspace. */
static struct cudnn_value kept(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a, int64_t width, int *where,
                               size_t *bytes)
{
    int64_t heads = a->tensor[DTX_CUDNN_Q].heads;
    const int64_t dims[4] = {a->batch, heads, a->length, width};
    const int64_t steps[4] = {heads * a->length * width, a->length * width, width, 1};
    struct cudnn_value out = dtx_cudnn_memory(p, CUDNN_FLOAT, dims, steps, NULL);
    *where = (int)p->n_names - 1;
    *bytes = (size_t)(dims[0] * steps[0]) * sizeof(float);
    return out;
}

void dtx_cudnn_backward_graph(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a)
{
    struct cudnn_value q = in_memory(p, a, DTX_CUDNN_Q), kt = in_memory_transposed(p, a, DTX_CUDNN_K);
    struct cudnn_value vt = in_memory_transposed(p, a, DTX_CUDNN_V), o = in_memory(p, a, DTX_CUDNN_O);
    struct cudnn_value stats = in_memory(p, a, DTX_CUDNN_STATS), go = in_memory(p, a, DTX_CUDNN_DO);
    struct cudnn_value scale = dtx_cudnn_scalar(p, &p->scale), one = dtx_cudnn_scalar(p, &p->one);

    /* Σ dO·O of each row. */
    const struct dtx_cudnn_tensor *to = &a->tensor[DTX_CUDNN_O];
    struct cudnn_value product = dtx_cudnn_virtual(p, CUDNN_FLOAT, a->batch, to->heads, a->length, to->width);
    struct cudnn_value sum = row(p, a), dsum = kept(p, a, 1, &p->dsum, &p->dsum_bytes);
    dtx_cudnn_reduce(p, CUDNN_REDUCE_ADD, apply(p, CUDNN_MUL, go, &o, product), sum);
    apply(p, CUDNN_MUL, sum, &one, dsum);

    /* P = exp(S − log-sum-exp), dV = Pᵀ·dO. cuDNN takes the mask behind the subtraction. */
    struct cudnn_value s = scaled_scores(p, a, q, kt, &scale);
    struct cudnn_value centred = mask(p, a, apply(p, CUDNN_SUB, s, &stats, scores(p, a)));
    struct cudnn_value weights = apply(p, CUDNN_EXP, centred, NULL, scores(p, a));
    gradient(p, a, dtx_cudnn_transpose(p, CUDNN_BF16, weights), go, DTX_CUDNN_DV);

    /* dS = scale·P·(dO·Vᵀ − dsum), dK = dSᵀ·Q, dQ = dS·K. */
    struct cudnn_value dp = scores(p, a);
    dtx_cudnn_matmul(p, go, vt, dp);
    struct cudnn_value ds = apply(p, CUDNN_SUB, dp, &dsum, scores(p, a));
    ds = apply(p, CUDNN_MUL, ds, &weights, scores(p, a));
    ds = apply(p, CUDNN_MUL, ds, &scale, scores(p, a));
    gradient(p, a, dtx_cudnn_transpose(p, CUDNN_BF16, ds), q, DTX_CUDNN_DK);
    struct cudnn_value dq = kept(p, a, a->tensor[DTX_CUDNN_Q].width, &p->dq_sum, &p->dq_sum_bytes);
    dtx_cudnn_matmul(p, ds, dtx_cudnn_transpose(p, CUDNN_BF16, kt), dq);
    apply(p, CUDNN_IDENTITY, dq, NULL, in_memory(p, a, DTX_CUDNN_DQ));
}
