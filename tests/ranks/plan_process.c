/* test: label=long ranks=4 timeout=240 */
/*
 * What the planner says of a rank's memory, host memory included, is what its process takes: VmHWM after a step above
 * what it had without an engine, within 10 %, for every stage of ten meshes.
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/estimate.h"

static const struct {
    int tp, pp, dp;
    const char *schedule;
    int chunks, zero;
    const char *recompute;
    enum dtx_dtype dtype;
} runs[] = {
    {1, 1, 1, "1f1b", 1, 0, "none", DTX_F32},        {1, 4, 1, "1f1b", 1, 0, "none", DTX_F32},
    {1, 4, 1, "zb_h1", 1, 0, "none", DTX_BF16},      {2, 2, 1, "1f1b", 1, 0, "none", DTX_F32},
    {1, 2, 2, "interleaved", 2, 1, "none", DTX_F32}, {1, 2, 2, "1f1b", 1, 1, "block", DTX_BF16},
    {1, 1, 4, "1f1b", 1, 1, "none", DTX_BF16},       {4, 1, 1, "1f1b", 1, 0, "attention", DTX_F32},
    {2, 1, 2, "1f1b", 1, 1, "none", DTX_F32},        {1, 4, 1, "gpipe", 1, 0, "block", DTX_F32},
};

/* A line of /proc/self/status, in bytes. */
static double status_bytes(const char *key)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtod(line + strlen(key) + 1, NULL);
    if (file)
        fclose(file);
    return 1024 * kib;
}

/* Gives freed memory back and forgets the peak so far. */
static void reset_peak(struct dtx_comm *world)
{
    malloc_trim(0);
    FILE *file = fopen("/proc/self/clear_refs", "w");
    CHECK_THAT(world, file && fputs("5", file) >= 0 && fclose(file) == 0, "cannot reset VmHWM");
}

static void check(struct dtx_comm *world, struct dtx_comm *part, const struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *engine;
    struct dtx_estimate e;
    dtx_test_config(m, &config);
    config.model.width = 512;
    config.model.head_dim = 64;
    config.model.ffn = 4096;
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &backend));
    reset_peak(world);
    double empty = status_bytes("VmRSS");
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, part, backend, &engine));
    CHECK_OK(world, dtx_test_train(engine, m, 1, 1e-3, NULL, NULL));
    double taken = status_bytes("VmHWM") - empty;
    const struct dtx_mesh *mesh = dtx_engine_mesh(engine);
    CHECK_OK(world, dtx_estimate_rank(world->ctx, &config, dtx_engine_queue(engine), mesh->rank, &e));
    double stated = (double)dtx_memory_total(&e.memory) + (double)e.host, off = stated / taken - 1;
    printf("%s tp%d pp%d dp%d %s, stage %d: stated %.1f MB (host %.1f), process %.1f MB: %+.1f %%\n",
           dtx_dtype_name(m->dtype), m->tp, m->pp, m->dp, m->schedule, mesh->rank[DTX_AXIS_PP], stated / 1e6,
           (double)e.host / 1e6, taken / 1e6, 100 * off);
    fflush(stdout);
    CHECK_THAT(world, off <= 0.1 && off >= -0.1, "stated %.0f bytes, taken %.0f", stated, taken);
    dtx_engine_free(engine);
    dtx_backend_close(backend);
}

static int test(struct dtx_comm *world)
{
    struct dtx_comm *part;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct dtx_test_model m = dtx_test_model_default();
        m.vocab = 4099;
        m.length = 64;
        m.global_batch = 4;
        m.dtype = runs[i].dtype;
        m.tp = runs[i].tp;
        m.pp = runs[i].pp;
        m.dp = runs[i].dp;
        m.schedule = runs[i].schedule;
        m.split.chunks = runs[i].chunks;
        m.zero = runs[i].zero;
        m.bucket_bytes = 8 << 20;
        m.recompute = runs[i].recompute;
        bool member = world->rank < m.tp * m.pp * m.dp;
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
