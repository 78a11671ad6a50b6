#include "trainer/model.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/trace.h"
#include "kernels/rope_table.h"
#include "trainer/attn.h"
#include "trainer/split.h"

struct dtx_model {
    struct dtx_env *env;
    int chunks, n_layers;
    int declared; /* layers of all stages so far */
    int *first;   /* [chunks + 1]: first layer of each chunk */
    struct dtx_layer *layers;
    int slots, kept;
    struct dtx_tensor *saved;      /* [slots][n_layers][DTX_MAX_SAVED] */
    struct dtx_tensor *residual;   /* [slots][n_layers]: input of each layer; absent for the embedding */
    int64_t *kept_at;              /* [n_layers][DTX_MAX_SAVED]: place in a gradient slot; −1: not there */
    struct dtx_tensor slot_memory; /* u8 [slots][bytes of the largest chunk] */
    struct dtx_tensor keep_memory; /* u8 [kept][bytes of the largest chunk]; backward never split: of one layer */
    struct dtx_tensor scratch;     /* u8: for one call of one layer */
    struct dtx_tensor remade[2];   /* u8: what recomputed attention layers and ffn layers make; one of each at a time */
    struct dtx_tensor gradient[2]; /* [rows held, D], in turn */
};

static bool is_embed(const struct dtx_model *model, int layer)
{
    return model->layers[layer].table == &dtx_embed_layer;
}

static bool is_head(const struct dtx_model *model, int layer)
{
    return model->layers[layer].table == &dtx_head_layer;
}

/* The rows from `first` on are those that a layer has just declared. */
static void note_rows(struct dtx_model *model, int first, struct dtx_layer *layer)
{
    struct dtx_params *p = model->env->params;
    layer->first_row = first;
    layer->end_row = p->n;
    layer->shared_row = -1;
    for (int i = first; i < p->n; i++)
        p->item[i].row.layer = model->declared;
    model->declared++;
}

/* The i-th row that a layer uses, −1 behind the last. */
static int row_of(const struct dtx_layer *layer, int i)
{
    int own = layer->end_row - layer->first_row;
    return i < own ? layer->first_row + i : i == own ? layer->shared_row : -1;
}

/* Declares the layers of one part; keeps those of this stage (the head needs the embedding's row when they are tied).
 */
static enum dtx_status declare_part(struct dtx_model *model, int part, int parts, int64_t first, int64_t count,
                                    int *embed_param)
{
    struct dtx_env *env = model->env;
    int stages = env->mesh->size[DTX_AXIS_PP], stage = part % stages;
    struct dtx_layer ignored, *next = &ignored;
    bool here = stage == env->mesh->rank[DTX_AXIS_PP];
    int n = model->n_layers;
    if (part == 0) {
        int row = env->params->n;
        next = here ? &model->layers[n++] : &ignored;
        DTX_TRY(env->ctx, dtx_embed_declare(env, stage, stages - 1, next));
        note_rows(model, row, next);
        *embed_param = next->param[0];
    }
    for (int64_t i = first; i < first + count; i++) {
        int row = env->params->n;
        next = here ? &model->layers[n++] : &ignored;
        DTX_TRY(env->ctx, dtx_attn_declare(env, (int)i, stage, next));
        note_rows(model, row, next);
        row = env->params->n;
        next = here ? &model->layers[n++] : &ignored;
        DTX_TRY(env->ctx, dtx_ffn_declare(env, (int)i, stage, next));
        note_rows(model, row, next);
    }
    if (part == parts - 1) {
        int row = env->params->n;
        next = here ? &model->layers[n++] : &ignored;
        DTX_TRY(env->ctx, dtx_head_declare(env, stage, *embed_param, next));
        note_rows(model, row, next);
        if (env->model->tied)
            next->shared_row = *embed_param;
    }
    if (here && n == model->n_layers)
        return dtx_fail(env->ctx, DTX_E_CONFIG, "%lld layers: nothing is left for part %d of %d of the pipeline",
                        (long long)env->model->layers, part + 1, parts);
    model->n_layers = n;
    return DTX_OK;
}

static enum dtx_status declare_parts(struct dtx_model *model, const int64_t *counts)
{
    int stages = model->env->mesh->size[DTX_AXIS_PP], parts = stages * model->chunks, embed_param = -1;
    int64_t first = 0;
    for (int part = 0; part < parts; part++) {
        if (model->chunks > 1 && DTX_MUTANT(chunk_order)) /* a stage's chunks one after another in the model */
            first = (part % stages * model->chunks + part / stages) * counts[part];
        DTX_TRY(model->env->ctx, declare_part(model, part, parts, first, counts[part], &embed_param));
        first += counts[part];
        model->first[part / stages + 1] = model->n_layers;
    }
    return DTX_OK;
}

static enum dtx_status declare_all(struct dtx_model *model)
{
    struct dtx_env *env = model->env;
    int parts = env->mesh->size[DTX_AXIS_PP] * model->chunks;
    void *p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, 2 * env->model->layers + 2, sizeof *model->layers, &p));
    model->layers = p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, model->chunks + 1, sizeof *model->first, &p));
    model->first = p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, parts, sizeof(int64_t), &p));
    dtx_split_blocks(env->model, &env->split, parts, ((double)env->max_length + 1) / 2, p);
    enum dtx_status status = declare_parts(model, p);
    dtx_mem_free(p);
    return status;
}

enum dtx_status dtx_model_declare(struct dtx_env *env, struct dtx_model **out)
{
    void *p;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, 1, sizeof(struct dtx_model), &p));
    struct dtx_model *model = p;
    model->env = env;
    model->chunks = env->split.chunks > 0 ? env->split.chunks : 1;
    enum dtx_status status = declare_all(model);
    if (status != DTX_OK) {
        dtx_model_free(model);
        return status;
    }
    *out = model;
    return DTX_OK;
}

static struct dtx_tensor *saved_of(const struct dtx_model *model, int slot, int layer)
{
    return model->saved + ((int64_t)slot * model->n_layers + layer) * DTX_MAX_SAVED;
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

/* Does a tensor live in the shared buffers? What a later weight part reads stays in its slot. */
static bool is_shared(const struct dtx_model *model, int l, const struct dtx_saved *s)
{
    bool later = model->kept && s->need & DTX_SAVED_WEIGHT && !DTX_MUTANT(recompute_frees_weight_inputs);
    return s->need & DTX_SAVED_RECOMPUTE && is_remade(model, l) && !later;
}

/* Bytes of a chunk in an activation slot and in a gradient slot, of a layer's scratch, and of what an attention or ffn
 * layer makes again. */
struct sizes {
    int64_t slot, keep, scratch, remade[2];
};

static struct dtx_tensor place(const struct dtx_tensor *memory, int row, int64_t *at, const struct dtx_saved *s)
{
    char *base = memory->data;
    struct dtx_tensor t = dtx_tensor_2d(base ? base + row * memory->dim[1] + *at : NULL, s->dtype, s->rows, s->columns);
    *at += dtx_round_up((int64_t)dtx_tensor_bytes(&t), 64);
    return t;
}

/* Lays a layer's tensors of one slot out from `at` on; only counts before model->saved exists. */
static void place_layer(struct dtx_model *model, int slot, int l, struct sizes *at)
{
    struct dtx_env *env = model->env;
    struct dtx_saved list[DTX_MAX_SAVED];
    int n = model->layers[l].table->saved(&model->layers[l], list);
    int ffn = model->layers[l].table == &dtx_ffn_layer;
    for (int i = 0; i < n; i++) {
        bool keep = list[i].need & DTX_SAVED_GRADIENT;
        int64_t kept_at = keep ? at->keep : -1;
        struct dtx_tensor t = keep                               ? place(&model->keep_memory, 0, &at->keep, &list[i])
                              : list[i].need & DTX_SAVED_SCRATCH ? place(&model->scratch, 0, &at->scratch, &list[i])
                              : is_shared(model, l, &list[i])
                                  ? place(&model->remade[ffn], 0, &at->remade[ffn], &list[i])
                                  : place(&model->slot_memory, slot, &at->slot, &list[i]);
        if (model->saved) {
            saved_of(model, slot, l)[i] = t;
            model->kept_at[l * DTX_MAX_SAVED + i] = kept_at;
        }
    }
    struct dtx_saved input = {
        .dtype = env->act, .rows = dtx_rows_held(env, env->max_rows), .columns = env->model->width};
    if (is_embed(model, l))
        return;
    struct dtx_tensor t = is_input_remade(model, l) ? place(&model->remade[1], 0, &at->remade[1], &input)
                                                    : place(&model->slot_memory, slot, &at->slot, &input);
    if (model->residual)
        model->residual[(int64_t)slot * model->n_layers + l] = t;
}

/* Lays a slot out, for each chunk from its beginning; the bytes of the largest. Before memory is allocated it only
 * measures. */
static struct sizes place_slot(struct dtx_model *model, int slot)
{
    struct sizes most = {64, 64, 64, {64, 64}};
    for (int c = 0; c < model->chunks; c++) {
        struct sizes at = {0};
        for (int l = model->first[c]; l < model->first[c + 1]; l++) {
            at.scratch = at.remade[0] = at.remade[1] = 0;
            if (!model->kept) /* the weight part of a layer follows its input part at once */
                at.keep = 0;
            place_layer(model, slot, l, &at);
            most = (struct sizes){dtx_max64(most.slot, at.slot),
                                  dtx_max64(most.keep, at.keep),
                                  dtx_max64(most.scratch, at.scratch),
                                  {dtx_max64(most.remade[0], at.remade[0]), dtx_max64(most.remade[1], at.remade[1])}};
        }
    }
    return most;
}

/* Shapes of all that is allocated. */
static void shape_memory(struct dtx_model *model, struct dtx_env *env)
{
    struct sizes bytes = place_slot(model, 0);
    int64_t width = env->model->width, work = 64;
    for (int l = 0; l < model->n_layers; l++)
        work = dtx_max64(work, (int64_t)model->layers[l].table->work_bytes(&model->layers[l]));
    model->slot_memory = dtx_tensor_2d(NULL, DTX_U8, model->slots, bytes.slot);
    model->keep_memory = dtx_tensor_2d(NULL, DTX_U8, model->kept ? model->kept : 1, bytes.keep);
    model->scratch = dtx_tensor_2d(NULL, DTX_U8, 1, bytes.scratch);
    for (int i = 0; i < 2; i++) {
        model->remade[i] = dtx_tensor_2d(NULL, DTX_U8, 1, bytes.remade[i]);
        model->gradient[i] = dtx_tensor_2d(NULL, env->act, dtx_rows_held(env, env->max_rows), width);
    }
    env->work = dtx_tensor_1d(NULL, DTX_U8, work);
    env->wide = dtx_tensor_2d(NULL, env->master, env->max_rows, width);
    env->gathered = dtx_tensor_2d(NULL, env->act, env->sequence ? env->max_rows : 0, width);
    env->rope = dtx_tensor_2d(NULL, env->master, env->max_length, env->model->head_dim);
}

enum { TENSORS = 11 };

static void list_memory(struct dtx_model *model, struct dtx_env *env, struct dtx_tensor *out[TENSORS])
{
    struct dtx_tensor *all[TENSORS] = {&model->slot_memory, &model->keep_memory, &model->scratch,     &model->remade[0],
                                       &model->remade[1],   &model->gradient[0], &model->gradient[1], &env->work,
                                       &env->wide,          &env->gathered,      &env->rope};
    for (int i = 0; i < TENSORS; i++)
        out[i] = all[i];
}

struct dtx_model_bytes dtx_model_memory(const struct dtx_model *model, int slots, int kept)
{
    struct dtx_model shapes = *model;
    struct dtx_env env = *model->env;
    struct dtx_tensor *all[TENSORS];
    struct dtx_model_bytes bytes = {0};
    shapes.saved = shapes.residual = NULL;
    shapes.slots = slots;
    shapes.kept = kept;
    shape_memory(&shapes, &env);
    list_memory(&shapes, &env, all);
    for (int i = 0; i < TENSORS; i++)
        *(all[i] == &shapes.slot_memory   ? &bytes.slots
          : all[i] == &shapes.keep_memory ? &bytes.kept
          : all[i] == &env.work           ? &bytes.work
                                          : &bytes.shared) += dtx_tensor_alloc_bytes(all[i]);
    return bytes;
}

size_t dtx_model_bytes(const struct dtx_model *model, int slots, int kept)
{
    struct dtx_model_bytes bytes = dtx_model_memory(model, slots, kept);
    return bytes.slots + bytes.kept + bytes.work + bytes.shared;
}

static enum dtx_status fill_rope(struct dtx_env *env)
{
    void *host;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, dtx_tensor_count(&env->rope), dtx_dtype_bytes(env->master), &host));
    enum dtx_status status =
        dtx_rope_table(env->ctx, env->model->rope_theta, env->model->head_dim, env->max_length, env->master, host);
    if (status == DTX_OK)
        status = dtx_tensor_set(env->queue, &env->rope, host);
    dtx_mem_free(host);
    return status;
}

enum dtx_status dtx_model_allocate(struct dtx_model *model, int slots, int kept)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *all[TENSORS];
    void *saved, *residual, *kept_at;
    int64_t cells = (int64_t)slots * model->n_layers;
    model->slots = slots;
    model->kept = kept;
    shape_memory(model, env);
    list_memory(model, env, all);
    for (int i = 0; i < TENSORS; i++)
        DTX_TRY(env->ctx, dtx_tensor_alloc(env->queue->backend, all[i]));
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, (int64_t)model->n_layers * DTX_MAX_SAVED, sizeof(int64_t), &kept_at));
    model->kept_at = kept_at;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, cells * DTX_MAX_SAVED, sizeof(struct dtx_tensor), &saved));
    model->saved = saved;
    DTX_TRY(env->ctx, dtx_mem_alloc(env->ctx, cells, sizeof(struct dtx_tensor), &residual));
    model->residual = residual;
    for (int s = 0; s < slots; s++)
        place_slot(model, s);
    return fill_rope(env);
}

void dtx_model_expect_gradients(const struct dtx_model *model)
{
    for (int l = 0; l < model->n_layers; l++)
        for (int i = 0, row; (row = row_of(&model->layers[l], i)) >= 0; i++)
            dtx_grads_expect(model->env->grads, row);
}

void dtx_model_free(struct dtx_model *model)
{
    if (!model)
        return;
    struct dtx_env *env = model->env;
    struct dtx_tensor *tensors[TENSORS];
    list_memory(model, env, tensors);
    for (int i = 0; i < TENSORS; i++)
        dtx_tensor_free(env->queue->backend, tensors[i]);
    void *arrays[] = {model->saved, model->residual, model->kept_at, model->layers, model->first};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        dtx_mem_free(arrays[i]);
    dtx_mem_free(model);
}

/* The first rows·D of a tensor as [rows, D], rows of the residual stream that this rank holds. */
static struct dtx_tensor as_rows(const struct dtx_model *model, const struct dtx_tensor *t)
{
    const struct dtx_env *env = model->env;
    return dtx_tensor_2d(t->data, t->dtype, dtx_rows_held(env, env->batch * env->length), env->model->width);
}

/* All ranks' pieces of the weights that a layer reads, in this pass and in the step's later ones. */
static enum dtx_status await_weights(const struct dtx_model *model, const struct dtx_layer *layer)
{
    for (int i = 0, row; (row = row_of(layer, i)) >= 0; i++)
        DTX_TRY(model->env->ctx, dtx_params_need(model->env->params, row));
    return DTX_OK;
}

bool dtx_model_waits(const struct dtx_model *model, int chunk)
{
    for (int l = model->first[chunk]; l < model->first[chunk + 1]; l++)
        for (int i = 0, row; (row = row_of(&model->layers[l], i)) >= 0; i++)
            if (dtx_params_missing(model->env->params, row))
                return true;
    return false;
}

static void end_span(const struct dtx_layer *layer, double begin)
{
    bool block = layer->table == &dtx_attn_layer || layer->table == &dtx_ffn_layer;
    dtx_trace_end(layer->env->ctx, begin, DTX_SPAN_COMPUTE, "compute", layer->table->name, block ? layer->index : -1,
                  0);
}

enum dtx_status dtx_model_forward(struct dtx_model *model, const struct dtx_step *step, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *residual = model->residual + (int64_t)step->slot * model->n_layers;
    int first = model->first[step->chunk], end = model->first[step->chunk + 1];
    if (!is_embed(model, first)) {
        struct dtx_tensor from = as_rows(model, in), to = as_rows(model, &residual[first]);
        DTX_TRY(env->ctx, dtx_add_to(env, &from, NULL, &to));
    }
    for (int l = first; l < end; l++) {
        const struct dtx_layer *layer = &model->layers[l];
        bool embed = is_embed(model, l), head = is_head(model, l);
        struct dtx_tensor x = as_rows(model, &residual[l]), y = {0};
        if (!head)
            y = as_rows(model, l == end - 1 ? out : &residual[l + 1]);
        DTX_TRY(env->ctx, await_weights(model, layer));
        double begin = dtx_trace_begin(env->ctx, layer->table->name);
        DTX_TRY(env->ctx,
                layer->table->forward(layer, saved_of(model, step->slot, l), embed ? NULL : &x, head ? NULL : &y));
        end_span(layer, begin);
    }
    return DTX_OK;
}

/* Before a layer's backward pass, and after it with its weight part. */
static enum dtx_status open_gradients(const struct dtx_model *model, const struct dtx_layer *layer)
{
    const struct dtx_env *env = model->env;
    for (int i = 0, row; (row = row_of(layer, i)) >= 0; i++)
        DTX_TRY(env->ctx, dtx_grads_open(env->grads, env->queue, row));
    return DTX_OK;
}

static enum dtx_status close_gradients(const struct dtx_model *model, const struct dtx_layer *layer)
{
    const struct dtx_env *env = model->env;
    for (int i = 0, row; (row = row_of(layer, i)) >= 0; i++)
        DTX_TRY(env->ctx, dtx_grads_done(env->grads, env->queue, row, env->last));
    return DTX_OK;
}

/* Points a layer's gradients at the gradient slot. */
static struct dtx_tensor *saved_for_backward(const struct dtx_model *model, const struct dtx_step *step, int l)
{
    struct dtx_tensor *saved = saved_of(model, step->slot, l);
    const int64_t *at = model->kept_at + l * DTX_MAX_SAVED;
    char *keep = (char *)model->keep_memory.data + step->keep * model->keep_memory.dim[1];
    if (DTX_MUTANT(gradient_slots_shared))
        keep = model->keep_memory.data;
    for (int i = 0; i < DTX_MAX_SAVED; i++)
        if (saved[i].data && at[i] >= 0)
            saved[i].data = keep + at[i];
    return saved;
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

/* Backward from the chunk's last layer to its first; with `weights` each layer's weight part follows at once. */
static enum dtx_status backward(struct dtx_model *model, const struct dtx_step *step, const struct dtx_tensor *dout,
                                const struct dtx_tensor *din, bool weights)
{
    struct dtx_env *env = model->env;
    struct dtx_tensor *residual = model->residual + (int64_t)step->slot * model->n_layers;
    int first = model->first[step->chunk], last = model->first[step->chunk + 1] - 1;
    struct dtx_tensor dy = {0};
    if (!is_head(model, last))
        dy = as_rows(model, dout);
    for (int l = last; l >= first; l--) {
        const struct dtx_layer *layer = &model->layers[l];
        bool embed = is_embed(model, l), head = is_head(model, l);
        struct dtx_tensor x = as_rows(model, &residual[l]), *saved = saved_for_backward(model, step, l);
        struct dtx_tensor dx = as_rows(model, l == first && !embed ? din : &model->gradient[l % 2]);
        DTX_TRY(env->ctx, open_gradients(model, layer));
        double begin = dtx_trace_begin(env->ctx, layer->table->name);
        DTX_TRY(env->ctx, make_again(model, step->slot, l));
        DTX_TRY(env->ctx,
                layer->table->backward_input(layer, saved, embed ? NULL : &x, head ? NULL : &dy, embed ? NULL : &dx));
        if (weights)
            DTX_TRY(env->ctx, layer->table->backward_weight(layer, saved));
        end_span(layer, begin);
        if (weights)
            DTX_TRY(env->ctx, close_gradients(model, layer));
        dy = dx;
    }
    return DTX_OK;
}

enum dtx_status dtx_model_backward(struct dtx_model *model, const struct dtx_step *step, const struct dtx_tensor *dout,
                                   const struct dtx_tensor *din)
{
    return backward(model, step, dout, din, true);
}

enum dtx_status dtx_model_backward_input(struct dtx_model *model, const struct dtx_step *step,
                                         const struct dtx_tensor *dout, const struct dtx_tensor *din)
{
    return backward(model, step, dout, din, false);
}

enum dtx_status dtx_model_backward_weight(struct dtx_model *model, const struct dtx_step *step)
{
    for (int l = model->first[step->chunk + 1] - 1; l >= model->first[step->chunk]; l--) {
        const struct dtx_layer *layer = &model->layers[l];
        double begin = dtx_trace_begin(model->env->ctx, layer->table->name);
        DTX_TRY(model->env->ctx, layer->table->backward_weight(layer, saved_for_backward(model, step, l)));
        end_span(layer, begin);
        DTX_TRY(model->env->ctx, close_gradients(model, layer));
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

struct dtx_tensor dtx_model_activation(const struct dtx_model *model, int layer, const char *name)
{
    const struct dtx_env *env = model->env;
    struct dtx_saved list[DTX_MAX_SAVED];
    if (layer < 0 || layer >= model->n_layers)
        return (struct dtx_tensor){0};
    if (strcmp(name, "x") == 0)
        return is_embed(model, layer) ? (struct dtx_tensor){0} : as_rows(model, &model->residual[layer]);
    int n = model->layers[layer].table->saved(&model->layers[layer], list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return dtx_saved_rows(&saved_of(model, 0, layer)[i], env->batch * env->length);
    return (struct dtx_tensor){0};
}

double dtx_model_flops(const struct dtx_model_config *config, double keys)
{
    double block = dtx_attn_layer.flops(config, keys) + dtx_ffn_layer.flops(config, keys);
    return (double)config->layers * block + dtx_head_layer.flops(config, keys);
}

enum dtx_status dtx_model_count(struct dtx_ctx *ctx, const struct dtx_model_config *config, const struct dtx_mesh *mesh,
                                int64_t *out)
{
    struct dtx_params params;
    struct dtx_queue queue = {0};
    struct dtx_model *declared;
    struct dtx_env env = {.ctx = ctx,
                          .queue = &queue,
                          .mesh = mesh,
                          .params = &params,
                          .model = config,
                          .act = DTX_F32,
                          .master = DTX_F32,
                          .max_rows = 1,
                          .max_length = 1};
    DTX_TRY(ctx, dtx_params_create(ctx, &params));
    enum dtx_status status = dtx_model_declare(&env, &declared);
    if (status == DTX_OK) {
        *out = dtx_params_total(&params);
        dtx_model_free(declared);
    }
    dtx_params_free(&params);
    return status;
}
