/* test: label=ranks ranks=4 timeout=120 */
/*
 * Device memory on the emulator: what a rank's estimate states is what its backend counts when the engine is made and
 * after two steps, to the byte, the work of sums between devices included. An arena of so many bytes holds it all, and
 * is whole again afterwards: another engine fits. A device that has less is refused before anything is allocated.
 */
#include <stdlib.h>
#include <string.h>

#include "parallel/comm_nccl.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/estimate.h"
#include "trainer/memory_check.h"

static const struct {
    int tp, pp, dp, cp, zero;
    bool sequence, tied, ring;
} meshes[] = {
    {2, 1, 2, 1, 1, true, true, false},  {2, 1, 2, 1, 0, false, false, false}, {1, 2, 2, 1, 1, true, true, false},
    {2, 2, 1, 1, 0, true, true, false},  {1, 1, 2, 2, 1, true, true, false},   {2, 1, 1, 2, 0, false, false, true},
    {1, 1, 4, 1, 2, true, false, false},
};

static void check(struct dtx_comm *world, const struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_comm *between;
    struct dtx_engine *engine;
    struct dtx_estimate e;
    double lambda[64];
    size_t planned, left, left_now, total;
    int n;
    dtx_test_config(m, &config);
    CHECK_OK(world, dtx_backend_open(world->ctx, "emu", 1, 0, &backend));
    CHECK_OK(world, dtx_memory_check(world, &config, backend, true, &planned));
    CHECK_OK(world, backend->memory->reserve(backend, planned));
    CHECK_OK(world, backend->memory->left(backend, &left, &total));
    CHECK_OK(world, dtx_comm_nccl_create(world, backend, &between));
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, between, backend, &engine));
    CHECK_THAT(world, backend->allocated_bytes == planned, "%zu bytes planned, %zu taken before the first step",
               planned, backend->allocated_bytes);
    CHECK_OK(world, dtx_test_train(engine, m, 2, 1e-3, NULL, NULL));
    CHECK_OK(world, dtx_engine_lambda(engine, lambda, &n));
    CHECK_OK(world,
             dtx_estimate_rank(world->ctx, &config, dtx_engine_queue(engine), dtx_engine_mesh(engine)->rank, &e));
    size_t counted = backend->allocated_bytes, most = backend->peak_bytes, stated = dtx_memory_total(&e.memory);
    CHECK_THAT(world, stated == counted && stated == most && e.memory.sums > 0 && e.allowance > 0,
               "tp %d pp %d dp %d cp %d zero %d: stated %zu bytes (%zu for sums), counted %zu, at most %zu", m->tp,
               m->pp, m->dp, m->cp, m->zero, stated, e.memory.sums, counted, most);
    CHECK_OK(world, backend->memory->left(backend, &left_now, &total));
    CHECK_THAT(world, backend->outside_bytes == 0 && left_now == left,
               "%zu bytes outside the arena; %zu of the device were left before the engine, %zu with it",
               backend->outside_bytes, left, left_now);
    dtx_engine_free(engine);
    CHECK_THAT(world, backend->allocated_bytes == 0, "%zu bytes left", backend->allocated_bytes);
    CHECK_OK(world, dtx_engine_create(world->ctx, &config, between, backend, &engine));
    CHECK_THAT(world, backend->outside_bytes == 0, "a second engine: %zu bytes outside", backend->outside_bytes);
    dtx_engine_free(engine);
    dtx_comm_free(between);
    dtx_backend_close(backend);
}

/* With one byte less than it will take the model is refused, with that byte it is not. */
static void refuse(struct dtx_comm *world, const struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_estimate e;
    char text[32];
    int64_t most = 0;
    size_t planned;
    int place[DTX_AXES];
    dtx_test_config(m, &config);
    dtx_mesh_place(config.mesh, world->rank, place);
    CHECK_OK(world, dtx_backend_open(world->ctx, "emu", 1, 0, &backend));
    CHECK_OK(world, backend->queues->create(backend, &queue));
    CHECK_OK(world, dtx_estimate_rank(world->ctx, &config, queue, place, &e));
    most = (int64_t)(dtx_memory_total(&e.memory) + e.allowance);
    struct dtx_tensor largest = dtx_tensor_1d(&most, DTX_I64, 1);
    CHECK_OK(world, dtx_comm_all_reduce_max(world, NULL, &largest));
    for (int less = 0; less < 2; less++) {
        snprintf(text, sizeof text, "%lld", (long long)most - less);
        setenv("DTX_EMU_MEMORY", text, 1);
        enum dtx_status status = dtx_memory_check(world, &config, backend, true, &planned);
        CHECK_THAT(world, status == (less ? DTX_E_CONFIG : DTX_OK), "%s bytes: status %d: %s", text, status,
                   world->ctx->error.text);
        CHECK_THAT(world, !less || strstr(world->ctx->error.text, "NCCL's own buffers up to"), "the report is '%s'",
                   world->ctx->error.text);
        dtx_error_clear(world->ctx);
    }
    unsetenv("DTX_EMU_MEMORY");
    backend->queues->free(queue);
    dtx_backend_close(backend);
}

static int test(struct dtx_comm *world)
{
    struct dtx_test_model m = dtx_test_model_default();
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        m.dtype = i % 2 ? DTX_F32 : DTX_BF16;
        m.layers = 2;
        m.global_batch = 4;
        m.tp = meshes[i].tp;
        m.pp = meshes[i].pp;
        m.dp = meshes[i].dp;
        m.cp = meshes[i].cp;
        m.zero = meshes[i].zero;
        m.sequence = meshes[i].sequence;
        m.tied = meshes[i].tied;
        m.ring = meshes[i].ring;
        m.bucket_bytes = i % 3 ? 64 << 10 : 0;
        check(world, &m);
    }
    refuse(world, &m);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
