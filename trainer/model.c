#include "trainer/model.h"

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/rope_table.h"
#include "trainer/attn.h"

struct dtx_model {
    struct dtx_env *env;
    int n_layers;
    struct dtx_layer *layers;
    int slots;
    struct dtx_tensor *saved;      /* [slots][n_layers][DTX_MAX_SAVED] */
    struct dtx_tensor *residual;   /* [slots][n_layers]: input of each layer; absent for the embedding */
    struct dtx_tensor gradient[2]; /* [rows held, D], in turn */
    struct dtx_tensor shared;      /* u8: gradients kept between the two backward parts; one layer at a time */
    struct dtx_tensor remade[2];   /* u8: what recomputed attention layers and ffn layers make; one of each at a time */
};

int64_t dtx_model_first_block(int64_t layers, int stage, int stages)
{
    int64_t each = layers / stages, more = layers % stages;
    return stage * each + dtx_min64(stage, more);
}

/* Declares every layer in order; keeps those of this stage (and the tied head needs the embedding's row). */
static enum dtx_status declare_all(struct dtx_model *model)
{
    struct dtx_env *env = model->env;
    int stages = env->mesh->size[DTX_AXIS_PP], stage = env->mesh->rank[DTX_AXIS_PP];
    struct dtx_layer layer;
    DTX_TRY(env->ctx, dtx_embed_declare(env, 0, stages - 1, &layer));
    int embed_param = layer.param[0];
    if (stage == 0)
        model->layers[model->n_layers++] = layer;
    for (int s = 0; s < stages; s++)
        for (int64_t i = dtx_model_first_block(env->model->layers, s, stages);
             i < dtx_model_first_block(env->model->layers, s + 1, stages); i++) {
            DTX_TRY(env->ctx, dtx_attn_declare(env, (int)i, s, &layer));
            if (s == stage)
                model->layers[model->n_layers++] = layer;
            DTX_TRY(env->ctx, dtx_ffn_declare(env, (int)i, s, &layer));
            if (s == stage)
                model->layers[model->n_layers++] = layer;
        }
    DTX_TRY(env->ctx, dtx_head_declare(env, stages - 1, embed_param, &layer));
    if (stage == stages - 1)
        model->layers[model->n_layers++] = layer;
    return DTX_OK;
}

enum dtx_status dtx_model_declare(struct dtx_env *env, struct dtx_model **out)
{
    void *p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, 1, sizeof(struct dtx_model), &p));
    struct dtx_model *model = p;
    model->env = env;
    enum dtx_status status = dtx_mem_alloc(env->ctx, 2 * env->model->layers + 2, sizeof *model->layers, &p);
    if (status == DTX_OK) {
        model->layers = p;
        status = declare_all(model);
    }
    if (status != DTX_OK) {
        dtx_model_free(model);
        return status;
    }
    *out = model;
    return DTX_OK;
}

static bool is_embed(const struct dtx_model *model, int layer)
{
    return layer == 0 && dtx_mesh_first_stage(model->env->mesh);
}

static struct dtx_tensor *saved_of(const struct dtx_model *model, int slot, int layer)
{
    return model->saved + ((int64_t)slot * model->n_layers + layer) * DTX_MAX_SAVED;
}

static size_t aligned_bytes(const struct dtx_saved *s)
{
    return (size_t)dtx_round_up(s->rows * s->columns * (int64_t)dtx_dtype_bytes(s->dtype), 64);
}

/* Recomputation. Layer l runs forward again before its backward pass, into buffers that all such layers share. */
static bool is_remade(const struct dtx_model *model, int l)
{
    const struct dtx_layer *layer = &model->layers[l];
    const struct dtx_recompute_config *r = &model->env->recompute;
    bool attention = layer->table == &dtx_attn_layer && r->what != DTX_RECOMPUTE_NONE;
    bool ffn = layer->table == &dtx_ffn_layer && r->what == DTX_RECOMPUTE_BLOCK;
    return (attention || ffn) && layer->index % r->every == 0;
}

/* Is l's input made again by l − 1? Only where they are the two layers of a recomputed block. */
static bool is_input_remade(const struct dtx_model *model, int l)
{
    return model->layers[l].table == &dtx_ffn_layer && is_remade(model, l);
}

static struct dtx_tensor *remade_of(struct dtx_model *model, int l)
{
    return &model->remade[model->layers[l].table == &dtx_ffn_layer];
}

/* Where a saved tensor lives: in its slot, or shared by all slots and layers. */
static bool in_slot(const struct dtx_model *model, int l, const struct dtx_saved *s)
{
    return !(s->need & DTX_SAVED_GRADIENT) && !(s->need & DTX_SAVED_RECOMPUTE && is_remade(model, l));
}

/* Bytes of l's tensors that live in its slot, among the gradients, or among what is made again. */
struct places {
    size_t slot, gradient, remade;
};

static struct places places_of(const struct dtx_model *model, int l)
{
    const struct dtx_env *env = model->env;
    struct dtx_saved list[DTX_MAX_SAVED];
    struct places bytes = {0};
    size_t input = (size_t)(dtx_rows_held(env, env->max_rows) * env->model->width) * dtx_dtype_bytes(env->act);
    int n = model->layers[l].table->saved(&model->layers[l], list);
    for (int i = 0; i < n; i++) {
        if (list[i].need & DTX_SAVED_GRADIENT)
            bytes.gradient += aligned_bytes(&list[i]);
        else if (in_slot(model, l, &list[i]))
            bytes.slot += (size_t)(list[i].rows * list[i].columns) * dtx_dtype_bytes(list[i].dtype);
        else
            bytes.remade += aligned_bytes(&list[i]);
    }
    if (is_input_remade(model, l))
        bytes.remade += input;
    else if (!is_embed(model, l))
        bytes.slot += input;
    return bytes;
}

/* Sizes of what all layers share: each must hold the largest layer's. */
struct shared_sizes {
    size_t gradients, remade[2], work;
};

static struct shared_sizes shared_sizes(const struct dtx_model *model)
{
    struct shared_sizes most = {.gradients = 64, .work = 64};
    for (int l = 0; l < model->n_layers; l++) {
        struct places bytes = places_of(model, l);
        size_t work = model->layers[l].table->work_bytes(&model->layers[l]);
        size_t *remade = &most.remade[model->layers[l].table == &dtx_ffn_layer];
        most.gradients = bytes.gradient > most.gradients ? bytes.gradient : most.gradients;
        *remade = bytes.remade > *remade ? bytes.remade : *remade;
        most.work = work > most.work ? work : most.work;
    }
    return most;
}

static enum dtx_status allocate_shared(struct dtx_model *model)
{
    struct dtx_env *env = model->env;
    struct shared_sizes sizes = shared_sizes(model);
    model->shared = dtx_tensor_1d(NULL, DTX_U8, (int64_t)sizes.gradients);
    model->remade[0] = dtx_tensor_1d(NULL, DTX_U8, (int64_t)sizes.remade[0]);
    model->remade[1] = dtx_tensor_1d(NULL, DTX_U8, (int64_t)sizes.remade[1]);
    env->work = dtx_tensor_1d(NULL, DTX_U8, (int64_t)sizes.work);
    env->wide = dtx_tensor_2d(NULL, env->master, env->max_rows, env->model->width);
    env->gathered = dtx_tensor_2d(NULL, env->act, env->sequence ? env->max_rows : 0, env->model->width);
    struct dtx_tensor *all[] = {&model->shared, &model->remade[0], &model->remade[1],
                                &env->work,     &env->wide,        &env->gathered};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        DTX_TRY(env->ctx, dtx_tensor_alloc(env->queue->backend, all[i]));
    return DTX_OK;
}

size_t dtx_model_bytes(const struct dtx_model *model, int slots)
{
    const struct dtx_env *env = model->env;
    struct shared_sizes sizes = shared_sizes(model);
    int64_t master = (int64_t)dtx_dtype_bytes(env->master), act = (int64_t)dtx_dtype_bytes(env->act);
    int64_t row = env->model->width * act, wide = env->max_rows * env->model->width * master;
    int64_t gradients = 2 * dtx_rows_held(env, env->max_rows) * row, gathered = env->sequence ? env->max_rows * row : 0;
    int64_t rope = env->max_length * env->model->head_dim * master;
    size_t slot = 0;
    for (int l = 0; l < model->n_layers; l++)
        slot += places_of(model, l).slot;
    return (size_t)slots * slot + sizes.gradients + sizes.remade[0] + sizes.remade[1] + sizes.work +
           (size_t)(wide + gathered + gradients + rope);
}

static enum dtx_status allocate_rope(struct dtx_env *env)
{
    void *host;
    env->rope = dtx_tensor_2d(NULL, env->master, env->max_length, env->model->head_dim);
    DTX_TRY(env->ctx, dtx_tensor_alloc(env->queue->backend, &env->rope));
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, dtx_tensor_count(&env->rope), dtx_dtype_bytes(env->master), &host));
    enum dtx_status status =
        dtx_rope_table(env->ctx, env->model->rope_theta, env->model->head_dim, env->max_length, env->master, host);
    if (status == DTX_OK)
        status = dtx_tensor_set(env->queue, &env->rope, host);
    dtx_mem_free(host);
    return status;
}

static enum dtx_status allocate_slot(struct dtx_model *model, int slot)
{
    struct dtx_env *env = model->env;
    struct dtx_backend *backend = env->queue->backend;
    for (int l = 0; l < model->n_layers; l++) {
        struct dtx_saved list[DTX_MAX_SAVED];
        int n = model->layers[l].table->saved(&model->layers[l], list);
        struct dtx_tensor *saved = saved_of(model, slot, l);
        size_t shared = 0, remade = 0;
        for (int i = 0; i < n; i++) {
            saved[i] = dtx_tensor_2d(NULL, list[i].dtype, list[i].rows, list[i].columns);
            if (list[i].need & DTX_SAVED_GRADIENT) {
                saved[i].data = (char *)model->shared.data + shared;
                shared += aligned_bytes(&list[i]);
            } else if (in_slot(model, l, &list[i])) {
                DTX_TRY(env->ctx, dtx_tensor_alloc(backend, &saved[i]));
            } else {
                saved[i].data = (char *)remade_of(model, l)->data + remade;
                remade += aligned_bytes(&list[i]);
            }
        }
        struct dtx_tensor *residual = &model->residual[(int64_t)slot * model->n_layers + l];
        *residual = dtx_tensor_2d(NULL, env->act, dtx_rows_held(env, env->max_rows), env->model->width);
        if (is_input_remade(model, l))
            residual->data = (char *)remade_of(model, l)->data + remade;
        else if (!is_embed(model, l))
            DTX_TRY(env->ctx, dtx_tensor_alloc(backend, residual));
    }
    return DTX_OK;
}

enum dtx_status dtx_model_allocate(struct dtx_model *model, int slots)
{
    struct dtx_env *env = model->env;
    void *p;
    int64_t cells = (int64_t)slots * model->n_layers;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, cells * DTX_MAX_SAVED, sizeof(struct dtx_tensor), &p));
    model->saved = p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, cells, sizeof(struct dtx_tensor), &p));
    model->residual = p;
    model->slots = slots;
    DTX_TRY(env->ctx, allocate_shared(model));
    DTX_TRY(env->ctx, allocate_rope(env));
    for (int s = 0; s < slots; s++)
        DTX_TRY(env->ctx, allocate_slot(model, s));
    for (int i = 0; i < 2; i++) {
        model->gradient[i] = dtx_tensor_2d(NULL, env->act, dtx_rows_held(env, env->max_rows), env->model->width);
        DTX_TRY(env->ctx, dtx_tensor_alloc(env->queue->backend, &model->gradient[i]));
    }
    return DTX_OK;
}

void dtx_model_free(struct dtx_model *model)
{
    if (!model)
        return;
    struct dtx_env *env = model->env;
    struct dtx_backend *backend = env->queue->backend;
    int64_t cells = (int64_t)model->slots * model->n_layers;
    for (int64_t c = 0; c < cells; c++) {
        int l = (int)(c % model->n_layers);
        const struct dtx_layer *layer = &model->layers[l];
        struct dtx_saved list[DTX_MAX_SAVED];
        if (model->residual && !is_input_remade(model, l))
            dtx_tensor_free(backend, &model->residual[c]);
        int n = layer->table->saved(layer, list);
        for (int i = 0; i < n; i++)
            if (in_slot(model, l, &list[i]))
                dtx_tensor_free(backend, &model->saved[c * DTX_MAX_SAVED + i]);
    }
    dtx_tensor_free(backend, &model->gradient[0]);
    dtx_tensor_free(backend, &model->gradient[1]);
    dtx_tensor_free(backend, &model->shared);
    dtx_tensor_free(backend, &model->remade[0]);
    dtx_tensor_free(backend, &model->remade[1]);
    dtx_tensor_free(backend, &env->work);
    dtx_tensor_free(backend, &env->wide);
    dtx_tensor_free(backend, &env->gathered);
    dtx_tensor_free(backend, &env->rope);
    dtx_mem_free(model->saved);
    dtx_mem_free(model->residual);
    dtx_mem_free(model->layers);
    dtx_mem_free(model);
}

/* The first rows·D of a tensor as [rows, D], rows of the residual stream that this rank holds. */
static struct dtx_tensor as_rows(const struct dtx_model *model, const struct dtx_tensor *t)
{
    const struct dtx_env *env = model->env;
    return dtx_tensor_2d(t->data, t->dtype, dtx_rows_held(env, env->batch * env->length), env->model->width);
}

enum dtx_status dtx_model_forward(struct dtx_model *model, int slot, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *residual = model->residual + (int64_t)slot * model->n_layers;
    if (!is_embed(model, 0)) {
        struct dtx_tensor from = as_rows(model, in), to = as_rows(model, &residual[0]);
        DTX_TRY(env->ctx, dtx_add_to(env, &from, NULL, &to));
    }
    for (int l = 0; l < model->n_layers; l++) {
        bool last = l == model->n_layers - 1, head = last && dtx_mesh_last_stage(env->mesh);
        struct dtx_tensor x = as_rows(model, &residual[l]), y = {0};
        if (!head)
            y = as_rows(model, last ? out : &residual[l + 1]);
        DTX_TRY(env->ctx, model->layers[l].table->forward(&model->layers[l], saved_of(model, slot, l),
                                                          is_embed(model, l) ? NULL : &x, head ? NULL : &y));
    }
    return DTX_OK;
}

/* Before layer l's backward pass: what it made in forward, from the inputs that were kept. A block's ffn comes first in
 * backward and needs the attention's output, so both are made then. */
static enum dtx_status make_again(struct dtx_model *model, int slot, int l)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *residual =
        model->residual + (DTX_MUTANT(recompute_first_slot) ? 0 : (int64_t)slot * model->n_layers);
    bool block = env->recompute.what == DTX_RECOMPUTE_BLOCK, ffn = is_input_remade(model, l);
    if (!is_remade(model, l) || (block && !ffn) || DTX_MUTANT(recompute_forgotten))
        return DTX_OK;
    struct dtx_tensor x = as_rows(model, &residual[l]);
    if (ffn && !DTX_MUTANT(recompute_attention_left_out)) {
        struct dtx_tensor input = as_rows(model, &residual[l - 1]);
        DTX_TRY(env->ctx, dtx_attn_layer.forward(&model->layers[l - 1], saved_of(model, slot, l - 1), &input, &x));
    }
    return model->layers[l].table->forward(&model->layers[l], saved_of(model, slot, l), &x, NULL);
}

enum dtx_status dtx_model_backward(struct dtx_model *model, int slot, const struct dtx_tensor *dout,
                                   const struct dtx_tensor *din)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *residual = model->residual + (int64_t)slot * model->n_layers;
    struct dtx_tensor dy = {0};
    if (!dtx_mesh_last_stage(env->mesh))
        dy = as_rows(model, dout);
    for (int l = model->n_layers - 1; l >= 0; l--) {
        const struct dtx_layer *layer = &model->layers[l];
        struct dtx_tensor x = as_rows(model, &residual[l]), *saved = saved_of(model, slot, l);
        struct dtx_tensor dx = as_rows(model, l == 0 && !is_embed(model, 0) ? din : &model->gradient[l % 2]);
        DTX_TRY(env->ctx, make_again(model, slot, l));
        DTX_TRY(env->ctx, layer->table->backward_input(layer, saved, is_embed(model, l) ? NULL : &x,
                                                       dy.data ? &dy : NULL, is_embed(model, l) ? NULL : &dx));
        DTX_TRY(env->ctx, layer->table->backward_weight(layer, saved));
        dy = dx;
    }
    return DTX_OK;
}

enum dtx_status dtx_model_lambda(struct dtx_model *model, const struct dtx_tensor *out)
{
    const struct dtx_attn_variant *variant = model->env->model->attention;
    if (!variant->lambda)
        return DTX_OK;
    for (int l = 0; l < model->n_layers; l++) {
        if (model->layers[l].table != &dtx_attn_layer)
            continue;
        struct dtx_tensor cell = dtx_tensor_rows(out, model->layers[l].index, 1);
        DTX_TRY(model->env->ctx, variant->lambda(&model->layers[l], &cell));
    }
    return DTX_OK;
}

double dtx_model_flops(const struct dtx_model_config *config, double keys)
{
    double block = dtx_attn_layer.flops(config, keys) + dtx_ffn_layer.flops(config, keys);
    return (double)config->layers * block + dtx_head_layer.flops(config, keys);
}
