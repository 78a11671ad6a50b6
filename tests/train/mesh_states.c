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
static const char kinds[] = {'w', '0', '1'}; /* as dtx_test_gather calls them */

struct place {
    struct dtx_test_model model;
    struct dtx_comm *ranks;
    struct dtx_engine *engine; /* NULL on ranks that are not in this mesh */
};

/* Whole arrays of all rows, one kind after another. */
struct whole {
    int64_t n;
    double *values;
};

static int64_t elements(const struct dtx_param_row *row)
{
    return row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
}

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

/* The writer's whole arrays, known to all ranks of the world afterwards. */
static void gather(struct dtx_comm *world, struct place *p, struct whole *out)
{
    int64_t at = 0;
    out->n = 0;
    if (p->engine) {
        struct dtx_params *params = dtx_engine_params(p->engine);
        out->n = (int64_t)sizeof kinds * dtx_params_total(params);
        out->values = malloc((size_t)out->n * sizeof(double));
        for (size_t k = 0; k < sizeof kinds; k++)
            for (int i = 0; i < params->n; i++) {
                CHECK_OK(world, dtx_test_gather(p->engine, i, kinds[k], out->values + at));
                at += elements(&params->item[i].row);
            }
    }
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, &out->n, sizeof out->n, 0));
    if (!p->engine)
        out->values = malloc((size_t)out->n * sizeof(double));
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, out->values, out->n * (int64_t)sizeof(double), 0));
}

static double element(const struct dtx_tensor *t, int64_t i)
{
    return t->dtype == DTX_F32 ? ((const float *)t->data)[i] : dtx_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Elements of a tensor (CPU memory) that are not what `whole` says; padding must be zero. The tensor is the range of
 * the local array from element `first` on. */
static int64_t differences(const struct dtx_mesh *mesh, const struct dtx_param *item, const struct dtx_tensor *t,
                           int64_t first, const double *whole)
{
    struct dtx_box boxes[DTX_MAX_BOXES];
    int64_t columns = item->row.ndim == 2 ? item->row.shape[1] : 1, different = 0, seen = 0;
    int64_t count = dtx_tensor_count(t);
    int n = dtx_shard_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                            mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], boxes);
    for (int b = 0; b < n; b++) {
        const struct dtx_box *box = &boxes[b];
        int64_t width = item->row.ndim == 2 ? box->extent[1] : 1;
        for (int64_t r = 0; r < box->extent[0]; r++)
            for (int64_t c = 0; c < width; c++) {
                int64_t from = (box->global[0] + r) * columns + (item->row.ndim == 2 ? box->global[1] : 0) + c;
                int64_t to = (box->local[0] + r) * item->local[1] + (item->row.ndim == 2 ? box->local[1] : 0) + c;
                double wanted =
                    t->dtype == DTX_BF16 ? dtx_bf16_to_f32(dtx_f32_to_bf16((float)whole[from])) : whole[from];
                if (to < first || to >= first + count)
                    continue;
                seen++;
                different += element(t, to - first) != wanted;
            }
    }
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; i++)
        zeros += element(t, i) == 0;
    return different + (zeros < count - seen); /* what no box covers is zero */
}

static void compare(struct dtx_comm *world, const struct place *p, const struct whole *whole, const char *title)
{
    if (!p->engine)
        return;
    struct dtx_params *params = dtx_engine_params(p->engine);
    const struct dtx_mesh *mesh = dtx_engine_mesh(p->engine);
    int64_t total = dtx_params_total(params), at = 0;
    for (int i = 0; i < params->n; i++) {
        const struct dtx_param *item = &params->item[i];
        if (item->held) {
            int64_t wrong = differences(mesh, item, &item->master, item->part_first, whole->values + at);
            wrong += differences(mesh, item, &item->weight, 0, whole->values + at);
            for (int k = 0; k < 2; k++)
                wrong +=
                    differences(mesh, item, &item->state[k], item->part_first, whole->values + (k + 1) * total + at);
            CHECK_THAT(world, wrong == 0, "%s, loaded on tp%d pp%d dp%d ZeRO %d: %s has %lld wrong numbers", title,
                       p->model.tp, p->model.pp, p->model.dp, p->model.zero, item->row.name, (long long)wrong);
        }
        at += elements(&item->row);
    }
}

static void load(struct dtx_comm *world, struct place *p, const char *path)
{
    if (p->engine)
        CHECK_OK(world, dtx_state_load(p->engine, path, NULL, false));
}

static void check_writer(struct dtx_comm *world, struct place *places, int a, const char *dir)
{
    struct place *writer = &places[a];
    struct whole saved, later, again;
    char path[512], title[64];
    struct dtx_ckpt_meta meta = {.step = a + 1, .isa = "plain", .program = "test", .config = "{}\n"};
    snprintf(title, sizeof title, "saved on tp%d pp%d dp%d ZeRO %d", writer->model.tp, writer->model.pp,
             writer->model.dp, writer->model.zero);
    snprintf(path, sizeof path, "%s/step-%08d", dir, a + 1);
    train(world, writer);
    if (writer->engine)
        CHECK_OK(world, dtx_state_save(writer->engine, dir, &meta, NULL));
    gather(world, writer, &saved);
    CHECK_OK(world, dtx_comm_barrier(world));
    train(world, writer);
    gather(world, writer, &later);
    for (int b = 0; b < MESHES; b++) {
        load(world, &places[b], path);
        compare(world, &places[b], &saved, title);
    }
    train(world, writer);
    gather(world, writer, &again);
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
