/* Token embedding, its rows cut over the tensor axis. */
#include "kernels/base/mutant.h"
#include "trainer/layer.h"

enum { SAVED_DY };

static int64_t first_row(const struct dtx_layer *layer)
{
    return dtx_layer_param(layer, 0)->local[0] * layer->env->mesh->rank[DTX_AXIS_TP];
}

static int saved(const struct dtx_layer *layer, struct dtx_saved out[DTX_MAX_SAVED])
{
    const struct dtx_env *env = layer->env;
    out[SAVED_DY] = (struct dtx_saved){"dy", env->act, env->max_rows, env->model->width, DTX_SAVED_GRADIENT};
    return 1;
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    (void)layer;
    return 0;
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                               const struct dtx_tensor *y)
{
    (void)s;
    (void)x;
    struct dtx_env *env = layer->env;
    /* One rank holds each token's row, the others add zeros: the sum is exact, so fp32 in between changes nothing. */
    struct dtx_tensor wide = dtx_saved_rows(&env->wide, env->batch * env->length), sum;
    struct dtx_embed_fwd_args args = {
        .tokens = env->tokens, .table = dtx_layer_param(layer, 0)->weight, .out = wide, .first = first_row(layer)};
    DTX_TRY(env->ctx, dtx_embed_fwd(env->queue, &args));
    DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_add_scaled(env, dtx_transfer_embed(&env->model->transfer), &sum, NULL, y);
}

static enum dtx_status backward_input(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                                      const struct dtx_tensor *dy, const struct dtx_tensor *dx)
{
    (void)x;
    (void)dx;
    struct dtx_env *env = layer->env;
    struct dtx_tensor kept = dtx_saved_rows(&s[SAVED_DY], env->batch * env->length);
    double scale = DTX_MUTANT(transfer_embed_backward_forgotten) ? 1 : dtx_transfer_embed(&env->model->transfer);
    return dtx_rows_keep(env, scale, dy, &kept);
}

static enum dtx_status backward_weight(const struct dtx_layer *layer, struct dtx_tensor *s)
{
    struct dtx_env *env = layer->env;
    struct dtx_embed_bwd_args args = {.tokens = env->tokens,
                                      .dout = dtx_saved_rows(&s[SAVED_DY], env->batch * env->length),
                                      .dtable = dtx_layer_param(layer, 0)->grad,
                                      .first = first_row(layer)};
    return dtx_embed_bwd(env->queue, &args);
}

static double flops(const struct dtx_model_config *model, double keys)
{
    (void)model;
    (void)keys;
    return 0; /* a look-up */
}

const struct dtx_layer_table dtx_embed_layer = {"embed",        saved,           work_bytes, forward,
                                                backward_input, backward_weight, flops};

enum dtx_status dtx_embed_declare(struct dtx_env *env, int stage, int head_stage, struct dtx_layer *out)
{
    const struct dtx_model_config *m = env->model;
    *out = (struct dtx_layer){.table = &dtx_embed_layer, .env = env};
    struct dtx_param_row row =
        dtx_row_matrix(env, DTX_WEIGHT_VOCABULARY, "embed.tokens", m->vocab, m->width, 0, stage, 0.02);
    row.tied_stage = m->tied ? head_stage : -1;
    return dtx_params_add(env->params, &row, &out->param[0]);
}
