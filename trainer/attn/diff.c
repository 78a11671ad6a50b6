/*
 * Differential attention, version 1 (paper eq. 1 to 3): `heads` heads, each of two maps of width d over one v of width
 * 2d; D = heads·2d. Sub-heads 2j (signal) and 2j+1 (noise) of q and k belong to head j. One λ and one sub-norm gain per
 * layer, shared by all heads, so under tensor parallelism their gradients are partial sums.
 */
#include "trainer/attn.h"

#include <math.h>
#include <stdio.h>

#include "kernels/base/mutant.h"

enum { P_Q1, P_K1, P_Q2, P_K2, P_SUBNORM, P_COUNT };
enum { S_LAMBDA, S_O, S_O2, S_LSE, S_RSTD, S_DO, S_DSUM, S_DLAMBDA, S_COUNT };

static struct dtx_param *own_param(const struct dtx_layer *layer, int i)
{
    return dtx_layer_param(layer, DTX_ATTN_OWN + i);
}

static void shape(const struct dtx_model_config *m, struct dtx_attn_shape *out)
{
    *out = (struct dtx_attn_shape){2 * m->heads, 2 * m->kv_heads, m->kv_heads, 2 * m->head_dim};
}

static double lambda_init_of(const struct dtx_model_config *m, int layer)
{
    if (!isnan(m->lambda_init))
        return m->lambda_init;
    if (DTX_MUTANT(lambda_init_off_by_one))
        layer++;
    return 0.8 - 0.6 * exp(-0.3 * layer);
}

static enum dtx_status declare(struct dtx_env *env, int index, int stage, struct dtx_layer *layer)
{
    static const char *const names[] = {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "subnorm"};
    const struct dtx_model_config *m = env->model;
    int count = m->subnorm == DTX_SUBNORM_AFFINE ? P_COUNT : P_SUBNORM;
    layer->lambda_init = lambda_init_of(m, index);
    for (int i = 0; i < count; i++) {
        char name[DTX_PARAM_NAME];
        snprintf(name, sizeof name, "layers.%02d.attn.%s", index, names[i]);
        struct dtx_param_row row = dtx_row_vector(env, i == P_SUBNORM ? DTX_WEIGHT_HEAD_GAIN : DTX_WEIGHT_LAMBDA, name,
                                                  i == P_SUBNORM ? 2 * m->head_dim : m->head_dim, stage);
        row.grad_partial = true;
        if (i != P_SUBNORM) {
            row.init = DTX_INIT_NORMAL;
            row.std = 0.1;
            if (DTX_MUTANT(decay_on_lambda))
                row.decay = true;
        }
        DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &layer->param[DTX_ATTN_OWN + i]));
    }
    return DTX_OK;
}

static int saved(const struct dtx_layer *layer, struct dtx_saved *out)
{
    const struct dtx_env *env = layer->env;
    int64_t n = env->max_rows, heads = env->model->heads / env->mesh->size[DTX_AXIS_TP];
    int64_t columns = heads * 2 * env->model->head_dim;
    int made_again = DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE;
    out[S_LAMBDA] = (struct dtx_saved){"lambda", env->master, 1, 1, made_again};
    out[S_O] = (struct dtx_saved){"o", env->act, n, columns, made_again};
    out[S_O2] = (struct dtx_saved){"o2", env->act, n, columns, made_again};
    out[S_LSE] = (struct dtx_saved){"lse", env->master, n, 2 * heads, made_again};
    out[S_RSTD] = (struct dtx_saved){"sub_rstd", env->master, n, heads, made_again};
    out[S_DO] = (struct dtx_saved){"do", env->act, n, columns, DTX_SAVED_SCRATCH};
    out[S_DSUM] = (struct dtx_saved){"dsum", env->master, n, 2 * heads, DTX_SAVED_SCRATCH};
    out[S_DLAMBDA] = (struct dtx_saved){"dlambda", env->master, heads, 1, DTX_SAVED_SCRATCH};
    return S_COUNT;
}

/* [n, h·2d] as [b,t,h,2d]; one number per row and sub-head as [b,2h,t]. */
static struct dtx_tensor by_head(const struct dtx_tensor *t, const struct dtx_attn_core *core)
{
    return dtx_tensor_4d(t->data, t->dtype, core->q.dim[0], core->q.dim[1], core->q.dim[2] / 2, core->v.dim[3]);
}

static struct dtx_tensor per_map(const struct dtx_tensor *t, const struct dtx_attn_core *core)
{
    return dtx_tensor_3d(t->data, t->dtype, core->q.dim[0], core->q.dim[2], core->q.dim[1]);
}

static enum dtx_status lambda(const struct dtx_layer *layer, const struct dtx_tensor *out)
{
    struct dtx_lambda_fwd_args args = {.q1 = own_param(layer, P_Q1)->weight,
                                       .k1 = own_param(layer, P_K1)->weight,
                                       .q2 = own_param(layer, P_Q2)->weight,
                                       .k2 = own_param(layer, P_K2)->weight,
                                       .lambda = *out,
                                       .lambda_init = layer->lambda_init};
    return dtx_lambda_fwd(layer->env->queue, &args);
}

static double out_scale(const struct dtx_layer *layer)
{
    return DTX_MUTANT(one_minus_lambda_init_forgotten) ? 1.0 : 1.0 - layer->lambda_init;
}

/* y = (1 − λ_init)·RMSNorm over each head's 2d columns, in attention's epilogue. */
static struct dtx_attn_norm sub_norm(const struct dtx_layer *layer, struct dtx_tensor *own,
                                     const struct dtx_attn_core *core)
{
    struct dtx_tensor y = by_head(&core->y, core);
    struct dtx_attn_norm norm = {.y = y,
                                 .rstd =
                                     dtx_tensor_3d(own[S_RSTD].data, layer->env->master, y.dim[0], y.dim[1], y.dim[2]),
                                 .eps = 1e-5,
                                 .out_scale = out_scale(layer)};
    if (layer->env->model->subnorm == DTX_SUBNORM_AFFINE)
        norm.gain = own_param(layer, P_SUBNORM)->weight;
    return norm;
}

static enum dtx_status sub_norm_backward(const struct dtx_layer *layer, struct dtx_tensor *own,
                                         const struct dtx_attn_core *core)
{
    struct dtx_env *env = layer->env;
    struct dtx_tensor o = by_head(&own[S_O], core), d_o = by_head(&own[S_DO], core);
    if (env->model->subnorm == DTX_SUBNORM_NONE) {
        struct dtx_add_args scale = {.x = by_head(&core->dy, core), .z = d_o, .alpha = out_scale(layer)};
        return dtx_add(env->queue, &scale);
    }
    int64_t rows = o.dim[0] * o.dim[1] * o.dim[2], width = o.dim[3];
    struct dtx_rmsnorm_bwd_args norm = {.dy = dtx_tensor_view_2d(&core->dy, rows, width),
                                        .x = dtx_tensor_view_2d(&o, rows, width),
                                        .rstd = dtx_tensor_1d(own[S_RSTD].data, env->master, rows),
                                        .dx = dtx_tensor_view_2d(&d_o, rows, width),
                                        .out_scale = out_scale(layer),
                                        .work = env->work};
    if (env->model->subnorm == DTX_SUBNORM_AFFINE) {
        norm.gain = own_param(layer, P_SUBNORM)->weight;
        norm.dgain = own_param(layer, P_SUBNORM)->grad;
    }
    return dtx_rmsnorm_bwd(env->queue, &norm);
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core)
{
    struct dtx_env *env = layer->env;
    struct dtx_tensor lam = dtx_tensor_1d(own[S_LAMBDA].data, env->master, 1);
    DTX_TRY(env->ctx, lambda(layer, &lam));
    struct dtx_attn_fwd_args args = dtx_attn_forward_args(env, core, 2);
    args.lambda = lam;
    args.o = by_head(&own[S_O], core);
    args.o2 = by_head(&own[S_O2], core);
    args.lse = per_map(&own[S_LSE], core);
    if (env->model->subnorm != DTX_SUBNORM_NONE) {
        args.norm = sub_norm(layer, own, core);
        return dtx_attn_run(env, core, &args);
    }
    DTX_TRY(env->ctx, dtx_attn_run(env, core, &args));
    struct dtx_add_args scale = {.x = args.o, .z = by_head(&core->y, core), .alpha = out_scale(layer)};
    return dtx_add(env->queue, &scale);
}

static enum dtx_status lambda_backward(const struct dtx_layer *layer, const struct dtx_tensor *dlambda)
{
    struct dtx_param *q1 = own_param(layer, P_Q1), *k1 = own_param(layer, P_K1), *q2 = own_param(layer, P_Q2),
                     *k2 = own_param(layer, P_K2);
    struct dtx_lambda_bwd_args args = {.q1 = q1->weight,
                                       .k1 = k1->weight,
                                       .q2 = q2->weight,
                                       .k2 = k2->weight,
                                       .dlambda = *dlambda,
                                       .dq1 = q1->grad,
                                       .dk1 = k1->grad,
                                       .dq2 = q2->grad,
                                       .dk2 = k2->grad};
    return dtx_lambda_bwd(layer->env->queue, &args);
}

static enum dtx_status backward(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core)
{
    struct dtx_env *env = layer->env;
    DTX_TRY(env->ctx, sub_norm_backward(layer, own, core));
    struct dtx_attn_dots_args dots = {.do_ = by_head(&own[S_DO], core),
                                      .o = by_head(&own[S_O], core),
                                      .o2 = by_head(&own[S_O2], core),
                                      .lambda = dtx_tensor_1d(own[S_LAMBDA].data, env->master, 1),
                                      .dsum = per_map(&own[S_DSUM], core),
                                      .dlambda = dtx_tensor_1d(own[S_DLAMBDA].data, env->master, core->q.dim[2] / 2),
                                      .maps = 2};
    DTX_TRY(env->ctx, dtx_tensor_zero(env->queue, &dots.dlambda));
    DTX_TRY(env->ctx, dtx_attn_dots(env->queue, &dots));
    DTX_TRY(env->ctx, lambda_backward(layer, &dots.dlambda));
    struct dtx_attn_bwd_args args = dtx_attn_backward_args(env, core, 2);
    args.lambda = dots.lambda;
    args.do_ = dots.do_;
    args.lse = per_map(&own[S_LSE], core);
    args.dsum = dots.dsum;
    return dtx_attn_run_backward(env, core, &args);
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    struct dtx_env *env = layer->env;
    struct dtx_attn_core core = dtx_attn_largest(layer);
    struct dtx_tensor act = dtx_tensor_1d(NULL, env->act, 0), master = dtx_tensor_1d(NULL, env->master, 1);
    struct dtx_attn_fwd_args f = dtx_attn_forward_args(env, &core, 2);
    struct dtx_attn_bwd_args b = dtx_attn_backward_args(env, &core, 2);
    f.lambda = b.lambda = master;
    f.o = f.o2 = b.do_ = by_head(&act, &core);
    f.lse = b.lse = b.dsum = per_map(&master, &core);
    size_t most = dtx_attn_run_work_bytes(env, &f, &b);
    size_t norm = dtx_norm_work_bytes(env, env->max_rows * core.q.dim[2] / 2, core.v.dim[3]);
    return norm > most ? norm : most;
}

const struct dtx_attn_variant dtx_attn_diff = {"diff", 2, shape, declare, saved, work_bytes, forward, backward, lambda};
