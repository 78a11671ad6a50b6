#include "trainer/engine.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/trace.h"
#include "parallel/pipe.h"
#include "trainer/attn.h"
#include "trainer/graphs.h"
#include "trainer/model.h"
#include "trainer/optim.h"
#include "trainer/sums.h"

enum { TOKENS, TARGETS, STARTS, LOSSES, CURRENT };

struct dtx_engine {
    struct dtx_ctx *ctx;
    struct dtx_engine_config config;
    struct dtx_mesh mesh;
    struct dtx_queue *queue;
    struct dtx_params params;
    struct dtx_grads grads;
    struct dtx_env env;
    struct dtx_model *model;
    struct dtx_pipe *pipe;
    /* A step's batch in the backend's memory: [micro_batches][micro_batch·length]. */
    struct dtx_tensor tokens, targets, doc_start, loss;
    struct dtx_graphs *graphs;          /* NULL: without */
    bool plain;                         /* passes run plainly all the same */
    struct dtx_tensor current[CURRENT]; /* with graphs: the micro-batch of the pass under way, [rows] */
    bool documents;                     /* the current batch has doc_start */
    struct dtx_tensor hyper, lambda;
    struct dtx_tensor summary; /* f64 [2]: loss sum, targets */
    struct dtx_tensor logits;  /* of dtx_engine_logits: for the most tokens so far */
    double *host_loss;
    /* This rank's rows on their way in, [3][micro_batches · rows], where they must be picked or a device copies them by
     * itself; else NULL. */
    int32_t *host_rows;
};

/* Rows of a micro-batch on this rank. */
static int64_t rows_of(const struct dtx_engine *e)
{
    return e->config.batch.micro_batch * e->config.batch.length / e->config.mesh[DTX_AXIS_CP];
}

enum { BATCH_TENSORS = 8 + CURRENT };

/* Their number. */
static int list_batch(struct dtx_engine *e, struct dtx_tensor *out[BATCH_TENSORS])
{
    struct dtx_tensor *all[BATCH_TENSORS] = {&e->tokens,     &e->targets,    &e->doc_start,      &e->loss,
                                             &e->hyper,      &e->summary,    &e->env.loss_scale, &e->lambda,
                                             &e->current[0], &e->current[1], &e->current[2],     &e->current[3]};
    memcpy(out, all, sizeof all);
    return e->config.graphs ? BATCH_TENSORS : BATCH_TENSORS - CURRENT;
}

static void shape_batch(struct dtx_engine *e)
{
    int64_t rows = rows_of(e), micro_batches = e->config.batch.micro_batches;
    e->tokens = dtx_tensor_2d(NULL, DTX_I32, micro_batches, rows);
    e->targets = e->doc_start = e->tokens;
    e->loss = dtx_tensor_2d(NULL, DTX_F64, micro_batches, rows);
    e->hyper = dtx_tensor_1d(NULL, DTX_F64, 4);
    e->summary = dtx_tensor_1d(NULL, DTX_F64, 2);
    e->lambda = dtx_tensor_1d(NULL, dtx_dtype_master(e->config.dtype), e->config.model.layers);
    e->env.loss_scale = dtx_tensor_1d(NULL, dtx_dtype_master(e->config.dtype), 1);
    for (int i = 0; i < CURRENT; i++)
        e->current[i] = dtx_tensor_1d(NULL, i == LOSSES ? DTX_F64 : DTX_I32, rows);
}

size_t dtx_engine_batch_bytes(const struct dtx_engine_config *config)
{
    struct dtx_engine e = {.config = *config};
    struct dtx_tensor *all[BATCH_TENSORS];
    size_t bytes = 0;
    shape_batch(&e);
    int n = list_batch(&e, all);
    for (int i = 0; i < (DTX_MUTANT(plan_graphs_forgotten) ? BATCH_TENSORS - CURRENT : n); i++)
        bytes += dtx_tensor_alloc_bytes(all[i]);
    return bytes;
}

static enum dtx_status allocate_batch(struct dtx_engine *e)
{
    struct dtx_tensor *all[BATCH_TENSORS];
    shape_batch(e);
    int n = list_batch(e, all);
    for (int i = 0; i < n; i++)
        DTX_TRY(e->ctx, dtx_tensor_alloc(e->queue->backend, all[i]));
    void *host;
    DTX_TRY(e->ctx, dtx_mem_alloc(e->ctx, dtx_tensor_count(&e->loss), sizeof(double), &host));
    e->host_loss = host;
    struct dtx_backend *backend = e->queue->backend;
    size_t left, total;
    DTX_TRY(e->ctx, backend->memory->left(backend, &left, &total));
    if (e->env.pieces > 1 || total > 0) {
        DTX_TRY(e->ctx, backend->memory->host_alloc(backend, 3 * dtx_tensor_bytes(&e->tokens), &host));
        e->host_rows = host;
    }
    return DTX_OK;
}

enum dtx_status dtx_engine_declare(struct dtx_ctx *ctx, const struct dtx_engine_config *c, const struct dtx_mesh *mesh,
                                   struct dtx_queue *queue, struct dtx_params *params, struct dtx_env *env,
                                   struct dtx_model **model)
{
    int cp = mesh->size[DTX_AXIS_CP], pieces = cp > 1 ? 2 : 1;
    int64_t rows = c->batch.micro_batch * c->batch.length / cp;
    if (c->batch.length % (pieces * cp))
        return dtx_fail(ctx, DTX_E_CONFIG, "parallel.cp: %lld tokens a sequence cannot be cut in %d equal chunks",
                        (long long)c->batch.length, pieces * cp);
    *env = (struct dtx_env){.ctx = ctx,
                            .queue = queue,
                            .mesh = mesh,
                            .params = params,
                            .model = &c->model,
                            .recompute = c->recompute,
                            .sequence = c->sequence && mesh->size[DTX_AXIS_TP] > 1,
                            .split = c->split,
                            .act = c->dtype,
                            .fp8 = c->fp8,
                            .master = dtx_dtype_master(c->dtype),
                            .max_rows = rows,
                            .max_length = c->batch.length,
                            .max_piece = c->batch.length / (pieces * cp),
                            .pieces = pieces,
                            .ring = c->ring};
    if (env->sequence && rows % mesh->size[DTX_AXIS_TP])
        return dtx_fail(ctx, DTX_E_CONFIG, "parallel.sequence: %lld rows of a micro-batch over %d tensor ranks",
                        (long long)rows, mesh->size[DTX_AXIS_TP]);
    DTX_TRY(ctx, dtx_model_declare(env, model));
    for (int i = 0; i < params->n; i++)
        if (strcmp(params->item[i].row.name, "embed.tokens") == 0)
            params->item[i].row.decay = c->optim.decay_embeddings;
    params->zero = c->zero;
    params->bucket_bytes = c->bucket_bytes;
    return DTX_OK;
}

static enum dtx_status create_parts(struct dtx_engine *e, struct dtx_comm *world, struct dtx_backend *backend)
{
    struct dtx_ctx *ctx = e->ctx;
    const struct dtx_engine_config *c = &e->config;
    const struct dtx_schedule *schedule = dtx_schedule_find(c->schedule);
    if (!schedule)
        return dtx_fail(ctx, DTX_E_CONFIG, "parallel.schedule: there is no '%s'", c->schedule);
    DTX_TRY(ctx, dtx_mesh_create(ctx, world, c->mesh, &e->mesh));
    DTX_TRY(ctx, backend->queues->create(backend, &e->queue));
    DTX_TRY(ctx, dtx_params_create(ctx, &e->params));
    DTX_TRY(ctx, dtx_engine_declare(ctx, c, &e->mesh, e->queue, &e->params, &e->env, &e->model));
    e->params.stochastic = c->optim.stochastic;
    DTX_TRY(ctx, dtx_params_allocate(&e->params, backend, &e->mesh, c->dtype));
    DTX_TRY(ctx, dtx_grads_create(&e->params, &e->grads));
    e->env.grads = &e->grads;
    dtx_model_expect_gradients(e->model);
    if (c->overlap)
        DTX_TRY(ctx, dtx_comm_async(e->mesh.grads, e->params.n_buckets));
    DTX_TRY(ctx, allocate_batch(e));
    struct dtx_tensor boundary = dtx_tensor_2d(NULL, c->dtype, dtx_rows_held(&e->env, rows_of(e)), c->model.width);
    int chunks = c->split.chunks > 0 ? c->split.chunks : 1;
    DTX_TRY(ctx,
            dtx_pipe_create(ctx, &e->mesh, e->queue, schedule, c->batch.micro_batches, chunks, &boundary, &e->pipe));
    DTX_TRY(ctx, dtx_model_allocate(e->model, dtx_pipe_slots(e->pipe), dtx_pipe_kept(e->pipe)));
    struct dtx_sums sums;
    dtx_sums_find(backend, c, &e->params, &e->env, &e->mesh, &sums);
    DTX_TRY(ctx, dtx_sums_prepare(&sums, &e->mesh));
    if (c->graphs)
        DTX_TRY(ctx, dtx_graphs_create(ctx, e->queue, &e->graphs));
    return dtx_params_init(&e->params, e->queue, (uint64_t)c->seed);
}

enum dtx_status dtx_engine_create(struct dtx_ctx *ctx, const struct dtx_engine_config *config, struct dtx_comm *world,
                                  struct dtx_backend *backend, struct dtx_engine **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_engine), &p));
    struct dtx_engine *e = p;
    e->ctx = ctx;
    e->config = *config;
    enum dtx_status status = create_parts(e, world, backend);
    if (status != DTX_OK) {
        dtx_engine_free(e);
        return status;
    }
    *out = e;
    return DTX_OK;
}

void dtx_engine_free(struct dtx_engine *e)
{
    if (!e)
        return;
    if (e->mesh.grads)
        dtx_comm_idle(e->mesh.grads); /* the thread may be writing weights */
    if (!DTX_MUTANT(graphs_freed_last))
        dtx_graphs_free(e->graphs);
    if (e->queue) {
        struct dtx_tensor *all[BATCH_TENSORS];
        e->queue->backend->memory->host_free(e->queue->backend, e->host_rows);
        int n = list_batch(e, all);
        for (int i = 0; i < n; i++)
            dtx_tensor_free(e->queue->backend, all[i]);
        dtx_tensor_free(e->queue->backend, &e->logits);
    }
    dtx_pipe_free(e->pipe);
    dtx_model_free(e->model);
    dtx_grads_free(&e->grads);
    dtx_params_free(&e->params);
    if (DTX_MUTANT(graphs_freed_last))
        dtx_graphs_free(e->graphs);
    if (e->queue)
        e->queue->backend->queues->free(e->queue);
    dtx_mesh_free(&e->mesh);
    dtx_mem_free(e->host_loss);
    dtx_mem_free(e);
}

void dtx_engine_halt(struct dtx_engine *e)
{
    if (e)
        dtx_comm_halt(e->mesh.grads);
}

enum dtx_status dtx_engine_settle(struct dtx_engine *e)
{
    DTX_TRY(e->ctx, dtx_params_settle(&e->params));
    return dtx_comm_idle(e->mesh.grads);
}

/* Planted fault: each micro-batch is divided by its own targets, and the mean is taken over micro-batches. */
static enum dtx_status scale_by_micro_batch(struct dtx_engine *e, const int32_t *targets)
{
    double count = 0;
    for (int64_t i = 0; i < rows_of(e); i++)
        count += targets[i] >= 0;
    double weight = count > 0 ? 1 / (count * e->config.batch.micro_batches) : 0;
    float narrow = (float)weight;
    return dtx_tensor_set(e->queue, &e->env.loss_scale, e->env.master == DTX_F64 ? (void *)&weight : (void *)&narrow);
}

/* Do gradients that a pass completes set out for the other ranks at once, beside what follows? Else at the end of the
 * step, and even the last micro-batch's passes can be recorded. */
static bool sums_beside(const struct dtx_engine *e)
{
    return !e->graphs || (dtx_mesh_data_size(&e->mesh) > 1 && e->config.overlap);
}

/* Where the layers find one micro-batch: its rows, or a copy, since passes that are recorded name addresses. */
static enum dtx_status select_rows(struct dtx_engine *e, int micro_batch)
{
    struct dtx_env *env = &e->env;
    struct dtx_tensor *const all[CURRENT] = {&e->tokens, &e->targets, &e->doc_start, &e->loss};
    struct dtx_tensor *const to[CURRENT] = {&env->tokens, &env->targets, &env->doc_start, &env->loss};
    for (int i = 0; i < CURRENT; i++) {
        struct dtx_tensor row = dtx_tensor_rows(all[i], micro_batch, 1);
        bool there = i != LOSSES && (i != STARTS || e->documents), copied = e->graphs && !DTX_MUTANT(graph_names_rows);
        if (copied && there)
            DTX_TRY(e->ctx,
                    e->queue->backend->memory->copy(e->queue, e->current[i].data, row.data, dtx_tensor_bytes(&row)));
        *to[i] = copied ? e->current[i] : dtx_tensor_1d(row.data, row.dtype, rows_of(e));
    }
    return DTX_OK;
}

/* Points the layers at one micro-batch. */
static enum dtx_status select_micro_batch(struct dtx_engine *e, int micro_batch)
{
    struct dtx_env *env = &e->env;
    DTX_TRY(e->ctx, select_rows(e, micro_batch));
    env->batch = e->config.batch.micro_batch * env->pieces;
    env->length = env->max_piece;
    env->doc_start = dtx_tensor_2d(e->documents ? env->doc_start.data : NULL, DTX_I32, env->batch, env->length);
    env->first = 0;
    bool last = micro_batch == e->config.batch.micro_batches - 1; /* schedules go up in both parts of backward */
    env->last = last && sums_beside(e);
    return DTX_OK;
}

/* Back from where recorded passes leave them: those of the pass that has made them. */
static enum dtx_status keep_losses(struct dtx_engine *e, const struct dtx_step *step)
{
    int last = e->config.split.chunks > 1 ? e->config.split.chunks - 1 : 0;
    bool makes = e->env.training ? step->kind == DTX_STEP_BACKWARD || step->kind == DTX_STEP_BACKWARD_INPUT
                                 : step->kind == DTX_STEP_FORWARD;
    bool here = (step->chunk == last || DTX_MUTANT(graph_losses_of_any_chunk)) && dtx_mesh_last_stage(&e->mesh);
    struct dtx_tensor row = dtx_tensor_rows(&e->loss, step->micro_batch, 1);
    if (!e->graphs || !makes || !here || row.data == e->env.loss.data)
        return DTX_OK;
    return e->queue->backend->memory->copy(e->queue, row.data, e->env.loss.data, dtx_tensor_bytes(&row));
}

/* A step of the schedule on its way. in, out: NULL or absent where there is none. */
struct pass {
    struct dtx_engine *e;
    const struct dtx_step *step;
    const struct dtx_tensor *in, *out;
};

static enum dtx_status compute(void *self)
{
    const struct pass *p = self;
    struct dtx_model *model = p->e->model;
    switch (p->step->kind) {
    case DTX_STEP_FORWARD:
        return dtx_model_forward(model, p->step, p->in, p->out);
    case DTX_STEP_BACKWARD:
        return dtx_model_backward(model, p->step, p->in, p->out);
    case DTX_STEP_BACKWARD_INPUT:
        return dtx_model_backward_input(model, p->step, p->in, p->out);
    default:
        return dtx_model_backward_weight(model, p->step);
    }
}

/* Would the pass wait for other ranks, or start what goes on beside it? */
static bool exchanges(const struct dtx_engine *e, const struct dtx_step *step)
{
    if (step->kind == DTX_STEP_FORWARD)
        return dtx_model_waits(e->model, step->chunk) && !DTX_MUTANT(graph_of_first_forward);
    if (DTX_MUTANT(graph_of_last_backward))
        return false;
    bool streamed = dtx_tensor_count(&e->params.flat_sum) > 0; /* gradients are reduced in every micro-batch */
    return streamed || (e->env.last && step->kind != DTX_STEP_BACKWARD_INPUT);
}

static enum dtx_status run_pass(const struct pass *p)
{
    struct dtx_engine *e = p->e;
    const struct dtx_step *step = p->step;
    struct dtx_graph_pass pass = {.kind = step->kind,
                                  .chunk = step->chunk,
                                  .slot = step->slot,
                                  .keep = step->keep,
                                  .training = e->env.training,
                                  .documents = e->documents,
                                  .in = p->in ? p->in->data : NULL,
                                  .out = p->out ? p->out->data : NULL};
    if (!e->graphs || e->plain || exchanges(e, step))
        return compute((void *)p);
    return dtx_graphs_run(e->graphs, &pass, compute, (void *)p);
}

static enum dtx_status play(struct dtx_engine *e, const struct dtx_step *step, const struct dtx_tensor *in,
                            const struct dtx_tensor *out)
{
    static const char *const names[] = {[DTX_STEP_FORWARD] = "forward",
                                        [DTX_STEP_BACKWARD] = "backward",
                                        [DTX_STEP_BACKWARD_INPUT] = "backward, inputs",
                                        [DTX_STEP_BACKWARD_WEIGHT] = "backward, weights"};
    struct pass pass = {e, step, in, out};
    double begin = dtx_trace_begin(e->ctx, names[step->kind]);
    DTX_TRY(e->ctx, select_micro_batch(e, step->micro_batch));
    if (DTX_MUTANT(scale_per_micro_batch) && step->kind != DTX_STEP_FORWARD)
        DTX_TRY(e->ctx, scale_by_micro_batch(e, e->env.targets.data));
    DTX_TRY(e->ctx, run_pass(&pass));
    DTX_TRY(e->ctx, keep_losses(e, step));
    dtx_trace_end(e->ctx, begin, DTX_SPAN_PASS, "compute", names[step->kind], step->micro_batch, 0);
    return DTX_OK;
}

static enum dtx_status stage_pass(void *self, const struct dtx_step *step, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out)
{
    return play(self, step, in, out);
}

static enum dtx_status stage_weights(void *self, const struct dtx_step *step)
{
    return play(self, step, NULL, NULL);
}

/* The rows of whole sequences that this rank has, in the order of layer.h: for each micro-batch the first piece of all
 * its sequences, then the second. The copies of one step have happened when the next begins, since that one's loss was
 * read. */
static const int32_t *own_rows(struct dtx_engine *e, const int32_t *whole, int what)
{
    const struct dtx_batch_config *b = &e->config.batch;
    int64_t piece = e->env.max_piece;
    int32_t *out = e->host_rows, *next;
    if (!out)
        return whole;
    out += DTX_MUTANT(batch_rows_shared) ? 0 : what * dtx_tensor_count(&e->tokens);
    next = out;
    for (int64_t m = 0; m < b->micro_batches; m++)
        for (int p = 0; p < e->env.pieces; p++) {
            int64_t first = dtx_piece_first(&e->env, e->mesh.rank[DTX_AXIS_CP], p);
            for (int64_t i = 0; i < b->micro_batch; i++, next += piece)
                memcpy(next, whole + (m * b->micro_batch + i) * b->length + first, (size_t)piece * sizeof *next);
        }
    return out;
}

/* Copies a batch in and counts its targets over the data and context ranks: loss and gradients are weighted by targets
 * of the whole global batch, however it is cut. */
static enum dtx_status load_batch(struct dtx_engine *e, const struct dtx_engine_batch *batch, int64_t *targets)
{
    int64_t n = dtx_tensor_count(&e->targets), count = 0;
    const int32_t *own = own_rows(e, batch->targets, TARGETS);
    for (int64_t i = 0; i < n; i++)
        count += own[i] >= 0;
    if (DTX_MUTANT(targets_counted_by_each_context_rank))
        count *= e->mesh.size[DTX_AXIS_CP];
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->targets, own));
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->tokens, own_rows(e, batch->tokens, TOKENS)));
    e->documents = batch->doc_start != NULL;
    if (batch->doc_start)
        DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->doc_start, own_rows(e, batch->doc_start, STARTS)));
    double host[2] = {0, (double)count};
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->summary, host));
    DTX_TRY(e->ctx, dtx_comm_all_reduce_sum(e->mesh.data, e->queue, &e->summary));
    DTX_TRY(e->ctx, dtx_tensor_get(e->queue, &e->summary, host));
    *targets = (int64_t)host[1];
    double weight = host[1] > 0 ? 1.0 / host[1] : 0.0;
    if (DTX_MUTANT(targets_of_own_rank_only))
        weight = count ? 1.0 / ((double)count * e->mesh.size[DTX_AXIS_DP]) : 0.0;
    float narrow = (float)weight;
    return dtx_tensor_set(e->queue, &e->env.loss_scale, e->env.master == DTX_F64 ? (void *)&weight : (void *)&narrow);
}

/* Sum of this step's losses over the mesh: the last stage has them; data and context ranks add in rank order. */
static enum dtx_status sum_losses(struct dtx_engine *e, double *out)
{
    double host[2] = {0, 0};
    if (dtx_mesh_last_stage(&e->mesh)) {
        DTX_TRY(e->ctx, dtx_tensor_get(e->queue, &e->loss, e->host_loss));
        for (int64_t i = 0; i < dtx_tensor_count(&e->loss); i++)
            host[0] += e->host_loss[i];
    }
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->summary, host));
    DTX_TRY(e->ctx, dtx_comm_all_reduce_sum(e->mesh.data, e->queue, &e->summary));
    DTX_TRY(e->ctx,
            dtx_comm_broadcast(e->mesh.axis[DTX_AXIS_PP], e->queue, &e->summary, e->mesh.size[DTX_AXIS_PP] - 1));
    DTX_TRY(e->ctx, dtx_tensor_get(e->queue, &e->summary, host));
    *out = host[0];
    return DTX_OK;
}

enum dtx_status dtx_engine_gradients(struct dtx_engine *e, const struct dtx_engine_batch *batch,
                                     struct dtx_step_result *result)
{
    struct dtx_pipe_stage stage = {e, stage_pass, stage_pass, stage_pass, stage_weights};
    memset(result, 0, sizeof *result);
    e->env.training = true;
    DTX_TRY(e->ctx, load_batch(e, batch, &result->targets));
    DTX_TRY(e->ctx, dtx_grads_zero(&e->grads, e->queue));
    DTX_TRY(e->ctx, dtx_pipe_run(e->pipe, &stage));
    DTX_TRY(e->ctx, dtx_grads_reduce(&e->grads, e->queue));
    DTX_TRY(e->ctx, sum_losses(e, &result->loss));
    if (result->targets > 0)
        result->loss /= (double)result->targets;
    double begin = dtx_trace_begin(e->ctx, "norm");
    DTX_TRY(e->ctx, dtx_grads_norm(&e->grads, e->queue, &result->grad_norm));
    dtx_trace_end(e->ctx, begin, DTX_SPAN_COMPUTE, "compute", "norm", -1, 0);
    double limit = e->config.optim.clip;
    result->clip =
        limit > 0 && result->grad_norm > limit && !DTX_MUTANT(clip_forgotten) ? limit / result->grad_norm : 1.0;
    return DTX_OK;
}

enum dtx_status dtx_engine_update(struct dtx_engine *e, int64_t step, double lr, const struct dtx_step_result *result)
{
    const struct dtx_optim_config *optim = &e->config.optim;
    double hyper[4];
    optim->variant->hyper(optim, step, lr, result->clip, hyper);
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &e->hyper, hyper));
    double begin = dtx_trace_begin(e->ctx, "optimizer");
    for (int i = 0; i < e->params.n; i++)
        if (e->params.item[i].held && e->params.item[i].part_count > 0)
            DTX_TRY(e->ctx, optim->variant->update(e->queue, optim, &e->params.item[i], &e->hyper));
    dtx_trace_end(e->ctx, begin, DTX_SPAN_COMPUTE, "compute", "optimizer", -1, 0);
    return dtx_params_gather(&e->params, e->queue);
}

enum dtx_status dtx_engine_step(struct dtx_engine *e, const struct dtx_engine_batch *batch, int64_t step, double lr,
                                struct dtx_step_result *result)
{
    DTX_TRY(e->ctx, dtx_engine_gradients(e, batch, result));
    /* Loss and norm have the same bits on all ranks, so all skip or none does. */
    result->skipped = !isfinite(result->loss) || !isfinite(result->grad_norm);
    return result->skipped && !DTX_MUTANT(nonfinite_not_skipped) ? DTX_OK : dtx_engine_update(e, step, lr, result);
}

enum dtx_status dtx_engine_evaluate(struct dtx_engine *e, const struct dtx_engine_batch *batch, double *loss_sum,
                                    int64_t *targets)
{
    struct dtx_pipe_stage stage = {.self = e, .forward = stage_pass};
    e->env.training = false;
    DTX_TRY(e->ctx, load_batch(e, batch, targets));
    DTX_TRY(e->ctx, dtx_pipe_run_forward(e->pipe, &stage, e->config.batch.micro_batches));
    return sum_losses(e, loss_sum);
}

/* n values of the master dtype become doubles in place. */
static void widen(enum dtx_dtype master, double *values, int64_t n)
{
    for (int64_t i = n - 1; i >= 0 && master == DTX_F32; i--) {
        float narrow;
        memcpy(&narrow, (const char *)values + (size_t)i * sizeof narrow, sizeof narrow);
        values[i] = narrow;
    }
}

static enum dtx_status need_logits(struct dtx_engine *e, int64_t n)
{
    struct dtx_backend *backend = e->queue->backend;
    if (e->logits.data && e->logits.dim[0] >= n)
        return DTX_OK;
    dtx_tensor_free(backend, &e->logits);
    e->logits = dtx_tensor_2d(NULL, e->env.master, n, e->config.model.vocab);
    return dtx_tensor_alloc(backend, &e->logits);
}

enum dtx_status dtx_engine_logits(struct dtx_engine *e, const int32_t *tokens, int64_t first, int64_t n, double *logits)
{
    struct dtx_env *env = &e->env;
    int64_t vocab = e->config.model.vocab;
    if (e->mesh.world->size != 1 || first < 0 || n < 1 || first + n > e->config.batch.length)
        return dtx_fail(e->ctx, DTX_E_RANGE, "%lld tokens after %lld do not fit a context of %lld", (long long)n,
                        (long long)first, (long long)e->config.batch.length);
    if (env->recompute.what != DTX_RECOMPUTE_NONE)
        return dtx_fail(e->ctx, DTX_E_CONFIG, "the key/value cache needs train.recompute none");
    DTX_TRY(e->ctx, select_micro_batch(e, 0));
    env->training = false;
    env->batch = 1;
    env->length = n;
    env->first = DTX_MUTANT(cache_position_lost) ? 0 : first;
    env->doc_start = (struct dtx_tensor){0};
    env->tokens.dim[0] = env->targets.dim[0] = env->loss.dim[0] = n;
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &env->tokens, tokens));
    DTX_TRY(e->ctx, dtx_tensor_set(e->queue, &env->targets, tokens));
    DTX_TRY(e->ctx, need_logits(e, n));
    env->logits = dtx_tensor_2d(e->logits.data, env->master, n, vocab);
    enum dtx_status status = dtx_model_forward(e->model, &(struct dtx_step){0}, NULL, NULL);
    struct dtx_tensor last = dtx_tensor_rows(&env->logits, n - 1, 1);
    if (status == DTX_OK)
        status = dtx_tensor_get(e->queue, &last, logits);
    if (status == DTX_OK)
        widen(env->master, logits, vocab);
    env->logits.data = NULL; /* what other passes go by */
    return status;
}

enum dtx_status dtx_engine_activation(struct dtx_engine *e, int layer, const char *name, double *out, int64_t room,
                                      int64_t *n)
{
    struct dtx_tensor t = dtx_model_activation(e->model, layer, name);
    int64_t count = dtx_tensor_count(&t);
    if (!t.data || t.dtype != e->env.master || count > room)
        return dtx_fail(e->ctx, DTX_E_RANGE, "layer %d has no %s of %lld numbers in %s", layer, name, (long long)room,
                        dtx_dtype_name(e->env.master));
    DTX_TRY(e->ctx, dtx_tensor_get(e->queue, &t, out));
    widen(e->env.master, out, count);
    *n = count;
    return DTX_OK;
}

enum dtx_status dtx_engine_finite(struct dtx_engine *e, bool *finite)
{
    int64_t bad = 0;
    DTX_TRY(e->ctx, dtx_engine_settle(e));
    for (int i = 0; i < e->params.n; i++) {
        const struct dtx_param *item = &e->params.item[i];
        for (int k = -1; k < e->config.optim.variant->n_states && item->held; k++) {
            double sum;
            DTX_TRY(e->ctx, dtx_grads_square_sum(&e->grads, e->queue, k < 0 ? &item->master : &item->state[k], &sum));
            bad += !isfinite(sum);
        }
    }
    struct dtx_tensor count = dtx_tensor_1d(&bad, DTX_I64, 1); /* host memory: no queue */
    DTX_TRY(e->ctx, dtx_comm_all_reduce_sum(e->mesh.world, NULL, &count));
    *finite = bad == 0;
    return DTX_OK;
}

enum dtx_status dtx_engine_replicas(struct dtx_engine *e, struct dtx_replica_report *report)
{
    const struct dtx_optim_variant *optim = e->config.optim.variant;
    DTX_TRY(e->ctx, dtx_engine_settle(e));
    return dtx_replicas_check(&e->params, e->queue, optim->states, optim->n_states, report);
}

enum dtx_status dtx_engine_lambda(struct dtx_engine *e, double *lambda, int *n)
{
    int64_t layers = e->config.model.layers;
    *n = 0;
    if (!e->config.model.attention->lambda)
        return DTX_OK;
    DTX_TRY(e->ctx, dtx_tensor_zero(e->queue, &e->lambda));
    DTX_TRY(e->ctx, dtx_model_lambda(e->model, &e->lambda));
    DTX_TRY(e->ctx, dtx_comm_all_reduce_sum(e->mesh.axis[DTX_AXIS_PP], e->queue, &e->lambda));
    DTX_TRY(e->ctx, dtx_tensor_get(e->queue, &e->lambda, lambda));
    widen(e->env.master, lambda, layers);
    *n = (int)layers;
    return DTX_OK;
}

struct dtx_params *dtx_engine_params(struct dtx_engine *engine)
{
    return &engine->params;
}

const struct dtx_mesh *dtx_engine_mesh(const struct dtx_engine *engine)
{
    return &engine->mesh;
}

struct dtx_queue *dtx_engine_queue(struct dtx_engine *engine)
{
    return engine->queue;
}

void dtx_engine_row_squares(const struct dtx_engine *engine, double *whole, double *here)
{
    dtx_grads_row_squares(&engine->grads, whole, here);
}

const struct dtx_engine_config *dtx_engine_config_of(const struct dtx_engine *engine)
{
    return &engine->config;
}

void dtx_engine_plain(struct dtx_engine *engine, bool plain)
{
    engine->plain = plain;
}

void dtx_engine_graphs(const struct dtx_engine *engine, int64_t *made, int64_t *launched)
{
    dtx_graphs_count(engine->graphs, made, launched);
}

size_t dtx_engine_activation_bytes(const struct dtx_engine *engine)
{
    return dtx_model_bytes(engine->model, dtx_pipe_slots(engine->pipe), dtx_pipe_kept(engine->pipe));
}

double dtx_engine_step_flops(const struct dtx_engine_config *config)
{
    double tokens = (double)config->batch.global_batch * (double)config->batch.length;
    return 3 * tokens * dtx_model_flops(&config->model, ((double)config->batch.length + 1) / 2);
}
