/*
 * Final norm, logits over the tensor ranks' parts of the vocabulary, cross-entropy. Logits exist for a chunk of rows at
 * a time. In training the loss is made in the backward pass, which needs the logits anyway: forward does nothing.
 */
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/layer.h"

enum { P_NORM, P_OUT };
enum { S_RSTD, S_XN, S_LOGITS, S_DLOGITS, S_MAX, S_SUMS, S_DXN, S_COUNT };
enum { CHUNK_ELEMENTS = 1 << 25 };

static int64_t columns(const struct dtx_layer *layer)
{
    return dtx_layer_param(layer, P_OUT)->local[0];
}

/* Rows of logits at a time: equal chunks, as few as the limit allows. */
static int64_t chunk_rows(const struct dtx_layer *layer)
{
    int64_t rows = layer->env->max_rows, most = dtx_max64(64, CHUNK_ELEMENTS / columns(layer));
    return dtx_min64(rows, dtx_round_up(dtx_div_up(rows, dtx_div_up(rows, most)), 16));
}

static int saved(const struct dtx_layer *layer, struct dtx_saved out[DTX_MAX_SAVED])
{
    const struct dtx_env *env = layer->env;
    int64_t n = env->max_rows, width = env->model->width, v = columns(layer), c = chunk_rows(layer);
    out[S_RSTD] = (struct dtx_saved){"rstd", env->master, n, 1, DTX_SAVED_SCRATCH};
    out[S_XN] = (struct dtx_saved){"xn", env->act, n, width, DTX_SAVED_SCRATCH};
    out[S_LOGITS] = (struct dtx_saved){"logits", env->master, c, v, DTX_SAVED_SCRATCH};
    out[S_DLOGITS] = (struct dtx_saved){"dlogits", env->act, env->act == env->master ? 0 : c, v, DTX_SAVED_SCRATCH};
    out[S_MAX] = (struct dtx_saved){"max", env->master, c, 1, DTX_SAVED_SCRATCH};
    out[S_SUMS] = (struct dtx_saved){"sums", env->master, c, 2, DTX_SAVED_SCRATCH};
    out[S_DXN] = (struct dtx_saved){"dxn", env->act, dtx_rows_held(env, n), width, DTX_SAVED_SCRATCH};
    return S_COUNT;
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    struct dtx_env *env = layer->env;
    size_t product = dtx_linear_work_bytes(env, false, chunk_rows(layer), env->model->width, columns(layer));
    size_t norm = dtx_norm_work_bytes(env, dtx_rows_held(env, env->max_rows), env->model->width);
    return product > norm ? product : norm;
}

/* Logits, loss and, with dlogits, their gradient, of rows [first, first + rows). Collective over tp. */
static enum dtx_status chunk_loss(const struct dtx_layer *layer, struct dtx_tensor *s, int64_t first, int64_t rows,
                                  const struct dtx_tensor *dlogits)
{
    struct dtx_env *env = layer->env;
    int64_t held = columns(layer), begin = held * env->mesh->rank[DTX_AXIS_TP];
    int64_t valid = dtx_max64(0, dtx_min64(held, env->model->vocab - begin));
    struct dtx_comm *tp = env->mesh->axis[DTX_AXIS_TP];
    struct dtx_tensor xn = dtx_tensor_rows(&s[S_XN], first, rows);
    struct dtx_tensor logits = dtx_saved_rows(&s[S_LOGITS], rows), sums = dtx_saved_rows(&s[S_SUMS], rows);
    struct dtx_tensor max = dtx_tensor_1d(s[S_MAX].data, env->master, rows);
    struct dtx_tensor targets = dtx_tensor_rows(&env->targets, first, rows);
    DTX_TRY(env->ctx, dtx_linear(env, false, &xn, &dtx_layer_param(layer, P_OUT)->weight, &logits));
    if (env->logits.data) {
        struct dtx_tensor copy = dtx_tensor_rows(&env->logits, first, rows);
        DTX_TRY(env->ctx, dtx_add_to(env, &logits, NULL, &copy));
    }
    struct dtx_xent_max_args find_max = {.logits = logits, .max = max, .valid = valid};
    DTX_TRY(env->ctx, dtx_xent_max(env->queue, &find_max));
    DTX_TRY(env->ctx, dtx_comm_all_reduce_max(tp, env->queue, &max));
    struct dtx_xent_sum_args sum = {
        .logits = logits, .max = max, .targets = targets, .sums = sums, .first = begin, .valid = valid};
    DTX_TRY(env->ctx, dtx_xent_sum(env->queue, &sum));
    DTX_TRY(env->ctx, dtx_comm_all_reduce_sum(tp, env->queue, &sums));
    struct dtx_xent_bwd_args loss = {.logits = logits,
                                     .max = max,
                                     .sums = sums,
                                     .targets = targets,
                                     .scale = env->loss_scale,
                                     .loss = dtx_tensor_rows(&env->loss, first, rows),
                                     .first = begin,
                                     .valid = valid};
    if (dlogits)
        loss.dlogits = *dlogits;
    return dtx_xent_bwd(env->queue, &loss);
}

/* Of the logits. The final norm's output carries it, so that both products and all gradients have it. */
static double output_scale(const struct dtx_layer *layer)
{
    const struct dtx_model_config *m = layer->env->model;
    return m->tied && DTX_MUTANT(transfer_tied_output_forgotten) ? 1 : dtx_transfer_output(&m->transfer);
}

/* All n rows of the final norm's output into S_XN. Collective over tp. */
static enum dtx_status final_norm(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x)
{
    struct dtx_env *env = layer->env;
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], env->batch * env->length), own = dtx_rows_own(env, &xn), all;
    DTX_TRY(env->ctx, dtx_norm(env, output_scale(layer), x, dtx_layer_param(layer, P_NORM), &own, &s[S_RSTD]));
    return dtx_rows_gather(env, &own, &xn, &all);
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                               const struct dtx_tensor *y)
{
    (void)y;
    struct dtx_env *env = layer->env;
    if (env->training)
        return DTX_OK;
    int64_t n = env->batch * env->length;
    DTX_TRY(env->ctx, final_norm(layer, s, x));
    for (int64_t first = 0, rows; first < n; first += rows) {
        rows = dtx_min64(chunk_rows(layer), n - first);
        DTX_TRY(env->ctx, chunk_loss(layer, s, first, rows, NULL));
    }
    return DTX_OK;
}

static enum dtx_status backward_input(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                                      const struct dtx_tensor *dy, const struct dtx_tensor *dx)
{
    (void)dy;
    struct dtx_env *env = layer->env;
    struct dtx_param *out = dtx_layer_param(layer, P_OUT);
    struct dtx_tensor *dw = out->grad_tied.data ? &out->grad_tied : &out->grad;
    int64_t n = env->batch * env->length;
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], n), wide = dtx_saved_rows(&env->wide, n);
    struct dtx_tensor sum = dtx_rows_own(env, &wide);
    DTX_TRY(env->ctx, final_norm(layer, s, x));
    for (int64_t first = 0, rows; first < n; first += rows) {
        rows = dtx_min64(chunk_rows(layer), n - first);
        struct dtx_tensor dlogits = dtx_saved_rows(env->act == env->master ? &s[S_LOGITS] : &s[S_DLOGITS], rows);
        struct dtx_tensor chunk = dtx_tensor_rows(&xn, first, rows), dxn = dtx_tensor_rows(&wide, first, rows);
        DTX_TRY(env->ctx, chunk_loss(layer, s, first, rows, &dlogits));
        DTX_TRY(env->ctx, dtx_linear_input(env, false, &dlogits, &out->weight, &dxn, false));
        DTX_TRY(env->ctx, dtx_linear_weight(env, false, &dlogits, &chunk, dw));
    }
    if (!DTX_MUTANT(head_input_gradient_not_summed))
        DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_norm_backward(env, output_scale(layer), &sum, x, dtx_layer_param(layer, P_NORM), &s[S_RSTD], &s[S_DXN],
                             NULL, dx);
}

static enum dtx_status backward_weight(const struct dtx_layer *layer, struct dtx_tensor *s)
{
    (void)layer;
    (void)s;
    return DTX_OK; /* done with the input part: the logits' gradient exists only there */
}

static double flops(const struct dtx_model_config *model, double keys)
{
    (void)keys;
    return 2.0 * (double)model->width * (double)model->vocab;
}

const struct dtx_layer_table dtx_head_layer = {"head",         saved,           work_bytes, forward,
                                               backward_input, backward_weight, flops};

enum dtx_status dtx_head_declare(struct dtx_env *env, int stage, int embed_param, struct dtx_layer *out)
{
    const struct dtx_model_config *m = env->model;
    *out = (struct dtx_layer){.table = &dtx_head_layer, .env = env};
    struct dtx_param_row row = dtx_row_gain(env, DTX_WEIGHT_FINAL_GAIN, "final_norm.gain", stage);
    DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[P_NORM]));
    if (m->tied) {
        out->param[P_OUT] = embed_param;
        return DTX_OK;
    }
    row = dtx_row_matrix(env, DTX_WEIGHT_VOCABULARY, "head.out", m->vocab, m->width, 0, stage, 0.02);
    return dtx_params_add(env->params, &row, &out->param[P_OUT]);
}
