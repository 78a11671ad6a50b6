/* test: label=unit timeout=60 */
/* Options: YAML (good, broken, doubled keys), variables, flags, and a dump that loads back to the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/base/mem.h"
#include "kernels/base/opt.h"
#include "kernels/base/rng.h"

static const struct dtx_opt_row rows[] = {{"model.layers", DTX_OPT_INT, "12", "1..", DTX_OPT_FIXED, "blocks"},
                                          {"model.tied", DTX_OPT_BOOL, "true", NULL, DTX_OPT_FIXED, "one matrix"},
                                          {"lr.peak", DTX_OPT_REAL, "3e-4", NULL, DTX_OPT_FREE, "learning rate"},
                                          {"lr.warmup", DTX_OPT_INT, "0", NULL, DTX_OPT_FREE, "steps"},
                                          {"run.dir", DTX_OPT_TEXT, "run", NULL, DTX_OPT_FREE, "folder"},
                                          {"run.verbose", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "more"},
                                          {"device", DTX_OPT_CHOICE, "auto", "auto|cpu", DTX_OPT_FREE, "where"},
                                          {NULL}};

struct fixture {
    struct dtx_ctx ctx;
    struct dtx_opt *opt;
};

static int set_up(void **state)
{
    static const struct dtx_opt_row *const tables[] = {rows};
    struct fixture *f = calloc(1, sizeof *f);
    dtx_ctx_init(&f->ctx);
    *state = f;
    return dtx_opt_create(&f->ctx, tables, 1, &f->opt) != DTX_OK;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    dtx_opt_free(f->opt);
    free(f);
    return 0;
}

static enum dtx_status load(struct fixture *f, const char *text)
{
    return dtx_opt_load_text(&f->ctx, f->opt, text, "t.yaml", DTX_OPT_FILE);
}

static void expect_fault(struct fixture *f, const char *text)
{
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_string_equal(f->ctx.error.text, text);
}

static void yaml_good(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(load(f, "# a run\nmodel:\n  layers: 4   # few\n  tied: no\nlr.peak: 1.5e-4\nlr:\n  warmup: 2K\n"
                             "run:\nrun.dir: 'a b: c'\ndevice: \"cpu\"\n"),
                     DTX_OK);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 4);
    assert_false(dtx_opt_bool(f->opt, "model.tied"));
    assert_true(dtx_opt_real(f->opt, "lr.peak") == 1.5e-4);
    assert_int_equal(dtx_opt_int(f->opt, "lr.warmup"), 2000);
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "a b: c");
    assert_string_equal(dtx_opt_text(f->opt, "device"), "cpu");
}

static void yaml_empty(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(load(f, ""), DTX_OK);
    assert_int_equal(load(f, "# nothing\n"), DTX_OK);
    assert_int_equal(load(f, "---\n{}\n"), DTX_OK);
    assert_int_equal(load(f, "run.dir:\n"), DTX_OK);
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "");
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
}

static void yaml_broken(void **state)
{
    struct fixture *f = *state;
    static const char *const broken[] = {"model: {layers: 4\n",
                                         "model:\n  layers: 4\n bad\n",
                                         "a: b: c\n",
                                         "\tmodel: 1\n",
                                         "- a\n- b\n",
                                         "just text\n",
                                         "device: cpu\n---\na: 1\n",
                                         "device: *nobody\n",
                                         "device: \"cpu\n",
                                         "device: \xff\xfe\n",
                                         "%YAML 9.9\n---\na: 1\n",
                                         "device: cpu\n...\n}\n"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(load(f, broken[i]), DTX_E_CONFIG);
        assert_int_equal(strncmp(f->ctx.error.text, "t.yaml:", 7), 0);
        assert_true(atoi(f->ctx.error.text + 7) >= 1);
        dtx_error_clear(&f->ctx);
    }
}

static void yaml_line_of_the_break(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(load(f, "model:\n  layers: 4\n\nlr: [1,\n"), DTX_E_CONFIG);
    assert_int_equal(atoi(f->ctx.error.text + 7), 5);
}

static void yaml_twice(void **state)
{
    assert_int_equal(load(*state, "model.layers: 4\nmodel:\n  layers: 5\n"), DTX_OK);
    expect_fault(*state, "t.yaml:3: model.layers was already given in line 1");
}

static void yaml_faults(void **state)
{
    assert_int_equal(
        load(*state, "modle:\n  layers: 4\nmodel:\n  layers: {a: 1}\n  tied: maybe\n? [a]\n: 1\nmodel.layers.x: 1\n"
                     "device: \"a\\0b\"\nlr:\n  peak:\nrun: 5\n"),
        DTX_OK);
    expect_fault(*state, "8 faults in the configuration:\n"
                         "  t.yaml:2: there is no option 'modle.layers'; did you mean 'model.layers'?\n"
                         "  t.yaml:4: model.layers must be one value, not a map\n"
                         "  t.yaml:5: model.tied = 'maybe' must be true or false\n"
                         "  t.yaml:6: this key is no name of an option\n"
                         "  t.yaml:8: there is no option 'model.layers.x'; did you mean 'model.layers'?\n"
                         "  t.yaml:9: device must be one value, not a text with NUL bytes\n"
                         "  t.yaml:11: lr.peak = '' must be a finite number\n"
                         "  t.yaml:12: there is no option 'run'");
}

static void files(void **state)
{
    struct fixture *f = *state;
    char path[] = "/tmp/dtx_opt_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "model:\n  layers: 7\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(dtx_opt_load_file(&f->ctx, f->opt, path, DTX_OPT_FILE), DTX_OK);
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 7);
    unlink(path);
    assert_int_equal(dtx_opt_load_file(&f->ctx, f->opt, path, DTX_OPT_FILE), DTX_E_CONFIG);
    assert_non_null(strstr(f->ctx.error.text, path));
    assert_non_null(strstr(f->ctx.error.text, "No such file"));
    dtx_error_clear(&f->ctx);
    assert_int_equal(dtx_opt_load_file(&f->ctx, f->opt, "/tmp", DTX_OPT_FILE), DTX_E_CONFIG); /* a folder */
}

static void variables(void **state)
{
    struct fixture *f = *state;
    /* Those of the tests and of the planted faults are nobody's options. */
    char *environment[] = {"PATH=/bin",         "DTX=/x/dtx",      "DTX_SOURCE=/x",
                           "DTX_BUILD=/x",      "DTX_MUTANT=name", "DTX_MODEL_LAYERS=3",
                           "DTX_DEVICE=cpu",    "DTX_RUN_DIR=a=b", "DTX_",
                           "DTX_OTHER_THING=1", "LR_PEAK=7",       NULL};
    assert_int_equal(dtx_opt_load_env(&f->ctx, f->opt, environment), DTX_OK);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 3);
    assert_string_equal(dtx_opt_text(f->opt, "device"), "cpu");
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "a=b");
    assert_true(dtx_opt_real(f->opt, "lr.peak") == 3e-4);
}

static void unknown_variables(void **state)
{
    struct fixture *f = *state;
    char *environment[] = {"DTX_MODEL_LAYER=3", "DTX_MODEL_QUITE_ANOTHER=1", "DTX_MODLE_LAYERS=4", "DTX_LR_PEAK=x",
                           NULL};
    assert_int_equal(dtx_opt_load_env(&f->ctx, f->opt, environment), DTX_OK);
    expect_fault(f, "4 faults in the configuration:\n"
                    "  variable DTX_MODEL_LAYER: there is no such option; did you mean DTX_MODEL_LAYERS?\n"
                    "  variable DTX_MODEL_QUITE_ANOTHER: there is no such option\n"
                    "  variable DTX_MODLE_LAYERS: there is no such option; did you mean DTX_MODEL_LAYERS?\n"
                    "  variable DTX_LR_PEAK: lr.peak = 'x' must be a finite number");
}

static void flags(void **state)
{
    struct fixture *f = *state;
    char *argv[] = {"one",
                    "--model.layers",
                    "5",
                    "--lr.peak=-2e-3",
                    "--run.verbose",
                    "two.yaml",
                    "--model.tied",
                    "false",
                    "--lr.warmup",
                    "-3",
                    "-",
                    "-4",
                    "--",
                    "--three"};
    const char *words[5];
    int n = 0;
    assert_int_equal(dtx_opt_load_args(&f->ctx, f->opt, 14, argv, words, 5, &n), DTX_OK);
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
    assert_int_equal(n, 5);
    static const char *const expected[] = {"one", "two.yaml", "-", "-4", "--three"};
    for (int i = 0; i < 5; i++)
        assert_string_equal(words[i], expected[i]);
    assert_int_equal(dtx_opt_int(f->opt, "model.layers"), 5);
    assert_true(dtx_opt_real(f->opt, "lr.peak") == -2e-3);
    assert_true(dtx_opt_bool(f->opt, "run.verbose"));
    assert_false(dtx_opt_bool(f->opt, "model.tied"));
    assert_int_equal(dtx_opt_int(f->opt, "lr.warmup"), -3);
}

static void wrong_flags(void **state)
{
    struct fixture *f = *state;
    char *argv[] = {
        "word", "--model.layer", "5", "-v", "--lr.peak", "--run.dir=", "extra", "--run.verbose", "maybe", "--device"};
    const char *words[1];
    int n = 0;
    assert_int_equal(dtx_opt_load_args(&f->ctx, f->opt, 10, argv, words, 1, &n), DTX_OK);
    assert_int_equal(n, 1);
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "");
    expect_fault(f, "6 faults in the configuration:\n"
                    "  flag --model.layer: there is no option 'model.layer'; did you mean 'model.layers'?\n"
                    "  flag -v: flags begin with two dashes\n"
                    "  flag --lr.peak: a value must follow\n"
                    "  'extra' is one word too many on the command line\n"
                    "  flag --run.verbose: run.verbose = 'maybe' must be true or false\n"
                    "  flag --device: a value must follow");
}

/* dump → load gives the same text and the same bits. */
static void expect_round_trip(struct fixture *f)
{
    struct fixture *g;
    assert_int_equal(set_up((void **)&g), 0);
    char *text = NULL, *again = NULL;
    assert_int_equal(dtx_opt_dump(&f->ctx, f->opt, &text), DTX_OK);
    assert_int_equal(load(g, text), DTX_OK);
    assert_int_equal(dtx_opt_check(&g->ctx, g->opt), DTX_OK);
    double a = dtx_opt_real(f->opt, "lr.peak"), b = dtx_opt_real(g->opt, "lr.peak");
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(dtx_opt_int(f->opt, "lr.warmup"), dtx_opt_int(g->opt, "lr.warmup"));
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), dtx_opt_text(g->opt, "run.dir"));
    assert_int_equal(dtx_opt_dump(&g->ctx, g->opt, &again), DTX_OK);
    assert_string_equal(text, again);
    dtx_mem_free(text);
    dtx_mem_free(again);
    tear_down((void **)&g);
}

static void round_trip_numbers(void **state)
{
    struct fixture *f = *state;
    static const double special[] = {0.0, -0.0, 0.1, 1e-5, 4.9e-324, 1.7976931348623157e308, 2.2250738585072014e-308,
                                     1e22};
    for (int i = 0; i < 2000; i++) {
        uint32_t r[4];
        dtx_philox(1, (uint64_t)i, 0, r);
        union {
            uint64_t u;
            double d;
        } x = {(uint64_t)r[0] << 32 | r[1]};
        int64_t n = (int64_t)((uint64_t)r[2] << 32 | r[3]);
        if (i < 8)
            x.d = special[i];
        if ((x.u >> 52 & 0x7ff) == 0x7ff) /* Inf and NaN are refused */
            continue;
        char text[64];
        snprintf(text, sizeof text, "%.17g", x.d);
        dtx_opt_set(f->opt, "lr.peak", text, DTX_OPT_FLAG, "x");
        double got = dtx_opt_real(f->opt, "lr.peak");
        assert_memory_equal(&got, &x.d, sizeof got);
        snprintf(text, sizeof text, "%lld", (long long)n);
        dtx_opt_set(f->opt, "lr.warmup", text, DTX_OPT_FLAG, "x");
        if (i % 20 == 0 || i < 8)
            expect_round_trip(f);
    }
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_OK);
}

static void round_trip_texts(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"",
                                        " ",
                                        " a ",
                                        "a\nb\n",
                                        "\n\n a\t",
                                        "\"quoted\" \\ 'x'",
                                        "null",
                                        "~",
                                        "true",
                                        "12",
                                        "a: b # c",
                                        "- x",
                                        "é ü 漢字 😀",
                                        "\xc2\x85 \xe2\x80\xa8 \xe2\x80\xa9 \xef\xbb\xbf",
                                        "\x01\x1f\x7f",
                                        "\xc2\x80",
                                        "\xef\xbf\xbf",
                                        "%x",
                                        "@",
                                        "`",
                                        "&a *b !c",
                                        "\r\n",
                                        "---",
                                        "..."};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dtx_opt_set(f->opt, "run.dir", texts[i], DTX_OPT_FLAG, "x");
        assert_string_equal(dtx_opt_text(f->opt, "run.dir"), texts[i]);
        expect_round_trip(f);
    }
    char longer[5000];
    memset(longer, 'a', sizeof longer);
    for (size_t i = 7; i < sizeof longer; i += 11)
        longer[i] = ' ';
    longer[sizeof longer - 1] = '\0';
    dtx_opt_set(f->opt, "run.dir", longer, DTX_OPT_FLAG, "x");
    expect_round_trip(f);
}

static void not_utf8(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"\xff", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xc3", "a\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        dtx_opt_set(f->opt, "run.dir", texts[i], DTX_OPT_FLAG, "x");
    assert_int_equal(dtx_opt_check(&f->ctx, f->opt), DTX_E_CONFIG);
    assert_non_null(strstr(f->ctx.error.text, "7 faults"));
    assert_string_equal(dtx_opt_text(f->opt, "run.dir"), "run");
}

/* Random edits of a good text: any status, but no crash, and what is accepted stays in range. */
static void random_edits(void **state)
{
    (void)state;
    static const char good[] =
        "model:\n  layers: 4\n  tied: [no]\nlr: {peak: 1e-4, warmup: 5}\nrun.dir: &a 'x'\ndevice: *a\n";
    for (int round = 0; round < 3000; round++) {
        struct fixture *f;
        assert_int_equal(set_up((void **)&f), 0);
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (int edit = 0; edit < 1 + round % 4; edit++) {
            uint32_t r[4];
            dtx_philox(2, (uint64_t)round, (uint64_t)edit, r);
            text[r[0] % (sizeof good - 1)] = "\n :-{}[]&*!|>'\"%@`#,?0az\t\x80"[r[1] % 27];
        }
        load(f, text);
        assert_true(dtx_opt_int(f->opt, "model.layers") >= 1);
        tear_down((void **)&f);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(yaml_good),
        TEST(yaml_empty),
        TEST(yaml_broken),
        TEST(yaml_line_of_the_break),
        TEST(yaml_twice),
        TEST(yaml_faults),
        TEST(files),
        TEST(variables),
        TEST(unknown_variables),
        TEST(flags),
        TEST(wrong_flags),
        TEST(round_trip_numbers),
        TEST(round_trip_texts),
        TEST(not_utf8),
        cmocka_unit_test(random_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
