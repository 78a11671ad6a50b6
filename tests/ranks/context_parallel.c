/* test: label=ranks ranks=8 timeout=400 */
/*
 * Context parallelism, gathering and in a ring. In f64 and fp32 gradients of step 1 are those of one rank by the
 * constants of DESIGN.md 8, on every instruction set, with chunks shorter and longer than a tile, chunks of one token,
 * grouped queries, documents that end within chunks, several sequences at once; in bf16 they are as near to fp32's as
 * one rank's bf16 gradients are. Some steps in f64 beside the other axes. At equal cp the split into stages, schedules,
 * recomputation and ZeRO change no bit. Lengths that cannot be cut are refused and say what fits. (ranks.mesh_equality
 * trains 50 steps, ranks.plan_memory counts memory and bytes.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 3 };

/* For names and sizes of the rows. */
static void open_table(struct dtx_comm *world, struct dtx_test_model m, struct dtx_params *p)
{
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_model *model;
    struct dtx_env env;
    struct dtx_mesh mesh = {.size = {1, 1, 1, 1}};
    m.tp = m.pp = m.dp = m.cp = 1;
    dtx_test_config(&m, &config);
    CHECK_OK(world, dtx_backend_open(world->ctx, "cpu", 1, 0, &backend));
    CHECK_OK(world, backend->queues->create(backend, &queue));
    CHECK_OK(world, dtx_params_create(world->ctx, p));
    CHECK_OK(world, dtx_engine_declare(world->ctx, &config, &mesh, queue, p, &env, &model));
    dtx_model_free(model);
    backend->queues->free(queue);
    dtx_backend_close(backend);
}

static int64_t count_of(const struct dtx_param *item)
{
    return item->row.shape[0] * (item->row.ndim == 2 ? item->row.shape[1] : 1);
}

/* Each row by its dtype's constants. */
static void compare(struct dtx_comm *world, const struct dtx_test_model *m, const char *name, const double *got,
                    const double *one)
{
    struct dtx_params p;
    open_table(world, *m, &p);
    for (int64_t i = 0, at = 0; i < p.n; i++) {
        const char *row = p.item[i].row.name;
        int64_t n = count_of(&p.item[i]);
        double distance = dtx_test_relative(got + at, one + at, n);
        double bound = m->dtype == DTX_F64      ? DTX_MESH_F64_VALUE
                       : strstr(row, "lambda_") ? DTX_MESH_F32_LAMBDA
                                                : DTX_MESH_F32_GRAD;
        CHECK_THAT(world, distance <= bound, "%s of %s: %.3g, bound %.3g", name, row, distance, bound);
        at += n;
    }
    dtx_params_free(&p);
}

/* bf16 against fp32: no row farther than one rank's bf16 gradients by half. λ's cancel, so that one of them may be near
 * by chance: all of them together. */
static void compare_narrow(struct dtx_comm *world, const struct dtx_test_model *m, const char *name, const double *got,
                           const double *wide, const double *narrow)
{
    struct dtx_params p;
    double lambda[2] = {0, 0};
    open_table(world, *m, &p);
    for (int64_t i = 0, at = 0; i < p.n; i++) {
        const char *row = p.item[i].row.name;
        int64_t n = count_of(&p.item[i]);
        double distance = dtx_test_relative(got + at, wide + at, n);
        double usual = dtx_test_relative(narrow + at, wide + at, n);
        for (int64_t k = at; k < at + n && strstr(row, "lambda_"); k++) {
            lambda[0] += (got[k] - wide[k]) * (got[k] - wide[k]);
            lambda[1] += (narrow[k] - wide[k]) * (narrow[k] - wide[k]);
        }
        CHECK_THAT(world, strstr(row, "lambda_") || distance <= 1.5 * usual,
                   "%s: gradient of %s: %.3g from fp32, on one rank %.3g", name, row, distance, usual);
        at += n;
    }
    CHECK_THAT(world, sqrt(lambda[0]) <= 1.5 * sqrt(lambda[1]), "%s: gradients of λ: %.3g from fp32, on one rank %.3g",
               name, sqrt(lambda[0]), sqrt(lambda[1]));
    dtx_params_free(&p);
}

static void check_gradients(struct dtx_comm *world, struct dtx_comm *self, struct dtx_test_model m, int isa)
{
    static const struct {
        int cp, tp, dp;
        bool ring;
    } meshes[] = {{2, 1, 1, false}, {2, 1, 1, true}, {4, 1, 1, false}, {4, 1, 1, true}, {2, 2, 2, true},
                  {2, 2, 1, false}, {3, 1, 1, true}, {6, 1, 1, true},  {8, 1, 1, false}};
    double *one = NULL, *narrow = NULL;
    bool bf16 = m.dtype == DTX_BF16;
    if (world->rank == 0) {
        struct dtx_test_model wide = m;
        wide.dtype = bf16 ? DTX_F32 : m.dtype;
        one = dtx_test_gradients(self, &wide, isa, NULL);
        narrow = bf16 ? dtx_test_gradients(self, &m, isa, NULL) : NULL;
    }
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char name[128];
        m.cp = meshes[i].cp;
        m.tp = meshes[i].tp;
        m.dp = meshes[i].dp;
        m.ring = meshes[i].ring;
        if (m.length % (2 * m.cp))
            continue;
        snprintf(name, sizeof name, "%s %s %s length %lld × %lld cp%d tp%d dp%d %s", dtx_dtype_name(m.dtype),
                 dtx_isa_name(isa), m.attention, (long long)m.length, (long long)m.micro_batch, m.cp, m.tp, m.dp,
                 m.ring ? "ring" : "gather");
        double *got = dtx_test_gradients(world, &m, isa, NULL);
        if (world->rank == 0)
            bf16 ? compare_narrow(world, &m, name, got, one, narrow) : compare(world, &m, name, got, one);
        free(got);
    }
    free(one);
    free(narrow);
}

/* Bits against one stage of this cp that keeps everything and has no ZeRO. */
static void check_bits(struct dtx_comm *world, struct dtx_test_model m)
{
    static const struct {
        int pp, chunks, zero;
        const char *schedule, *recompute;
    } ways[] = {{1, 1, 1, "1f1b", "attention"},   {1, 1, 0, "1f1b", "block"},        {2, 1, 1, "gpipe", "none"},
                {2, 2, 0, "interleaved", "none"}, {2, 1, 1, "zb_h1", "attention:2"}, {4, 1, 0, "1f1b", "block:2"}};
    int64_t count = 0;
    double *one = dtx_test_numbers(world, &m, STEPS, &count);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        m.pp = ways[i].pp;
        m.split.chunks = ways[i].chunks;
        m.zero = ways[i].zero;
        m.schedule = ways[i].schedule;
        m.recompute = ways[i].recompute;
        m.bucket_bytes = 8192;
        double *other = dtx_test_numbers(world, &m, STEPS, &count);
        if (world->rank == 0)
            CHECK_THAT(world, dtx_test_different(one, other, count) == 0,
                       "%s cp%d %s pp%d %s, %d chunks, ZeRO %d, recompute %s: %lld of %lld differ",
                       dtx_dtype_name(m.dtype), m.cp, m.ring ? "ring" : "gather", m.pp, m.schedule, m.split.chunks,
                       m.zero, m.recompute, (long long)dtx_test_different(one, other, count), (long long)count);
        free(other);
    }
    free(one);
}

/* Several steps in f64 against one rank: losses, norms, weights; four context ranks, beside two of every other axis. */
static void check_steps(struct dtx_comm *world, struct dtx_comm *self, struct dtx_test_model m)
{
    static const struct {
        int cp, tp, pp, dp;
        bool ring;
    } meshes[] = {{4, 1, 1, 1, false}, {4, 1, 1, 1, true}, {4, 2, 1, 1, true},
                  {4, 1, 2, 1, false}, {4, 1, 1, 2, true}, {2, 2, 1, 2, false}};
    int64_t count = 0;
    double *one = world->rank == 0 ? dtx_test_numbers(self, &m, STEPS, &count) : NULL;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        m.cp = meshes[i].cp;
        m.tp = meshes[i].tp;
        m.pp = meshes[i].pp;
        m.dp = meshes[i].dp;
        m.ring = meshes[i].ring;
        m.zero = i % 2;
        double *other = dtx_test_numbers(world, &m, STEPS, &count);
        for (int s = 0; s < STEPS && world->rank == 0; s++) {
            CHECK_THAT(world, fabs(other[s] - one[s]) <= DTX_MESH_F64_LOSS * one[s], "cp%d tp%d pp%d dp%d: loss %g, %g",
                       m.cp, m.tp, m.pp, m.dp, other[s], one[s]);
            CHECK_THAT(world, fabs(other[STEPS + s] - one[STEPS + s]) <= DTX_MESH_F64_VALUE * one[STEPS + s],
                       "cp%d tp%d pp%d dp%d: norm %g, %g", m.cp, m.tp, m.pp, m.dp, other[STEPS + s], one[STEPS + s]);
        }
        if (world->rank == 0)
            compare(world, &m, "weights", other + 2 * STEPS, one + 2 * STEPS);
        free(other);
    }
    free(one);
}

static void refused(struct dtx_comm *world, const char *cp, const char *tp, const char *length, const char *text)
{
    struct dtx_opt *opt;
    struct dtx_engine_config config;
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    CHECK_OK(world, dtx_opt_create(world->ctx, tables, 1, &opt));
    dtx_opt_set(opt, "parallel.cp", cp, DTX_OPT_FLAG, "test");
    dtx_opt_set(opt, "parallel.tp", tp, DTX_OPT_FLAG, "test");
    dtx_opt_set(opt, "train.length", length, DTX_OPT_FLAG, "test");
    dtx_opt_set(opt, "train.micro_batch", "1", DTX_OPT_FLAG, "test");
    dtx_engine_config_read(opt, 0, &config);
    enum dtx_status status = dtx_opt_check(world->ctx, opt);
    CHECK_THAT(world, status == DTX_E_CONFIG && strstr(world->ctx->error.text, text), "%s", world->ctx->error.text);
    dtx_error_clear(world->ctx);
    dtx_opt_free(opt);
}

static void check_refused(struct dtx_comm *world)
{
    refused(world, "3", "1", "16",
            "parallel.cp 3 cuts a sequence in 6 equal chunks, but train.length is 16; what "
            "fits: train.length 12 or 18");
    refused(world, "8", "1", "10", "what fits: train.length 16");
    refused(world, "3", "4", "18",
            "train.length 18 × micro-batch 1 / parallel.cp = 6 rows are not a multiple of the 4 "
            "tensor ranks; what fits: train.length 24, or parallel.sequence false");
}

static int test(struct dtx_comm *world)
{
    struct dtx_ctx alone;
    struct dtx_comm *self;
    dtx_ctx_init(&alone);
    CHECK_OK(world, dtx_comm_self(&alone, &self));
    check_refused(world);
    struct dtx_test_model m = dtx_test_model_default(), grouped = m, softmax = m;
    grouped.gqa = grouped.documents = true;
    grouped.tied = false;
    softmax.attention = "softmax";
    softmax.documents = true;
    grouped.length = softmax.length = 304; /* chunks of 76, 38, 19 */
    grouped.layers = softmax.layers = 2;
    grouped.global_batch = softmax.global_batch = 4;
    grouped.micro_batch = 2;
    for (int d = 0; d < 3; d++) {
        static const int sets[] = {DTX_ISA_PLAIN, DTX_ISA_AVX2, DTX_ISA_AVX512, DTX_ISA_AVX512_BF16};
        m.dtype = grouped.dtype = softmax.dtype = d == 0 ? DTX_F64 : d == 1 ? DTX_F32 : DTX_BF16;
        check_gradients(world, self, m, dtx_isa_detect());
        for (int i = 0; i < 4; i++) {
            bool same_loops = d == 0 ? i > 0 : d == 1 && sets[i] == DTX_ISA_AVX512_BF16;
            if (sets[i] > dtx_isa_detect() || same_loops)
                continue;
            check_gradients(world, self, grouped, sets[i]);
            check_gradients(world, self, softmax, sets[i]);
        }
    }
    m = dtx_test_model_default();
    m.length = 24;
    m.documents = true;
    check_steps(world, self, m);
    m = dtx_test_model_default();
    m.dtype = DTX_F32;
    m.cp = 2;
    check_bits(world, m);
    m.dtype = DTX_BF16;
    m.ring = m.gqa = m.documents = true;
    m.tied = false;
    check_bits(world, m);
    dtx_comm_free(self);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
