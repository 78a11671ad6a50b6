/* test: label=train ranks=4 timeout=90 */
/*
 * Sizes that nothing divides: 3 and 5 layers over 2 and 4 stages, a vocabulary and an ffn of which the last tensor rank
 * holds only padding. In f64 losses, norms and weights are those of one rank; padding stays zero.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 6 };

struct outcome {
    double losses[STEPS], norms[STEPS];
    double *weights; /* whole, all rows */
    int64_t n;
};

static int64_t elements(const struct dtx_param_row *row)
{
    return row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
}

static void check_padding(struct dtx_comm *world, const struct dtx_engine *e, struct dtx_params *p)
{
    const struct dtx_mesh *mesh = dtx_engine_mesh(e);
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        struct dtx_box boxes[DTX_MAX_BOXES];
        if (!item->held)
            continue;
        int n = dtx_shard_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                                mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], boxes);
        int64_t real = 0, not_zero = 0, gradients = 0;
        for (int b = 0; b < n; b++)
            real += boxes[b].extent[0] * (item->row.ndim == 2 ? boxes[b].extent[1] : 1);
        for (int64_t k = 0; k < item->count; k++) {
            not_zero += ((double *)item->master.data)[k] != 0;
            gradients += ((double *)item->grad.data)[k] != 0;
        }
        CHECK_THAT(world, not_zero <= real && gradients <= real, "%s: padding is not zero", item->row.name);
    }
}

static void run(struct dtx_comm *world, struct dtx_comm *ranks, const struct dtx_test_model *m, int64_t ffn,
                struct outcome *out)
{
    struct dtx_engine_config config;
    struct dtx_engine *e;
    struct dtx_backend *backend;
    dtx_test_config(m, &config);
    config.model.ffn = ffn;
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, ranks, backend, &e));
    CHECK_OK(world, dtx_test_train(e, m, STEPS, 2e-3, out->losses, out->norms));
    struct dtx_params *p = dtx_engine_params(e);
    out->n = dtx_params_total(p);
    out->weights = malloc((size_t)out->n * sizeof(double));
    double *at = out->weights;
    for (int i = 0; i < p->n; i++) {
        CHECK_OK(world, dtx_test_gather(e, i, 'w', at));
        at += elements(&p->item[i].row);
    }
    check_padding(world, e, p);
    dtx_engine_free(e);
    dtx_backend_close(backend);
}

static void check(struct dtx_comm *world, struct dtx_comm *self, struct dtx_test_model m, int64_t ffn)
{
    struct outcome got, one;
    struct dtx_test_model single = m;
    single.tp = single.pp = single.dp = 1;
    run(world, world, &m, ffn, &got);
    run(world, self, &single, ffn, &one);
    for (int s = 0; s < STEPS; s++) {
        CHECK_THAT(world, fabs(got.losses[s] - one.losses[s]) <= DTX_MESH_F64_LOSS * one.losses[s],
                   "tp%d pp%d, loss of step %d: %.15g, one rank %.15g", m.tp, m.pp, s + 1, got.losses[s],
                   one.losses[s]);
        CHECK_THAT(world, fabs(got.norms[s] - one.norms[s]) <= DTX_MESH_F64_VALUE * one.norms[s],
                   "tp%d pp%d, norm of step %d: %.15g, one rank %.15g", m.tp, m.pp, s + 1, got.norms[s], one.norms[s]);
    }
    double difference = dtx_test_relative(got.weights, one.weights, one.n);
    CHECK_THAT(world, got.n == one.n && difference <= DTX_MESH_F64_VALUE, "tp%d pp%d: weights differ by %g", m.tp, m.pp,
               difference);
    free(got.weights);
    free(one.weights);
}

static int test(struct dtx_comm *world)
{
    struct dtx_ctx alone;
    struct dtx_comm *self;
    dtx_ctx_init(&alone);
    CHECK_OK(world, dtx_comm_self(&alone, &self));
    CHECK(world, world->size == 4);
    struct dtx_test_model m = dtx_test_model_default();
    m.layers = 3;
    m.tp = m.pp = 2;
    check(world, self, m, 44);
    m.layers = 5;
    m.tp = 1;
    m.pp = 4;
    check(world, self, m, 43);
    m.layers = 2;
    m.tp = 4;
    m.pp = 1;
    m.vocab = 5; /* over 4 ranks: 2, 2, 1 and nothing */
    check(world, self, m, 5);
    m.tied = false;
    m.vocab = 3;
    check(world, self, m, 1);
    dtx_comm_free(self);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
