/* test: label=ranks ranks=4 timeout=120 */
/*
 * Passes that are recorded and launched as one (cuda.graphs) on pipeline and data ranks over NCCL's stand-in: the bits
 * of passes that run operation by operation, for every schedule and way of reducing. What runs beside an exchange is
 * left plain; all else is launched as graphs.
 */
#include <stdlib.h>
#include <string.h>

#include "parallel/comm_nccl.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

int dtx_emu_graphs(void); /* kernels/simt/runtime.h: those that are there */

enum { STEPS = 3, MOST = 1 << 20 };

/* Losses, norms and losses of evaluations, and weights of this mesh; graphs' launches of this rank. */
static double *numbers(struct dtx_comm *world, struct dtx_test_model m, bool graphs, int64_t *count, int64_t *made,
                       int64_t *launched)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_comm *between;
    struct dtx_engine *e;
    int64_t targets, n = m.global_batch / m.dp * m.length;
    int32_t *buffer = malloc((size_t)(3 * n) * sizeof *buffer);
    double *all = malloc(MOST * sizeof *all);
    m.graphs = graphs;
    dtx_test_config(&m, &config);
    CHECK_OK(world, dtx_backend_open(world->ctx, "emu", 1, 0, &backend));
    CHECK_OK(world, dtx_comm_nccl_create(world, backend, &between));
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, between, backend, &e));
    struct dtx_params *p = dtx_engine_params(e);
    struct dtx_engine_batch batch = {buffer, buffer + n, buffer + 2 * n};
    *count = 0;
    for (int s = 0; s < STEPS; s++) {
        struct dtx_step_result result;
        dtx_test_batch(&m, s, dtx_engine_mesh(e)->rank[DTX_AXIS_DP], buffer, buffer + n, buffer + 2 * n);
        CHECK_OK(world, dtx_engine_step(e, &batch, s + 1, 2e-3, &result));
        all[(*count)++] = result.loss;
        all[(*count)++] = result.grad_norm;
        CHECK_OK(world, dtx_engine_evaluate(e, &batch, &all[(*count)++], &targets));
    }
    CHECK_OK(world, dtx_engine_settle(e));
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(world, dtx_test_gather(e, i, 'w', all + *count));
        *count += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
    }
    dtx_engine_graphs(e, made, launched);
    CHECK_THAT(world, dtx_emu_graphs() == *made, "%d graphs are there, %lld were made", dtx_emu_graphs(),
               (long long)*made);
    dtx_engine_free(e);
    CHECK_THAT(world, dtx_emu_graphs() == 0, "%d graphs are left", dtx_emu_graphs());
    dtx_comm_free(between);
    dtx_backend_close(backend);
    free(buffer);
    return all;
}

/* A run with graphs must have these numbers. recorded: passes of a round (step and evaluation) that are not beside an
 * exchange. Each runs once before it is recorded, so launches are fewer by the graphs. */
static void same(struct dtx_comm *world, const char *what, const struct dtx_test_model *m, const char *streams,
                 const double *plain, int recorded)
{
    int64_t count, made, launched;
    setenv("DTX_EMU_STREAMS", streams, 1);
    double *graphs = numbers(world, *m, true, &count, &made, &launched);
    unsetenv("DTX_EMU_STREAMS");
    int64_t different = dtx_test_different(graphs, plain, count);
    for (int i = 0; i < 3 * STEPS && different && world->rank == 0; i++)
        fprintf(stderr, "%.17g, without graphs %.17g\n", graphs[i], plain[i]);
    CHECK_THAT(world, different == 0, "%s, %s: %lld of %lld numbers differ", what, streams, (long long)different,
               (long long)count);
    CHECK_THAT(world, launched + made == STEPS * recorded, "%s, %s: %lld graphs, %lld launches, must be %d together",
               what, streams, (long long)made, (long long)launched, STEPS * recorded);
    free(graphs);
}

/* Numbers without graphs serve all schedules and ways to overlap; zero 2 adds in another order. */
static int run(struct dtx_comm *world)
{
    enum { MICRO = 4 };
    int64_t count, made, launched;
    struct dtx_test_model m = dtx_test_model_default();
    m.dtype = DTX_F32;
    m.documents = true;
    m.pp = 2;
    m.dp = 2;
    m.zero = 1;
    m.global_batch = 2 * MICRO;
    double *plain = numbers(world, m, false, &count, &made, &launched);
    CHECK_THAT(world, made == 0 && launched == 0, "graphs without cuda.graphs");
    /* Plain: the evaluation's first pass, which waits for the weights of the step before, and the last one back. */
    same(world, "1f1b", &m, "late", plain, 3 * MICRO - 2);
    m.waits = true; /* without comm.overlap all are recorded */
    m.zero = 0;
    same(world, "no overlap", &m, "random", plain, 3 * MICRO);
    m.waits = false;
    m.zero = 1;
    m.schedule = "interleaved"; /* two chunks, whose weights lie in one bucket */
    m.split.chunks = 2;
    same(world, "interleaved", &m, "late", plain, 2 * 3 * MICRO - 3);
    m.schedule = "zb_h1"; /* back in two parts */
    m.split.chunks = 1;
    same(world, "zb_h1", &m, "now", plain, 4 * MICRO - 2);
    free(plain);
    m.schedule = "1f1b";
    m.zero = 2; /* backward reduces in every micro-batch */
    m.bucket_bytes = 4096;
    plain = numbers(world, m, false, &count, &made, &launched);
    same(world, "zero 2", &m, "now", plain, 2 * MICRO - 1);
    free(plain);
    return 0;
}

int main(void)
{
    return rank_main(run);
}
