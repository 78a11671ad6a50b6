/* test: label=train ranks=4 timeout=240 */
/*
 * A checkpoint of each mesh (1, tp2, tp4, pp2, pp4, dp2, dp3, tp2×pp2, tp2×dp2, cp2; those with data or context ranks
 * with ZeRO 1 too), of a model whose ffn width and vocabulary are prime, loads on two others (`all`: on every one of
 * them): whole tensors equal bit for bit, then five steps go on upon the curve of one rank that never stopped. Whoever
 * holds the state writes a part of it, and the parts of a stage's ranks are equal to 5 % (with ZeRO and what it rounds
 * its pieces to).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/ckpt_state.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/mesh_state.h"
#include "tests/harness/rank_check.h"
#include "trainer/state.h"

enum { MESHES = 15, BEFORE = 2, AFTER = 5, ZERO_PIECE = 1024 };
static const struct {
    int tp, pp, dp, cp, zero;
} meshes[MESHES] = {{1, 1, 1, 1, 0}, {2, 1, 1, 1, 0}, {4, 1, 1, 1, 0}, {1, 2, 1, 1, 0}, {1, 4, 1, 1, 0},
                    {1, 1, 2, 1, 0}, {1, 1, 3, 1, 0}, {2, 2, 1, 1, 0}, {2, 1, 2, 1, 0}, {1, 1, 1, 2, 0},
                    {1, 1, 2, 1, 1}, {1, 1, 3, 1, 1}, {2, 1, 2, 1, 1}, {1, 1, 1, 2, 1}, {1, 2, 2, 1, 1}};

struct place {
    struct dtx_test_model model;
    struct dtx_comm *ranks;
    struct dtx_engine *engine; /* NULL on ranks that are not in this mesh */
    char name[64];
};

static void open_place(struct dtx_comm *world, struct dtx_backend *backend, const struct dtx_test_model *model, int i,
                       int64_t seed, struct place *p)
{
    struct dtx_engine_config config;
    int size = meshes[i].tp * meshes[i].pp * meshes[i].dp * meshes[i].cp;
    p->model = *model;
    p->model.tp = meshes[i].tp;
    p->model.pp = meshes[i].pp;
    p->model.dp = meshes[i].dp;
    p->model.cp = meshes[i].cp;
    p->model.zero = meshes[i].zero;
    snprintf(p->name, sizeof p->name, "tp%d pp%d dp%d cp%d ZeRO %d", meshes[i].tp, meshes[i].pp, meshes[i].dp,
             meshes[i].cp, meshes[i].zero);
    dtx_test_config(&p->model, &config);
    config.seed = seed;
    p->engine = NULL;
    CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &p->ranks));
    if (p->ranks)
        CHECK_OK(world, dtx_engine_create(world->ctx, &config, p->ranks, backend, &p->engine));
}

static void close_place(struct place *p)
{
    dtx_engine_free(p->engine);
    dtx_comm_free(p->ranks);
}

/* Steps [first, first + n) of the run; losses[n]. */
static void train(struct dtx_comm *world, struct place *p, int first, int n, double *losses)
{
    const struct dtx_test_model *m = &p->model;
    int64_t count = m->global_batch / m->dp * m->length;
    if (!p->engine)
        return;
    int32_t *buffer = malloc((size_t)(2 * count) * sizeof *buffer);
    for (int s = first; s < first + n; s++) {
        struct dtx_engine_batch batch = {buffer, buffer + count, NULL};
        struct dtx_step_result result;
        dtx_test_batch(m, s, dtx_engine_mesh(p->engine)->rank[DTX_AXIS_DP], buffer, buffer + count, NULL);
        CHECK_OK(world, dtx_engine_step(p->engine, &batch, s + 1, 3e-3, &result));
        if (losses)
            losses[s - first] = result.loss;
    }
    CHECK_OK(world, dtx_engine_settle(p->engine));
    free(buffer);
}

/* Bytes that each rank of a stage writes. */
static void check_balance(struct dtx_comm *world, const struct place *p)
{
    struct dtx_state state;
    struct {
        int64_t bytes, stage;
    } mine = {0, 0}, all[4];
    if (!p->engine)
        return;
    CHECK_OK(world, dtx_state_open(p->engine, &state));
    for (int i = 0; i < state.n; i++)
        for (int b = 0; b < state.items[i].n_boxes && state.items[i].writer; b++) {
            int64_t bytes = (int64_t)dtx_dtype_bytes(state.items[i].dtype);
            for (int d = 0; d < state.items[i].ndim; d++)
                bytes *= state.items[i].boxes[b].extent[d];
            mine.bytes += bytes;
        }
    dtx_state_close(&state);
    mine.stage = dtx_engine_mesh(p->engine)->rank[DTX_AXIS_PP];
    CHECK_OK(world, dtx_comm_gather_bytes(p->ranks, &mine, sizeof mine, all));
    double sum = 0, n = 0, more = p->model.zero ? 3.0 * ZERO_PIECE * p->model.dp * p->model.cp * 8 : 0;
    for (int r = 0; r < p->ranks->size; r++)
        if (all[r].stage == mine.stage) {
            sum += (double)all[r].bytes;
            n++;
        }
    CHECK_THAT(world, fabs((double)mine.bytes - sum / n) <= 0.05 * sum / n + more,
               "%s: rank %d writes %lld bytes, the mean of its stage is %.0f", p->name, p->ranks->rank,
               (long long)mine.bytes, sum / n);
}

static void check_pair(struct dtx_comm *world, struct dtx_backend *backend, const struct dtx_test_model *model,
                       const char *from, const char *path, int b, const struct mesh_state *saved, const double *curve)
{
    struct place reader;
    char title[80];
    double losses[AFTER];
    snprintf(title, sizeof title, "saved on %.64s", from);
    open_place(world, backend, model, b, 100 + b, &reader); /* nothing may be right by chance */
    if (reader.engine) {
        CHECK_OK(world, dtx_state_load(reader.engine, path, NULL, false));
        mesh_state_compare(world, reader.engine, saved, title);
        train(world, &reader, BEFORE, AFTER, losses);
        for (int s = 0; s < AFTER; s++)
            CHECK_THAT(world, fabs(losses[s] - curve[s]) <= DTX_MESH_F64_LOSS * fabs(curve[s]),
                       "%s, step %d on %s: loss %.17g instead of %.17g", title, BEFORE + s + 1, reader.name, losses[s],
                       curve[s]);
    }
    close_place(&reader);
}

static void check_writer(struct dtx_comm *world, struct dtx_backend *backend, const struct dtx_test_model *model, int a,
                         bool all, const char *dir, const double *curve)
{
    struct place writer;
    struct mesh_state saved;
    char path[512];
    struct dtx_ckpt_meta meta = {.step = a + 1, .isa = "plain", .program = "test", .config = "{}\n"};
    snprintf(path, sizeof path, "%s/step-%08d", dir, a + 1);
    open_place(world, backend, model, a, 5, &writer);
    train(world, &writer, 0, BEFORE, NULL);
    check_balance(world, &writer);
    if (writer.engine)
        CHECK_OK(world, dtx_state_save(writer.engine, dir, &meta, NULL));
    mesh_state_gather(world, writer.engine, &saved);
    close_place(&writer);
    CHECK_OK(world, dtx_comm_barrier(world));
    for (int k = 1; k <= MESHES; k++)
        if (all || k == 1 || k == 4)
            check_pair(world, backend, model, writer.name, path, (a + k) % MESHES, &saved, curve);
    free(saved.values);
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    struct dtx_backend *backend;
    struct place one;
    char dir[256];
    double curve[AFTER];
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_ERROR;
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK)
        return 1;
    CHECK(world, world->size == 4);
    CHECK_OK(world, dtx_backend_open(&ctx, "cpu", 1, dtx_isa_detect(), &backend));
    if (world->rank == 0)
        ckpt_temp_make(dir);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, dir, sizeof dir, 0));
    struct dtx_test_model model = dtx_test_model_default();
    model.global_batch = 12;
    model.micro_batch = 2;
    model.ffn = 43;
    open_place(world, backend, &model, 0, 5, &one);
    train(world, &one, 0, BEFORE, NULL);
    train(world, &one, BEFORE, AFTER, curve);
    close_place(&one);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, curve, sizeof curve, 0));
    for (int a = 0; a < MESHES; a++)
        check_writer(world, backend, &model, a, argc > 1 && strcmp(argv[1], "all") == 0, dir, curve);
    CHECK_OK(world, dtx_comm_barrier(world));
    if (world->rank == 0)
        ckpt_temp_remove(dir);
    dtx_backend_close(backend);
    dtx_comm_close_world(world);
    return 0;
}
