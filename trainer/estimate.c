#include "trainer/estimate.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl.h"
#include "parallel/pipe.h"
#include "trainer/attn.h"
#include "trainer/context.h"
#include "trainer/snapshot.h"
#include "trainer/split.h"
#include "trainer/state.h"
#include "trainer/sums.h"

size_t dtx_memory_total(const struct dtx_memory *m)
{
    return m->weights + m->gradients + m->masters + m->states + m->activations + m->kept + m->work + m->shared +
           m->pipe + m->batch + m->sums;
}

void dtx_memory_text(const struct dtx_memory *m, char text[DTX_MEMORY_TEXT])
{
    const double gib = 1073741824.0;
    snprintf(
        text, DTX_MEMORY_TEXT, "weights %.1f, gradients %.1f, masters and states %.1f, activations %.1f, other %.1f",
        (double)m->weights / gib, (double)m->gradients / gib, (double)(m->masters + m->states) / gib,
        (double)(m->activations + m->kept) / gib, (double)(m->work + m->shared + m->pipe + m->batch + m->sums) / gib);
}

/* One rank of the mesh, its rows and layers. */
struct rank {
    const struct dtx_backend *backend;
    const struct dtx_engine_config *config;
    struct dtx_mesh mesh;
    struct dtx_params params;
    struct dtx_env env;
    struct dtx_model *model;
    int stage, stages, chunks;
};

/* What an all-reduce of n elements sends (parallel/README.md). */
static double reduce_bytes(int64_t n, int64_t element, int ranks, int rank)
{
    struct dtx_comm_options options = dtx_comm_options_default();
    if (n * element * ranks <= options.small_bytes)
        return (double)(n * element * (ranks - 1));
    int64_t sent = 0;
    for (int64_t left = n, most = options.piece_bytes / element; left > 0; left -= most) {
        int64_t count = dtx_min64(left, most), part = dtx_div_up(count, ranks);
        int64_t mine = dtx_min64(part, count - dtx_min64(count, rank * part));
        sent += count - mine + mine * (ranks - 1);
    }
    return (double)(sent * element);
}

static void count_memory(struct rank *r, struct dtx_estimate *out)
{
    const struct dtx_batch_config *b = &r->config->batch;
    const struct dtx_schedule *schedule = dtx_schedule_find(r->config->schedule);
    struct dtx_params_bytes params = dtx_params_memory(&r->params);
    struct dtx_tensor boundary =
        dtx_tensor_2d(NULL, r->config->dtype, dtx_rows_held(&r->env, r->env.max_rows), r->config->model.width);
    out->slots = schedule->peak(r->stage, r->stages, b->micro_batches, r->chunks);
    out->kept = dtx_schedule_kept(schedule, r->stage, r->stages, b->micro_batches, r->chunks);
    if (DTX_MUTANT(plan_one_slot))
        out->slots = 1;
    struct dtx_model_bytes model = dtx_model_memory(r->model, out->slots, out->kept);
    out->boundary = (double)dtx_tensor_bytes(&boundary);
    out->memory = (struct dtx_memory){.weights = params.weights,
                                      .gradients = params.gradients,
                                      .masters = params.masters,
                                      .states = params.states,
                                      .activations = model.slots,
                                      .kept = model.kept,
                                      .work = model.work,
                                      .shared = model.shared,
                                      .pipe = dtx_pipe_bytes(r->stage, r->stages, r->chunks, &boundary),
                                      .batch = dtx_engine_batch_bytes(r->config) + dtx_grads_bytes(&r->params)};
}

/* Work memory of a communicator whose largest sum is over `bytes` (comm_mpi). */
static size_t sum_work(int ranks, int64_t bytes)
{
    return ranks > 1 ? (size_t)dtx_min64(bytes, dtx_comm_options_default().piece_bytes) : 0;
}

static bool on_device(const struct rank *r)
{
    return dtx_comm_nccl_work_bytes(r->backend, 2, 1, DTX_U8) > 0;
}

/* Between devices sums have work memory there, and NCCL its buffers. */
static void count_between(struct rank *r, struct dtx_estimate *out)
{
    struct dtx_sums s;
    dtx_sums_find(r->backend, r->config, &r->params, &r->env, &r->mesh, &s);
    int neighbours = r->stages > 1 ? 2 * ((r->stage > 0) + (r->stage < r->stages - 1)) : 0;
    out->allowance = (size_t)neighbours * dtx_comm_nccl_own_bytes(r->backend, 2);
    for (int c = 0; c < DTX_SUMS; c++) {
        out->memory.sums += s.bytes[c] ? dtx_piece_bytes(s.bytes[c]) : 0;
        out->allowance += dtx_comm_nccl_own_bytes(r->backend, s.ranks[c]);
    }
}

/* What is not in the backend: first the initial values of one row after another, in doubles; later the sums' work. */
static void count_host(struct rank *r, struct dtx_estimate *out)
{
    const struct dtx_params *p = &r->params;
    const struct dtx_batch_config *b = &r->config->batch;
    int64_t master = (int64_t)dtx_dtype_bytes(r->env.master), largest = 0, tied = 0, bucket = 0;
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        largest = item->held ? dtx_max64(largest, item->count) : largest;
        if (item->held && item->row.tied_stage >= 0 && item->row.tied_stage != item->row.stage)
            tied = item->count * master;
    }
    for (int i = 0; i < p->n_buckets; i++)
        bucket = dtx_max64(bucket, p->bucket[i].count * master);
    size_t initial = (size_t)largest * sizeof(double);
    size_t work = sum_work(r->mesh.size[DTX_AXIS_TP], r->env.max_rows * r->config->model.width * master) +
                  sum_work(dtx_mesh_data_size(&r->mesh), bucket) + sum_work(2, tied);
    if (!r->config->ring)
        work += sum_work(r->mesh.size[DTX_AXIS_CP],
                         r->env.max_rows * r->mesh.size[DTX_AXIS_CP] * master *
                             dtx_max64(dtx_key_columns(r->config), dtx_value_columns(r->config)));
    bool device = on_device(r);
    if (device)
        work = 0;
    size_t tokens = (size_t)(b->micro_batches * b->micro_batch * b->length), cp = (size_t)r->mesh.size[DTX_AXIS_CP];
    out->host = (initial > work ? initial : work) + tokens / cp * sizeof(double) + tokens * 5 * sizeof(int32_t) +
                (cp > 1 || device ? 3 * tokens / cp * sizeof(int32_t) : 0) + dtx_grads_bytes(p);
}

/* Blocks [first, first + count) of one chunk of this stage. */
static void count_chunk(struct rank *r, int64_t first, int64_t count, int chunk, struct dtx_estimate *out)
{
    const struct dtx_engine_config *c = r->config;
    const struct dtx_recompute_config *again = &c->recompute;
    int tp = r->mesh.size[DTX_AXIS_TP], rank = r->mesh.rank[DTX_AXIS_TP];
    bool embed = r->stage == 0 && chunk == 0, head = r->stage == r->stages - 1 && chunk == r->chunks - 1;
    int64_t act = (int64_t)dtx_dtype_bytes(r->env.act), master = (int64_t)dtx_dtype_bytes(r->env.master);
    int64_t rows = r->env.max_rows, n = rows * c->model.width;
    double gather = r->env.sequence ? (double)(n / tp * (tp - 1) * act) : 0;
    double sum = r->env.sequence ? (double)(n / tp * (tp - 1) * master) : reduce_bytes(n, master, tp, rank);
    double keys = ((double)c->batch.length + 1) / 2, share = (double)rows / tp;
    double attn = dtx_attn_layer.flops(&c->model, keys) * share, ffn = dtx_ffn_layer.flops(&c->model, keys) * share;
    double scores = attn - dtx_attn_layer.flops(&c->model, 0) * share;
    double flops = 3 * (double)count * (attn + ffn) + (head ? 3 * share * dtx_head_layer.flops(&c->model, keys) : 0);
    double sent = 2 * (double)count * (3 * gather + 2 * sum), more = 0;
    struct dtx_context_traffic context =
        dtx_context_traffic(&r->env, rows * (dtx_key_columns(r->config) + dtx_value_columns(r->config)));
    out->cp_sent_micro += (double)count * (context.forward + context.backward);
    out->cp_calls += (double)count * (context.forward_calls + context.backward_calls);
    int calls = (int)count * (r->env.sequence ? 10 : 8);
    for (int64_t i = first; i < first + count; i++) {
        if (again->what == DTX_RECOMPUTE_NONE || i % again->every)
            continue;
        bool block = again->what == DTX_RECOMPUTE_BLOCK;
        more += attn + (block ? ffn : 0);
        out->cp_sent_micro += context.forward;
        out->cp_calls += context.forward_calls;
        sent += gather + (block ? gather + sum : 0);
        calls += block ? 2 + r->env.sequence : r->env.sequence;
    }
    sent += (embed + head) * (gather + sum);
    if (head)
        sent += reduce_bytes(rows, master, tp, rank) + reduce_bytes(2 * rows, master, tp, rank);
    out->tp_sent_micro += sent;
    out->tp_calls += calls + 2 * (embed + head) + 4 * head;
    out->flops_micro += flops;
    out->attention_flops += 3 * (double)count * scores;
    out->flops_again += more;
}

static enum dtx_status count_chunks(struct rank *r, struct dtx_estimate *out)
{
    int parts = r->stages * r->chunks;
    void *memory;
    DTX_TRY(r->env.ctx, dtx_mem_alloc(r->env.ctx, parts, sizeof(int64_t), &memory));
    int64_t *counts = memory, first = 0;
    dtx_split_blocks(&r->config->model, &r->config->split, parts, ((double)r->config->batch.length + 1) / 2, counts);
    for (int part = 0; part < parts; part++) {
        if (part % r->stages == r->stage)
            count_chunk(r, first, counts[part], part / r->stages, out);
        first += counts[part];
    }
    dtx_mem_free(memory);
    return DTX_OK;
}

/* Over the data and context ranks, and what is summed once a step over the others. */
static void count_step(struct rank *r, struct dtx_estimate *out)
{
    const struct dtx_params *p = &r->params;
    const int *size = r->mesh.size, *rank = r->mesh.rank;
    int data_size = dtx_mesh_data_size(&r->mesh), data_rank = dtx_mesh_data_rank(&r->mesh);
    int64_t master = (int64_t)dtx_dtype_bytes(r->env.master), act = (int64_t)dtx_dtype_bytes(r->env.act);
    int64_t others = data_size - 1, cut = 0;
    for (int i = 0; i < p->n_buckets; i++) {
        const struct dtx_bucket *b = &p->bucket[i];
        int64_t sums = b->streamed ? r->config->batch.micro_batches : 1;
        out->sent[DTX_AXIS_DP] += b->cut ? (double)(b->own_count * others * (sums * master + act))
                                         : reduce_bytes(b->count, master, data_size, data_rank);
        cut += b->cut ? b->own_count / DTX_PARAM_ALIGN : 0;
        out->dp_calls += (double)(1 + sums);
    }
    out->sent[DTX_AXIS_DP] += (double)(cut * others * 8) + 2 * reduce_bytes(2, 8, data_size, 0);
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        if (item->held && item->row.grad_partial)
            out->sent[DTX_AXIS_TP] += reduce_bytes(item->count, master, size[DTX_AXIS_TP], rank[DTX_AXIS_TP]);
        if (item->held && item->row.tied_stage >= 0 && item->row.tied_stage != item->row.stage &&
            !DTX_MUTANT(plan_tied_gradient_forgotten))
            out->tied += reduce_bytes(item->count, master, 2, r->stage > 0);
    }
    out->sent[DTX_AXIS_TP] += reduce_bytes(p->n, 8, size[DTX_AXIS_TP], rank[DTX_AXIS_TP]);
    out->sent[DTX_AXIS_PP] += out->tied + reduce_bytes(p->n, 8, size[DTX_AXIS_PP], rank[DTX_AXIS_PP]);
    bool last = r->stage == r->stages - 1;
    out->sent[DTX_AXIS_PP] += last ? 16 * (r->stages - 1) : 0; /* loss and targets */
    out->sent[DTX_AXIS_TP] += out->tp_sent_micro * r->config->batch.micro_batches;
    out->sent[DTX_AXIS_CP] += out->cp_sent_micro * r->config->batch.micro_batches;
    if (r->stages > 1)
        out->sent[DTX_AXIS_PP] +=
            out->boundary * r->config->batch.micro_batches * (2 * r->chunks - last - (r->stage == 0));
}

enum dtx_status dtx_estimate_rank(struct dtx_ctx *ctx, const struct dtx_engine_config *config, struct dtx_queue *queue,
                                  const int rank[DTX_AXES], struct dtx_estimate *out)
{
    struct rank r = {.backend = queue->backend,
                     .config = config,
                     .stage = rank[DTX_AXIS_PP],
                     .stages = config->mesh[DTX_AXIS_PP],
                     .chunks = config->split.chunks > 0 ? config->split.chunks : 1};
    memcpy(r.mesh.size, config->mesh, sizeof r.mesh.size);
    memcpy(r.mesh.rank, rank, sizeof r.mesh.rank);
    struct dtx_estimate made = {0};
    DTX_TRY(ctx, dtx_params_create(ctx, &r.params));
    enum dtx_status status = dtx_engine_declare(ctx, config, &r.mesh, queue, &r.params, &r.env, &r.model);
    if (status == DTX_OK)
        status = dtx_params_layout(&r.params, &r.mesh, config->dtype);
    if (status == DTX_OK) {
        count_memory(&r, &made);
        count_between(&r, &made);
        count_host(&r, &made);
        status = count_chunks(&r, &made);
    }
    if (status == DTX_OK && !DTX_MUTANT(plan_staging_forgotten)) {
        status = dtx_state_bytes(ctx, &r.params, &r.mesh, config->optim.variant, &made.staging);
    }
    if (status == DTX_OK) {
        made.snapshot = config->snapshot && !DTX_MUTANT(plan_snapshot_forgotten) ? dtx_snapshot_bytes(&r.params) : 0;
        count_step(&r, &made);
    }
    dtx_model_free(r.model);
    dtx_params_free(&r.params);
    DTX_TRY(ctx, status);
    *out = made;
    return DTX_OK;
}
