/* test: label=ranks ranks=8 timeout=240 */
/*
 * The replica check: nothing to report after steps on meshes of every kind; one bit flipped on one rank, in the last
 * element of each tensor of each row in turn, is found where the tensor has copies, and the report names the tensor,
 * that rank when the others are a majority, and hosts, alike on all ranks. A sum of λ gradients that is left out is
 * found after one step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/optim.h"

enum { WEIGHT, MASTER, FIRST, SECOND, KINDS };
static const char *const names[KINDS] = {"weight", "master", NULL, NULL};

struct run {
    struct dtx_comm *ranks;
    struct dtx_test_model model;
    struct dtx_engine *engine;
    int64_t found, majorities, stages; /* differences seen, so that the test tests what it says */
};

static struct dtx_params *params(struct run *r)
{
    return dtx_engine_params(r->engine);
}

static struct dtx_replica_report check(struct run *r)
{
    struct dtx_replica_report report;
    memset(&report, 0xff, sizeof report);
    CHECK_OK(r->ranks, dtx_engine_replicas(r->engine, &report));
    struct dtx_replica_report of_root = report;
    CHECK_OK(r->ranks, dtx_comm_broadcast_bytes(r->ranks, &of_root, sizeof of_root, 0));
    CHECK(r->ranks, memcmp(&of_root, &report, sizeof report) == 0);
    return report;
}

static void check_clean(struct run *r, const char *when)
{
    struct dtx_replica_report report = check(r);
    CHECK_THAT(r->ranks, report.tensors == 0 && report.text[0] == '\0', "tp%d pp%d dp%d zero %d, %s: %s", r->model.tp,
               r->model.pp, r->model.dp, r->model.zero, when, report.text);
}

static struct dtx_tensor *tensor_of(struct dtx_param *item, int kind)
{
    return kind == WEIGHT ? &item->weight : kind == MASTER ? &item->master : &item->state[kind - FIRST];
}

/* The lowest bit of the last element, on one rank; false where that rank holds none of the tensor. */
static int flip(struct run *r, int row, int kind, int rank)
{
    struct dtx_param *item = &params(r)->item[row];
    int flipped = 0;
    if (r->ranks->rank == rank && item->held && (kind == WEIGHT || item->part_count > 0)) {
        struct dtx_tensor *t = tensor_of(item, kind);
        ((char *)t->data)[dtx_tensor_bytes(t) - dtx_dtype_bytes(t->dtype)] ^= 1; /* host memory on the CPU */
        flipped = 1;
    }
    CHECK_OK(r->ranks, dtx_comm_broadcast_bytes(r->ranks, &flipped, sizeof flipped, rank));
    return flipped;
}

/* Ranks that must hold it alike; 1: no copies. */
static int copies_of(struct run *r, int row, int kind)
{
    const struct dtx_param *item = &params(r)->item[row];
    int stages = item->row.tied_stage >= 0 && item->row.tied_stage != item->row.stage ? 2 : 1;
    int data = r->model.dp * r->model.cp, tp = item->row.place.kind == DTX_SPLIT ? 1 : r->model.tp;
    if (kind != WEIGHT && item->cut)
        return tp * stages > 1 ? data * tp * stages : 1;
    return data * tp * stages;
}

static void check_found(struct run *r, int row, int kind, int rank)
{
    const struct dtx_param *item = &params(r)->item[row];
    struct dtx_replica_report report = check(r);
    struct dtx_replica_difference *d = &report.first;
    int copies = copies_of(r, row, kind), cut = kind != WEIGHT && item->cut;
    char tensor[96], place[128];
    const char *name = kind < FIRST ? names[kind] : dtx_optim_find("adamw")->states[kind - FIRST];
    snprintf(tensor, sizeof tensor, "%s (%s)", item->row.name, name);
    snprintf(place, sizeof place, "rank %d on %s (tp %d, ", rank, r->ranks->ctx->host, rank % r->model.tp);
    if (copies == 1) {
        CHECK_THAT(r->ranks, report.tensors == 0, "%s", report.text);
        return;
    }
    CHECK_THAT(r->ranks, report.tensors == 1, "%s on rank %d: %lld tensors: %s", tensor, rank,
               (long long)report.tensors, report.text);
    CHECK_THAT(r->ranks, strcmp(d->tensor, tensor) == 0 && strstr(report.text, tensor), "%s: %s", tensor, report.text);
    CHECK_THAT(r->ranks, strstr(report.text, place) != NULL, "%s: %s", place, report.text);
    CHECK_THAT(r->ranks, d->copies == copies, "%s: %d copies, not %d", tensor, d->copies, copies);
    CHECK_THAT(r->ranks, d->majority == (copies > 2 && !cut), "%s: %s", tensor, report.text);
    CHECK_THAT(r->ranks, d->n_ranks == (d->majority ? 1 : copies), "%s: %d ranks", tensor, d->n_ranks);
    if (d->majority)
        CHECK_THAT(r->ranks, d->ranks[0] == rank, "%s: rank %d, not %d", tensor, d->ranks[0], rank);
    r->found++;
    r->majorities += d->majority;
    r->stages += cut;
}

/* Every tensor of every row once, on one rank after another. */
static void flip_each(struct run *r)
{
    int rank = 0;
    for (int row = 0; row < params(r)->n; row++)
        for (int kind = 0; kind < KINDS; kind++) {
            struct dtx_param *item = &params(r)->item[row];
            if (kind == MASTER && (params(r)->wide || item->row.master_only))
                continue;
            for (int tries = 0; tries < r->ranks->size; tries++) {
                rank = (rank + 1) % r->ranks->size;
                if (!flip(r, row, kind, rank))
                    continue;
                check_found(r, row, kind, rank);
                CHECK(r->ranks, flip(r, row, kind, rank)); /* mended */
                break;
            }
        }
    check_clean(r, "mended");
}

/* All weights of one rank at once: counted, and only the first are told. */
static void flip_all(struct run *r)
{
    int64_t expected = 0;
    for (int row = 0; row < params(r)->n; row++)
        expected += flip(r, row, WEIGHT, 1) && copies_of(r, row, WEIGHT) > 1;
    struct dtx_replica_report report = check(r);
    CHECK_THAT(r->ranks, report.tensors == expected, "%lld of %lld: %s", (long long)report.tensors, (long long)expected,
               report.text);
    CHECK_THAT(r->ranks, expected < 5 || strstr(report.text, "more tensors"), "%s", report.text);
    for (int row = 0; row < params(r)->n; row++)
        flip(r, row, WEIGHT, 1);
    check_clean(r, "all mended");
}

/* A step in which each tensor rank updates λ by its own heads' gradient, as without the sum. */
static void leave_out_lambda_sum(struct run *r)
{
    const struct dtx_engine_config *config = dtx_engine_config_of(r->engine);
    int64_t n = r->model.global_batch / r->model.dp * r->model.length;
    int32_t *buffer = malloc((size_t)(2 * n) * sizeof *buffer);
    double hyper[4];
    struct dtx_tensor hyper_tensor = dtx_tensor_1d(hyper, DTX_F64, 4); /* host memory on the CPU */
    struct dtx_step_result result;
    dtx_test_batch(&r->model, 9, dtx_engine_mesh(r->engine)->rank[DTX_AXIS_DP], buffer, buffer + n, NULL);
    struct dtx_engine_batch batch = {buffer, buffer + n, NULL};
    CHECK_OK(r->ranks, dtx_engine_gradients(r->engine, &batch, &result));
    config->optim.variant->hyper(&config->optim, 3, 1e-3, result.clip, hyper);
    for (int i = 0; i < params(r)->n; i++) {
        struct dtx_param *item = &params(r)->item[i];
        if (!item->held || item->part_count == 0)
            continue;
        float *grad = item->grad.data; /* masters are fp32 here */
        for (int64_t k = 0; k < item->count && strstr(item->row.name, "lambda"); k++)
            grad[k] *= 0.4f + 0.2f * (float)dtx_engine_mesh(r->engine)->rank[DTX_AXIS_TP];
        CHECK_OK(r->ranks,
                 config->optim.variant->update(dtx_engine_queue(r->engine), &config->optim, item, &hyper_tensor));
    }
    CHECK_OK(r->ranks, dtx_params_gather(params(r), dtx_engine_queue(r->engine)));
    struct dtx_replica_report report = check(r);
    CHECK_THAT(r->ranks, report.tensors == r->model.layers * 4 * 3, "%lld tensors: %s", (long long)report.tensors,
               report.text);
    CHECK_THAT(r->ranks, strstr(report.first.tensor, "lambda"), "%s", report.text);
    free(buffer);
}

static void check_mesh(struct dtx_comm *world, struct dtx_backend *backend, struct run *r)
{
    struct dtx_engine_config config;
    int size = dtx_test_ranks(&r->model);
    CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &r->ranks));
    if (!r->ranks)
        return;
    dtx_test_config(&r->model, &config);
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, r->ranks, backend, &r->engine));
    check_clean(r, "initial values");
    CHECK_OK(world, dtx_test_train(r->engine, &r->model, 2, 2e-2, NULL, NULL));
    check_clean(r, "two steps");
    flip_each(r);
    flip_all(r);
    if (r->model.tp > 1 && r->model.dtype != DTX_F64)
        leave_out_lambda_sum(r);
    dtx_engine_free(r->engine);
    dtx_comm_free(r->ranks);
}

static int test(struct dtx_comm *world)
{
    static const struct {
        int tp, pp, dp, zero, sequence, chunks;
        enum dtx_dtype dtype;
        int cp;
    } cases[] = {{2, 2, 1, 0, 1, 1, DTX_F32, 1},  {1, 1, 2, 0, 0, 1, DTX_F32, 1},  {1, 1, 4, 1, 0, 1, DTX_BF16, 1},
                 {2, 2, 2, 0, 0, 1, DTX_BF16, 1}, {2, 2, 2, 1, 1, 1, DTX_BF16, 1}, {1, 2, 3, 1, 0, 2, DTX_BF16, 1},
                 {2, 2, 2, 1, 1, 2, DTX_F32, 1},  {1, 2, 2, 1, 0, 1, DTX_F64, 1},  {2, 1, 1, 0, 1, 1, DTX_F32, 2},
                 {1, 2, 2, 1, 0, 1, DTX_BF16, 2}};
    struct dtx_backend *backend;
    struct run total = {0};
    CHECK(world, world->size == 8);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run r = {.model = dtx_test_model_default()};
        struct dtx_test_model *m = &r.model;
        m->tp = cases[i].tp;
        m->pp = cases[i].pp;
        m->dp = cases[i].dp;
        m->cp = cases[i].cp;
        m->zero = cases[i].zero;
        m->sequence = cases[i].sequence;
        m->split.chunks = cases[i].chunks;
        m->schedule = cases[i].chunks > 1 ? "interleaved" : "1f1b";
        m->dtype = cases[i].dtype;
        m->layers = cases[i].chunks > 1 ? 4 : 2;
        m->global_batch = m->dp == 3 ? 6 : 8;
        m->vocab = 203;          /* the embedding: several blocks, pieces that end within it, the last block not full */
        m->bucket_bytes = 12000; /* first and last stage cut it differently */
        check_mesh(world, backend, &r);
        total.found += r.found;
        total.majorities += r.majorities;
        total.stages += r.stages;
    }
    CHECK_THAT(world, world->rank != 0 || (total.found > 300 && total.majorities > 100 && total.stages >= 9),
               "%lld found, %lld of one rank, %lld between stages", (long long)total.found, (long long)total.majorities,
               (long long)total.stages);
    dtx_backend_close(backend);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
