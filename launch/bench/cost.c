#include <stdio.h>

#include "kernels/base/mutant.h"
#include "launch/bench/tap.h"

/* Each tensor read or written once; absent ones are free. */
static double bytes_of(const struct dtx_tensor *const *tensors, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += tensors[i]->data ? (double)dtx_tensor_bytes(tensors[i]) : 0;
    return sum;
}
#define BYTES(...)                                                                                                     \
    bytes_of((const struct dtx_tensor *const[]){__VA_ARGS__},                                                          \
             (int)(sizeof((const struct dtx_tensor *const[]){__VA_ARGS__}) / sizeof(void *)))

/* "bf16 [2048,768]" */
static int put_tensor(char *text, size_t bytes, const struct dtx_tensor *t)
{
    int n = snprintf(text, bytes, "%s [", dtx_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && n < (int)bytes; i++)
        n += snprintf(text + n, bytes - (size_t)n, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    if (n < (int)bytes)
        n += snprintf(text + n, bytes - (size_t)n, "]");
    return n;
}

static struct dtx_cost cost(const struct dtx_tensor *shape, double flops, double bytes)
{
    struct dtx_cost c = {.flops = flops, .bytes = bytes};
    put_tensor(c.shape, sizeof c.shape, shape);
    return c;
}

struct dtx_cost dtx_cost_matmul(const struct dtx_matmul_args *args)
{
    int64_t m = args->c.dim[0], n = args->c.dim[1], k = args->a.dim[args->transpose_a ? 0 : 1];
    struct dtx_cost c = {.flops = 2.0 * (double)m * (double)n * (double)k,
                         .bytes = BYTES(&args->a, &args->b, &args->c) + (args->accumulate ? BYTES(&args->c) : 0)};
    snprintf(c.shape, sizeof c.shape, "%s%s m %lld n %lld k %lld %s→%s%s", args->transpose_a ? "aᵀ" : "a",
             args->transpose_b ? "bᵀ" : "b", (long long)m, (long long)n, (long long)k, dtx_dtype_name(args->a.dtype),
             dtx_dtype_name(args->c.dtype), args->accumulate ? " +=" : "");
    return c;
}

struct dtx_cost dtx_cost_add(const struct dtx_add_args *args)
{
    struct dtx_cost c = {.bytes = BYTES(&args->x, &args->y, &args->z)};
    snprintf(c.shape, sizeof c.shape, "%s%s%s→%s [%lld]", dtx_dtype_name(args->x.dtype), args->y.data ? "+" : "",
             args->y.data ? dtx_dtype_name(args->y.dtype) : "", dtx_dtype_name(args->z.dtype),
             (long long)dtx_tensor_count(&args->x));
    return c;
}

struct dtx_cost dtx_cost_embed_fwd(const struct dtx_embed_fwd_args *args)
{
    return cost(&args->out, 0, BYTES(&args->tokens, &args->out, &args->out));
}

/* Rows are read, added to and written. */
struct dtx_cost dtx_cost_embed_bwd(const struct dtx_embed_bwd_args *args)
{
    double rows = (double)args->tokens.dim[0] * (double)args->dout.dim[1];
    return cost(&args->dout, 0, BYTES(&args->tokens, &args->dout) + 2 * rows * dtx_dtype_bytes(args->dtable.dtype));
}

struct dtx_cost dtx_cost_rmsnorm_fwd(const struct dtx_rmsnorm_fwd_args *args)
{
    return cost(&args->x, 0, BYTES(&args->x, &args->y, &args->rstd));
}

struct dtx_cost dtx_cost_rmsnorm_bwd(const struct dtx_rmsnorm_bwd_args *args)
{
    struct dtx_cost c =
        cost(&args->x, 0, BYTES(&args->dy, &args->x, &args->rstd, &args->residual, &args->dx, &args->dgain));
    if (args->residual.data)
        snprintf(c.shape, sizeof c.shape, "%s [%lld,%lld] + residual", dtx_dtype_name(args->x.dtype),
                 (long long)args->x.dim[0], (long long)args->x.dim[1]);
    return c;
}

struct dtx_cost dtx_cost_rope(const struct dtx_rope_args *args)
{
    return cost(&args->x, 0, BYTES(&args->x, &args->y));
}

struct dtx_cost dtx_cost_swiglu_fwd(const struct dtx_swiglu_fwd_args *args)
{
    return cost(&args->g, 0, BYTES(&args->g, &args->u, &args->h));
}

struct dtx_cost dtx_cost_swiglu_bwd(const struct dtx_swiglu_bwd_args *args)
{
    return cost(&args->g, 0, BYTES(&args->dh, &args->g, &args->u, &args->dg, &args->du));
}

struct dtx_cost dtx_cost_lambda_fwd(const struct dtx_lambda_fwd_args *args)
{
    return cost(&args->q1, 0, BYTES(&args->q1, &args->k1, &args->q2, &args->k2));
}

struct dtx_cost dtx_cost_lambda_bwd(const struct dtx_lambda_bwd_args *args)
{
    return cost(&args->q1, 0, 3 * BYTES(&args->q1, &args->k1, &args->q2, &args->k2));
}

double dtx_attention_forward_flops(int maps, double d, double dv)
{
    return maps * (2 * d + 2 * dv); /* scores, times v */
}

/* Scores again and dq, dk for each map; do·vᵀ and dv once, for they are shared by the maps. */
double dtx_attention_backward_flops(int maps, double d, double dv)
{
    return maps * 6 * d + (DTX_MUTANT(bench_shared_products_per_map) ? maps : 1) * 4 * dv;
}

double dtx_attention_pairs(int64_t q_first, int64_t tq, int64_t k_first, int64_t tk)
{
    double pairs = 0;
    for (int64_t i = 0; i < tq; i++) {
        int64_t keys = q_first + i + 1 - k_first;
        pairs += (double)(keys < 0 ? 0 : keys > tk ? tk : keys);
    }
    return pairs;
}

static void put_attention(struct dtx_cost *c, const struct dtx_tensor *q, const struct dtx_tensor *v, int maps)
{
    snprintf(c->shape, sizeof c->shape, "%s %s b %lld t %lld h %lld d %lld dv %lld", maps == 2 ? "diff" : "softmax",
             dtx_dtype_name(q->dtype), (long long)q->dim[0], (long long)q->dim[1], (long long)q->dim[2] / maps,
             (long long)q->dim[3], (long long)v->dim[3]);
}

struct dtx_cost dtx_cost_attn_fwd(const struct dtx_attn_fwd_args *args)
{
    const struct dtx_tensor *q = &args->q;
    double heads = (double)(q->dim[0] * q->dim[2] / args->maps);
    double pairs = dtx_attention_pairs(args->q_first, q->dim[1], args->k_first, args->k.dim[1]);
    struct dtx_cost c = {
        .flops = heads * pairs * dtx_attention_forward_flops(args->maps, (double)q->dim[3], (double)args->v.dim[3]),
        .bytes = BYTES(q, &args->k, &args->v, &args->o, &args->o2, &args->lse, &args->norm.y, &args->norm.rstd)};
    put_attention(&c, q, &args->v, args->maps);
    return c;
}

struct dtx_cost dtx_cost_attn_merge(const struct dtx_attn_merge_args *args)
{
    return cost(&args->o, 0, BYTES(&args->o, &args->o2, &args->lse) + 2 * BYTES(&args->into_o, &args->into_o2));
}

struct dtx_cost dtx_cost_attn_finish(const struct dtx_attn_finish_args *args)
{
    return cost(&args->o1, 0, BYTES(&args->o1, &args->part_o2, &args->o, &args->o2, &args->norm.y, &args->norm.rstd));
}

struct dtx_cost dtx_cost_attn_dots(const struct dtx_attn_dots_args *args)
{
    return cost(&args->do_, 0, BYTES(&args->do_, &args->o, &args->o2, &args->dsum));
}

struct dtx_cost dtx_cost_attn_bwd(const struct dtx_attn_bwd_args *args)
{
    const struct dtx_tensor *q = &args->q;
    double heads = (double)(q->dim[0] * q->dim[2] / args->maps);
    double pairs = dtx_attention_pairs(args->q_first, q->dim[1], args->k_first, args->k.dim[1]);
    struct dtx_cost c = {
        .flops = heads * pairs * dtx_attention_backward_flops(args->maps, (double)q->dim[3], (double)args->v.dim[3]),
        .bytes = BYTES(q, &args->k, &args->v, &args->do_, &args->lse, &args->dsum, &args->dq, &args->dk, &args->dv)};
    put_attention(&c, q, &args->v, args->maps);
    return c;
}

struct dtx_cost dtx_cost_xent_max(const struct dtx_xent_max_args *args)
{
    return cost(&args->logits, 0, BYTES(&args->logits, &args->max));
}

struct dtx_cost dtx_cost_xent_sum(const struct dtx_xent_sum_args *args)
{
    return cost(&args->logits, 0, BYTES(&args->logits, &args->max, &args->targets, &args->sums));
}

struct dtx_cost dtx_cost_xent_bwd(const struct dtx_xent_bwd_args *args)
{
    return cost(&args->logits, 0, BYTES(&args->logits, &args->max, &args->sums, &args->targets, &args->dlogits));
}

struct dtx_cost dtx_cost_sqnorm(const struct dtx_sqnorm_args *args)
{
    return cost(&args->x, 0, BYTES(&args->x, &args->blocks));
}

struct dtx_cost dtx_cost_adamw(const struct dtx_adamw_args *args)
{
    return cost(&args->master, 0, 2 * BYTES(&args->master, &args->m, &args->v) + BYTES(&args->grad, &args->weight));
}
