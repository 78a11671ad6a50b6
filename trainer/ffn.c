/* z = y + SwiGLU(RMSNorm(y)), SwiGLU(x) = (silu(x W_g) ⊙ x W_1) W_2; hidden columns cut over the tensor axis. */
#include <math.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/layer.h"

enum { P_NORM, P_GATE, P_UP, P_DOWN };
enum { S_RSTD, S_XN, S_G, S_U, S_H, S_DY, S_DH, S_DG, S_DU, S_DXN, S_COUNT };

static int saved(const struct dtx_layer *layer, struct dtx_saved out[DTX_MAX_SAVED])
{
    const struct dtx_env *env = layer->env;
    int64_t n = env->max_rows, width = env->model->width, f = dtx_layer_param(layer, P_GATE)->local[0];
    int64_t held = dtx_rows_held(env, n);
    enum dtx_dtype act = env->act;
    out[S_RSTD] = (struct dtx_saved){"rstd", env->master, held, 1, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_XN] = (struct dtx_saved){"xn", act, held, width, DTX_SAVED_WEIGHT | DTX_SAVED_RECOMPUTE};
    out[S_G] = (struct dtx_saved){"g", act, n, f, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_U] = (struct dtx_saved){"u", act, n, f, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_H] = (struct dtx_saved){"h", act, n, f, DTX_SAVED_WEIGHT | DTX_SAVED_RECOMPUTE};
    out[S_DY] = (struct dtx_saved){"dy", act, n, width, DTX_SAVED_GRADIENT};
    out[S_DH] = (struct dtx_saved){"dh", act, n, f, DTX_SAVED_SCRATCH};
    out[S_DG] = (struct dtx_saved){"dg", act, n, f, DTX_SAVED_GRADIENT};
    out[S_DU] = (struct dtx_saved){"du", act, n, f, DTX_SAVED_GRADIENT};
    out[S_DXN] = (struct dtx_saved){"dxn", act, held, width, DTX_SAVED_SCRATCH};
    return S_COUNT;
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->max_rows, width = env->model->width, f = dtx_layer_param(layer, P_GATE)->local[0];
    size_t up = dtx_linear_work_bytes(env, env->fp8, n, width, f),
           down = dtx_linear_work_bytes(env, env->fp8, n, f, width);
    size_t norm = dtx_norm_work_bytes(env, dtx_rows_held(env, n), width);
    size_t most = up > down ? up : down;
    return most > norm ? most : norm;
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                               const struct dtx_tensor *y)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length;
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], x->dim[0]), all, sum;
    struct dtx_tensor g = dtx_saved_rows(&s[S_G], n), u = dtx_saved_rows(&s[S_U], n);
    struct dtx_tensor h = dtx_saved_rows(&s[S_H], n), wide = dtx_saved_rows(&env->wide, n);
    DTX_TRY(env->ctx, dtx_norm(env, 1, x, dtx_layer_param(layer, P_NORM), &xn, &s[S_RSTD]));
    DTX_TRY(env->ctx, dtx_rows_gather(env, &xn, &env->gathered, &all));
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &all, &dtx_layer_param(layer, P_GATE)->weight, &g));
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &all, &dtx_layer_param(layer, P_UP)->weight, &u));
    struct dtx_swiglu_fwd_args swiglu = {.g = g, .u = u, .h = h};
    DTX_TRY(env->ctx, dtx_swiglu_fwd(env->queue, &swiglu));
    if (!y)
        return DTX_OK;
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &h, &dtx_layer_param(layer, P_DOWN)->weight, &wide));
    DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_add_scaled(env, dtx_transfer_branch(&env->model->transfer), &sum, x, y);
}

static enum dtx_status backward_input(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                                      const struct dtx_tensor *dy, const struct dtx_tensor *dx)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length;
    struct dtx_tensor kept = dtx_saved_rows(&s[S_DY], n), dh = dtx_saved_rows(&s[S_DH], n);
    struct dtx_tensor dg = dtx_saved_rows(&s[S_DG], n), du = dtx_saved_rows(&s[S_DU], n);
    struct dtx_tensor wide = dtx_saved_rows(&env->wide, n), sum;
    DTX_TRY(env->ctx, dtx_rows_keep(env, dtx_branch_backward(env), dy, &kept));
    DTX_TRY(env->ctx, dtx_linear_input(env, env->fp8, &kept, &dtx_layer_param(layer, P_DOWN)->weight, &dh, false));
    struct dtx_swiglu_bwd_args swiglu = {
        .dh = dh, .g = dtx_saved_rows(&s[S_G], n), .u = dtx_saved_rows(&s[S_U], n), .dg = dg, .du = du};
    DTX_TRY(env->ctx, dtx_swiglu_bwd(env->queue, &swiglu));
    DTX_TRY(env->ctx, dtx_linear_input(env, env->fp8, &dg, &dtx_layer_param(layer, P_GATE)->weight, &wide, false));
    DTX_TRY(env->ctx, dtx_linear_input(env, env->fp8, &du, &dtx_layer_param(layer, P_UP)->weight, &wide, true));
    DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_norm_backward(env, 1, &sum, x, dtx_layer_param(layer, P_NORM), &s[S_RSTD], &s[S_DXN], dy, dx);
}

static enum dtx_status backward_weight(const struct dtx_layer *layer, struct dtx_tensor *s)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length;
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], dtx_rows_held(env, n)), h = dtx_saved_rows(&s[S_H], n), all;
    struct dtx_tensor dg = dtx_saved_rows(&s[S_DG], n), du = dtx_saved_rows(&s[S_DU], n);
    struct dtx_tensor dy = dtx_saved_rows(&s[S_DY], n);
    DTX_TRY(env->ctx, dtx_rows_gather(env, &xn, &env->gathered, &all));
    DTX_TRY(env->ctx, dtx_linear_weight(env, env->fp8, &dg, &all, &dtx_layer_param(layer, P_GATE)->grad));
    DTX_TRY(env->ctx, dtx_linear_weight(env, env->fp8, &du, &all, &dtx_layer_param(layer, P_UP)->grad));
    if (DTX_MUTANT(tensor_rank_gradient_twice) && env->mesh->rank[DTX_AXIS_TP] == 1 && layer->index == 2)
        DTX_TRY(env->ctx, dtx_linear_weight(env, env->fp8, &du, &all, &dtx_layer_param(layer, P_UP)->grad));
    return dtx_linear_weight(env, env->fp8, &dy, &h, &dtx_layer_param(layer, P_DOWN)->grad);
}

static double flops(const struct dtx_model_config *model, double keys)
{
    (void)keys;
    return 6.0 * (double)model->width * (double)model->ffn;
}

const struct dtx_layer_table dtx_ffn_layer = {"ffn",          saved,           work_bytes, forward,
                                              backward_input, backward_weight, flops};

enum dtx_status dtx_ffn_declare(struct dtx_env *env, int index, int stage, struct dtx_layer *out)
{
    const struct dtx_model_config *m = env->model;
    *out = (struct dtx_layer){.table = &dtx_ffn_layer, .env = env, .index = index};
    char name[DTX_PARAM_NAME];
    double down_std = 0.02 / sqrt(2.0 * (double)m->layers);
    snprintf(name, sizeof name, "layers.%02d.ffn_norm.gain", index);
    struct dtx_param_row row = dtx_row_gain(env, DTX_WEIGHT_GAIN, name, stage);
    DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[P_NORM]));
    snprintf(name, sizeof name, "layers.%02d.ffn.gate", index);
    row = dtx_row_matrix(env, DTX_WEIGHT_HIDDEN, name, m->ffn, m->width, 0, stage, 0.02);
    DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[P_GATE]));
    snprintf(name, sizeof name, "layers.%02d.ffn.up", index);
    row = dtx_row_matrix(env, DTX_WEIGHT_HIDDEN, name, m->ffn, m->width, 0, stage, 0.02);
    DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[P_UP]));
    snprintf(name, sizeof name, "layers.%02d.ffn.down", index);
    row = dtx_row_matrix(env, DTX_WEIGHT_BRANCH_END, name, m->width, m->ffn, 1, stage, down_std);
    return dtx_params_add(env->params, &row, &out->param[P_DOWN]);
}
