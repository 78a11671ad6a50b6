/* test: label=unit timeout=20 */
/* CASES.md 6: the learning rate at the edges of warm-up and decay, exact values, purity, names. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "trainer/lr.h"

static const char *const names[] = {"linear", "cosine", "wsd"};

static struct dtx_lr make(const char *name, int64_t warmup, int64_t steps, int64_t decay)
{
    /* Neither value nor their quotients are short in binary: rounding shows. */
    struct dtx_lr lr = {dtx_lr_find(name), 3.2e-4, 1.28e-5, warmup, steps, decay};
    assert_non_null(lr.variant);
    return lr;
}

static void test_edges(void **state)
{
    (void)state;
    static const int64_t shape[][3] = {{1, 2, 1}, {3, 10, 4}, {375, 40000, 8000}, {1000, 250000, 1}, {7, 8, 1}};
    for (int v = 0; v < 3; v++)
        for (int s = 0; s < 5; s++) {
            int64_t w = shape[s][0], n = shape[s][1];
            struct dtx_lr lr = make(names[v], w, n, shape[s][2]);
            assert_true(dtx_lr_at(&lr, w) == lr.peak);
            assert_true(dtx_lr_at(&lr, n) == lr.min);
            assert_true(dtx_lr_at(&lr, n + 1000) == lr.min);
            assert_true(fabs(dtx_lr_at(&lr, 1) - lr.peak / (double)w) <= 1e-18);
            for (int64_t i = 1; i < w; i++)
                assert_true(dtx_lr_at(&lr, i) < dtx_lr_at(&lr, i + 1));
            for (int64_t i = w; i < n; i++)
                assert_true(dtx_lr_at(&lr, i) >= dtx_lr_at(&lr, i + 1) && dtx_lr_at(&lr, i) <= lr.peak);
        }
}

static void test_no_warmup(void **state)
{
    (void)state;
    struct dtx_lr lr = make("linear", 0, 4, 0);
    assert_true(fabs(dtx_lr_at(&lr, 1) - (lr.min + 0.75 * (lr.peak - lr.min))) < 1e-18);
    assert_true(dtx_lr_at(&lr, 4) == lr.min);
    struct dtx_lr one = make("cosine", 0, 1, 0);
    assert_true(dtx_lr_at(&one, 1) == one.min);
}

static void test_warmup_fills_the_run(void **state)
{
    (void)state;
    struct dtx_lr lr = make("cosine", 10, 10, 5), longer = make("wsd", 20, 10, 5);
    assert_true(dtx_lr_at(&lr, 5) == lr.peak * 0.5 && dtx_lr_at(&lr, 10) == lr.peak);
    assert_true(dtx_lr_at(&longer, 10) == longer.peak * 0.5);
}

static void test_values(void **state)
{
    (void)state;
    struct dtx_lr linear = {dtx_lr_find("linear"), 1.0, 0.0, 4, 12, 0};
    struct dtx_lr cosine = {dtx_lr_find("cosine"), 1.0, 0.5, 4, 12, 0};
    struct dtx_lr wsd = {dtx_lr_find("wsd"), 1.0, 0.0, 4, 12, 4};
    assert_true(dtx_lr_at(&linear, 1) == 0.25 && dtx_lr_at(&linear, 6) == 0.75 && dtx_lr_at(&linear, 11) == 0.125);
    assert_true(fabs(dtx_lr_at(&cosine, 8) - 0.75) < 1e-15);
    assert_true(fabs(dtx_lr_at(&cosine, 6) - (0.5 + 0.25 * (1 + sqrt(0.5)))) < 1e-15);
    assert_true(dtx_lr_at(&wsd, 5) == 1 && dtx_lr_at(&wsd, 8) == 1 && dtx_lr_at(&wsd, 9) == 0.75);
    assert_true(dtx_lr_at(&wsd, 11) == 0.25 && dtx_lr_at(&wsd, 12) == 0);
    wsd.decay_steps = 100; /* more than there are: the whole way down */
    assert_true(dtx_lr_at(&wsd, 4) == 1 && dtx_lr_at(&wsd, 5) == 0.875);
    wsd.decay_steps = 0; /* no descent but at the last step */
    assert_true(dtx_lr_at(&wsd, 11) == 1 && dtx_lr_at(&wsd, 12) == 0);
}

static void test_order_of_calls_does_not_matter(void **state)
{
    (void)state;
    for (int v = 0; v < 3; v++) {
        struct dtx_lr lr = make(names[v], 5, 50, 20);
        double forward[51];
        for (int64_t i = 1; i <= 50; i++)
            forward[i] = dtx_lr_at(&lr, i);
        for (int64_t i = 50; i >= 1; i--)
            assert_true(dtx_lr_at(&lr, i) == forward[i]);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int v = 0; v < 3; v++) {
        assert_string_equal(dtx_lr_find(names[v])->name, names[v]);
        assert_non_null(strstr(DTX_LR_CHOICES, names[v]));
    }
    assert_null(dtx_lr_find("linea"));
    assert_null(dtx_lr_find(""));
    assert_true(DTX_LR_CHOICES[0] != '|');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_no_warmup),
        cmocka_unit_test(test_warmup_fills_the_run),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_order_of_calls_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
