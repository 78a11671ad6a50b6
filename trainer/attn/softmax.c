/* Plain causal attention: the matched baseline, `heads` heads of width d with D = heads·d. */
#include "trainer/attn.h"

enum { S_LSE, S_DSUM, S_COUNT };

static void shape(const struct dtx_model_config *model, struct dtx_attn_shape *out)
{
    *out = (struct dtx_attn_shape){model->heads, model->kv_heads, model->kv_heads, model->head_dim};
}

static enum dtx_status declare(struct dtx_env *env, int index, int stage, struct dtx_layer *layer)
{
    (void)env;
    (void)index;
    (void)stage;
    (void)layer;
    return DTX_OK; /* no weights of its own */
}

static int saved(const struct dtx_layer *layer, struct dtx_saved *out)
{
    const struct dtx_env *env = layer->env;
    int64_t heads = env->model->heads / env->mesh->size[DTX_AXIS_TP];
    out[S_LSE] = (struct dtx_saved){"lse", env->master, env->max_rows, heads, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_DSUM] = (struct dtx_saved){"dsum", env->master, env->max_rows, heads, DTX_SAVED_SCRATCH};
    return S_COUNT;
}

/* A saved tensor of one number per row and head as [b,h,t]. */
static struct dtx_tensor per_head(const struct dtx_tensor *saved, const struct dtx_attn_core *core)
{
    return dtx_tensor_3d(saved->data, saved->dtype, core->q.dim[0], core->q.dim[2], core->q.dim[1]);
}

/* y [b·t, h·d] as [b,t,h,d]. */
static struct dtx_tensor by_head(const struct dtx_tensor *y, const struct dtx_attn_core *core)
{
    return dtx_tensor_view_4d(y, core->q.dim[0], core->q.dim[1], core->q.dim[2], core->v.dim[3]);
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core)
{
    struct dtx_attn_fwd_args args = dtx_attn_forward_args(layer->env, core, 1);
    args.o = by_head(&core->y, core);
    args.lse = per_head(&own[S_LSE], core);
    return dtx_attn_run(layer->env, core, &args);
}

static enum dtx_status backward(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core)
{
    struct dtx_env *env = layer->env;
    struct dtx_attn_dots_args dots = {
        .do_ = by_head(&core->dy, core), .o = by_head(&core->y, core), .dsum = per_head(&own[S_DSUM], core), .maps = 1};
    DTX_TRY(env->ctx, dtx_attn_dots(env->queue, &dots));
    struct dtx_attn_bwd_args args = dtx_attn_backward_args(env, core, 1);
    args.do_ = dots.do_;
    args.lse = per_head(&own[S_LSE], core);
    args.dsum = dots.dsum;
    return dtx_attn_run_backward(env, core, &args);
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    struct dtx_attn_core core = dtx_attn_largest(layer);
    struct dtx_tensor none = dtx_tensor_1d(NULL, layer->env->master, 0);
    struct dtx_attn_fwd_args f = dtx_attn_forward_args(layer->env, &core, 1);
    struct dtx_attn_bwd_args b = dtx_attn_backward_args(layer->env, &core, 1);
    f.o = b.do_ = by_head(&core.y, &core);
    f.lse = b.lse = b.dsum = per_head(&none, &core);
    return dtx_attn_run_work_bytes(layer->env, &f, &b);
}

const struct dtx_attn_variant dtx_attn_softmax = {"softmax",  1,       shape,    declare, saved,
                                                  work_bytes, forward, backward, NULL};
