/* test: label=unit timeout=60 */
/*
 * The factors of μP and CompleteP: those of every row of whole models, against the papers' tables written out here; 1
 * exactly with rule none, and a run at the base shape has the bits of a run without a rule. Options: what is missing
 * is named.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/engine.h"

/* n: width, l: depth, d: head, each over the base model's. What dtx does without a rule: std 0.02, of a branch's end
 * 0.02/√(2L), of λ 0.1. */
struct expected {
    double std, lr, decay, eps;
};

static bool ends(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n >= m && strcmp(name + n - m, tail) == 0;
}

static struct expected expect(const char *name, double n, double l, double d)
{
    const double layers = 4;
    if (strstr(name, "lambda_"))
        return (struct expected){0.1, 1 / d, 1, 1 / l};
    if (ends(name, "subnorm"))
        return (struct expected){0, 1, 1, 1 / (d * l)};
    if (strcmp(name, "final_norm.gain") == 0)
        return (struct expected){0, 1, 1, 1 / n};
    if (ends(name, "norm.gain"))
        return (struct expected){0, 1, 1, 1 / (n * l)};
    if (strcmp(name, "embed.tokens") == 0 || strcmp(name, "head.out") == 0)
        return (struct expected){0.02, 1, 1, 1 / n};
    if (ends(name, ".out") || ends(name, ".down")) /* as wide a spread as in the base model of L/l layers, over √n */
        return (struct expected){0.02 / sqrt(2 * layers / l) / sqrt(n), 1 / n, n, 1 / (n * l)};
    return (struct expected){0.02 / sqrt(n), 1 / n, n, 1 / (n * l)};
}

static void check_value(const char *row, const char *what, double got, double wanted)
{
    if (fabs(got - wanted) > 1e-14 * fabs(wanted))
        fail_msg("%s: %s is %.17g, expected %.17g", row, what, got, wanted);
}

static void check_rows(const char *attention, bool tied, struct dtx_transfer transfer, double n, double l, double d)
{
    struct dtx_test_model m = dtx_test_model_default();
    struct dtx_test_engine one;
    m.attention = attention;
    m.tied = tied;
    m.transfer = transfer;
    dtx_test_engine_open_model(&one, &m);
    struct dtx_params *p = dtx_engine_params(one.engine);
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param_row *row = &p->item[i].row;
        struct expected e = expect(row->name, n, l, d);
        check_value(row->name, "std", row->std, e.std);
        check_value(row->name, "lr_mult", row->lr_mult, e.lr);
        check_value(row->name, "decay_mult", row->decay_mult, e.decay);
        check_value(row->name, "eps_mult", row->eps_mult, e.eps);
        assert_int_equal(row->decay, row->ndim == 2);
    }
    assert_int_equal(p->n, 1 + 4 * (strcmp(attention, "diff") == 0 ? 14 : 9) + (tied ? 1 : 2));
    dtx_test_engine_close(&one);
}

static void test_rows(void **state)
{
    (void)state;
    struct dtx_transfer none = {.width = 8, .depth = 4, .head_dim = 2}, mup = none, completep = none;
    mup.rule = DTX_TRANSFER_MUP;
    completep.rule = DTX_TRANSFER_COMPLETEP;
    check_rows("diff", true, (struct dtx_transfer){0}, 1, 1, 1);
    check_rows("diff", true, none, 1, 1, 1);
    check_rows("diff", true, mup, 8, 1, 2);
    check_rows("diff", true, completep, 8, 4, 2);
    check_rows("diff", false, completep, 8, 4, 2);
    check_rows("softmax", false, mup, 8, 1, 2);
}

static void test_scales(void **state)
{
    (void)state;
    struct dtx_transfer zero = {0}, t = {DTX_TRANSFER_NONE, 8, 4, 16, 0.5, 3};
    assert_true(dtx_transfer_embed(&zero) == 1 && dtx_transfer_branch(&zero) == 1);
    assert_true(dtx_transfer_scores(&zero) == 1 && dtx_transfer_output(&zero) == 1);
    assert_true(dtx_transfer_embed(&t) == 0.5 && dtx_transfer_branch(&t) == 1);
    assert_true(dtx_transfer_scores(&t) == 1 && dtx_transfer_output(&t) == 3);
    t.rule = DTX_TRANSFER_MUP;
    assert_true(dtx_transfer_embed(&t) == 0.5 && dtx_transfer_branch(&t) == 1);
    assert_true(dtx_transfer_scores(&t) == 0.25 && dtx_transfer_output(&t) == 3.0 / 8);
    t.rule = DTX_TRANSFER_COMPLETEP;
    assert_true(dtx_transfer_embed(&t) == 0.5 && dtx_transfer_branch(&t) == 0.25);
    assert_true(dtx_transfer_scores(&t) == 0.25 && dtx_transfer_output(&t) == 3.0 / 8);
}

/* Losses, norms and weights of four steps. */
static double *run(enum dtx_transfer_rule rule, enum dtx_dtype dtype, int64_t *count)
{
    struct dtx_test_model m = dtx_test_model_default();
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    m.dtype = dtype;
    m.transfer = (struct dtx_transfer){rule, 1, 1, 1, 1, 1};
    if (rule == DTX_TRANSFER_NONE)
        m.transfer = (struct dtx_transfer){0};
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_comm_self(&ctx, &self), DTX_OK);
    double *numbers = dtx_test_numbers(self, &m, 4, count);
    dtx_comm_free(self);
    return numbers;
}

static void test_base_shape_bitwise(void **state)
{
    (void)state;
    const enum dtx_dtype dtypes[] = {DTX_F64, DTX_F32, DTX_BF16};
    for (int i = 0; i < 3; i++) {
        int64_t count, same;
        double *none = run(DTX_TRANSFER_NONE, dtypes[i], &count);
        for (int rule = DTX_TRANSFER_MUP; rule <= DTX_TRANSFER_COMPLETEP; rule++) {
            double *got = run(rule, dtypes[i], &same);
            assert_int_equal(same, count);
            assert_int_equal(dtx_test_different(got, none, count), 0);
            free(got);
        }
        free(none);
    }
}

static struct dtx_transfer read(const char *yaml, char fault[DTX_ERROR_TEXT])
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct dtx_engine_config config;
    struct dtx_ctx ctx;
    struct dtx_opt *opt;
    dtx_ctx_init(&ctx);
    fault[0] = '\0';
    assert_int_equal(dtx_opt_create(&ctx, tables, 1, &opt), DTX_OK);
    assert_int_equal(dtx_opt_load_text(&ctx, opt, yaml, "test", DTX_OPT_FILE), DTX_OK);
    dtx_engine_config_read(opt, 1, &config);
    if (dtx_opt_check(&ctx, opt) != DTX_OK)
        snprintf(fault, DTX_ERROR_TEXT, "%s", ctx.error.text);
    dtx_opt_free(opt);
    return config.model.transfer;
}

static void test_options(void **state)
{
    (void)state;
    char fault[DTX_ERROR_TEXT];
    struct dtx_transfer t = read("model: {width: 256, layers: 6, heads: 4}", fault);
    assert_string_equal(fault, "");
    assert_true(t.rule == DTX_TRANSFER_NONE && dtx_transfer_output(&t) == 1 && dtx_transfer_embed(&t) == 1);
    t = read("model: {width: 256, layers: 6, heads: 4, transfer: completep, base_width: 64, base_layers: 2}", fault);
    assert_string_equal(fault, "");
    assert_true(t.width == 4 && t.depth == 3 && t.head_dim == 1);
    t = read("model: {width: 256, heads: 4, transfer: mup, base_width: 64, base_head_dim: 8, output_mult: 2}", fault);
    assert_string_equal(fault, "");
    assert_true(t.width == 4 && t.head_dim == 4 && dtx_transfer_output(&t) == 0.5);
    read("model: {width: 256, transfer: mup}", fault);
    assert_non_null(strstr(fault, "model.transfer mup needs model.base_width"));
    read("model: {width: 256, transfer: completep, base_width: 64}", fault);
    assert_non_null(strstr(fault, "model.transfer completep needs model.base_layers"));
    read("model: {width: 256, transfer: muP}", fault);
    assert_non_null(strstr(fault, "model.transfer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_scales),
                                       cmocka_unit_test(test_base_shape_bitwise), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
