/* test: label=ranks ranks=8 timeout=120 */
/*
 * What dtx_estimate_rank says of every rank of a mesh is what happens there: bytes by what the backend counts after two
 * steps (highest and last), those of the copies that a checkpoint is written from and a rollback goes back to, and
 * bytes sent over each axis by what the communicators count in a step. Meshes with tensor, data and pipeline axes,
 * schedules and chunks, recomputation, ZeRO, sequence parallelism on and off, fp32 and bf16, tied and not.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/estimate.h"
#include "trainer/snapshot.h"
#include "trainer/state.h"

static const struct {
    int tp, pp, dp;
    const char *schedule;
    int chunks, zero;
    const char *recompute;
    bool sequence, tied;
    int cp;
    bool ring;
} runs[] = {
    {1, 1, 1, "1f1b", 1, 0, "none", true, true, 1, false},
    {2, 2, 2, "1f1b", 1, 1, "none", true, true, 1, false},
    {2, 2, 2, "gpipe", 1, 0, "attention", false, true, 1, false},
    {1, 4, 2, "zb_h1", 1, 1, "none", true, false, 1, false},
    {1, 4, 2, "zb_h1", 1, 0, "block", true, true, 1, false},
    {1, 2, 4, "interleaved", 2, 1, "none", true, true, 1, false},
    {4, 2, 1, "interleaved", 3, 1, "block:2", true, false, 1, false},
    {2, 1, 4, "1f1b", 1, 1, "block", false, false, 1, false},
    {4, 1, 2, "1f1b", 1, 0, "attention:2", true, true, 1, false},
    {1, 8, 1, "1f1b", 1, 1, "none", true, true, 1, false},
    {1, 1, 8, "1f1b", 1, 1, "none", true, true, 1, false},
    {1, 1, 8, "1f1b", 1, 0, "block", true, false, 1, false},
    {1, 1, 1, "1f1b", 1, 1, "none", true, true, 2, false},
    {2, 1, 1, "1f1b", 1, 0, "attention", true, true, 4, true},
    {2, 1, 2, "1f1b", 1, 1, "block", false, true, 2, false},
    {1, 2, 2, "zb_h1", 1, 1, "block:2", true, false, 2, true},
    {2, 2, 1, "interleaved", 2, 0, "none", true, true, 2, true},
    {1, 1, 1, "1f1b", 1, 1, "none", true, true, 8, false},
    {1, 1, 4, "1f1b", 1, 2, "none", true, false, 1, false},
    {2, 2, 2, "gpipe", 1, 2, "none", true, true, 1, false},
    {1, 2, 2, "interleaved", 2, 2, "block", true, true, 2, true},
};

/* Bytes sent over an axis, pipeline neighbours and the tied embedding included. */
static int64_t sent(const struct dtx_mesh *mesh, enum dtx_axis axis)
{
    int64_t bytes = (axis == DTX_AXIS_DP ? mesh->data : mesh->axis[axis])->sent_bytes;
    const struct dtx_comm *pipe[] = {mesh->forward_in,   mesh->forward_out,   mesh->backward_in, mesh->backward_out,
                                     mesh->wrap_forward, mesh->wrap_backward, mesh->tied};
    for (size_t i = 0; i < sizeof pipe / sizeof *pipe && axis == DTX_AXIS_PP; i++)
        bytes += pipe[i] ? pipe[i]->sent_bytes : 0;
    if (axis == DTX_AXIS_DP)
        bytes += mesh->grads->sent_bytes;
    return bytes;
}

static void check(struct dtx_comm *world, struct dtx_comm *part, const struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *engine;
    struct dtx_estimate e;
    char name[160];
    dtx_test_config(m, &config);
    config.snapshot = m->dtype == DTX_BF16;
    snprintf(name, sizeof name, "%s tp%d pp%d dp%d cp%d%s %s chunks %d zero %d recompute %s", dtx_dtype_name(m->dtype),
             m->tp, m->pp, m->dp, m->cp, m->ring ? " ring" : "", m->schedule, m->split.chunks, m->zero, m->recompute);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, part, backend, &engine));
    const struct dtx_mesh *mesh = dtx_engine_mesh(engine);
    int64_t before[DTX_AXES];
    CHECK_OK(world, dtx_test_train(engine, m, 1, 1e-3, NULL, NULL));
    for (int a = 0; a < DTX_AXES; a++)
        before[a] = sent(mesh, (enum dtx_axis)a);
    CHECK_OK(world, dtx_test_train(engine, m, 1, 1e-3, NULL, NULL));
    CHECK_OK(world, dtx_estimate_rank(world->ctx, &config, dtx_engine_queue(engine), mesh->rank, &e));
    for (int a = 0; a < DTX_AXES; a++) {
        int64_t counted = sent(mesh, (enum dtx_axis)a) - before[a];
        CHECK_THAT(world, (double)counted == e.sent[a], "%s, %s axis: sent %lld bytes, stated %.0f", name,
                   dtx_axis_name((enum dtx_axis)a), (long long)counted, e.sent[a]);
    }
    struct dtx_state state;
    CHECK_OK(world, dtx_state_open(engine, &state));
    size_t staging = dtx_ckpt_staging_bytes(state.items, state.n);
    CHECK_THAT(world, staging == e.staging, "%s: a save copies %zu bytes, stated %zu", name, staging, e.staging);
    dtx_state_close(&state);
    size_t snapshot = config.snapshot ? dtx_snapshot_bytes(dtx_engine_params(engine)) : 0;
    CHECK_THAT(world, snapshot == e.snapshot && dtx_estimate_host(&e) == e.host + e.staging + snapshot,
               "%s: a snapshot of %zu bytes, stated %zu", name, snapshot, e.snapshot);
    size_t counted = backend->allocated_bytes, most = backend->peak_bytes, stated = dtx_memory_total(&e.memory);
    CHECK_THAT(world, stated == counted && stated == most, "%s: stated %zu bytes, counted %zu, at most %zu", name,
               stated, counted, most);
    if (mesh->rank[DTX_AXIS_TP] == 0 && dtx_mesh_data_rank(mesh) == 0)
        printf("%s, stage %d: %zu bytes stated, %zu counted\n", name, mesh->rank[DTX_AXIS_PP], stated, most);
    dtx_engine_free(engine);
    dtx_backend_close(backend);
}

static int test(struct dtx_comm *world)
{
    struct dtx_comm *part;
    for (size_t i = 0; i < 2 * sizeof runs / sizeof *runs; i++) {
        struct dtx_test_model m = dtx_test_model_default();
        size_t k = i / 2;
        m.dtype = i % 2 ? DTX_BF16 : DTX_F32;
        m.layers = 8;
        m.length = 32;
        m.global_batch = 16;
        m.tp = runs[k].tp;
        m.pp = runs[k].pp;
        m.dp = runs[k].dp;
        m.cp = runs[k].cp;
        m.ring = runs[k].ring;
        m.schedule = runs[k].schedule;
        m.split.chunks = runs[k].chunks;
        m.zero = runs[k].zero;
        m.bucket_bytes = i % 3 ? 64 << 10 : 0;
        m.recompute = runs[k].recompute;
        m.sequence = runs[k].sequence;
        m.tied = runs[k].tied;
        bool member = world->rank < dtx_test_ranks(&m);
        CHECK_OK(world, dtx_comm_split(world, member, world->rank, "part", &part));
        if (member)
            check(world, part, &m);
        dtx_comm_free(part);
    }
    return 0;
}

int main(void)
{
    return rank_main(test);
}
