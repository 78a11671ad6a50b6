#include "launch/bench/peer.h"

#include <math.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Sub-heads `call`, call + calls, … of a tensor [n, t, sub-heads, width]. */
static struct dtx_cudnn_tensor view(const struct dtx_tensor *x, int calls, int call)
{
    int64_t width = x->dim[3];
    call = DTX_MUTANT(peer_same_map) ? 0 : call;
    return (struct dtx_cudnn_tensor){.data = (char *)x->data + (size_t)(call * width) * dtx_dtype_bytes(x->dtype),
                                     .heads = x->dim[2] / calls,
                                     .width = width,
                                     .batch_step = x->dim[1] * x->dim[2] * width,
                                     .head_step = calls * width,
                                     .position_step = x->dim[2] * width};
}

/* Of log-sum-exps [n, sub-heads, t]. */
static struct dtx_cudnn_tensor stats_view(const struct dtx_tensor *x, int calls, int call)
{
    int64_t t = x->dim[2];
    return (struct dtx_cudnn_tensor){.data = (float *)x->data + call * t,
                                     .heads = x->dim[1] / calls,
                                     .width = 1,
                                     .batch_step = x->dim[1] * t,
                                     .head_step = calls * t,
                                     .position_step = 1};
}

static struct dtx_cudnn_attention describe(const struct dtx_peer_ours *ours, const struct dtx_peer *p, int call)
{
    const struct dtx_attn_fwd_args *f = ours->forward;
    struct dtx_cudnn_attention a = {.batch = f->q.dim[0], .length = f->q.dim[1], .scale = (float)f->scale};
    a.tensor[DTX_CUDNN_Q] = view(&f->q, p->calls, call);
    a.tensor[DTX_CUDNN_K] = view(&f->k, p->calls, call);
    a.tensor[DTX_CUDNN_V] = view(&f->v, 1, 0);
    a.tensor[DTX_CUDNN_O] = view(&p->o, p->calls, call);
    a.tensor[DTX_CUDNN_STATS] = stats_view(&p->stats, p->calls, call);
    a.tensor[DTX_CUDNN_DO] = view(&p->do_, p->calls, call);
    a.tensor[DTX_CUDNN_DQ] = view(&p->dq, p->calls, call);
    a.tensor[DTX_CUDNN_DK] = view(&p->dk, p->calls, call);
    a.tensor[DTX_CUDNN_DV] = view(&p->dv[call], 1, 0);
    return a;
}

/* A bf16 or f32 tensor as floats on the host; free with dtx_mem_free. */
static enum dtx_status fetch(struct dtx_queue *queue, const struct dtx_tensor *x, float **out)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    int64_t n = dtx_tensor_count(x);
    void *raw, *values;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, dtx_dtype_bytes(x->dtype), &raw));
    enum dtx_status status = dtx_tensor_get(queue, x, raw);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, n, sizeof(float), &values);
    if (status == DTX_OK) {
        *out = values;
        for (int64_t i = 0; i < n; i++)
            (*out)[i] = x->dtype == DTX_BF16 ? dtx_bf16_to_f32(((uint16_t *)raw)[i]) : ((float *)raw)[i];
    }
    dtx_mem_free(raw);
    return status;
}

static enum dtx_status fetch_lambda(struct dtx_queue *queue, const struct dtx_attn_fwd_args *f, float *out)
{
    *out = 0;
    return f->maps == 2 ? dtx_tensor_get(queue, &f->lambda, out) : DTX_OK;
}

/* The gradients of the maps' own outputs: do and −λ·do. */
static enum dtx_status fill_gradient(struct dtx_queue *queue, const struct dtx_peer_ours *ours, struct dtx_peer *p)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    const struct dtx_tensor *from = &ours->backward->do_;
    int64_t width = from->dim[3], n = dtx_tensor_count(from), maps = ours->forward->maps;
    float *values, lambda;
    void *memory;
    DTX_TRY(ctx, fetch_lambda(queue, ours->forward, &lambda));
    lambda = DTX_MUTANT(peer_lambda_sign) ? -lambda : lambda;
    DTX_TRY(ctx, fetch(queue, from, &values));
    enum dtx_status status = dtx_mem_alloc(ctx, maps * n, sizeof(uint16_t), &memory);
    if (status == DTX_OK) {
        uint16_t *to = memory;
        for (int64_t i = 0; i < n; i++)
            for (int64_t m = 0; m < maps; m++)
                to[(i / width * maps + m) * width + i % width] = dtx_f32_to_bf16(m ? -lambda * values[i] : values[i]);
        status = dtx_tensor_set(queue, &p->do_, to);
        dtx_mem_free(to);
    }
    dtx_mem_free(values);
    return status;
}

static enum dtx_status make_tensors(struct dtx_backend *backend, const struct dtx_attn_fwd_args *f, struct dtx_peer *p)
{
    int64_t n = f->q.dim[0], t = f->q.dim[1], maps_heads = f->q.dim[2], width = f->v.dim[3];
    p->o = p->do_ = dtx_tensor_4d(NULL, DTX_BF16, n, t, maps_heads, width);
    p->stats = dtx_tensor_3d(NULL, DTX_F32, n, maps_heads, t);
    p->dq = f->q;
    p->dk = f->k;
    p->dv[0] = p->dv[1] = f->v;
    struct dtx_tensor *all[] = {&p->o, &p->do_, &p->stats, &p->dq, &p->dk, &p->dv[0], &p->dv[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->data = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all - (p->calls == 1); i++)
        DTX_TRY(backend->ctx, dtx_tensor_alloc(backend, all[i]));
    return DTX_OK;
}

/* cuDNN pairs heads by division: with fewer key heads, maps that lie beside each other would share one. */
static bool possible(const struct dtx_attn_fwd_args *f, struct dtx_peer *p)
{
    if (f->q.dtype != DTX_BF16)
        snprintf(p->why, sizeof p->why, "bf16 is compared, not %s (--dtype bf16)", dtx_dtype_name(f->q.dtype));
    else if (f->maps == 2 && p->calls == 1 && f->q.dim[2] != f->k.dim[2])
        snprintf(p->why, sizeof p->why, "one call for both maps needs as many key heads as heads");
    else
        return true;
    return false;
}

static bool make_plans(const struct dtx_cudnn *cudnn, const struct dtx_peer_ours *ours, struct dtx_peer *p)
{
    for (int i = 0; i < 2 * p->calls; i++) {
        struct dtx_cudnn_plan *plan = i % 2 ? &p->backward[i / 2] : &p->forward[i / 2];
        struct dtx_cudnn_attention a = describe(ours, p, i / 2);
        if (!dtx_cudnn_plan_make(cudnn, &a, i % 2, plan)) {
            snprintf(p->why, sizeof p->why, "%s: %s", i % 2 ? "backward" : "forward", plan->why);
            return false;
        }
    }
    return true;
}

static enum dtx_status bind_plans(struct dtx_backend *backend, struct dtx_peer *p)
{
    size_t bytes = 0;
    for (int i = 0; i < 2 * p->calls; i++) {
        size_t wanted = dtx_cudnn_work_bytes(i % 2 ? &p->backward[i / 2] : &p->forward[i / 2]);
        bytes = wanted > bytes ? wanted : bytes;
    }
    p->work = dtx_tensor_1d(NULL, DTX_U8, (int64_t)bytes + 1);
    DTX_TRY(backend->ctx, dtx_tensor_alloc(backend, &p->work));
    for (int i = 0; i < 2 * p->calls; i++) {
        struct dtx_cudnn_plan *plan = i % 2 ? &p->backward[i / 2] : &p->forward[i / 2];
        if (!dtx_cudnn_plan_bind(plan, p->work.data))
            return dtx_fail(backend->ctx, DTX_E_LIBRARY, "%s", plan->why);
    }
    p->ready = true;
    return DTX_OK;
}

enum dtx_status dtx_peer_make(struct dtx_queue *queue, const struct dtx_cudnn *cudnn, const struct dtx_peer_ours *ours,
                              int calls, struct dtx_peer *out)
{
    struct dtx_backend *backend = queue->backend;
    out->calls = calls;
    if (!possible(ours->forward, out))
        return DTX_OK;
    DTX_TRY(backend->ctx, make_tensors(backend, ours->forward, out));
    DTX_TRY(backend->ctx, fill_gradient(queue, ours, out));
    return make_plans(cudnn, ours, out) ? bind_plans(backend, out) : DTX_OK;
}

void dtx_peer_free(struct dtx_backend *backend, struct dtx_peer *p)
{
    struct dtx_tensor *all[] = {&p->o, &p->do_, &p->stats, &p->dq, &p->dk, &p->dv[0], &p->dv[1], &p->work};
    for (int i = 0; i < DTX_PEER_CALLS; i++) {
        dtx_cudnn_plan_free(&p->forward[i]);
        dtx_cudnn_plan_free(&p->backward[i]);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dtx_tensor_free(backend, all[i]);
}

static enum dtx_status call(struct dtx_queue *queue, struct dtx_cudnn_plan *plans, int calls)
{
    for (int i = 0; i < calls; i++)
        if (!dtx_cudnn_plan_run(&plans[i]))
            return dtx_fail(queue->backend->ctx, DTX_E_LIBRARY, "%s", plans[i].why);
    return DTX_OK;
}

enum dtx_status dtx_peer_forward(struct dtx_queue *queue, struct dtx_peer *p)
{
    return call(queue, p->forward, p->calls);
}

enum dtx_status dtx_peer_backward(struct dtx_queue *queue, struct dtx_peer *p)
{
    return call(queue, p->backward, p->calls);
}

/* |theirs − ours| / |ours|, where `theirs` is x + factor·y of two tensors, whose rows of `width` are `step` rows apart
 * (y may be absent). */
static enum dtx_status differ(struct dtx_queue *queue, const struct dtx_tensor *ours, const struct dtx_tensor *x,
                              const struct dtx_tensor *y, int64_t step, float factor, double *out)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    int64_t n = dtx_tensor_count(ours), width = ours->dim[3];
    float *a = NULL, *b = NULL, *c = NULL;
    enum dtx_status status = fetch(queue, ours, &a);
    if (status == DTX_OK)
        status = fetch(queue, x, &b);
    if (status == DTX_OK && y)
        status = fetch(queue, y, &c);
    double apart = 0, size = 0;
    for (int64_t i = 0; i < n && status == DTX_OK; i++) {
        int64_t at = i / width * step * width + i % width, beside = at + (step - 1) * width;
        double theirs = (double)b[at] + (c ? (double)factor * (double)c[beside] : 0);
        apart += (theirs - (double)a[i]) * (theirs - (double)a[i]);
        size += (double)a[i] * (double)a[i];
    }
    dtx_mem_free(a);
    dtx_mem_free(b);
    dtx_mem_free(c);
    *out = sqrt(apart / size);
    if (status != DTX_OK)
        dtx_error_frame(ctx, __FILE__, __LINE__, __func__);
    return status;
}

enum dtx_status dtx_peer_compare(struct dtx_queue *queue, const struct dtx_peer_ours *ours, struct dtx_peer *p)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    const struct dtx_attn_fwd_args *f = ours->forward;
    const struct dtx_attn_bwd_args *b = ours->backward;
    const struct dtx_tensor *pairs[][2] = {{&b->dq, &p->dq}, {&b->dk, &p->dk}, {&b->dv, &p->dv[0]}};
    float lambda;
    DTX_TRY(ctx, fetch_lambda(queue, f, &lambda));
    DTX_TRY(ctx, differ(queue, &f->o, &p->o, f->maps == 2 ? &p->o : NULL, f->maps, -lambda, &p->output));
    for (int i = 0; i < 3; i++) {
        double difference;
        const struct dtx_tensor *second = i == 2 && p->calls == 2 ? &p->dv[1] : NULL;
        DTX_TRY(ctx, differ(queue, pairs[i][0], pairs[i][1], second, 1, 1, &difference));
        if (!isnan(p->gradient) && !(difference <= p->gradient)) /* a NaN is the largest */
            p->gradient = difference;
    }
    return DTX_OK;
}

enum dtx_status dtx_peer_judge(struct dtx_ctx *ctx, const struct dtx_peer *p)
{
    if (p->output <= DTX_PEER_BOUND_OUTPUT && p->gradient <= DTX_PEER_BOUND_GRADIENT)
        return DTX_OK;
    return dtx_fail(ctx, DTX_E_LIBRARY,
                    "%s: outputs differ from ours by %.3g of their size (allowed: %.3g), gradients by %.3g (%.3g)",
                    p->name, p->output, DTX_PEER_BOUND_OUTPUT, p->gradient, DTX_PEER_BOUND_GRADIENT);
}
