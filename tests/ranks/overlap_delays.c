/* test: label=ranks ranks=4 timeout=240 */
/*
 * When reductions and gathers run changes no bit: every collective that a progress thread does is late by a random
 * time, on each rank another one, so whoever does not wait for a sum, for weights or for a slot of gradients works with
 * what is not there yet. Losses, norms and weights equal those with every collective done at once. ZeRO 0, 1 and 2,
 * short and long buckets, pipeline and interleaved chunks, split backward, tied embeddings and not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/rng.h"
#include "parallel/comm_impl.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 3 };

static const struct {
    int tp, pp, dp;
    const char *schedule;
    int chunks, zero, bucket_bytes;
    bool tied;
} runs[] = {{1, 1, 2, "1f1b", 1, 1, 16384, true},   {1, 1, 4, "1f1b", 1, 2, 16384, false},
            {1, 2, 2, "zb_h1", 1, 1, 12000, true},  {1, 2, 2, "interleaved", 2, 2, 12000, true},
            {2, 1, 2, "gpipe", 1, 0, 16384, false}, {1, 2, 2, "1f1b", 1, 2, 0, true}};

/* Up to 4 ms late in the thread. */
static void dawdle(const struct dtx_comm *comm)
{
    uint64_t key = dtx_rng_key((uint64_t)comm->sent_bytes, "late");
    if (comm->pace)
        dtx_clock_sleep(4e-3 * dtx_rng_uniform(key, (uint64_t)comm->rank));
}

static enum dtx_status all_reduce(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor)
{
    dawdle(comm);
    return dtx_comm_mpi_table.all_reduce_sum(comm, queue, tensor);
}

static enum dtx_status reduce_scatter(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                      const struct dtx_tensor *out)
{
    dawdle(comm);
    return dtx_comm_mpi_table.reduce_scatter_sum(comm, queue, in, out);
}

static enum dtx_status all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out)
{
    dawdle(comm);
    return dtx_comm_mpi_table.all_gather(comm, queue, in, out);
}

/* Losses, norms and weights. */
static double *run(struct dtx_comm *ranks, const struct dtx_test_model *m, int64_t *count)
{
    struct dtx_engine_config config;
    struct dtx_engine *e;
    struct dtx_backend *backend;
    struct dtx_comm_table late = dtx_comm_mpi_table;
    late.all_reduce_sum = all_reduce;
    late.reduce_scatter_sum = reduce_scatter;
    late.all_gather = all_gather;
    dtx_test_config(m, &config);
    CHECK_OK(ranks, dtx_backend_open(ranks->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(ranks, dtx_engine_create(ranks->ctx, &config, ranks, backend, &e));
    struct dtx_params *p = dtx_engine_params(e);
    dtx_engine_mesh(e)->grads->table = &late;
    *count = 2 * STEPS + dtx_params_total(p);
    double *all = malloc((size_t)*count * sizeof *all), *next = all + 2 * STEPS;
    CHECK_OK(ranks, dtx_test_train(e, m, STEPS, 2e-2, all, all + STEPS));
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(ranks, dtx_test_gather(e, i, 'w', next));
        next += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
    }
    dtx_engine_free(e);
    dtx_backend_close(backend);
    return all;
}

static int check(struct dtx_comm *world, struct dtx_test_model m)
{
    struct dtx_comm *part;
    int64_t count = 0, different = 0;
    bool member = world->rank < m.tp * m.pp * m.dp;
    CHECK_OK(world, dtx_comm_split(world, member, world->rank, "part", &part));
    if (member) {
        m.waits = true;
        double *once = run(part, &m, &count);
        m.waits = false;
        double *late = run(part, &m, &count);
        different = dtx_test_different(once, late, count);
        if (world->rank == 0)
            printf("%s tp%d pp%d dp%d %s zero %d, buckets of %lld bytes: %lld of %lld numbers differ\n",
                   dtx_dtype_name(m.dtype), m.tp, m.pp, m.dp, m.schedule, m.zero, (long long)m.bucket_bytes,
                   (long long)different, (long long)count);
        free(once);
        free(late);
    }
    dtx_comm_free(part);
    return different != 0;
}

static int test(struct dtx_comm *world)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct dtx_test_model m = dtx_test_model_default();
        m.dtype = i % 2 ? DTX_BF16 : DTX_F32;
        m.tp = runs[i].tp;
        m.pp = runs[i].pp;
        m.dp = runs[i].dp;
        m.schedule = runs[i].schedule;
        m.split.chunks = runs[i].chunks;
        m.zero = runs[i].zero;
        m.bucket_bytes = runs[i].bucket_bytes;
        m.tied = runs[i].tied;
        failures += check(world, m);
    }
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, &failures, sizeof failures, 0));
    return failures;
}

int main(void)
{
    return rank_main(test);
}
