/* test: label=ranks ranks=4 timeout=120 */
/*
 * Models scaled by CompleteP, with every factor other than 1, on several meshes against one rank, in f64: losses, norms
 * and every weight by the bounds of DESIGN.md 8, tied and untied, with sequence parallelism and without, ZeRO,
 * interleaving, backward in two parts, context ranks. Recomputation changes no bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 8 };

static const struct {
    int tp, pp, dp, cp, zero, chunks;
    bool whole_rows; /* no sequence parallelism */
    const char *schedule;
} meshes[] = {{2, 1, 1, 1, 0, 1, false, "1f1b"},        {2, 1, 2, 1, 1, 1, true, "1f1b"},
              {1, 2, 1, 1, 0, 2, false, "interleaved"}, {1, 2, 2, 1, 1, 1, false, "zb_h1"},
              {1, 1, 4, 1, 2, 1, false, "1f1b"},        {2, 2, 1, 1, 0, 1, false, "zb_h1"},
              {1, 1, 2, 2, 1, 1, false, "1f1b"}};

/* Losses and norms come first, then the rows of the table one after another. */
static int compare(const char *name, struct dtx_params *p, const double *got, const double *expected)
{
    int wrong = 0;
    for (int s = 0; s < STEPS; s++) {
        double loss = fabs(got[s] / expected[s] - 1), norm = fabs(got[STEPS + s] / expected[STEPS + s] - 1);
        if (!(loss <= DTX_MESH_F64_LOSS && norm <= DTX_MESH_F64_VALUE)) {
            printf("%s: step %d: loss differs by %.3g, norm by %.3g\n", name, s + 1, loss, norm);
            wrong++;
        }
    }
    int64_t at = 2 * STEPS;
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param_row *row = &p->item[i].row;
        int64_t n = row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
        double distance = dtx_test_relative(got + at, expected + at, n);
        if (!(distance <= DTX_MESH_F64_VALUE)) {
            printf("%s: %s differs by %.3g\n", name, row->name, distance);
            wrong++;
        }
        at += n;
    }
    return wrong;
}

static int check(struct dtx_comm *world, struct dtx_comm *self, bool tied)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *e; /* for the table of weights */
    int64_t count, same;
    int wrong = 0;
    struct dtx_test_model m = dtx_test_model_default();
    m.tied = tied;
    m.gqa = !tied;
    m.transfer = (struct dtx_transfer){DTX_TRANSFER_COMPLETEP, 1.6, 2.5, 3, 1.7, 2.3};
    dtx_test_config(&m, &config);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(world, dtx_engine_create(self->ctx, &config, self, backend, &e));
    double *expected = dtx_test_numbers(self, &m, STEPS, &count);
    m.recompute = "block";
    double *again = dtx_test_numbers(self, &m, STEPS, &same);
    m.recompute = NULL;
    int64_t different = dtx_test_different(again, expected, count);
    CHECK_THAT(world, different == 0, "recomputation changes %lld numbers", (long long)different);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char name[96];
        m.tp = meshes[i].tp;
        m.pp = meshes[i].pp;
        m.dp = meshes[i].dp;
        m.cp = meshes[i].cp;
        m.zero = meshes[i].zero;
        m.sequence = !meshes[i].whole_rows;
        m.ring = i % 2;
        m.schedule = meshes[i].schedule;
        m.split.chunks = meshes[i].chunks;
        snprintf(name, sizeof name, "%s tp%d pp%d dp%d cp%d %s", tied ? "tied" : "untied", m.tp, m.pp, m.dp, m.cp,
                 m.schedule);
        double *got = dtx_test_numbers(world, &m, STEPS, &count);
        if (world->rank == 0)
            wrong += compare(name, dtx_engine_params(e), got, expected);
        free(got);
    }
    free(expected);
    free(again);
    dtx_engine_free(e);
    dtx_backend_close(backend);
    return wrong;
}

static int test(struct dtx_comm *world)
{
    struct dtx_ctx alone;
    struct dtx_comm *self;
    dtx_ctx_init(&alone);
    CHECK_OK(world, dtx_comm_self(&alone, &self));
    int wrong = check(world, self, true);
    wrong += check(world, self, false);
    dtx_comm_free(self);
    return wrong;
}

int main(void)
{
    return rank_main(test);
}
