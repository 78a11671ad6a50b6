#include "launch/sweep/isoflop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

enum { LEAST_SIZES = 3 };

static int compare_by_c(const void *left, const void *right, void *data)
{
    const double *ln_c = data;
    double a = ln_c[*(const int64_t *)left], b = ln_c[*(const int64_t *)right];
    return (a > b) - (a < b);
}

/* A group ends where C is more than the tolerance above its first. */
static enum dtx_status group(struct dtx_ctx *ctx, const struct dtx_set *set, double tolerance, struct dtx_isoflop *iso)
{
    void *memory;
    double first = -INFINITY, reach = log1p(tolerance);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, set->n, sizeof(int64_t), &memory));
    int64_t *order = memory;
    for (int64_t i = 0; i < set->n; i++)
        order[i] = i;
    qsort_r(order, (size_t)set->n, sizeof *order, compare_by_c, set->ln_c);
    for (int64_t k = 0; k < set->n && iso->n_budgets <= DTX_ISOFLOP_BUDGETS; k++) {
        int64_t i = order[k];
        if (!(set->ln_c[i] - first <= reach)) {
            if (iso->n_budgets++ == DTX_ISOFLOP_BUDGETS)
                break;
            first = set->ln_c[i];
        }
        struct dtx_budget *b = &iso->budget[iso->n_budgets - 1];
        b->ln_c += (set->ln_c[i] - b->ln_c) / (double)++b->n;
        iso->budget_of[i] = iso->n_budgets - 1;
    }
    dtx_mem_free(memory);
    if (iso->n_budgets > DTX_ISOFLOP_BUDGETS)
        return dtx_fail(ctx, DTX_E_RANGE,
                        "more than %d budgets of compute; --isoflop.tolerance says how far apart the "
                        "FLOPs of one budget may be",
                        (int)DTX_ISOFLOP_BUDGETS);
    return DTX_OK;
}

/* Marks the points of budget k that the parabola is fitted to: sizes within the span of the best one's. */
static void choose_points(const struct dtx_set *set, int k, double span, struct dtx_isoflop *iso)
{
    struct dtx_budget *b = &iso->budget[k];
    int64_t best = -1;
    b->low = INFINITY;
    b->high = -INFINITY;
    for (int64_t i = 0; i < set->n; i++)
        if (iso->budget_of[i] == k && (best < 0 || set->loss[i] < set->loss[best]))
            best = i;
    for (int64_t i = 0; i < set->n; i++) {
        if (iso->budget_of[i] != k)
            continue;
        iso->fitted[i] = span <= 0 || fabs(set->ln_n[i] - set->ln_n[best]) <= log(span) * (1 + 1e-12);
        if (iso->fitted[i]) {
            b->fitted++;
            b->low = fmin(b->low, set->ln_n[i]);
            b->high = fmax(b->high, set->ln_n[i]);
        }
    }
}

/* Points of budget k in `x`, `y` [points]; their number. */
static int64_t take_points(const struct dtx_set *set, const struct dtx_isoflop *iso, int k, const double *values,
                           double *x, double *y)
{
    int64_t n = 0;
    for (int64_t i = 0; i < set->n; i++)
        if (iso->budget_of[i] == k && iso->fitted[i]) {
            x[n] = set->ln_n[i];
            y[n++] = values[i];
        }
    return n;
}

static void judge(struct dtx_budget *b, bool fits)
{
    const char *edge = b->parabola.vertex < b->low ? "smallest" : "largest";
    if (!fits)
        snprintf(b->dropped, sizeof b->dropped, "fewer than %d sizes of %lld points", (int)LEAST_SIZES,
                 (long long)b->n);
    else if (!(b->parabola.curvature > 0))
        snprintf(b->dropped, sizeof b->dropped, "its losses have no minimum over the sizes");
    else if ((b->parabola.vertex < b->low || b->parabola.vertex > b->high) && !DTX_MUTANT(isoflop_outside_taken))
        snprintf(b->dropped, sizeof b->dropped, "the vertex N = %.4g lies outside the grid, beyond its %s size %.4g",
                 exp(b->parabola.vertex), edge, exp(b->parabola.vertex < b->low ? b->low : b->high));
}

double dtx_budget_tokens(const struct dtx_budget *b)
{
    return b->tokens.intercept + b->tokens.slope * b->parabola.vertex;
}

/* Lines through the vertices of budgets that are used. weights: by 1/se². */
static void fit_lines(const struct dtx_isoflop *iso, bool weights, struct dtx_isoflop_lines *out)
{
    double c[DTX_ISOFLOP_BUDGETS], size[DTX_ISOFLOP_BUDGETS], tokens[DTX_ISOFLOP_BUDGETS], loss[DTX_ISOFLOP_BUDGETS];
    double weight[DTX_ISOFLOP_BUDGETS];
    int n = 0;
    for (int k = 0; k < iso->n_budgets; k++) {
        const struct dtx_budget *b = &iso->budget[k];
        if (b->dropped[0] || !(b->parabola.least > 0))
            continue;
        c[n] = b->ln_c;
        size[n] = b->parabola.vertex;
        tokens[n] = dtx_budget_tokens(b);
        loss[n] = log(b->parabola.least);
        weight[n++] = 1 / (b->se_vertex * b->se_vertex);
    }
    dtx_line_fit(n, c, size, weights ? weight : NULL, &out->size);
    dtx_line_fit(n, c, tokens, weights ? weight : NULL, &out->tokens);
    dtx_line_fit(n, c, loss, weights ? weight : NULL, &out->loss);
}

/* Parabolas of `loss` [points] in the chosen points, and what they are worth. x, y: room for all points. */
static void fit_budgets(const struct dtx_set *set, const double *loss, double *x, double *y, struct dtx_isoflop *iso)
{
    iso->n_used = 0;
    for (int k = 0; k < iso->n_budgets; k++) {
        struct dtx_budget *b = &iso->budget[k];
        b->dropped[0] = '\0';
        int64_t n = take_points(set, iso, k, loss, x, y);
        judge(b, dtx_parabola_fit(n, x, y, NULL, &b->parabola));
        iso->n_used += !b->dropped[0];
    }
}

static void measure_residuals(const struct dtx_set *set, struct dtx_isoflop *iso)
{
    double sum[DTX_ISOFLOP_BUDGETS] = {0};
    int64_t points = 0, freedom = 0;
    for (int64_t i = 0; i < set->n; i++) {
        int k = iso->budget_of[i];
        double r = set->loss[i] - dtx_parabola_at(&iso->budget[k].parabola, set->ln_n[i]);
        if (iso->fitted[i] && !iso->budget[k].dropped[0])
            sum[k] += r * r;
    }
    for (int k = 0; k < iso->n_budgets; k++) {
        struct dtx_budget *b = &iso->budget[k];
        b->se_vertex = NAN;
        b->rms = b->dropped[0] ? NAN : sqrt(sum[k] / (double)b->fitted);
        points += b->dropped[0] ? 0 : b->fitted;
        freedom += b->dropped[0] ? 0 : b->fitted - 3;
    }
    iso->residual_scale = freedom > 0 ? sqrt((double)points / (double)freedom) : 0;
}

static enum dtx_status make(struct dtx_ctx *ctx, const struct dtx_set *set, const struct dtx_isoflop_options *options,
                            struct dtx_isoflop *iso)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, set->n, sizeof *iso->budget_of, &memory));
    iso->budget_of = memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, set->n, sizeof *iso->fitted, &memory));
    iso->fitted = memory;
    DTX_TRY(ctx, group(ctx, set, options->tolerance, iso));
    for (int k = 0; k < iso->n_budgets; k++)
        choose_points(set, k, options->span, iso);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * set->n, sizeof(double), &memory));
    double *room = memory;
    for (int k = 0; k < iso->n_budgets; k++) {
        int64_t n = take_points(set, iso, k, set->ln_d, room, room + set->n);
        dtx_line_fit(n, room, room + set->n, NULL, &iso->budget[k].tokens);
    }
    fit_budgets(set, set->loss, room, room + set->n, iso);
    dtx_mem_free(memory);
    measure_residuals(set, iso);
    fit_lines(iso, false, &iso->lines);
    iso->weighted = (struct dtx_isoflop_lines){{NAN, NAN, NAN}, {NAN, NAN, NAN}, {NAN, NAN, NAN}};
    return DTX_OK;
}

enum dtx_status dtx_isoflop_make(struct dtx_ctx *ctx, const struct dtx_set *set,
                                 const struct dtx_isoflop_options *options, struct dtx_isoflop *out)
{
    *out = (struct dtx_isoflop){0};
    enum dtx_status status = make(ctx, set, options, out);
    if (status != DTX_OK)
        dtx_isoflop_free(out);
    return status;
}

void dtx_isoflop_free(struct dtx_isoflop *iso)
{
    dtx_mem_free(iso->budget_of);
    dtx_mem_free(iso->fitted);
    dtx_mem_free(iso->size_slope);
    *iso = (struct dtx_isoflop){0};
}

/* What one thread resamples with. */
struct resampler {
    struct dtx_isoflop iso; /* shares its points with the original */
    double *loss, *x, *y;   /* [points] */
};

static void draw(struct resampler *r, const struct dtx_isoflop *iso, const struct dtx_set *set, const double *residual,
                 int64_t n_residuals, uint64_t key, uint64_t draw_index)
{
    r->iso = *iso;
    for (int64_t i = 0; i < set->n; i++) {
        const struct dtx_budget *b = &iso->budget[iso->budget_of[i]];
        double u = dtx_rng_uniform(key, draw_index * (uint64_t)set->n + (uint64_t)i);
        r->loss[i] = b->dropped[0] ? set->loss[i]
                                   : dtx_parabola_at(&b->parabola, set->ln_n[i]) +
                                         iso->residual_scale * residual[(int64_t)(u * (double)n_residuals)];
    }
    fit_budgets(set, r->loss, r->x, r->y, &r->iso);
    /* What the data dropped stays dropped. */
    for (int k = 0; k < iso->n_budgets; k++)
        if (iso->budget[k].dropped[0])
            memcpy(r->iso.budget[k].dropped, iso->budget[k].dropped, sizeof r->iso.budget[k].dropped);
    fit_lines(&r->iso, false, &r->iso.lines);
}

/* Residuals of the fitted points of budgets that are used. */
static int64_t gather_residuals(const struct dtx_isoflop *iso, const struct dtx_set *set, double *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < set->n; i++) {
        const struct dtx_budget *b = &iso->budget[iso->budget_of[i]];
        if (iso->fitted[i] && !b->dropped[0])
            out[n++] = set->loss[i] - dtx_parabola_at(&b->parabola, set->ln_n[i]);
    }
    return n;
}

static void keep_draw(struct dtx_isoflop *iso, int64_t i, const struct dtx_isoflop *drawn, double *vertices)
{
    iso->size_slope[i] = drawn->lines.size.slope;
    iso->size_at[i] = drawn->lines.size.intercept;
    iso->tokens_slope[i] = drawn->lines.tokens.slope;
    iso->loss_slope[i] = drawn->lines.loss.slope;
    for (int k = 0; k < iso->n_budgets; k++)
        vertices[k * iso->n_draws + i] = drawn->budget[k].dropped[0] ? NAN : drawn->budget[k].parabola.vertex;
}

enum dtx_status dtx_isoflop_resample(struct dtx_ctx *ctx, struct dtx_isoflop *iso, const struct dtx_set *set,
                                     int64_t draws, uint64_t key, int threads)
{
    int64_t per_thread = 3 * set->n, lines = 4 * draws;
    void *kept, *memory, *resamplers;
    if (iso->n_used < 2 || !(iso->residual_scale > 0))
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, lines, sizeof(double), &kept));
    iso->size_slope = kept;
    iso->size_at = iso->size_slope + draws;
    iso->tokens_slope = iso->size_at + draws;
    iso->loss_slope = iso->tokens_slope + draws;
    iso->n_draws = draws;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, set->n + iso->n_budgets * draws + threads * per_thread, sizeof(double), &memory));
    enum dtx_status status = dtx_mem_alloc(ctx, threads, sizeof(struct resampler), &resamplers);
    if (status != DTX_OK) {
        dtx_mem_free(memory);
        return status;
    }
    struct resampler *of_thread = resamplers;
    double *residual = memory, *vertices = residual + set->n, *room = vertices + iso->n_budgets * draws;
    int64_t n_residuals = gather_residuals(iso, set, residual);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        struct resampler *r = &of_thread[t];
        r->loss = room + t * per_thread;
        r->x = r->loss + set->n;
        r->y = r->x + set->n;
        for (int64_t i = t; i < draws; i += threads) {
            draw(r, iso, set, residual, n_residuals, key, (uint64_t)i);
            keep_draw(iso, i, &r->iso, vertices);
        }
    }
    for (int k = 0; k < iso->n_budgets; k++)
        iso->budget[k].se_vertex = dtx_spread_of(draws, vertices + k * draws, 0.95).se;
    fit_lines(iso, true, &iso->weighted);
    dtx_mem_free(resamplers);
    dtx_mem_free(memory);
    return DTX_OK;
}
