/* test: label=train ranks=4 timeout=120 */
/*
 * A weight that is NaN or infinite on one rank alone: every rank skips the step, no weight and no optimizer state
 * changes on any, and with the weight mended training goes on as if the step had not been.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

static const int meshes[][3] = {/* tp, pp, dp */ {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {4, 1, 1}, {1, 1, 4}};

struct run {
    struct dtx_comm *world;
    struct dtx_test_model model;
    struct dtx_engine *engine;
    int32_t *buffer;
};

static void open_run(struct dtx_comm *world, struct dtx_backend *backend, struct run *r)
{
    struct dtx_engine_config config;
    r->world = world;
    dtx_test_config(&r->model, &config);
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, world, backend, &r->engine));
    r->buffer = malloc((size_t)(2 * r->model.global_batch * r->model.length) * sizeof *r->buffer);
}

static void close_run(struct run *r)
{
    dtx_engine_free(r->engine);
    free(r->buffer);
}

/* Step `step` on that step's batch. */
static struct dtx_step_result take_step(struct run *r, int64_t step)
{
    struct dtx_step_result result;
    int64_t n = r->model.global_batch / r->model.dp * r->model.length;
    dtx_test_batch(&r->model, step, dtx_engine_mesh(r->engine)->rank[DTX_AXIS_DP], r->buffer, r->buffer + n, NULL);
    struct dtx_engine_batch batch = {r->buffer, r->buffer + n, NULL};
    CHECK_OK(r->world, dtx_engine_step(r->engine, &batch, step, 1e-3, &result));
    return result;
}

/* Weights, masters and optimizer states of this rank, one after another. */
static size_t copy_state(struct run *r, void **out)
{
    struct dtx_params *p = dtx_engine_params(r->engine);
    char *copy = malloc((size_t)p->flat_master.dim[0] * 4 * sizeof(double));
    size_t at = 0;
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        const struct dtx_tensor *parts[] = {&item->weight, &item->master, &item->state[0], &item->state[1]};
        for (int k = 0; k < 4 && item->held; k++) {
            memcpy(copy + at, parts[k]->data, dtx_tensor_bytes(parts[k]));
            at += dtx_tensor_bytes(parts[k]);
        }
    }
    *out = copy;
    return at;
}

/* The first held weight whose name contains `name`; every stage has one. */
static struct dtx_param *find(struct run *r, const char *name)
{
    struct dtx_params *p = dtx_engine_params(r->engine);
    for (int i = 0; i < p->n; i++)
        if (p->item[i].held && strstr(p->item[i].row.name, name))
            return &p->item[i];
    return NULL;
}

static void set_first(struct run *r, struct dtx_param *item, double value)
{
    if (item->master.dtype == DTX_F64)
        ((double *)item->master.data)[0] = value;
    else
        ((float *)item->master.data)[0] = (float)value;
    CHECK_OK(r->world, dtx_params_refresh(dtx_engine_params(r->engine), dtx_engine_queue(r->engine)));
}

static double get_first(const struct dtx_param *item)
{
    return item->master.dtype == DTX_F64 ? ((double *)item->master.data)[0] : ((float *)item->master.data)[0];
}

static void all_alike(struct run *r, bool wanted, const struct dtx_step_result *result, const char *what)
{
    unsigned char all[16], mine = result->skipped;
    CHECK_OK(r->world, dtx_comm_gather_bytes(r->world, &mine, 1, all));
    for (int i = 0; i < r->world->size; i++)
        CHECK_THAT(r->world, all[i] == wanted, "tp%d pp%d dp%d, %s: rank %d %s the step", r->model.tp, r->model.pp,
                   r->model.dp, what, i, all[i] ? "skips" : "takes");
}

static void poisoned_step(struct run *r, int bad_rank, const char *name, double poison)
{
    struct dtx_param *item = find(r, name);
    void *before, *after;
    double good = get_first(item);
    char what[96];
    snprintf(what, sizeof what, "%s %g on rank %d", name, poison, bad_rank);
    if (r->world->rank == bad_rank)
        set_first(r, item, poison);
    size_t bytes = copy_state(r, &before);
    struct dtx_step_result result = take_step(r, 2);
    all_alike(r, true, &result, what);
    CHECK_THAT(r->world, copy_state(r, &after) == bytes && memcmp(before, after, bytes) == 0, "%s: something changed",
               what);
    if (r->world->rank == bad_rank)
        set_first(r, item, good);
    free(before);
    free(after);
}

static void check(struct dtx_comm *world, struct dtx_backend *backend, struct dtx_test_model model)
{
    struct run clean = {.model = model}, poisoned = {.model = model};
    void *expected, *got;
    open_run(world, backend, &clean);
    open_run(world, backend, &poisoned);
    take_step(&clean, 1);
    take_step(&poisoned, 1);
    poisoned_step(&poisoned, 1, "ffn.gate", NAN);
    poisoned_step(&poisoned, world->size - 1, "ffn.down", INFINITY);
    poisoned_step(&poisoned, 0, "lambda_q1", NAN);
    poisoned_step(&poisoned, 2, "attn.subnorm", NAN);
    poisoned_step(&poisoned, 3, "ffn_norm.gain", -INFINITY);
    struct dtx_step_result a = take_step(&clean, 3), b = take_step(&poisoned, 3);
    all_alike(&poisoned, false, &b, "after the last skip");
    CHECK(world, a.loss == b.loss && a.grad_norm == b.grad_norm);
    size_t bytes = copy_state(&clean, &expected);
    CHECK_THAT(world, copy_state(&poisoned, &got) == bytes && memcmp(expected, got, bytes) == 0,
               "tp%d pp%d dp%d: skipped steps leave a trace", model.tp, model.pp, model.dp);
    free(expected);
    free(got);
    close_run(&clean);
    close_run(&poisoned);
}

static int test(struct dtx_comm *world)
{
    struct dtx_backend *backend;
    CHECK(world, world->size == 4);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        struct dtx_test_model model = dtx_test_model_default();
        model.dtype = i % 2 ? DTX_BF16 : DTX_F32;
        model.tp = meshes[i][0];
        model.pp = meshes[i][1];
        model.dp = meshes[i][2];
        check(world, backend, model);
    }
    dtx_backend_close(backend);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
