/* test: label=unit timeout=300 */
/* Laws of the loss: derivatives, the published answers on Chinchilla's points, known surfaces found again. */
#include "tests/unit/sweep_support.h"

#include "kernels/base/rng.h"
#include "launch/sweep/frontier.h"

static void derivatives(void **state)
{
    (void)state;
    const struct dtx_law *const laws[] = {&dtx_law_surface, &dtx_law_kaplan,  &dtx_law_size,
                                          &dtx_law_tokens,  &dtx_law_power_n, &dtx_law_power_d};
    for (int l = 0; l < 6; l++) {
        double p[DTX_LAW_PARAMETERS] = {0.4, 0.31, 0.37, 1.2, 1.5, 0.9, 1.1, 1.3, 0.7}, g[DTX_LAW_PARAMETERS] = {0};
        int n = laws[l]->common + 2 * laws[l]->per_group;
        laws[l]->ln_loss(p, 1.3, -0.4, 1, g);
        for (int i = 0; i < n; i++) {
            double unused[DTX_LAW_PARAMETERS], h = 1e-6, at = p[i];
            p[i] = at + h;
            double up = laws[l]->ln_loss(p, 1.3, -0.4, 1, unused);
            p[i] = at - h;
            double down = laws[l]->ln_loss(p, 1.3, -0.4, 1, unused);
            p[i] = at;
            assert_true(fabs((up - down) / (2 * h) - g[i]) < 1e-8);
        }
        /* Another origin is the same law. */
        double before = laws[l]->ln_loss(p, 1.3, -0.4, 1, g);
        laws[l]->move(p, 2, 7, -3);
        assert_true(fabs(laws[l]->ln_loss(p, 1.3 - 7, -0.4 + 3, 1, g) - before) < 1e-12);
    }
}

static void chinchilla(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_points points;
    struct dtx_set set;
    struct dtx_samples s;
    struct dtx_law_fit fit;
    (void)state;
    dtx_ctx_init(&ctx);
    read_golden(&ctx, "chinchilla_points.csv", 5, &points, &set);
    assert_int_equal(set.n, 240);
    make_samples(&ctx, &set, &s);
    SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_surface, &s, 1e-3, 0, NULL, 1, &fit));
    assert_int_equal(fit.starts, 4500);
    is_near("objective", fit.objective, 0.00101827401780, 1e-9);
    is_near("e", fit.p[0], 0.59730681, 1e-6);
    is_near("alpha", fit.p[1], 0.34731050, 1e-6);
    is_near("beta", fit.p[2], 0.36717243, 1e-6);
    is_near("a", fit.p[3], 6.16924637, 1e-6);
    is_near("b", fit.p[4], 7.67015674, 1e-6);
    /* The sum of absolute differences, from this end. */
    double start[1][DTX_LAW_PARAMETERS];
    memcpy(start[0], fit.p, sizeof start[0]);
    SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_surface, &s, 0, 1, start, 1, &fit));
    is_near("L1: E", exp(fit.p[0]), 1.81686, 3e-6);
    is_near("L1: alpha", fit.p[1], 0.347813, 2e-6);
    is_near("L1: beta", fit.p[2], 0.365854, 2e-6);
    is_near("L1: A", exp(fit.p[3]), 482.006, 1e-5);
    is_near("L1: B", exp(fit.p[4]), 2085.434, 1e-5);
    dtx_samples_free(&s);
    dtx_set_free(&set);
    dtx_points_free(&points);
}

enum { SIDE = 4 };

/* A grid of sizes and tokens on the surface p, for two groups; noise: standard deviation of ln L. */
static void make_surface(struct dtx_ctx *ctx, const double *p, double noise, struct dtx_samples *s)
{
    double unused[DTX_LAW_PARAMETERS];
    SUCCEEDS(ctx, dtx_samples_make(ctx, 2 * SIDE * SIDE, 2, s));
    for (int64_t i = 0; i < s->n; i++) {
        s->group[i] = i >= SIDE * SIDE;
        s->x[i] = log(1e6) + (double)(i % SIDE) * 1.8;
        s->y[i] = log(1e8) + (double)(i / SIDE % SIDE) * 1.9;
        s->ln_loss[i] =
            dtx_law_surface.ln_loss(p, s->x[i], s->y[i], s->group[i], unused) + noise * dtx_rng_normal(7, (uint64_t)i);
    }
}

static void known_surface(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_samples s;
    struct dtx_law_fit fit, again;
    (void)state;
    dtx_ctx_init(&ctx);
    const double p[DTX_LAW_PARAMETERS] = {log(1.7), 0.28, 0.41, log(300), log(2500), log(260), log(2300)};
    static const double noises[] = {0, 0.002}, bounds[] = {1e-6, 0.12};
    for (int k = 0; k < 2; k++) {
        make_surface(&ctx, p, noises[k], &s);
        SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_surface, &s, 1e-3, 0, NULL, 1, &fit));
        assert_int_equal(fit.n, 7);
        for (int i = k; i < 7; i++) /* the noise leaves E open */
            is_near("parameter", fit.p[i], p[i], bounds[k]);
        struct dtx_frontier f = dtx_frontier_of(fit.p, 0);
        is_near("a", f.a, 0.41 / 0.69, bounds[k]);
        is_near("b", f.b, 0.28 / 0.69, bounds[k]);
        /* The same bits by two threads. */
        if (k == 0) {
            SUCCEEDS(&ctx, dtx_law_fit(&ctx, &dtx_law_surface, &s, 1e-3, 0, NULL, 2, &again));
            assert_memory_equal(again.p, fit.p, sizeof fit.p);
        }
        dtx_samples_free(&s);
    }
}

/* Every law is found again from exact losses, and says what they are elsewhere. */
static void known_laws(void **state)
{
    static const struct {
        const struct dtx_law *law;
        double p[5];
    } cases[] = {{&dtx_law_kaplan, {0.095, 0.8, 0.8 * 32, 31}}, /* α_D, α_N/α_D, u ln N_c, ln D_c */
                 {&dtx_law_size, {0.6, 0.34, 6}},
                 {&dtx_law_tokens, {0.5, 0.28, 5.5}},
                 {&dtx_law_power_n, {0.076, 0.076 * 32}},
                 {&dtx_law_power_d, {0.095, 0.095 * 30}}};
    struct dtx_ctx ctx;
    struct dtx_samples s;
    struct dtx_law_fit fit;
    (void)state;
    dtx_ctx_init(&ctx);
    for (int k = 0; k < 5; k++) {
        double unused[DTX_LAW_PARAMETERS];
        SUCCEEDS(&ctx, dtx_samples_make(&ctx, SIDE * SIDE, 1, &s));
        for (int64_t i = 0; i < s.n; i++) {
            s.x[i] = log(1e7) + (double)(i % SIDE) * 1.5;
            s.y[i] = log(1e9) + (double)(i / SIDE) * 1.5;
            s.ln_loss[i] = cases[k].law->ln_loss(cases[k].p, s.x[i], s.y[i], 0, unused);
        }
        assert_true(dtx_law_objective(cases[k].law, &s, 0, cases[k].p) == 0);
        SUCCEEDS(&ctx, dtx_law_fit(&ctx, cases[k].law, &s, 1e-3, 0, NULL, 1, &fit));
        for (int i = 0; i < fit.n; i++)
            is_near(cases[k].law->formula, fit.p[i], cases[k].p[i], 1e-5);
        is_near("elsewhere", dtx_law_loss(cases[k].law, fit.p, 1e11, 1e12, 0),
                dtx_law_loss(cases[k].law, cases[k].p, 1e11, 1e12, 0), 1e-6);
        dtx_samples_free(&s);
    }
}

/* The frontier is the lowest loss of all N at a C, and shares undo themselves. */
static void frontier(void **state)
{
    (void)state;
    const double p[DTX_LAW_PARAMETERS] = {log(1.7), 0.28, 0.41, log(300), log(2500), log(300 * pow(0.65, 0.28)),
                                          log(2500)};
    struct dtx_frontier f = dtx_frontier_of(p, 0);
    double c = 1e21, n = dtx_frontier_size(&f, c), best = dtx_frontier_loss(p, 0, c);
    is_near("6 N D", 6 * n * dtx_frontier_tokens(&f, c), c, 1e-12);
    for (double t = -1; t <= 1; t += 0.01)
        assert_true(dtx_law_loss(&dtx_law_surface, p, n * exp(t), c / 6 / (n * exp(t)), 0) >= best * (1 - 1e-15));
    struct dtx_side base = {&dtx_law_surface, p, 0}, other = {&dtx_law_surface, p, 1};
    is_near("share of weights", dtx_share_of_weights(&base, &other, 1e9, 2e10), 0.65, 1e-9);
    is_near("and back", dtx_share_of_weights(&other, &base, 1e9, 2e10), 1 / 0.65, 1e-9);
    double share = dtx_share_of_tokens(&base, &other, 1e9, 2e10);
    assert_true(share < 1);
    is_near("the loss of fewer tokens", dtx_law_loss(&dtx_law_surface, p, 1e9, 2e10 * share, 1),
            dtx_law_loss(&dtx_law_surface, p, 1e9, 2e10, 0), 1e-12);
    share = dtx_share_of_compute(&base, &other, c);
    is_near("the loss of less compute", dtx_frontier_loss(p, 1, c * share), best, 1e-12);
    is_near("with itself", dtx_share_of_tokens(&base, &base, 1e9, 2e10), 1, 1e-12);
    /* A larger E can never be made up for. */
    const double worse[DTX_LAW_PARAMETERS] = {log(1e3), 0.28, 0.41, log(300), log(2500)};
    struct dtx_side never = {&dtx_law_surface, worse, 0};
    assert_true(isinf(dtx_share_of_weights(&base, &never, 1e9, 2e10)));
    assert_true(dtx_share_of_weights(&never, &base, 1e9, 2e10) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(derivatives), cmocka_unit_test(chinchilla),
                                       cmocka_unit_test(known_surface), cmocka_unit_test(known_laws),
                                       cmocka_unit_test(frontier)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
