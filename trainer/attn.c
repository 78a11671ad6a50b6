/* y = x + out(core(RMSNorm(x))): what all attention variants share. Heads are cut over the tensor axis. */
#include "trainer/attn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/context.h"

enum { S_RSTD, S_XN, S_Q, S_K, S_V, S_Y, S_DY, S_DQ, S_DK, S_DV, S_DCORE, S_DXN, S_CONTEXT, S_OWN };

#define DTX_VARIANT(name) extern const struct dtx_attn_variant dtx_attn_##name;
#include "trainer/attn.inc"
#undef DTX_VARIANT

const struct dtx_attn_variant *dtx_attn_find(const char *name)
{
    static const struct dtx_attn_variant *const list[] = {
#define DTX_VARIANT(variant) &dtx_attn_##variant,
#include "trainer/attn.inc"
#undef DTX_VARIANT
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

bool dtx_attn_match(const struct dtx_model_config *from, const struct dtx_attn_variant *to,
                    struct dtx_model_config *out)
{
    int64_t factor = from->attention->softmax_heads;
    if (from->heads * factor % to->softmax_heads || from->kv_heads * factor % to->softmax_heads)
        return false;
    *out = *from;
    out->attention = to;
    out->heads = from->heads * factor / to->softmax_heads;
    out->kv_heads = from->kv_heads * factor / to->softmax_heads;
    return true;
}

/* This rank's heads. */
static struct dtx_attn_shape local_shape(const struct dtx_layer *layer)
{
    struct dtx_attn_shape s;
    int tp = layer->env->mesh->size[DTX_AXIS_TP];
    layer->env->model->attention->shape(layer->env->model, &s);
    s.q_heads /= tp;
    s.k_heads /= tp;
    s.v_heads /= tp;
    return s;
}

static int64_t y_columns(const struct dtx_layer *layer)
{
    return layer->env->model->width / layer->env->mesh->size[DTX_AXIS_TP];
}

static int64_t context_bytes(const struct dtx_layer *layer)
{
    struct dtx_attn_core core = dtx_attn_largest(layer);
    return layer->env->pieces > 1 ? dtx_context_bytes(layer->env, &core) : 0;
}

static int saved(const struct dtx_layer *layer, struct dtx_saved out[DTX_MAX_SAVED])
{
    const struct dtx_env *env = layer->env;
    struct dtx_attn_shape s = local_shape(layer);
    int64_t n = env->max_rows, width = env->model->width, d = env->model->head_dim, y = y_columns(layer);
    int64_t held = dtx_rows_held(env, n);
    int64_t q = s.q_heads * d, k = s.k_heads * d, v = s.v_heads * s.v_width;
    enum dtx_dtype act = env->act;
    out[S_RSTD] = (struct dtx_saved){"rstd", env->master, held, 1, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_XN] = (struct dtx_saved){"xn", act, held, width, DTX_SAVED_WEIGHT | DTX_SAVED_RECOMPUTE};
    out[S_Q] = (struct dtx_saved){"q", act, n, q, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_K] = (struct dtx_saved){"k", act, n, k, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_V] = (struct dtx_saved){"v", act, n, v, DTX_SAVED_INPUT | DTX_SAVED_RECOMPUTE};
    out[S_Y] = (struct dtx_saved){"y", act, n, y, DTX_SAVED_WEIGHT | DTX_SAVED_RECOMPUTE};
    out[S_DY] = (struct dtx_saved){"dy", act, n, width, DTX_SAVED_GRADIENT};
    out[S_DQ] = (struct dtx_saved){"dq", act, n, q, DTX_SAVED_GRADIENT};
    out[S_DK] = (struct dtx_saved){"dk", act, n, k, DTX_SAVED_GRADIENT};
    out[S_DV] = (struct dtx_saved){"dv", act, n, v, DTX_SAVED_GRADIENT};
    out[S_DCORE] = (struct dtx_saved){"dcore", act, n, y, DTX_SAVED_SCRATCH};
    out[S_DXN] = (struct dtx_saved){"dxn", act, held, width, DTX_SAVED_SCRATCH};
    out[S_CONTEXT] = (struct dtx_saved){"context", DTX_U8, 1, context_bytes(layer), DTX_SAVED_SCRATCH};
    return S_OWN + env->model->attention->saved(layer, out + S_OWN);
}

/* The shapes of a core over b sequences of t new rows after `first` earlier ones; data from the layer's tensors. */
static struct dtx_attn_core core_of(const struct dtx_layer *layer, const struct dtx_tensor *s, int64_t b, int64_t t,
                                    int64_t first)
{
    const struct dtx_env *env = layer->env;
    struct dtx_attn_shape shape = local_shape(layer);
    int64_t d = env->model->head_dim, total = first + t, y = y_columns(layer);
    struct dtx_attn_core core = {
        .q = dtx_tensor_4d(s ? s[S_Q].data : NULL, env->act, b, t, shape.q_heads, d),
        .k = dtx_tensor_4d(s ? s[S_K].data : NULL, env->act, b, total, shape.k_heads, d),
        .v = dtx_tensor_4d(s ? s[S_V].data : NULL, env->act, b, total, shape.v_heads, shape.v_width),
        .y = dtx_tensor_2d(s ? s[S_Y].data : NULL, env->act, b * t, y),
        .dy = dtx_tensor_2d(s ? s[S_DCORE].data : NULL, env->act, b * t, y)};
    core.dq = core.q;
    core.dk = core.k;
    core.dv = core.v;
    core.dq.data = s ? s[S_DQ].data : NULL;
    core.dk.data = s ? s[S_DK].data : NULL;
    core.dv.data = s ? s[S_DV].data : NULL;
    if (s)
        core.context = s[S_CONTEXT];
    return core;
}

struct dtx_attn_core dtx_attn_largest(const struct dtx_layer *layer)
{
    const struct dtx_env *env = layer->env;
    return core_of(layer, NULL, env->max_rows / env->max_piece, env->max_piece, 0);
}

/* What scores are multiplied by. */
static double scores_scale(const struct dtx_model_config *m)
{
    return dtx_transfer_scores(&m->transfer) / sqrt((double)m->head_dim);
}

struct dtx_attn_fwd_args dtx_attn_forward_args(const struct dtx_env *env, const struct dtx_attn_core *core, int maps)
{
    return (struct dtx_attn_fwd_args){.q = core->q,
                                      .k = core->k,
                                      .v = core->v,
                                      .doc_start = env->doc_start,
                                      .q_first = core->k.dim[1] - core->q.dim[1],
                                      .k_first = 0,
                                      .maps = maps,
                                      .scale = scores_scale(env->model),
                                      .work = env->work};
}

struct dtx_attn_bwd_args dtx_attn_backward_args(const struct dtx_env *env, const struct dtx_attn_core *core, int maps)
{
    return (struct dtx_attn_bwd_args){
        .q = core->q,
        .k = core->k,
        .v = core->v,
        .doc_start = DTX_MUTANT(documents_ignored_in_backward) ? (struct dtx_tensor){0} : env->doc_start,
        .maps = maps,
        .scale = DTX_MUTANT(transfer_scores_backward_forgotten) ? 1 / sqrt((double)env->model->head_dim)
                                                                : scores_scale(env->model),
        .dq = core->dq,
        .dk = core->dk,
        .dv = core->dv,
        .work = env->work};
}

static size_t work_bytes(const struct dtx_layer *layer)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->max_rows, width = env->model->width;
    size_t most = env->model->attention->work_bytes(layer);
    size_t norm = dtx_norm_work_bytes(env, dtx_rows_held(env, n), width);
    most = norm > most ? norm : most;
    for (int i = DTX_ATTN_Q; i <= DTX_ATTN_OUT; i++) {
        const int64_t *w = dtx_layer_param(layer, i)->local;
        size_t bytes = dtx_linear_work_bytes(env, env->fp8, n, w[1], w[0]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* x: [b,t,heads,d] behind `first` earlier rows, in this rank's pieces. */
static enum dtx_status rotate(struct dtx_env *env, const struct dtx_tensor *x, int64_t first, bool inverse)
{
    int64_t each = x->dim[0] / env->pieces;
    for (int p = 0; p < env->pieces; p++) {
        int64_t begins = dtx_piece_first(env, env->mesh->rank[DTX_AXIS_CP], p);
        struct dtx_tensor piece = dtx_tensor_rows(x, p * each, each);
        struct dtx_rope_args args = {.x = piece,
                                     .y = piece,
                                     .table = env->rope,
                                     .first = first + (DTX_MUTANT(context_rope_restarts) ? 0 : begins),
                                     .inverse = inverse};
        DTX_TRY(env->ctx, dtx_rope(env->queue, &args));
    }
    return DTX_OK;
}

enum dtx_status dtx_attn_run(struct dtx_env *env, const struct dtx_attn_core *core,
                             const struct dtx_attn_fwd_args *args)
{
    return env->pieces > 1 ? dtx_context_forward(env, core, args) : dtx_attn_fwd(env->queue, args);
}

enum dtx_status dtx_attn_run_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                      const struct dtx_attn_bwd_args *args)
{
    return env->pieces > 1 ? dtx_context_backward(env, core, args) : dtx_attn_bwd(env->queue, args);
}

size_t dtx_attn_run_work_bytes(struct dtx_env *env, const struct dtx_attn_fwd_args *forward,
                               const struct dtx_attn_bwd_args *backward)
{
    if (env->pieces > 1)
        return dtx_context_work_bytes(env, forward, backward);
    size_t f = dtx_attn_fwd_work_bytes(env->queue, forward), b = dtx_attn_bwd_work_bytes(env->queue, backward);
    return f > b ? f : b;
}

static enum dtx_status forward(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                               const struct dtx_tensor *y)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length, first = env->first;
    struct dtx_attn_core core = core_of(layer, s, env->batch, env->length, first);
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], x->dim[0]), wide = dtx_saved_rows(&env->wide, n), all, sum;
    /* New keys and values go behind the `first` rows that are there from earlier calls (none when training). */
    struct dtx_tensor q = dtx_saved_rows(&s[S_Q], n), k = dtx_tensor_rows(&s[S_K], first, n);
    struct dtx_tensor v = dtx_tensor_rows(&s[S_V], first, n);
    DTX_TRY(env->ctx, dtx_norm(env, 1, x, dtx_layer_param(layer, DTX_ATTN_NORM), &xn, &s[S_RSTD]));
    DTX_TRY(env->ctx, dtx_rows_gather(env, &xn, &env->gathered, &all));
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &all, &dtx_layer_param(layer, DTX_ATTN_Q)->weight, &q));
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &all, &dtx_layer_param(layer, DTX_ATTN_K)->weight, &k));
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &all, &dtx_layer_param(layer, DTX_ATTN_V)->weight, &v));
    struct dtx_tensor k_new = dtx_tensor_view_4d(&k, env->batch, env->length, core.k.dim[2], core.k.dim[3]);
    DTX_TRY(env->ctx, rotate(env, &core.q, first, false));
    DTX_TRY(env->ctx, rotate(env, &k_new, first, false));
    DTX_TRY(env->ctx, env->model->attention->forward(layer, s + S_OWN, &core));
    if (!y)
        return DTX_OK;
    DTX_TRY(env->ctx, dtx_linear(env, env->fp8, &core.y, &dtx_layer_param(layer, DTX_ATTN_OUT)->weight, &wide));
    DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_add_scaled(env, dtx_transfer_branch(&env->model->transfer), &sum, x, y);
}

static enum dtx_status backward_input(const struct dtx_layer *layer, struct dtx_tensor *s, const struct dtx_tensor *x,
                                      const struct dtx_tensor *dy, const struct dtx_tensor *dx)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length;
    struct dtx_attn_core core = core_of(layer, s, env->batch, env->length, 0);
    struct dtx_tensor kept = dtx_saved_rows(&s[S_DY], n), wide = dtx_saved_rows(&env->wide, n), sum;
    DTX_TRY(env->ctx, dtx_rows_keep(env, dtx_branch_backward(env), dy, &kept));
    DTX_TRY(env->ctx,
            dtx_linear_input(env, env->fp8, &kept, &dtx_layer_param(layer, DTX_ATTN_OUT)->weight, &core.dy, false));
    DTX_TRY(env->ctx, env->model->attention->backward(layer, s + S_OWN, &core));
    DTX_TRY(env->ctx, rotate(env, &core.dq, 0, true));
    DTX_TRY(env->ctx, rotate(env, &core.dk, 0, !DTX_MUTANT(key_rotation_not_undone)));
    const int products[] = {DTX_ATTN_Q, DTX_ATTN_K, DTX_ATTN_V};
    const int gradients[] = {S_DQ, S_DK, S_DV};
    for (int i = 0; i < 3; i++) {
        struct dtx_tensor d = dtx_saved_rows(&s[gradients[i]], n);
        DTX_TRY(env->ctx,
                dtx_linear_input(env, env->fp8, &d, &dtx_layer_param(layer, products[i])->weight, &wide, i > 0));
    }
    DTX_TRY(env->ctx, dtx_rows_sum(env, &wide, &sum));
    return dtx_norm_backward(env, 1, &sum, x, dtx_layer_param(layer, DTX_ATTN_NORM), &s[S_RSTD], &s[S_DXN], dy, dx);
}

static enum dtx_status backward_weight(const struct dtx_layer *layer, struct dtx_tensor *s)
{
    struct dtx_env *env = layer->env;
    int64_t n = env->batch * env->length;
    struct dtx_tensor xn = dtx_saved_rows(&s[S_XN], dtx_rows_held(env, n)), y = dtx_saved_rows(&s[S_Y], n), all;
    if (DTX_MUTANT(rows_not_gathered_for_weights) && env->sequence)
        all = dtx_saved_rows(&env->gathered, n);
    else
        DTX_TRY(env->ctx, dtx_rows_gather(env, &xn, &env->gathered, &all));
    const struct {
        int param, gradient;
        const struct dtx_tensor *input;
    } products[] = {
        {DTX_ATTN_Q, S_DQ, &all}, {DTX_ATTN_K, S_DK, &all}, {DTX_ATTN_V, S_DV, &all}, {DTX_ATTN_OUT, S_DY, &y}};
    for (int i = 0; i < 4; i++) {
        struct dtx_tensor d = dtx_saved_rows(&s[products[i].gradient], n);
        DTX_TRY(env->ctx, dtx_linear_weight(env, env->fp8, &d, products[i].input,
                                            &dtx_layer_param(layer, products[i].param)->grad));
    }
    return DTX_OK;
}

/* 4D² + 4D²/r for the projections, 4·D·K for both maps together (a plain Transformer's attention of the same width). */
static double flops(const struct dtx_model_config *model, double keys)
{
    double width = (double)model->width, r = (double)model->heads / (double)model->kv_heads;
    return 4 * width * width + 4 * width * width / r + 4 * width * keys;
}

const struct dtx_layer_table dtx_attn_layer = {"attn",         saved,           work_bytes, forward,
                                               backward_input, backward_weight, flops};

enum dtx_status dtx_attn_declare(struct dtx_env *env, int index, int stage, struct dtx_layer *out)
{
    const struct dtx_model_config *m = env->model;
    struct dtx_attn_shape shape;
    m->attention->shape(m, &shape);
    *out = (struct dtx_layer){.table = &dtx_attn_layer, .env = env, .index = index};
    const struct {
        const char *name;
        int64_t out, in;
        int split;
        enum dtx_weight_class class;
        double std;
    } matrices[] = {{"q", shape.q_heads * m->head_dim, m->width, 0, DTX_WEIGHT_HIDDEN, 0.02},
                    {"k", shape.k_heads * m->head_dim, m->width, 0, DTX_WEIGHT_HIDDEN, 0.02},
                    {"v", shape.v_heads * shape.v_width, m->width, 0, DTX_WEIGHT_HIDDEN, 0.02},
                    {"out", m->width, m->width, 1, DTX_WEIGHT_BRANCH_END, 0.02 / sqrt(2.0 * (double)m->layers)}};
    char name[DTX_PARAM_NAME];
    snprintf(name, sizeof name, "layers.%02d.attn_norm.gain", index);
    struct dtx_param_row row = dtx_row_gain(env, DTX_WEIGHT_GAIN, name, stage);
    DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[DTX_ATTN_NORM]));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "layers.%02d.attn.%s", index, matrices[i].name);
        row = dtx_row_matrix(env, matrices[i].class, name, matrices[i].out, matrices[i].in, matrices[i].split, stage,
                             matrices[i].std);
        DTX_TRY(env->ctx, dtx_params_add(env->params, &row, &out->param[DTX_ATTN_Q + i]));
    }
    return m->attention->declare(env, index, stage, out);
}
