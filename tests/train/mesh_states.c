/* test: label=train ranks=8 timeout=240 */
/*
 * A checkpoint of each mesh (1, tp2, pp2, dp2, tp2×pp2, tp2×dp2, pp2×dp2 with 2 chunks a stage, 2×2×2 with the
 * backward in two parts and an uneven layout; with ZeRO 1 dp2, dp3, tp2×dp3,
 * 2×2×2; with ZeRO 2 dp4, pp2×dp2; tp2×cp2, dp2×cp2 with ZeRO) loads on every one of them: on every rank every weight,
 * master and optimizer state has the bits that the writer's whole arrays have, in all copies, and padding is zero. On
 * the writer's own mesh training then goes on bit for bit as if it had never stopped. In fp32 with tied embeddings and
 * in bf16 with untied ones and grouped queries; vocabulary 201 and ffn 44 need padding.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/harness/ckpt_state.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/mesh_state.h"
#include "tests/harness/rank_check.h"
#include "trainer/state.h"

enum { MESHES = 16 };
static const struct {
    int tp, pp, dp, zero;
    const char *schedule;
    struct dtx_split split;
    int cp;
} meshes[MESHES] = {{1, 1, 1, 0, "1f1b", {1, "", false}, 1},        {2, 1, 1, 0, "1f1b", {1, "", false}, 1},
                    {1, 2, 1, 0, "1f1b", {1, "", false}, 1},        {1, 1, 2, 0, "1f1b", {1, "", false}, 1},
                    {2, 2, 1, 0, "gpipe", {1, "", false}, 1},       {2, 1, 2, 0, "1f1b", {1, "", false}, 1},
                    {1, 2, 2, 0, "interleaved", {2, "", false}, 1}, {2, 2, 2, 0, "zb_h1", {1, "1,2", false}, 1},
                    {1, 1, 2, 1, "1f1b", {1, "", false}, 1},        {1, 1, 3, 1, "1f1b", {1, "", false}, 1},
                    {1, 1, 4, 2, "1f1b", {1, "", false}, 1},        {2, 1, 3, 1, "1f1b", {1, "", false}, 1},
                    {1, 2, 2, 2, "interleaved", {2, "", false}, 1}, {2, 2, 2, 1, "zb_h1", {1, "1,2", false}, 1},
                    {2, 1, 1, 0, "1f1b", {1, "", false}, 2},        {1, 1, 2, 1, "1f1b", {1, "", false}, 2}};

struct place {
    struct dtx_test_model model;
    struct dtx_comm *ranks;
    struct dtx_engine *engine; /* NULL on ranks that are not in this mesh */
};

static void open_place(struct dtx_comm *world, struct dtx_backend *backend, int i, struct place *p)
{
    struct dtx_engine_config config;
    p->model.cp = meshes[i].cp;
    int size = meshes[i].tp * meshes[i].pp * meshes[i].dp * p->model.cp;
    p->model.tp = meshes[i].tp;
    p->model.pp = meshes[i].pp;
    p->model.dp = meshes[i].dp;
    p->model.schedule = meshes[i].schedule;
    p->model.split = meshes[i].split;
    p->model.zero = meshes[i].zero;
    p->model.bucket_bytes = i % 2 ? 16384 : 0;
    dtx_test_config(&p->model, &config);
    config.seed = 100 + i; /* nothing may be right by chance */
    CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &p->ranks));
    p->engine = NULL;
    if (p->ranks)
        CHECK_OK(world, dtx_engine_create(world->ctx, &config, p->ranks, backend, &p->engine));
}

/* Continues for two steps. */
static void train(struct dtx_comm *world, struct place *p)
{
    if (p->engine)
        CHECK_OK(world, dtx_test_train(p->engine, &p->model, 2, 3e-3, NULL, NULL));
}

static void load(struct dtx_comm *world, struct place *p, const char *path)
{
    if (p->engine)
        CHECK_OK(world, dtx_state_load(p->engine, path, NULL, false));
}

static void check_writer(struct dtx_comm *world, struct place *places, int a, const char *dir)
{
    struct place *writer = &places[a];
    struct mesh_state saved, later, again;
    char path[512], title[64];
    struct dtx_ckpt_meta meta = {.step = a + 1, .isa = "plain", .program = "test", .config = "{}\n"};
    snprintf(title, sizeof title, "saved on tp%d pp%d dp%d ZeRO %d", writer->model.tp, writer->model.pp,
             writer->model.dp, writer->model.zero);
    snprintf(path, sizeof path, "%s/step-%08d", dir, a + 1);
    train(world, writer);
    if (writer->engine)
        CHECK_OK(world, dtx_state_save(writer->engine, dir, &meta, NULL));
    mesh_state_gather(world, writer->engine, &saved);
    CHECK_OK(world, dtx_comm_barrier(world));
    train(world, writer);
    mesh_state_gather(world, writer->engine, &later);
    for (int b = 0; b < MESHES; b++) {
        load(world, &places[b], path);
        mesh_state_compare(world, places[b].engine, &saved, title);
    }
    train(world, writer);
    mesh_state_gather(world, writer->engine, &again);
    CHECK_THAT(world, memcmp(later.values, again.values, (size_t)later.n * sizeof(double)) == 0,
               "%s: training goes on otherwise than without a stop", title);
    CHECK_THAT(world, memcmp(later.values, saved.values, (size_t)later.n * sizeof(double)) != 0,
               "%s: training changes nothing", title);
    free(saved.values);
    free(later.values);
    free(again.values);
}

static void check_model(struct dtx_comm *world, struct dtx_backend *backend, struct dtx_test_model model)
{
    struct place places[MESHES];
    char dir[256];
    if (world->rank == 0)
        ckpt_temp_make(dir);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, dir, sizeof dir, 0));
    for (int i = 0; i < MESHES; i++) {
        places[i].model = model;
        open_place(world, backend, i, &places[i]);
    }
    for (int a = 0; a < MESHES; a++)
        check_writer(world, places, a, dir);
    CHECK_OK(world, dtx_comm_barrier(world));
    for (int i = 0; i < MESHES; i++) {
        dtx_engine_free(places[i].engine);
        dtx_comm_free(places[i].ranks);
    }
    if (world->rank == 0)
        ckpt_temp_remove(dir);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    struct dtx_backend *backend;
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_ERROR;
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK)
        return 1;
    CHECK(world, world->size == 8);
    CHECK_OK(world, dtx_backend_open(&ctx, "cpu", 1, dtx_isa_detect(), &backend));
    struct dtx_test_model model = dtx_test_model_default();
    model.layers = 3;
    model.length = 8;
    model.vocab = 201;
    model.global_batch = 12;
    model.dtype = DTX_F32;
    check_model(world, backend, model);
    model.dtype = DTX_BF16;
    model.tied = false;
    model.gqa = true;
    check_model(world, backend, model);
    dtx_backend_close(backend);
    dtx_comm_close_world(world);
    return 0;
}
