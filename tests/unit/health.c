/* test: label=unit ranks=1 timeout=60 */
/*
 * The verdict on a step (trainer/health.h): what is not finite, spikes against a window computed here in another way,
 * limits of the norm, the gravest of several causes, chances that run out; what is remembered, kept in a text and taken
 * back; texts that are none. And who is named as a slow rank (trainer/slow.h), from given times.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "trainer/health.h"
#include "trainer/slow.h"

enum { WINDOW = 16 };

static struct dtx_ctx ctx;

/* A watch with these options: pairs of key and value, ended by NULL. */
static struct dtx_health open_health(const char *const *options)
{
    static const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct dtx_health h;
    struct dtx_opt *opt;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_opt_create(&ctx, tables, 1, &opt), DTX_OK);
    dtx_opt_set(opt, "health.window", "16", DTX_OPT_FLAG, "test");
    for (; *options; options += 2)
        dtx_opt_set(opt, options[0], options[1], DTX_OPT_FLAG, "test");
    assert_int_equal(dtx_opt_check(&ctx, opt), DTX_OK);
    assert_int_equal(dtx_health_open(&ctx, opt, &h), DTX_OK);
    dtx_opt_free(opt);
    return h;
}

/* Judges a step as the loop does. */
static struct dtx_health_verdict take(struct dtx_health *h, double loss, double norm)
{
    struct dtx_step_result r = {.loss = loss, .grad_norm = norm, .clip = 1, .targets = 10};
    struct dtx_health_verdict v;
    dtx_health_judge(h, &r, &v);
    r.skipped = v.action >= DTX_HEALTH_SKIP;
    dtx_health_note(h, &r);
    return v;
}

/* n steps whose losses lie around 3, norms around 1. */
static void fill(struct dtx_health *h, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(
            take(h, 3 + 0.1 * dtx_rng_uniform(5, (uint64_t)i), 1 + 0.1 * dtx_rng_uniform(6, (uint64_t)i)).action,
            DTX_HEALTH_NONE);
}

/* Mean and deviation of the last WINDOW of n values, one pass in long double. */
static double z_of(const double *values, int n, double value)
{
    long double sum = 0, squares = 0;
    for (int i = n - WINDOW; i < n; i++) {
        sum += values[i];
        squares += (long double)values[i] * values[i];
    }
    long double mean = sum / WINDOW;
    return (double)((value - mean) / sqrtl(squares / WINDOW - mean * mean));
}

static void test_z(void **unused)
{
    (void)unused;
    struct dtx_health h = open_health((const char *const[]){"health.spike", "none", NULL});
    double losses[200];
    for (int i = 0; i < 200; i++) {
        losses[i] = 4 + dtx_rng_uniform(1, (uint64_t)i) + (i % 50 == 49 ? 20 : 0);
        struct dtx_health_verdict v = take(&h, losses[i], 1);
        assert_int_equal(v.action, DTX_HEALTH_NONE);
        if (i < WINDOW) {
            assert_true(isnan(v.z));
            continue;
        }
        double expected = z_of(losses, i, losses[i]);
        assert_true(fabs(v.z - expected) <= 1e-9 * (1 + fabs(expected)));
    }
    dtx_health_close(&h);
}

static void test_spike(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        enum dtx_health_action action;
    } actions[] = {{"none", DTX_HEALTH_NONE},
                   {"warn", DTX_HEALTH_WARN},
                   {"skip", DTX_HEALTH_SKIP},
                   {"rollback", DTX_HEALTH_ROLLBACK},
                   {"stop", DTX_HEALTH_STOP}};
    for (int i = 0; i < 5; i++) {
        struct dtx_health h = open_health((const char *const[]){"health.spike", actions[i].name, NULL});
        fill(&h, WINDOW - 1);
        assert_int_equal(take(&h, 3.05, 1).action, DTX_HEALTH_NONE);
        double mean = 3.05, deviation = 0.03; /* roughly */
        assert_int_equal(take(&h, mean + 2 * deviation, 1).action, DTX_HEALTH_NONE);
        assert_int_equal(take(&h, mean - 100 * deviation + 2.9, 1).action, DTX_HEALTH_NONE); /* 2.95: below */
        struct dtx_health_verdict v = take(&h, 9, 1);
        assert_int_equal(v.action, actions[i].action);
        assert_true(v.z > 6);
        assert_int_equal(v.why[0] != '\0', i > 0);
        dtx_health_close(&h);
    }
}

/* Steps that were taken are remembered, spikes among them; those left out are not, or a second one would pass. */
static void test_memory(void **unused)
{
    (void)unused;
    struct dtx_health warn = open_health((const char *const[]){"health.spike", "warn", NULL});
    struct dtx_health skip = open_health((const char *const[]){"health.spike", "skip", NULL});
    fill(&warn, 40);
    fill(&skip, 40);
    assert_int_equal(take(&warn, 9, 1).action, DTX_HEALTH_WARN);
    assert_int_equal(take(&warn, 9, 1).action, DTX_HEALTH_NONE);
    for (int i = 0; i < 5; i++)
        assert_int_equal(take(&skip, 9, 1).action, DTX_HEALTH_SKIP);
    assert_int_equal(take(&skip, 3.05, 1).action, DTX_HEALTH_NONE);
    /* No target, no loss: nothing to judge or remember. */
    struct dtx_step_result empty = {.loss = 0, .targets = 0};
    struct dtx_health_verdict v;
    int64_t seen = skip.seen;
    dtx_health_judge(&skip, &empty, &v);
    dtx_health_note(&skip, &empty);
    assert_true(v.action == DTX_HEALTH_NONE && isnan(v.z) && skip.seen == seen);
    dtx_health_close(&warn);
    dtx_health_close(&skip);
}

/* A window without noise: a thousandth more is no spike. */
static void test_quiet(void **unused)
{
    (void)unused;
    struct dtx_health h = open_health((const char *const[]){"health.spike", "stop", NULL});
    for (int i = 0; i < 3 * WINDOW; i++)
        assert_int_equal(take(&h, 2.5, 1).action, DTX_HEALTH_NONE);
    assert_int_equal(take(&h, 2.5025, 1).action, DTX_HEALTH_NONE);
    assert_int_equal(take(&h, 2.6, 1).action, DTX_HEALTH_STOP);
    dtx_health_close(&h);
}

static void test_norm(void **unused)
{
    (void)unused;
    struct dtx_health fixed =
        open_health((const char *const[]){"health.norm", "skip", "health.max_grad_norm", "5", NULL});
    struct dtx_health window = open_health((const char *const[]){"health.norm", "warn", NULL});
    struct dtx_health off = open_health((const char *const[]){"health.max_grad_norm", "5", NULL});
    assert_int_equal(take(&fixed, 3, 5).action, DTX_HEALTH_NONE);
    assert_int_equal(take(&fixed, 3, 5.1).action, DTX_HEALTH_SKIP);
    assert_int_equal(take(&off, 3, 1e6).action, DTX_HEALTH_NONE);
    fill(&window, 20);
    struct dtx_health_verdict v = take(&window, 3.05, 4);
    assert_int_equal(v.action, DTX_HEALTH_WARN);
    assert_non_null(strstr(v.why, "gradient norm 4 is "));
    dtx_health_close(&fixed);
    dtx_health_close(&window);
    dtx_health_close(&off);
}

static void test_nonfinite(void **unused)
{
    (void)unused;
    struct dtx_health h = open_health((const char *const[]){"health.max_skips", "3", NULL});
    assert_int_equal(take(&h, NAN, 1).action, DTX_HEALTH_SKIP);
    assert_int_equal(take(&h, 3, INFINITY).action, DTX_HEALTH_SKIP);
    assert_int_equal(take(&h, 3, 1).action, DTX_HEALTH_NONE);
    assert_int_equal(take(&h, 3, NAN).action, DTX_HEALTH_SKIP);
    assert_int_equal(take(&h, -INFINITY, 1).action, DTX_HEALTH_SKIP);
    struct dtx_health_verdict v = take(&h, NAN, NAN);
    assert_int_equal(v.action, DTX_HEALTH_STOP);
    assert_non_null(strstr(v.why, "not finite; 3 steps in a row"));
    assert_int_equal(h.seen, 1);
    dtx_health_close(&h);
}

/* Of two causes the gravest. */
static void test_gravest(void **unused)
{
    (void)unused;
    struct dtx_health h = open_health(
        (const char *const[]){"health.spike", "skip", "health.norm", "stop", "health.max_grad_norm", "50", NULL});
    fill(&h, 20);
    struct dtx_health_verdict v = take(&h, 9, 60);
    assert_int_equal(v.action, DTX_HEALTH_STOP);
    assert_non_null(strstr(v.why, "health.max_grad_norm 50"));
    assert_int_equal(take(&h, 9, 40).action, DTX_HEALTH_SKIP);
    dtx_health_close(&h);
}

static void test_rollbacks(void **unused)
{
    (void)unused;
    const char *const options[] = {"health.spike", "rollback", "health.max_rollbacks", "2", NULL};
    struct dtx_health h = open_health(options), then = open_health(options);
    fill(&h, 20);
    dtx_health_keep(&h, &then);
    assert_int_equal(take(&h, 3.09, 1).action, DTX_HEALTH_NONE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(take(&h, 9, 1).action, DTX_HEALTH_ROLLBACK);
        dtx_health_return(&then, &h);
        assert_true(h.seen == 20 && h.all_rollbacks == i + 1 && h.skipped == 0);
    }
    struct dtx_health_verdict v = take(&h, 9, 1);
    assert_int_equal(v.action, DTX_HEALTH_STOP);
    assert_non_null(strstr(v.why, "2 rollbacks"));
    dtx_health_return(&then, &h);
    dtx_health_keep(&h, &then); /* a later snapshot has its own chances */
    assert_int_equal(take(&h, 9, 1).action, DTX_HEALTH_ROLLBACK);
    assert_int_equal(h.all_rollbacks, 3);
    dtx_health_close(&h);
    dtx_health_close(&then);
}

/* What a checkpoint keeps gives the same verdicts, bit for bit, wherever the window's ring stands. */
static void test_text(void **unused)
{
    (void)unused;
    const char *const none[] = {NULL};
    for (int steps = 0; steps < 3 * WINDOW; steps += 5) {
        struct dtx_health h = open_health(none), back = open_health(none);
        char *text, *again;
        for (int i = 0; i < steps; i++)
            take(&h, 3 + dtx_rng_uniform(7, (uint64_t)i), 1e-7 * dtx_rng_uniform(8, (uint64_t)i));
        take(&h, NAN, 1);
        take(&h, NAN, 1);
        h.all_rollbacks = 12345678901;
        assert_int_equal(dtx_health_write(&ctx, &h, &text), DTX_OK);
        assert_int_equal(dtx_health_read(&ctx, text, &back), DTX_OK);
        assert_int_equal(dtx_health_write(&ctx, &back, &again), DTX_OK);
        assert_string_equal(text, again);
        assert_true(back.skipped == 2 && back.all_rollbacks == h.all_rollbacks);
        for (int i = 0; i < 2 * WINDOW; i++) {
            double loss = 3 + dtx_rng_uniform(9, (uint64_t)i);
            struct dtx_health_verdict a = take(&h, loss, 1), b = take(&back, loss, 1);
            assert_true(a.action == b.action && (a.z == b.z || (isnan(a.z) && isnan(b.z))));
        }
        dtx_mem_free(text);
        dtx_mem_free(again);
        dtx_health_close(&h);
        dtx_health_close(&back);
    }
    /* A shorter window keeps the last steps. */
    struct dtx_health wide = open_health((const char *const[]){"health.window", "40", NULL}),
                      narrow = open_health(none);
    char *text;
    for (int i = 0; i < 50; i++)
        take(&wide, i, 1);
    assert_int_equal(dtx_health_write(&ctx, &wide, &text), DTX_OK);
    assert_int_equal(dtx_health_read(&ctx, text, &narrow), DTX_OK);
    double least = 1e9;
    for (int i = 0; i < WINDOW; i++)
        least = fmin(least, narrow.losses[i]);
    assert_true(least == 50 - WINDOW);
    /* Anything else is refused and changes nothing. */
    int64_t seen = narrow.seen;
    static const char *const bad[] = {"dtx health 2\nskipped 0\nrollbacks 0\nend\n", "dtx health 1\nskipped\nend\n",
                                      "x"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dtx_health_read(&ctx, bad[i], &narrow), DTX_E_FORMAT);
        dtx_error_clear(&ctx);
    }
    for (size_t n = strlen(text) - 1; n > 0; n -= n > 40 ? 37 : 1) {
        text[n] = '\0';
        assert_int_equal(dtx_health_read(&ctx, text, &narrow), DTX_E_FORMAT);
        dtx_error_clear(&ctx);
    }
    assert_int_equal(narrow.seen, seen);
    assert_int_equal(dtx_health_read(&ctx, "", &narrow), DTX_OK);
    assert_int_equal(dtx_health_read(&ctx, NULL, &narrow), DTX_OK);
    dtx_mem_free(text);
    dtx_health_close(&wide);
    dtx_health_close(&narrow);
}

/* ranks of two stages; every = 10 steps. */
static struct dtx_slow open_slow(struct dtx_comm *comm, struct dtx_slow_times *all, int *in_a_row, double *sorted)
{
    memset(in_a_row, 0, 10 * sizeof *in_a_row);
    return (struct dtx_slow){.world = comm,
                             .factor = 1.2,
                             .intervals = 3,
                             .every = 10,
                             .peers = comm->size / 2,
                             .all = all,
                             .in_a_row = in_a_row,
                             .sorted = sorted};
}

static void test_slow(void **unused)
{
    (void)unused;
    struct dtx_slow_times all[10];
    int in_a_row[10], told = 0;
    double sorted[5];
    struct dtx_comm comm = {.ctx = &ctx, .size = 10};
    struct dtx_slow s = open_slow(&comm, all, in_a_row, sorted);
    struct dtx_slow_report r;
    dtx_ctx_init(&ctx);
    /* The second stage has more to do: nobody is slow. */
    for (int i = 0; i < 10; i++)
        all[i] = (struct dtx_slow_times){(i < 5 ? 10 : 20) + 0.01 * i, 0};
    for (int i = 0; i < 20; i++) {
        dtx_slow_compare(&s, &r);
        assert_true(r.named == -1 && r.ratio < 1.01);
    }
    /* Rank 7 is: after 3, 6, 12, 24 intervals; 8 with it, less so. */
    all[7] = (struct dtx_slow_times){30, 4};
    all[8].own = 25;
    for (int i = 1; i <= 40; i++) {
        dtx_slow_compare(&s, &r);
        assert_true(r.slowest == 7 && fabs(r.ratio - 30 / 20.07) < 0.02);
        bool due = i == 3 || i == 6 || i == 12 || i == 24;
        assert_int_equal(r.named, due ? 7 : -1);
        told += due;
        if (due) {
            assert_non_null(strstr(r.text, "is slow: 3 s a step of its own work, 0.4 s of that waiting for samples; "));
            assert_non_null(strstr(r.text, "of the 5 ranks of its stage is 2.01 s"));
            assert_non_null(strstr(r.text, "so are 8"));
        }
    }
    assert_int_equal(told, 4);
    /* As fast as the others once, it begins anew. */
    all[7].own = 20;
    dtx_slow_compare(&s, &r);
    assert_int_equal(r.named, -1);
    all[7].own = all[8].own = 30;
    all[8].own = 20;
    for (int i = 1; i <= 3; i++) {
        dtx_slow_compare(&s, &r);
        assert_int_equal(r.named, i == 3 ? 7 : -1);
    }
    /* Steps of a millisecond are noise; of two ranks the slower one is seen; one rank has nobody beside it. */
    for (int i = 0; i < 10; i++)
        all[i].own = 1e-2 * (1 + i % 2);
    s = open_slow(&comm, all, in_a_row, sorted);
    for (int i = 0; i < 9; i++) {
        dtx_slow_compare(&s, &r);
        assert_int_equal(r.named, -1);
    }
    comm.size = 4;
    s = open_slow(&comm, all, in_a_row, sorted);
    all[0].own = all[1].own = all[2].own = 10;
    all[3].own = 13;
    for (int i = 1; i <= 3; i++)
        dtx_slow_compare(&s, &r);
    assert_true(r.named == 3 && r.ratio == 1.3);
    comm.size = 2;
    s = open_slow(&comm, all, in_a_row, sorted);
    all[1].own = 30;
    for (int i = 1; i <= 3; i++)
        dtx_slow_compare(&s, &r);
    assert_true(r.named == -1 && r.ratio == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_z),       cmocka_unit_test(test_spike),
                                       cmocka_unit_test(test_memory),  cmocka_unit_test(test_quiet),
                                       cmocka_unit_test(test_norm),    cmocka_unit_test(test_nonfinite),
                                       cmocka_unit_test(test_gravest), cmocka_unit_test(test_rollbacks),
                                       cmocka_unit_test(test_text),    cmocka_unit_test(test_slow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
