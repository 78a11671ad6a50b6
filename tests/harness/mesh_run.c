#include "tests/harness/mesh_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/rng.h"
#include "parallel/comm_nccl.h"
#include "tests/harness/rank_check.h"
#include "trainer/attn.h"
#include "trainer/memory_check.h"
#include "trainer/optim.h"

struct dtx_test_model dtx_test_model_default(void)
{
    return (struct dtx_test_model){.attention = "diff",
                                   .dtype = DTX_F64,
                                   .tied = true,
                                   .sequence = true,
                                   .tp = 1,
                                   .pp = 1,
                                   .dp = 1,
                                   .cp = 1,
                                   .schedule = "1f1b",
                                   .layers = 4,
                                   .global_batch = 8,
                                   .micro_batch = 1,
                                   .length = 12,
                                   .vocab = 67,
                                   .ffn = 44};
}

int dtx_test_ranks(const struct dtx_test_model *m)
{
    return m->tp * m->pp * m->dp * m->cp;
}

void dtx_test_config(const struct dtx_test_model *m, struct dtx_engine_config *c)
{
    memset(c, 0, sizeof *c);
    bool diff = strcmp(m->attention, "diff") == 0;
    c->model = (struct dtx_model_config){.layers = m->layers,
                                         .width = 32,
                                         .heads = diff ? 4 : 8,
                                         .kv_heads = m->gqa ? (diff ? 2 : 4) : (diff ? 4 : 8),
                                         .head_dim = 4,
                                         .ffn = m->ffn,
                                         .vocab = m->vocab,
                                         .attention = dtx_attn_find(m->attention),
                                         .tied = m->tied,
                                         .rope_theta = 10000,
                                         .norm_eps = 1e-5,
                                         .subnorm = DTX_SUBNORM_AFFINE,
                                         .lambda_init = NAN,
                                         .transfer = m->transfer};
    c->batch.length = m->length;
    c->batch.global_batch = m->global_batch;
    c->batch.micro_batch = m->micro_batch;
    c->batch.micro_batches = (int)(m->global_batch / m->dp / m->micro_batch);
    c->optim = (struct dtx_optim_config){.variant = dtx_optim_find("adamw"),
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .decay = 0.1,
                                         .clip = 0.05, /* below every norm of these runs: clipping is always active */
                                         .decay_embeddings = true};
    c->dtype = m->dtype;
    c->seed = 5;
    c->mesh[DTX_AXIS_TP] = m->tp;
    c->mesh[DTX_AXIS_PP] = m->pp;
    c->mesh[DTX_AXIS_DP] = m->dp;
    c->mesh[DTX_AXIS_CP] = m->cp;
    c->ring = m->ring;
    c->schedule = m->schedule;
    c->sequence = m->sequence;
    dtx_recompute_parse(m->recompute ? m->recompute : "none", &c->recompute);
    c->zero = m->zero;
    c->overlap = !m->waits;
    c->graphs = m->graphs;
    c->bucket_bytes = m->bucket_bytes;
    c->split = m->split;
}

/* Learnable text: each token is mostly a function of the one before. */
static int32_t token_at(const struct dtx_test_model *m, int64_t sequence, int64_t t)
{
    uint64_t key = dtx_rng_key(77, "text");
    double u = dtx_rng_uniform(key, (uint64_t)(sequence * 4096 + t));
    int64_t clock = (sequence * 7 + t * 5) % m->vocab;
    return (int32_t)(u < 0.7 ? clock : (int64_t)(u * 1e6) % m->vocab);
}

void dtx_test_batch(const struct dtx_test_model *m, int64_t step, int dp_rank, int32_t *tokens, int32_t *targets,
                    int32_t *doc_start)
{
    int64_t each = m->global_batch / m->dp;
    for (int64_t i = 0; i < each; i++) {
        int64_t global = dp_rank * each + i, sequence = step * m->global_batch + global;
        for (int64_t t = 0; t < m->length; t++) {
            int64_t at = i * m->length + t;
            tokens[at] = token_at(m, sequence, t);
            targets[at] = token_at(m, sequence, t + 1);
            if (global == 2 || (global % 3 == 1 && t % 4 != 1)) /* one sequence without any target */
                targets[at] = -1;
            if (doc_start)
                doc_start[at] = (int32_t)(t < 5 ? 0 : t < 6 + global % 3 ? 5 : 6 + global % 3);
        }
    }
}

static double element(const void *data, enum dtx_dtype dtype, int64_t i)
{
    return dtype == DTX_F64 ? ((const double *)data)[i] : ((const float *)data)[i];
}

enum dtx_status dtx_test_gather(struct dtx_engine *e, int row, char what, double *values)
{
    struct dtx_params *p = dtx_engine_params(e);
    const struct dtx_mesh *mesh = dtx_engine_mesh(e);
    struct dtx_param *item = &p->item[row];
    int64_t columns = item->row.ndim == 2 ? item->row.shape[1] : 1, n = item->row.shape[0] * columns;
    memset(values, 0, (size_t)n * sizeof *values);
    bool owner = item->held && item->row.stage == mesh->rank[DTX_AXIS_PP] && item->part_count > 0 &&
                 (item->cut || dtx_mesh_data_rank(mesh) == 0) &&
                 (item->row.place.kind == DTX_SPLIT || mesh->rank[DTX_AXIS_TP] == 0);
    if (owner) {
        struct dtx_tensor grad = item->reduced;
        struct dtx_tensor *t = what == 'w' ? &item->master : what == 'g' ? &grad : &item->state[what - '0'];
        struct dtx_box boxes[DTX_MAX_BOXES];
        struct dtx_shard_rows rows;
        int n_boxes = dtx_shard_range_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                                            mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], item->part_first,
                                            item->part_count, &rows, boxes);
        size_t element_bytes = dtx_dtype_bytes(t->dtype);
        char *host = malloc((size_t)(rows.skip + item->part_count) * element_bytes);
        DTX_TRY(p->ctx, dtx_tensor_get(dtx_engine_queue(e), t, host + (size_t)rows.skip * element_bytes));
        for (int b = 0; b < n_boxes; b++)
            for (int64_t r = 0; r < boxes[b].extent[0]; r++)
                for (int64_t c = 0; c < (item->row.ndim == 2 ? boxes[b].extent[1] : 1); c++) {
                    int64_t gc = item->row.ndim == 2 ? boxes[b].global[1] + c : 0;
                    int64_t lc = item->row.ndim == 2 ? boxes[b].local[1] + c : 0;
                    values[(boxes[b].global[0] + r) * columns + gc] =
                        element(host, t->dtype, (boxes[b].local[0] + r) * item->local[1] + lc);
                }
        free(host);
    }
    struct dtx_tensor all = dtx_tensor_1d(values, DTX_F64, n); /* the CPU backend's memory is host memory */
    return dtx_comm_all_reduce_sum(mesh->world, dtx_engine_queue(e), &all);
}

enum dtx_status dtx_test_train(struct dtx_engine *e, const struct dtx_test_model *m, int steps, double lr,
                               double *losses, double *norms)
{
    int64_t n = m->global_batch / m->dp * m->length;
    int32_t *buffer = malloc((size_t)(3 * n) * sizeof *buffer);
    enum dtx_status status = DTX_OK;
    for (int s = 0; s < steps && status == DTX_OK; s++) {
        int32_t *docs = m->documents ? buffer + 2 * n : NULL;
        dtx_test_batch(m, s, dtx_engine_mesh(e)->rank[DTX_AXIS_DP], buffer, buffer + n, docs);
        struct dtx_engine_batch batch = {buffer, buffer + n, docs};
        struct dtx_step_result result;
        status = dtx_engine_step(e, &batch, s + 1, lr, &result);
        if (losses)
            losses[s] = result.loss;
        if (norms)
            norms[s] = result.grad_norm;
    }
    free(buffer);
    return status == DTX_OK ? dtx_engine_settle(e) : status;
}

static double *numbers(struct dtx_comm *ranks, const struct dtx_test_model *m, int steps, int64_t *count)
{
    struct dtx_engine_config config;
    struct dtx_engine *e;
    struct dtx_backend *backend;
    struct dtx_comm *between;
    struct dtx_ctx *ctx = ranks->ctx;
    dtx_test_config(m, &config);
    CHECK_OK(ranks, dtx_backend_open(ctx, m->device ? m->device : "cpu", 1, dtx_isa_detect(), &backend));
    if (m->device) {
        size_t bytes;
        CHECK_OK(ranks, dtx_memory_check(ranks, &config, backend, false, &bytes));
        CHECK_OK(ranks, backend->memory->reserve(backend, bytes));
    }
    CHECK_OK(ranks, dtx_comm_nccl_create(ranks, backend, &between));
    CHECK_OK(ranks, dtx_engine_create(ctx, &config, between, backend, &e));
    struct dtx_params *p = dtx_engine_params(e);
    *count = 2 * steps + dtx_params_total(p);
    double *all = malloc((size_t)*count * sizeof *all), *next = all + 2 * steps;
    CHECK_OK(ranks, dtx_test_train(e, m, steps, 2e-3, all, all + steps));
    CHECK_THAT(ranks, backend->outside_bytes == 0, "%zu bytes were not in the plan", backend->outside_bytes);
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(ranks, dtx_test_gather(e, i, 'w', next));
        next += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
    }
    for (int s = 0; s < steps; s++)
        CHECK_THAT(ranks, all[steps + s] > config.optim.clip, "step %d was not clipped", s + 1);
    dtx_engine_free(e);
    if (between != ranks)
        dtx_comm_free(between);
    dtx_backend_close(backend);
    return all;
}

double *dtx_test_numbers(struct dtx_comm *world, const struct dtx_test_model *m, int steps, int64_t *count)
{
    struct dtx_comm *part;
    bool member = world->rank < dtx_test_ranks(m);
    CHECK_OK(world, dtx_comm_split(world, member, world->rank, "part", &part));
    double *values = member ? numbers(part, m, steps, count) : NULL;
    dtx_comm_free(part);
    return values;
}

static double *gradients(struct dtx_comm *ranks, const struct dtx_test_model *m, int isa, double *loss)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *e;
    struct dtx_step_result result;
    int64_t n = m->global_batch / m->dp * m->length;
    int32_t *buffer = malloc((size_t)(3 * n) * sizeof *buffer);
    struct dtx_engine_batch batch = {buffer, buffer + n, m->documents ? buffer + 2 * n : NULL};
    dtx_test_config(m, &config);
    CHECK_OK(ranks, dtx_backend_open(ranks->ctx, m->device ? m->device : "cpu", 1, isa, &backend));
    CHECK_OK(ranks, dtx_engine_create(ranks->ctx, &config, ranks, backend, &e));
    struct dtx_params *p = dtx_engine_params(e);
    dtx_test_batch(m, 0, dtx_engine_mesh(e)->rank[DTX_AXIS_DP], buffer, buffer + n, buffer + 2 * n);
    CHECK_OK(ranks, dtx_engine_gradients(e, &batch, &result));
    if (loss)
        *loss = result.loss;
    double *all = malloc((size_t)dtx_params_total(p) * sizeof *all), *next = all;
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(ranks, dtx_test_gather(e, i, 'g', next));
        next += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
    }
    free(buffer);
    dtx_engine_free(e);
    dtx_backend_close(backend);
    return all;
}

double *dtx_test_gradients(struct dtx_comm *world, const struct dtx_test_model *m, int isa, double *loss)
{
    struct dtx_comm *part;
    bool member = world->rank < dtx_test_ranks(m);
    CHECK_OK(world, dtx_comm_split(world, member, world->rank, "part", &part));
    double *values = member ? gradients(part, m, isa, loss) : NULL;
    dtx_comm_free(part);
    return values;
}

int64_t dtx_test_different(const double *a, const double *b, int64_t count)
{
    int64_t different = 0;
    for (int64_t i = 0; i < count; i++)
        different += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return different;
}

double dtx_test_relative(const double *a, const double *b, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    if (difference == 0)
        return 0;
    return norm > 0 ? sqrt(difference / norm) : INFINITY;
}
