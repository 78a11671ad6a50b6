/* test: label=unit timeout=300 */
/* Standard errors on Chinchilla's points against the published ones; pairs; threads. */
#include "tests/unit/sweep_support.h"

#include "kernels/base/rng.h"
#include "launch/sweep/bootstrap.h"
#include "launch/sweep/regress.h"

enum { RESAMPLES = 4000 };

static struct dtx_spread spread_of(const struct dtx_estimate *e, int i, bool logarithm)
{
    static double values[RESAMPLES];
    for (int64_t r = 0; r < e->n_draws; r++)
        values[r] = logarithm ? exp(e->draws[r * e->fit.n + i]) : e->draws[r * e->fit.n + i];
    return dtx_spread_of(e->n_draws, values, 0.95);
}

/* Besiroglu et al. 2024, table 1: 4,000 resamples; the error of B has a heavy tail. */
static void chinchilla(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_points points;
    struct dtx_set set;
    struct dtx_samples s;
    struct dtx_law_fit fit;
    struct dtx_estimate e, few, more;
    (void)state;
    dtx_ctx_init(&ctx);
    read_golden(&ctx, "chinchilla_points.csv", 5, &points, &set);
    make_samples(&ctx, &set, &s);
    double start[1][DTX_LAW_PARAMETERS] = {{0.6, 0.35, 0.35, 6, 7.5}};
    SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_surface, &s, 1e-3, 1, start, 1, &fit));
    is_near("objective", fit.objective, 0.00101827401780, 1e-9);
    uint64_t key = dtx_rng_key(0, "points");
    SUCCEEDS(&ctx, dtx_estimate_make(&ctx, &s, &fit, RESAMPLES, &key, 2, &e));
    is_near("error of E", spread_of(&e, 0, true).se, 0.026, 0.1);
    is_near("error of alpha", spread_of(&e, 1, false).se, 0.015, 0.1);
    is_near("error of beta", spread_of(&e, 2, false).se, 0.021, 0.1);
    is_near("error of A", spread_of(&e, 3, true).se, 124.5, 0.1);
    is_near("error of B", spread_of(&e, 4, true).se, 1293, 0.3);
    struct dtx_spread alpha = spread_of(&e, 1, false);
    assert_true(alpha.low < fit.p[1] && fit.p[1] < alpha.high);
    is_near("interval", alpha.high - alpha.low, 2 * 1.96 * alpha.se, 0.1);
    /* Fewer resamples are the first of more, whatever the threads. */
    SUCCEEDS(&ctx, dtx_estimate_make(&ctx, &s, &fit, 7, &key, 1, &few));
    SUCCEEDS(&ctx, dtx_estimate_make(&ctx, &s, &fit, 7, &key, 3, &more));
    assert_memory_equal(few.draws, e.draws, sizeof(double) * 35);
    assert_memory_equal(more.draws, e.draws, sizeof(double) * 35);
    is_near("root mean square", e.goodness.rms, 0.00754961, 1e-5);
    dtx_estimate_free(&e);
    dtx_estimate_free(&few);
    dtx_estimate_free(&more);
    dtx_samples_free(&s);
    dtx_set_free(&set);
    dtx_points_free(&points);
}

/* Losses of which E = 0 is the best that can be said, though not of all resamples: then refits bring E back. */
static void vanished_term(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_samples s;
    struct dtx_law_fit fit;
    struct dtx_estimate e;
    (void)state;
    dtx_ctx_init(&ctx);
    SUCCEEDS(&ctx, dtx_samples_make(&ctx, 8, 1, &s));
    for (int64_t i = 0; i < 8; i++) {
        s.x[i] = log(1e6) + (double)i;
        s.ln_loss[i] = 3 - 0.1 * (double)i + (i == 3 ? -0.01 : i == 7 ? -0.03 : 0);
    }
    SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_size, &s, 1e-3, 0, NULL, 1, &fit));
    assert_true(exp(fit.p[0]) < 0.1);
    uint64_t key = dtx_rng_key(0, "points");
    SUCCEEDS(&ctx, dtx_estimate_make(&ctx, &s, &fit, 400, &key, 1, &e));
    assert_true(spread_of(&e, 0, true).high > 1);
    dtx_estimate_free(&e);
    dtx_samples_free(&s);
}

static void put(struct dtx_point *p, int variant, double n, double d, double loss, const char *seed)
{
    *p = (struct dtx_point){.n = n, .d = d, .c = 6 * n * d, .loss = loss, .variant = variant, .seed = seed, .run = ""};
}

static void pairs(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_point at[6];
    struct dtx_points points = {.n = 6, .at = at, .n_variants = 2, .variants = {"softmax", "diff"}};
    struct dtx_set base, other;
    (void)state;
    dtx_ctx_init(&ctx);
    put(&at[0], 0, 1e6, 1e8, 4, "1");
    put(&at[1], 0, 1e6, 1e8, 5, "2");
    put(&at[2], 0, 2e6, 1e8, 3, "1");
    put(&at[3], 1, 2.01e6, 1e8, 2.9, "1"); /* λ vectors make it a little larger */
    put(&at[4], 1, 1.005e6, 1e8, 4.9, "2");
    put(&at[5], 1, 1.005e6, 1e8, 3.9, "1");
    SUCCEEDS(&ctx, dtx_set_make(&ctx, &points, 0, &base));
    SUCCEEDS(&ctx, dtx_set_make(&ctx, &points, 1, &other));
    assert_true(dtx_set_pair(&base, &other));
    assert_true(other.loss[0] == 3.9 && other.loss[1] == 4.9 && other.loss[2] == 2.9);
    is_near("its N moved along", other.ln_n[2], log(2.01e6), 1e-15);
    put(&at[4], 1, 1.005e6, 1e8, 4.9, "1"); /* two partners for one */
    dtx_set_free(&other);
    SUCCEEDS(&ctx, dtx_set_make(&ctx, &points, 1, &other));
    assert_false(dtx_set_pair(&base, &other));
    dtx_set_free(&base);
    dtx_set_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chinchilla), cmocka_unit_test(vanished_term),
                                       cmocka_unit_test(pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
