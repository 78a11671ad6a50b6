/* test: label=ranks ranks=4 timeout=120 */
/*
 * Sequence parallelism. At equal tp, on and off have the same bits in step 1's loss and in every gradient but the
 * norms' gains, whose sum over rows is cut over the ranks; recomputation and pipeline splits change no bit with it; the
 * bytes sent by the tensor and pipeline axes for one micro-batch are those of parallel/README.md, and the memory of
 * activations is what dtx_model_bytes says. (ranks.mesh_equality compares it with one rank.)
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 4 };

struct run {
    struct dtx_comm *part;
    struct dtx_backend *backend;
    struct dtx_engine *engine;
};

/* An engine on the first tp·pp·dp ranks; false on the others. */
static bool open_run(struct dtx_comm *world, const struct dtx_test_model *m, struct run *run)
{
    struct dtx_engine_config config;
    bool member = world->rank < m->tp * m->pp * m->dp;
    memset(run, 0, sizeof *run);
    CHECK_OK(world, dtx_comm_split(world, member, world->rank, "part", &run->part));
    dtx_test_config(m, &config);
    if (member) {
        CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, dtx_isa_detect(), &run->backend));
        CHECK_OK(world, dtx_engine_create(world->ctx, &config, run->part, run->backend, &run->engine));
    }
    return member;
}

static void close_run(struct run *run)
{
    dtx_engine_free(run->engine);
    if (run->backend)
        dtx_backend_close(run->backend);
    dtx_comm_free(run->part);
}

static void check_on_off(struct dtx_comm *world, struct dtx_test_model m)
{
    double loss[2] = {0, 0};
    double *values[2];
    struct run run;
    for (int on = 0; on < 2; on++) {
        m.sequence = on;
        values[on] = dtx_test_gradients(world, &m, dtx_isa_detect(), &loss[on]);
    }
    CHECK_THAT(world, memcmp(&loss[0], &loss[1], sizeof loss[0]) == 0, "loss %.17g without, %.17g with", loss[0],
               loss[1]);
    if (open_run(world, &m, &run) && world->rank == 0) { /* for the table of weights */
        struct dtx_params *p = dtx_engine_params(run.engine);
        int64_t at = 0, changed = 0;
        for (int i = 0; i < p->n; i++) {
            const struct dtx_param_row *row = &p->item[i].row;
            int64_t n = row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
            int64_t different = dtx_test_different(values[0] + at, values[1] + at, n);
            bool gain = strstr(row->name, "norm.gain") != NULL;
            double distance = dtx_test_relative(values[1] + at, values[0] + at, n);
            CHECK_THAT(world, gain || different == 0, "%s %s: %lld of %lld differ", dtx_dtype_name(m.dtype), row->name,
                       (long long)different, (long long)n);
            CHECK_THAT(world, distance <= (m.dtype == DTX_F64 ? DTX_MESH_F64_VALUE : DTX_MESH_F32_GRAD), "%s: %g",
                       row->name, distance);
            changed += different;
            at += n;
        }
        printf("%s tp%d pp%d dp%d: %lld gain gradients differ in their last bits\n", dtx_dtype_name(m.dtype), m.tp,
               m.pp, m.dp, (long long)changed);
    }
    close_run(&run);
    free(values[0]);
    free(values[1]);
}

/* Pipeline splits and recomputation against one stage that keeps everything. */
static void check_bits(struct dtx_comm *world, struct dtx_test_model m)
{
    static const char *const choices[] = {"none", "attention", "block", "block:2"};
    int64_t count = 0;
    m.tp = 2;
    m.pp = 1;
    m.recompute = NULL;
    double *one = dtx_test_numbers(world, &m, STEPS, &count);
    for (int pp = 1; pp <= 2; pp++)
        for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
            m.pp = pp;
            m.recompute = choices[i];
            double *other = dtx_test_numbers(world, &m, STEPS, &count);
            if (world->rank == 0)
                CHECK_THAT(world, dtx_test_different(one, other, count) == 0, "%s tp2 pp%d %s: %lld of %lld differ",
                           dtx_dtype_name(m.dtype), pp, m.recompute, (long long)dtx_test_different(one, other, count),
                           (long long)count);
            free(other);
        }
    free(one);
}

/* What an all-reduce of n elements sends (parallel/README.md). */
static int64_t reduce_bytes(int64_t n, int64_t element, int ranks, int rank)
{
    if (n * element * ranks <= dtx_comm_options_default().small_bytes)
        return n * element * (ranks - 1);
    int64_t part = dtx_div_up(n, ranks), mine = dtx_min64(part, n - dtx_min64(n, rank * part));
    return (n - mine + mine * (ranks - 1)) * element;
}

/* What this rank sends for one micro-batch over tp and to its neighbours (parallel/README.md, "a training step"). */
static void stated_bytes(const struct dtx_test_model *m, const struct dtx_mesh *mesh, int64_t out[2])
{
    struct dtx_engine_config c;
    dtx_test_config(m, &c);
    int64_t act = (int64_t)dtx_dtype_bytes(m->dtype), master = (int64_t)dtx_dtype_bytes(dtx_dtype_master(m->dtype));
    int64_t rows = m->micro_batch * m->length, n = rows * c.model.width, blocks = m->layers / m->pp;
    int tp = m->tp, rank = mesh->rank[DTX_AXIS_TP];
    int64_t gather = m->sequence ? n / tp * (tp - 1) * act : 0;
    int64_t sum = m->sequence ? n / tp * (tp - 1) * master : reduce_bytes(n, master, tp, rank);
    bool attention = c.recompute.what != DTX_RECOMPUTE_NONE, block = c.recompute.what == DTX_RECOMPUTE_BLOCK;
    int64_t layer = gather + sum + 2 * gather + sum;
    int64_t again = attention * gather + block * (gather + sum);
    out[0] = blocks * (2 * layer + again);
    if (dtx_mesh_first_stage(mesh))
        out[0] += sum + gather;
    if (dtx_mesh_last_stage(mesh))
        out[0] += gather + sum + reduce_bytes(rows, master, tp, rank) + reduce_bytes(2 * rows, master, tp, rank);
    out[1] = (n * act / (m->sequence ? tp : 1)) * (!dtx_mesh_first_stage(mesh) + !dtx_mesh_last_stage(mesh));
}

/* Sent over tp and to the neighbours during step 1. */
static void sent_bytes(struct dtx_comm *world, const struct dtx_test_model *m, int64_t out[2], int64_t stated[2])
{
    struct run run;
    if (open_run(world, m, &run)) {
        const struct dtx_mesh *mesh = dtx_engine_mesh(run.engine);
        int64_t before = mesh->axis[DTX_AXIS_TP]->sent_bytes;
        CHECK_OK(world, dtx_test_train(run.engine, m, 1, 1e-3, NULL, NULL));
        out[0] = mesh->axis[DTX_AXIS_TP]->sent_bytes - before;
        out[1] = (mesh->forward_out ? mesh->forward_out->sent_bytes : 0) +
                 (mesh->backward_out ? mesh->backward_out->sent_bytes : 0);
        stated_bytes(m, mesh, stated);
    }
    close_run(&run);
}

/* A step of 8 micro-batches less one of 4: what does not grow with micro-batches drops out. */
static void check_sent(struct dtx_comm *world, struct dtx_test_model m)
{
    static const char *const axis[] = {"tensor", "pipeline"};
    int64_t few[2] = {0, 0}, many[2] = {0, 0}, stated[2] = {0, 0};
    m.global_batch = 4;
    sent_bytes(world, &m, few, stated);
    m.global_batch = 8;
    sent_bytes(world, &m, many, stated);
    for (int i = 0; i < 2; i++)
        CHECK_THAT(world, many[i] - few[i] == 4 * stated[i],
                   "%s tp%d pp%d sequence %d recompute %s, %s axis: %lld bytes for 4 micro-batches, stated %lld",
                   dtx_dtype_name(m.dtype), m.tp, m.pp, m.sequence, m.recompute ? m.recompute : "none", axis[i],
                   (long long)(many[i] - few[i]), (long long)(4 * stated[i]));
}

/* Rows that cannot be cut are refused, and say what fits. */
static void check_refused(struct dtx_comm *world)
{
    struct dtx_opt *opt;
    struct dtx_engine_config config;
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    static const char *const keys[][2] = {{"parallel.tp", "4"}, {"train.length", "27"}, {"train.micro_batch", "2"}};
    CHECK_OK(world, dtx_opt_create(world->ctx, tables, 1, &opt));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        dtx_opt_set(opt, keys[i][0], keys[i][1], DTX_OPT_FLAG, "test");
    dtx_engine_config_read(opt, 0, &config);
    CHECK(world, dtx_opt_check(world->ctx, opt) == DTX_E_CONFIG);
    CHECK(world, strstr(world->ctx->error.text, "train.length 28, or parallel.sequence false") != NULL);
    dtx_error_clear(world->ctx);
    dtx_opt_free(opt);
}

static int test(struct dtx_comm *world)
{
    static const int meshes[][3] = {{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}};
    check_refused(world);
    struct dtx_test_model m = dtx_test_model_default();
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            m.dtype = d == 0 ? DTX_F64 : d == 1 ? DTX_F32 : DTX_BF16;
            m.tp = meshes[i][0];
            m.pp = meshes[i][1];
            m.dp = meshes[i][2];
            check_on_off(world, m);
        }
    m = dtx_test_model_default();
    m.dtype = DTX_F32;
    check_bits(world, m);
    m.dtype = DTX_BF16;
    m.tied = false;
    m.gqa = m.documents = true;
    check_bits(world, m);
    m = dtx_test_model_default();
    for (int i = 0; i < 12; i++) {
        m.dtype = i % 2 ? DTX_BF16 : DTX_F32;
        m.length = i % 2 ? 12 : 64; /* small sums and large ones */
        m.sequence = i >= 6;
        m.recompute = i % 3 == 0 ? "none" : i % 3 == 1 ? "attention" : "block";
        m.tp = 2;
        m.pp = 2;
        check_sent(world, m);
        m.tp = 4;
        m.pp = 1;
        check_sent(world, m);
    }
    return 0;
}

int main(void)
{
    return rank_main(test);
}
