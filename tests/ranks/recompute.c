/* test: label=ranks ranks=2 timeout=120 */
/*
 * Recomputation changes no bit of losses, norms or weights, on one and two stages, with every schedule, in fp32 and
 * bf16, for both attention variants, with documents and grouped queries; and the memory of activations is what
 * dtx_model_bytes says, for every choice, with sequence parallelism and without, smaller from each choice to the next.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"
#include "trainer/model.h"

enum { STEPS = 4 };

static void check_bits(struct dtx_comm *world, struct dtx_test_model m)
{
    static const struct {
        int pp;
        const char *schedule;
        int chunks;
        const char *recompute;
    } runs[] = {{1, "gpipe", 1, "attention"}, {1, "1f1b", 1, "block"},  {1, "1f1b", 1, "block:2"},
                {2, "1f1b", 1, "attention"},  {2, "gpipe", 1, "block"}, {2, "interleaved", 2, "block"},
                {2, "zb_h1", 1, "attention"}, {2, "zb_h1", 1, "block"}, {2, "1f1b", 1, "attention:3"}};
    int64_t count = 0;
    m.pp = 1;
    m.recompute = NULL;
    double *none = dtx_test_numbers(world, &m, STEPS, &count);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        m.pp = runs[i].pp;
        m.schedule = runs[i].schedule;
        m.split.chunks = runs[i].chunks;
        m.recompute = runs[i].recompute;
        double *again = dtx_test_numbers(world, &m, STEPS, &count);
        if (world->rank == 0)
            CHECK_THAT(world, dtx_test_different(none, again, count) == 0, "%s %s pp%d %s %s: %lld of %lld differ",
                       dtx_dtype_name(m.dtype), m.attention, m.pp, m.schedule, m.recompute,
                       (long long)dtx_test_different(none, again, count), (long long)count);
        free(again);
    }
    free(none);
}

/* Bytes of one stage's activations: as stated; checked against what the backend counts. */
static size_t bytes_of(struct dtx_comm *world, const struct dtx_test_model *m, int stage, int slots, int kept)
{
    struct dtx_ctx *ctx = world->ctx;
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_params params;
    struct dtx_model *model;
    dtx_test_config(m, &config);
    CHECK_OK(world, dtx_backend_open(ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(world, backend->queues->create(backend, &queue));
    CHECK_OK(world, dtx_params_create(ctx, &params));
    struct dtx_mesh mesh = {.size = {m->tp, m->dp, m->pp, 1}, .rank = {[DTX_AXIS_PP] = stage}};
    struct dtx_env env = {.ctx = ctx,
                          .queue = queue,
                          .mesh = &mesh,
                          .params = &params,
                          .model = &config.model,
                          .recompute = config.recompute,
                          .act = m->dtype,
                          .master = dtx_dtype_master(m->dtype),
                          .sequence = m->sequence && m->tp > 1,
                          .max_rows = m->micro_batch * m->length,
                          .max_length = m->length,
                          .max_piece = m->length,
                          .pieces = 1};
    CHECK_OK(world, dtx_model_declare(&env, &model));
    CHECK_OK(world, dtx_params_allocate(&params, backend, &mesh, m->dtype));
    size_t before = backend->allocated_bytes, stated = dtx_model_bytes(model, slots, kept);
    CHECK_OK(world, dtx_model_allocate(model, slots, kept));
    size_t counted = backend->allocated_bytes - before;
    CHECK_THAT(world, stated == counted, "%s stage %d, %d slots, %d kept: stated %zu bytes, counted %zu",
               m->recompute ? m->recompute : "none", stage, slots, kept, stated, counted);
    dtx_model_free(model);
    CHECK_THAT(world, backend->allocated_bytes == before, "%zu bytes left", backend->allocated_bytes - before);
    dtx_params_free(&params);
    backend->queues->free(queue);
    dtx_backend_close(backend);
    return stated;
}

/* Each choice takes less than the one before it, where several micro-batches are alive. */
static void check_stage(struct dtx_comm *world, struct dtx_test_model m, int stage, int kept)
{
    static const char *const choices[] = {"none", "attention:2", "attention", "block"};
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        m.recompute = choices[i];
        size_t bytes = bytes_of(world, &m, stage, 3, kept);
        CHECK_THAT(world, bytes < last, "%s takes %zu bytes, the choice before it %zu", choices[i], bytes, last);
        last = bytes;
        m.sequence = !m.sequence;
        size_t without = bytes_of(world, &m, stage, 3, kept);
        m.sequence = !m.sequence;
        CHECK_THAT(world, m.tp == 1 ? bytes == without : bytes < without,
                   "tp%d %s: %zu bytes with sequence parallelism, %zu without", m.tp, choices[i], bytes, without);
    }
}

static void check_bytes(struct dtx_comm *world, struct dtx_test_model m)
{
    m.length = 64;
    m.micro_batch = 2;
    for (m.tp = 1; m.tp <= 2; m.tp++)
        for (m.pp = 1; m.pp <= 2; m.pp++)
            for (int stage = 0; stage < m.pp; stage++)
                for (int kept = 0; kept <= 2; kept += 2)
                    check_stage(world, m, stage, kept);
}

static void check_texts(struct dtx_comm *world)
{
    static const char *const wrong[] = {"", "blocks", "block:", "block:0", "block:-1", "block:2x", "none:2", ":2", "b"};
    struct dtx_recompute_config c;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_THAT(world, !dtx_recompute_parse(wrong[i], &c), "'%s' was accepted", wrong[i]);
    CHECK(world, dtx_recompute_parse("block:12", &c) && c.what == DTX_RECOMPUTE_BLOCK && c.every == 12);
    CHECK(world, dtx_recompute_parse("attention", &c) && c.what == DTX_RECOMPUTE_ATTENTION && c.every == 1);
}

static int test(struct dtx_comm *world)
{
    check_texts(world);
    struct dtx_test_model m = dtx_test_model_default(), grouped = m;
    m.dtype = DTX_F32;
    check_bits(world, m);
    m.dtype = DTX_BF16;
    check_bits(world, m);
    if (world->rank == 0)
        check_bytes(world, m);
    grouped.dtype = DTX_BF16;
    grouped.tied = false;
    grouped.gqa = grouped.documents = true;
    grouped.attention = "softmax";
    check_bits(world, grouped);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
