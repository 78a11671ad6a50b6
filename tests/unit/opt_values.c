/* test: label=unit timeout=60 */
/* Options: types, ranges, faults with their source, precedence, comparison on resume, help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/base/mem.h"
#include "kernels/base/opt.h"

static const struct dtx_opt_row model_rows[] = {
    {"model.layers", DTX_OPT_INT, "12", "1..1000", DTX_OPT_FIXED, "blocks"},
    {"model.norm_eps", DTX_OPT_REAL, "1e-5", "0..1", DTX_OPT_FIXED, "epsilon of RMSNorm"},
    {"model.tied", DTX_OPT_BOOL, "true", NULL, DTX_OPT_FIXED, "one matrix for embedding and head"},
    {"model.attention", DTX_OPT_CHOICE, "diff", "diff|softmax", DTX_OPT_FIXED, "variant of attention"},
    {NULL}};
static const struct dtx_opt_row run_rows[] = {
    {"parallel.tp", DTX_OPT_INT, "1", "1..", DTX_OPT_FREE, "tensor ranks"},
    {"run.dir", DTX_OPT_TEXT, "run", NULL, DTX_OPT_FREE, "folder of the run"},
    {"lr.peak", DTX_OPT_REAL, "3e-4", "0..", DTX_OPT_FREE, "highest learning rate"},
    {"log.shift", DTX_OPT_INT, "0", NULL, DTX_OPT_FREE, "any number"},
    {"device", DTX_OPT_CHOICE, "auto", "auto|cpu|cuda", DTX_OPT_FREE, "where to compute"},
    {NULL}};

struct fixture {
    struct dtx_ctx ctx;
    struct dtx_opt *opt;
};

static int set_up(void **state)
{
    static const struct dtx_opt_row *const tables[] = {model_rows, run_rows};
    struct fixture *f = calloc(1, sizeof *f);
    dtx_ctx_init(&f->ctx);
    *state = f;
    return dtx_opt_create(&f->ctx, tables, 2, &f->opt) != DTX_OK;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    dtx_opt_free(f->opt);
    free(f);
    return 0;
}

static void set(struct fixture *f, const char *key, const char *value)
{
    dtx_opt_set(f->opt, key, value, DTX_OPT_FLAG, "flag");
}

/* The check must fail with exactly this text. */
static void expect_fault(struct fixture *f, const char *text)
{
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_string_equal(f->ctx.error.text, text);
}

static void defaults(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 12);
    assert_true(dtx_opt_real(f->opt, "model.norm_eps") == 1e-5);
    assert_true(dtx_opt_bool(f->opt, "model.tied"));
    assert_string_equal(dtx_opt_text(f->opt, "model.attention"), "diff");
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "run");
    assert_false(dtx_opt_is_set(f->opt, "run.dir"));
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
}

static void integers(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-7", -7},
                {"+7", 7},
                {"1_000_000", 1000000},
                {"4M", 4000000},
                {"2K", 2000},
                {"-3G", -3000000000},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        set(f, "log.shift", good[i].text);
        assert_int_equal(dtx_opt_int(f->opt, "log.shift"), good[i].value);
    }
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "1e6",
                                      "0x10",
                                      "4m",
                                      "4MM",
                                      "M",
                                      "_1",
                                      "1_",
                                      "1__0",
                                      "--1",
                                      "9223372036854775808",
                                      "9223372036854775807K",
                                      "-9223372036854775809"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set(f, "log.shift", bad[i]);
        assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
        assert_int_equal(dtx_opt_int(f->opt, "log.shift"), INT64_MIN); /* the last good one */
        dtx_error_clear(&f->ctx);
    }
    /* One fault for each of them. */
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_non_null(
        strstr(f->ctx.error.text, "16 faults in the configuration:\n  flag: log.shift = '' must be a whole number"));
}

static void reals(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {"", "nan", "inf", "-inf", "1e400", " 1", "1 ", "1,5", "abc", "-1e-9"};
    set(f, "lr.peak", "1e-3");
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        set(f, "lr.peak", bad[i]);
    assert_true(dtx_opt_real(f->opt, "lr.peak") == 1e-3);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_non_null(strstr(f->ctx.error.text, "10 faults"));
}

static void range_low(void **state)
{
    set(*state, "parallel.tp", "0");
    expect_fault(*state, "flag: parallel.tp = '0' must be at least 1");
}

static void range_both(void **state)
{
    set(*state, "model.layers", "1000");
    set(*state, "model.layers", "1");
    set(*state, "model.layers", "1001");
    expect_fault(*state, "flag: model.layers = '1001' must be at least 1 and at most 1000");
}

static void range_real(void **state)
{
    set(*state, "model.norm_eps", "0");
    set(*state, "model.norm_eps", "1");
    set(*state, "model.norm_eps", "1.0000001");
    expect_fault(*state, "flag: model.norm_eps = '1.0000001' must be at least 0 and at most 1");
}

static void choice(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {"", "dif", "diffs", "diff|softmax", "|", "Diff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        set(f, "model.attention", bad[i]);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_non_null(strstr(f->ctx.error.text, "6 faults"));
    assert_non_null(strstr(f->ctx.error.text, "model.attention = 'Diff' must be one of diff|softmax"));
}

static void nearest_key(void **state)
{
    set(*state, "paralel.tp", "2");
    expect_fault(*state, "flag: there is no option 'paralel.tp'; did you mean 'parallel.tp'?");
}

static void forgotten_group(void **state)
{
    set(*state, "layers", "2");
    expect_fault(*state, "flag: there is no option 'layers'; did you mean 'model.layers'?");
}

static void far_key(void **state)
{
    set(*state, "zebra", "2");
    expect_fault(*state, "flag: there is no option 'zebra'");
}

static void all_faults_together(void **state)
{
    struct fixture *f = *state;
    char *environment[] = {"DTX_PARALLEL_TP=zero", NULL};
    char *argv[] = {"--model.layers", "0", "--lr.peek=1"};
    int n;
    assert_int_equal(
        dtx_opt_load_text(&f->ctx, f->opt, "model:\n  norm_eps: big\nrun.dir: [a]\n", "run.yaml", DTX_OPT_FILE),
        DTX_OK);
    assert_int_equal(dtx_opt_load_env(&f->ctx, f->opt, environment), DTX_OK);
    assert_int_equal(dtx_opt_load_args(&f->ctx, f->opt, 3, argv, NULL, 0, &n), DTX_OK);
    dtx_opt_fault(f->opt, "model.heads = %d is not divisible by parallel.tp = %d", 3, 2);
    expect_fault(f,
                 "6 faults in the configuration:\n"
                 "  run.yaml:2: model.norm_eps = 'big' must be a finite number\n"
                 "  run.yaml:3: run.dir must be one value, not a list\n"
                 "  variable DTX_PARALLEL_TP: parallel.tp = 'zero' must be a whole number of at most 64 bits (as 4096, "
                 "1_000_000 or 4M)\n"
                 "  flag --model.layers: model.layers = '0' must be at least 1 and at most 1000\n"
                 "  flag --lr.peek: there is no option 'lr.peek'; did you mean 'lr.peak'?\n"
                 "  model.heads = 3 is not divisible by parallel.tp = 2");
}

/* More faults than the report holds: the rest is counted. */
static void too_many_faults(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 500; i++)
        dtx_opt_fault(f->opt, "fault number %d of very many", i);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    const char *last = strrchr(f->ctx.error.text, '\n'), *more;
    assert_non_null(last);
    assert_non_null(more = strstr(last, "… and "));
    int shown = 0;
    for (const char *p = f->ctx.error.text; (p = strstr(p, "fault number")); p++)
        shown++;
    assert_int_equal(atoi(more + strlen("… and ")) + shown, 500);
}

static void precedence(void **state)
{
    struct fixture *f = *state;
    static const char *const values[] = {"11", "22", "33", "44"};
    static const enum dtx_opt_source sources[] = {DTX_OPT_PRESET, DTX_OPT_FILE, DTX_OPT_VARIABLE, DTX_OPT_FLAG};
    /* In whatever order they are read. */
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
    for (int top = 0; top < 4; top++)
        for (size_t o = 0; o < 3; o++) {
            struct fixture *g;
            assert_int_equal(set_up((void **)&g), 0);
            for (int i = 0; i < 4; i++)
                if (orders[o][i] <= top)
                    dtx_opt_set(g->opt, "model.layers", values[orders[o][i]], sources[orders[o][i]], "x");
            assert_int_equal(dtx_opt_int(g->opt, "model.layers"), atoi(values[top]));
            assert_true(dtx_opt_is_set(g->opt, "model.layers"));
            tear_down((void **)&g);
        }
    set(f, "model.layers", "5");
    set(f, "model.layers", "6"); /* the later of two flags */
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 6);
}

static void fixed_options(void **state)
{
    struct fixture *f = *state, *stored;
    assert_int_equal(set_up((void **)&stored), 0);
    set(stored, "model.layers", "24");
    set(stored, "model.norm_eps", "1e-06");
    set(stored, "parallel.tp", "8"); /* free */
    set(f, "model.norm_eps", "0.000001");
    dtx_opt_compare_fixed(f->opt, stored->opt, "", "step 100");
    expect_fault(f, "default: model.layers = '12', but step 100 was made with '24', and this option must match");
    tear_down((void **)&stored);
}

static void help(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    dtx_opt_help(f->opt, file);
    fclose(file);
    for (const struct dtx_opt_row *row = model_rows; row->key; row++)
        assert_non_null(strstr(text, row->key));
    assert_non_null(strstr(text, "\nmodel\n  * --model.layers N"));
    assert_non_null(strstr(text, "\nparallel\n    --parallel.tp N"));
    assert_non_null(strstr(text, "\ngeneral\n    --device NAME"));
    assert_non_null(strstr(text, "blocks [1..1000; default 12]\n"));
    free(text);
}

static void wrong_tables(void **state)
{
    struct fixture *f = *state;
    static const struct dtx_opt_row twice[] = {
        {"a.b", DTX_OPT_INT, "1", NULL, 0, ""}, {"a.b", DTX_OPT_INT, "1", NULL, 0, ""}, {NULL}};
    static const struct dtx_opt_row outside[] = {{"a.b", DTX_OPT_INT, "1", "2..", 0, ""}, {NULL}};
    static const struct dtx_opt_row deep[] = {{"a.b.c", DTX_OPT_INT, "1", NULL, 0, ""}, {NULL}};
    const struct dtx_opt_row *const tables[] = {twice, outside, deep};
    for (int i = 0; i < 3; i++) {
        struct dtx_opt *opt = NULL;
        assert_int_equal(dtx_opt_create(&f->ctx, tables + i, 1, &opt), DTX_E_INTERNAL);
        assert_null(opt);
        dtx_error_clear(&f->ctx);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(defaults),
        TEST(integers),
        TEST(reals),
        TEST(range_low),
        TEST(range_both),
        TEST(range_real),
        TEST(choice),
        TEST(nearest_key),
        TEST(forgotten_group),
        TEST(far_key),
        TEST(precedence),
        TEST(fixed_options),
        TEST(all_faults_together),
        TEST(too_many_faults),
        TEST(help),
        TEST(wrong_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
