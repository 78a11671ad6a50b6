/* test: label=unit timeout=120 */
/* Lines and parabolas: exact answers, published frontiers, budgets that are dropped, envelopes of curves. */
#include "tests/unit/sweep_support.h"

#include "launch/sweep/envelope.h"
#include "launch/sweep/isoflop.h"

enum { BUDGETS = 12 };

/* By exact rational arithmetic (normal equations over the table's doubles): points, vertex, lowest loss, curvature. */
static const struct {
    double c;
    int n;
    double vertex, least, curvature;
} exact[BUDGETS] = {{1.25e16, 8, 16.2821517372322, 4.49863313431925, 0.609902406971866},
                    {2.5e16, 9, 16.5304990158348, 4.29193633118906, 0.517898307492704},
                    {5e16, 10, 16.7812578229279, 4.13396056405538, 0.412399552174169},
                    {1e17, 15, 17.041766431918, 3.98196568380018, 0.383307740523429},
                    {2e17, 14, 17.4091291790303, 3.78008630566136, 0.402776241608791},
                    {4e17, 13, 17.7888584295875, 3.61348816524199, 0.427754927330112},
                    {8e17, 12, 18.1301975138328, 3.46362729374447, 0.428287911986964},
                    {1.6e18, 10, 18.5476475610796, 3.38607373698888, 0.386664846915796},
                    {3.2e18, 9, 18.9084197672428, 3.33650775279835, 0.282361945140865},
                    {6.4e18, 8, 19.277898897471, 3.27762482161208, 0.175983825706537},
                    {1.28e19, 7, 19.6984222056435, 3.1946971188994, 0.115152626851388},
                    {2.56e19, 6, 20.1689787046353, 3.09940123817976, 0.0872642660284725}};

static void published_lines(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_points points;
    struct dtx_set set;
    struct dtx_line line;
    double weight[BUDGETS];
    (void)state;
    dtx_ctx_init(&ctx);
    read_golden(&ctx, "porian_isoflop_optima.csv", 0, &points, &set);
    assert_int_equal(set.n, BUDGETS);
    for (int64_t i = 0; i < points.csv.columns; i++)
        if (strcmp(points.csv.header[i], "n_star_std") == 0)
            for (int64_t row = 0; row < BUDGETS; row++)
                weight[row] = pow(strtod(dtx_csv_cell(&points.csv, row, (int)i), NULL), -2);
    assert_true(dtx_line_fit(set.n, set.ln_c, set.ln_n, NULL, &line));
    is_near("OLS", line.slope, .497028795492, 1e-9);
    assert_true(dtx_line_fit(set.n, set.ln_c, set.ln_n, weight, &line));
    is_near("WLS", line.slope, .496895078179, 1e-9);
    dtx_set_free(&set);
    dtx_points_free(&points);
}

static void parabolas(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_points points, optima;
    struct dtx_set set, best;
    struct dtx_isoflop iso;
    (void)state;
    dtx_ctx_init(&ctx);
    read_golden(&ctx, "porian_isoflop_points.csv", 0, &points, &set);
    read_golden(&ctx, "porian_isoflop_optima.csv", 0, &optima, &best);
    struct dtx_isoflop_options all = {0.02, 0}, near = {0.02, 2};
    SUCCEEDS(&ctx, dtx_isoflop_make(&ctx, &set, &all, &iso));
    assert_int_equal(iso.n_budgets, BUDGETS);
    for (int k = 0; k < BUDGETS; k++) {
        assert_int_equal(iso.budget[k].n, exact[k].n);
        assert_int_equal(iso.budget[k].fitted, exact[k].n);
        is_near("C", exp(iso.budget[k].ln_c), exact[k].c, 1e-12);
        is_near("vertex", iso.budget[k].parabola.vertex, exact[k].vertex, 1e-12);
        is_near("lowest loss", iso.budget[k].parabola.least, exact[k].least, 1e-12);
        is_near("curvature", iso.budget[k].parabola.curvature, exact[k].curvature, 1e-10);
    }
    dtx_isoflop_free(&iso);
    /* Near the best size parabolas agree with the published minima, which come of another interpolation. */
    SUCCEEDS(&ctx, dtx_isoflop_make(&ctx, &set, &near, &iso));
    assert_int_equal(iso.n_used, BUDGETS);
    for (int k = 0; k < BUDGETS; k++) {
        assert_true(fabs(iso.budget[k].parabola.vertex - best.ln_n[k]) < 2 * 0.112);
        is_near("published loss", iso.budget[k].parabola.least, best.loss[k], 0.005);
    }
    is_near("published exponent", iso.lines.size.slope, .497028795492, 0.01);
    is_near("a + b", iso.lines.size.slope + iso.lines.tokens.slope, 1, 1e-12);
    SUCCEEDS(&ctx, dtx_isoflop_resample(&ctx, &iso, &set, 400, 5, 2));
    for (int k = 0; k < BUDGETS; k++)
        assert_true(iso.budget[k].se_vertex > 0.005 && iso.budget[k].se_vertex < 0.3);
    double first = iso.size_slope[0], last = iso.size_slope[399];
    struct dtx_spread spread = dtx_spread_of(iso.n_draws, iso.size_slope, 0.95);
    assert_true(spread.low < .497 && .497 < spread.high && spread.se > 0.003 && spread.se < 0.03);
    assert_true(isfinite(iso.weighted.size.slope));
    dtx_isoflop_free(&iso);
    SUCCEEDS(&ctx, dtx_isoflop_make(&ctx, &set, &near, &iso));
    SUCCEEDS(&ctx, dtx_isoflop_resample(&ctx, &iso, &set, 400, 5, 3));
    assert_true(iso.size_slope[0] == first && iso.size_slope[399] == last);
    dtx_isoflop_free(&iso);
    dtx_set_free(&set);
    dtx_set_free(&best);
    dtx_points_free(&points);
    dtx_points_free(&optima);
}

enum { POINTS = 64 };

struct table {
    struct dtx_point at[POINTS];
    struct dtx_points points;
    struct dtx_set set;
};

static void add(struct table *t, double n, double d, double loss)
{
    t->at[t->points.n++] = (struct dtx_point){
        .n = n, .d = d, .c = 6 * n * d, .loss = loss, .line = t->points.n + 2, .seed = "", .run = ""};
}

static void finish(struct dtx_ctx *ctx, struct table *t)
{
    t->points.at = t->at;
    t->points.n_variants = 1;
    t->points.variants[0] = "all";
    SUCCEEDS(ctx, dtx_set_make(ctx, &t->points, 0, &t->set));
}

/* Budgets with the vertex in the grid, beyond its end, before its begin, without a minimum, with two sizes. */
static void dropped_budgets(void **state)
{
    struct dtx_ctx ctx;
    struct table t = {0};
    struct dtx_isoflop iso;
    (void)state;
    dtx_ctx_init(&ctx);
    static const double vertices[] = {3e6, 4e7, 1e5, 3e6, 3e6}, curvatures[] = {0.1, 0.1, 0.1, -0.1, 0.1};
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < (k == 4 ? 2 : 4); i++) {
            double n = 1e6 * pow(2, i), u = log(n / vertices[k]);
            add(&t, n, 1e16 * pow(10, k) / 6 / n, 3 + curvatures[k] * u * u);
        }
    finish(&ctx, &t);
    struct dtx_isoflop_options options = {0.02, 0};
    SUCCEEDS(&ctx, dtx_isoflop_make(&ctx, &t.set, &options, &iso));
    assert_int_equal(iso.n_budgets, 5);
    assert_int_equal(iso.n_used, 1);
    is_near("vertex", iso.budget[0].parabola.vertex, log(3e6), 1e-12);
    assert_string_equal(iso.budget[0].dropped, "");
    assert_string_equal(iso.budget[1].dropped,
                        "the vertex N = 4e+07 lies outside the grid, beyond its largest size 8e+06");
    assert_string_equal(iso.budget[2].dropped,
                        "the vertex N = 1e+05 lies outside the grid, beyond its smallest size 1e+06");
    assert_string_equal(iso.budget[3].dropped, "its losses have no minimum over the sizes");
    assert_string_equal(iso.budget[4].dropped, "fewer than 3 sizes of 2 points");
    assert_true(isnan(iso.lines.size.slope));
    dtx_isoflop_free(&iso);
    dtx_set_free(&t.set);
}

/* Curves of a surface with α = β: the envelope's exponents are a half. */
static void envelope(void **state)
{
    struct dtx_ctx ctx;
    static struct table t;
    static struct dtx_envelope e;
    (void)state;
    dtx_ctx_init(&ctx);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++) {
            double n = 1e6 * pow(2, i), d = n * 20 * pow(3, k - 3.5);
            add(&t, n, d, 1.5 + 200 * pow(n, -0.3) + 200 * pow(20, 0.3) * pow(d, -0.3));
        }
    finish(&ctx, &t);
    SUCCEEDS(&ctx, dtx_envelope_make(&ctx, &t.set, false, 0, 50, 3, 2, &e));
    assert_int_equal(e.n_curves, 8);
    assert_string_equal(e.dropped, "");
    assert_true(e.n_sizes >= 5 && e.n_edge > 0 && e.n_used + e.n_edge == DTX_ENVELOPE_STEPS);
    assert_true(fabs(e.size.slope - 0.5) < 0.005);
    assert_true(fabs(e.size.slope + e.tokens.slope - 1) < 1e-12);
    for (int s = 0; s < DTX_ENVELOPE_STEPS; s++) /* an edge's size may not be the best there is */
        assert_true(!e.used[s] || (e.ln_n[s] > log(1e6) && e.ln_n[s] < log(128e6)));
    struct dtx_spread spread = dtx_spread_of(e.n_draws, e.size_slope, 0.9);
    assert_true(spread.low <= 0.5 && spread.high >= 0.48);
    dtx_envelope_free(&e);
    dtx_set_free(&t.set);
}

static void percentiles(void **state)
{
    (void)state;
    double values[] = {5, NAN, 1, 4, 2, 3}, infinite[] = {1, INFINITY, 2, INFINITY};
    struct dtx_spread s = dtx_spread_of(6, values, 0.5);
    is_near("low", s.low, 2, 1e-15);
    is_near("high", s.high, 4, 1e-15);
    is_near("error", s.se, sqrt(2.5), 1e-15);
    s = dtx_spread_of(4, infinite, 0.9);
    assert_true(isnan(s.se) && isinf(s.high) && s.low < 2);
    assert_true(isnan(dtx_spread_of(1, values, 0.5).low));
    /* Degenerate lines and parabolas say so. */
    struct dtx_line line;
    struct dtx_parabola parabola;
    double x[] = {1, 1, 2, 2}, y[] = {1, 2, 3, 4}, one[] = {1, 1, 0, 0};
    assert_true(dtx_line_fit(4, x, y, NULL, &line));
    is_near("slope", line.slope, 2, 1e-15);
    assert_false(dtx_line_fit(4, x, y, one, &line));
    assert_false(dtx_parabola_fit(4, x, y, NULL, &parabola));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_lines), cmocka_unit_test(parabolas),
                                       cmocka_unit_test(dropped_budgets), cmocka_unit_test(envelope),
                                       cmocka_unit_test(percentiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
