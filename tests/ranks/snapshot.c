/* test: label=ranks ranks=4 timeout=180 */
/*
 * Back to a snapshot, and the steps after it come out as they did, bit for bit: losses, norms, every weight, master and
 * optimizer state, and the copies that data ranks hold of each other's pieces. In between steps are taken on other
 * batches, one rank's weights become NaN, and a step is judged and left out, whose gradients and messages must leave no
 * trace. Tensor, pipeline, data and context ranks, ZeRO 0, 1 and 2, all dtypes. The
 * snapshot of weights that are on their way to other ranks is that of weights that have arrived.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/snapshot.h"

enum { STEPS = 3 };

static const struct {
    int tp, pp, dp, cp, zero;
    enum dtx_dtype dtype;
    const char *schedule;
} runs[] = {{2, 2, 1, 1, 1, DTX_F32, "1f1b"},  {1, 1, 4, 1, 1, DTX_BF16, "1f1b"},  {1, 1, 4, 1, 0, DTX_F32, "1f1b"},
            {2, 1, 2, 1, 2, DTX_BF16, "1f1b"}, {1, 2, 2, 1, 1, DTX_BF16, "zb_h1"}, {1, 1, 2, 2, 1, DTX_F64, "1f1b"},
            {4, 1, 1, 1, 1, DTX_BF16, "1f1b"}, {1, 2, 1, 2, 2, DTX_F32, "1f1b"}};

struct run {
    struct dtx_comm *world;
    struct dtx_test_model model;
    struct dtx_engine *engine;
    int32_t *buffer;
};

static struct dtx_engine_batch batch_of(struct run *r, int64_t step)
{
    int64_t n = r->model.global_batch / r->model.dp * r->model.length;
    dtx_test_batch(&r->model, step, dtx_engine_mesh(r->engine)->rank[DTX_AXIS_DP], r->buffer, r->buffer + n, NULL);
    return (struct dtx_engine_batch){r->buffer, r->buffer + n, NULL};
}

static void train(struct run *r, int64_t first, double *numbers)
{
    for (int64_t step = first; step < first + STEPS; step++) {
        struct dtx_step_result result;
        struct dtx_engine_batch batch = batch_of(r, step);
        CHECK_OK(r->world, dtx_engine_step(r->engine, &batch, step, 1e-2, &result));
        CHECK(r->world, !result.skipped);
        *numbers++ = result.loss;
        *numbers++ = result.grad_norm;
    }
}

/* All that this rank holds: whole weights as layers read them, its masters and states. */
static size_t copy_state(struct run *r, char **out)
{
    struct dtx_params *p = dtx_engine_params(r->engine);
    char *copy = malloc((size_t)p->flat * 4 * sizeof(double));
    size_t at = 0;
    CHECK_OK(r->world, dtx_engine_settle(r->engine));
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        const struct dtx_tensor *parts[] = {&item->weight, &item->master, &item->state[0], &item->state[1]};
        for (int k = 0; k < 4 && item->held; k++) {
            size_t bytes = dtx_tensor_bytes(parts[k]);
            if (bytes > 0)
                memcpy(copy + at, parts[k]->data, bytes);
            at += bytes;
        }
    }
    *out = copy;
    return at;
}

/* Some master of rank 1 becomes NaN, and with it what all ranks compute; a step of that is not taken. */
static void poison(struct run *r)
{
    struct dtx_params *p = dtx_engine_params(r->engine);
    struct dtx_step_result result;
    struct dtx_engine_batch batch = batch_of(r, 9);
    int i = 0;
    CHECK_OK(r->world, dtx_engine_settle(r->engine));
    while (!p->item[i].held || p->item[i].part_count == 0)
        i++;
    if (r->world->rank == 1) {
        if (p->item[i].master.dtype == DTX_F64)
            *(double *)p->item[i].master.data = NAN;
        else
            *(float *)p->item[i].master.data = NAN;
    }
    CHECK_OK(r->world, dtx_params_refresh(p, dtx_engine_queue(r->engine)));
    CHECK_OK(r->world, dtx_engine_gradients(r->engine, &batch, &result));
    CHECK(r->world, !isfinite(result.loss) || !isfinite(result.grad_norm));
}

static void check(struct dtx_comm *world, struct dtx_backend *backend, size_t i)
{
    struct run r = {.world = world, .model = dtx_test_model_default()};
    struct dtx_engine_config config;
    struct dtx_snapshot snapshot;
    double before[2 * STEPS], after[2 * STEPS], other[2 * STEPS];
    char *expected, *got, *taken, *restored;
    r.model.tp = runs[i].tp;
    r.model.pp = runs[i].pp;
    r.model.dp = runs[i].dp;
    r.model.cp = runs[i].cp;
    r.model.zero = runs[i].zero;
    r.model.dtype = runs[i].dtype;
    r.model.schedule = runs[i].schedule;
    r.model.bucket_bytes = 16384;
    dtx_test_config(&r.model, &config);
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, world, backend, &r.engine));
    r.buffer = malloc((size_t)(2 * r.model.global_batch * r.model.length) * sizeof *r.buffer);
    CHECK_OK(world, dtx_snapshot_open(world->ctx, r.engine, &snapshot));
    train(&r, 1, other);
    CHECK_OK(world, dtx_snapshot_take(&snapshot)); /* gathers of the last step may be under way */
    size_t bytes = copy_state(&r, &taken);
    train(&r, 1 + STEPS, before);
    CHECK(world, copy_state(&r, &expected) == bytes);
    train(&r, 20, other);
    poison(&r);
    CHECK_OK(world, dtx_snapshot_restore(&snapshot));
    CHECK(world, copy_state(&r, &restored) == bytes);
    CHECK_THAT(world, memcmp(taken, restored, bytes) == 0, "run %zu: not what the snapshot was taken of", i);
    train(&r, 1 + STEPS, after);
    CHECK(world, copy_state(&r, &got) == bytes);
    CHECK_THAT(world, memcmp(before, after, sizeof before) == 0, "run %zu: losses or norms after the snapshot", i);
    CHECK_THAT(world, memcmp(expected, got, bytes) == 0, "run %zu: weights or states after the snapshot", i);
    free(expected);
    free(got);
    free(taken);
    free(restored);
    free(r.buffer);
    dtx_snapshot_close(&snapshot);
    dtx_engine_free(r.engine);
}

static int test(struct dtx_comm *world)
{
    struct dtx_backend *backend;
    CHECK(world, world->size == 4);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check(world, backend, i);
    dtx_backend_close(backend);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
