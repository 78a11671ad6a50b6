#include "launch/sweep/envelope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

enum { STEPS = DTX_ENVELOPE_STEPS };

static const double same_size = 1e-9; /* of ln N, within one curve */

/* Losses of every curve at every step of compute. */
struct table {
    const struct dtx_set *set;
    int64_t n_curves;
    int64_t *order, *first; /* [points] by curve, then C; [curves + 1] */
    double *ln_n, *ln_rate; /* [curves]: ln N, ln of the FLOPs of a token */
    double *ln_loss;        /* [curves][STEPS], NaN outside of the curve */
    double ln_c[STEPS];
};

struct sorting {
    const struct dtx_set *set;
    bool by_run;
};

static int compare_curves(const struct sorting *s, int64_t i, int64_t j)
{
    double a = s->set->ln_n[i], b = s->set->ln_n[j];
    if (s->by_run)
        return strcmp(s->set->point[i]->run, s->set->point[j]->run);
    return fabs(a - b) <= same_size ? 0 : (a > b) - (a < b);
}

static int compare(const void *left, const void *right, void *data)
{
    const struct sorting *s = data;
    int64_t i = *(const int64_t *)left, j = *(const int64_t *)right;
    int order = compare_curves(s, i, j);
    double a = s->set->ln_c[i], b = s->set->ln_c[j];
    return order ? order : (a > b) - (a < b);
}

static void find_curves(struct table *t, bool by_run)
{
    struct sorting s = {t->set, by_run};
    for (int64_t i = 0; i < t->set->n; i++)
        t->order[i] = i;
    qsort_r(t->order, (size_t)t->set->n, sizeof *t->order, compare, &s);
    for (int64_t k = 0; k < t->set->n; k++)
        if (k == 0 || compare_curves(&s, t->order[k - 1], t->order[k]) != 0) {
            t->ln_n[t->n_curves] = t->set->ln_n[t->order[k]];
            t->ln_rate[t->n_curves] = t->set->ln_c[t->order[k]] - t->set->ln_d[t->order[k]];
            t->first[t->n_curves++] = k;
        }
    t->first[t->n_curves] = t->set->n;
}

static void make_steps(struct table *t)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < t->set->n; i++) {
        low = fmin(low, t->set->ln_c[i]);
        high = fmax(high, t->set->ln_c[i]);
    }
    for (int s = 0; s < STEPS; s++)
        t->ln_c[s] = low + (high - low) * s / (STEPS - 1);
}

/* Means of ln C and ln L over the points around the k-th: on a straight piece they lie on it. */
static void smoothed(const struct table *t, int64_t curve, int64_t k, double smooth, double *x, double *y)
{
    double at = t->set->ln_c[t->order[k]], n = 0;
    *x = *y = 0;
    for (int side = -1; side <= 1; side += 2)
        for (int64_t j = side < 0 ? k : k + 1; j >= t->first[curve] && j < t->first[curve + 1]; j += side) {
            int64_t i = t->order[j];
            if (fabs(t->set->ln_c[i] - at) > smooth)
                break;
            *x += t->set->ln_c[i];
            *y += log(t->set->loss[i]);
            n++;
        }
    *x /= n;
    *y /= n;
}

/* One curve at the steps, straight between its points. */
static void interpolate(struct table *t, int64_t curve, double smooth)
{
    double x0 = NAN, y0 = NAN;
    double *out = t->ln_loss + curve * STEPS;
    int step = 0;
    for (int s = 0; s < STEPS; s++)
        out[s] = NAN;
    for (int64_t k = t->first[curve]; k < t->first[curve + 1]; k++) {
        double x, y;
        smoothed(t, curve, k, smooth, &x, &y);
        for (; step < STEPS && t->ln_c[step] <= x; step++)
            if (t->ln_c[step] >= x0)
                out[step] = x > x0 ? y0 + (y - y0) * (t->ln_c[step] - x0) / (x - x0) : y;
            else if (t->ln_c[step] == x)
                out[step] = y;
        x0 = x;
        y0 = y;
    }
}

/* The best curve at a step among those with a positive count, and of the next smaller and larger sizes the best each;
 * -1: none. */
struct best {
    int64_t at, smaller, larger;
};

/* Is curve c, lower or nearer in size, better than `old` (-1: none)? side: −1 smaller sizes are looked at, 1 larger. */
static bool replaces(const struct table *t, int step, int64_t c, int64_t old, int side)
{
    double nearer = old < 0 ? 1 : side * (t->ln_n[old] - t->ln_n[c]);
    return nearer > same_size ||
           (nearer >= -same_size && t->ln_loss[c * STEPS + step] < t->ln_loss[old * STEPS + step]);
}

static struct best best_at(const struct table *t, int step, const int *count)
{
    struct best b = {-1, -1, -1};
    for (int64_t c = 0; c < t->n_curves; c++)
        if (count[c] > 0 && !isnan(t->ln_loss[c * STEPS + step]) &&
            (b.at < 0 || t->ln_loss[c * STEPS + step] < t->ln_loss[b.at * STEPS + step]))
            b.at = c;
    for (int64_t c = 0; c < t->n_curves && b.at >= 0; c++) {
        if (count[c] == 0 || isnan(t->ln_loss[c * STEPS + step]))
            continue;
        double apart = t->ln_n[c] - t->ln_n[b.at];
        if (apart < -same_size && replaces(t, step, c, b.smaller, -1))
            b.smaller = c;
        if (apart > same_size && replaces(t, step, c, b.larger, 1))
            b.larger = c;
    }
    return b;
}

/* The lowest point of the parabola through the best size and its neighbours: the sizes alone would make a staircase,
 * whose line is too flat. Returns ln D. */
static double interpolate_sizes(const struct table *t, int step, const struct best *b, struct dtx_envelope *e)
{
    const int64_t curves[] = {b->smaller, b->at, b->larger};
    double x[3], y[3], rate[3];
    struct dtx_parabola p;
    struct dtx_line rates;
    for (int i = 0; i < 3; i++) {
        x[i] = t->ln_n[curves[i]];
        y[i] = t->ln_loss[curves[i] * STEPS + step];
        rate[i] = t->ln_rate[curves[i]];
    }
    if (dtx_parabola_fit(3, x, y, NULL, &p) && p.curvature > 0 && !DTX_MUTANT(envelope_staircase)) {
        e->ln_n[step] = p.vertex;
        e->ln_loss[step] = p.least;
    }
    dtx_line_fit(3, x, rate, NULL, &rates);
    return e->ln_c[step] - (rates.intercept + rates.slope * e->ln_n[step]);
}

static void follow(const struct table *t, const int *count, struct dtx_envelope *e)
{
    double x[STEPS], size[STEPS], tokens[STEPS], loss[STEPS];
    int n = 0;
    e->n_edge = 0;
    for (int s = 0; s < STEPS; s++) {
        struct best b = best_at(t, s, count);
        e->ln_c[s] = t->ln_c[s];
        e->ln_n[s] = b.at < 0 ? NAN : t->ln_n[b.at];
        e->ln_loss[s] = b.at < 0 ? NAN : t->ln_loss[b.at * STEPS + s];
        e->best[s] = b.at;
        e->used[s] = b.smaller >= 0 && b.larger >= 0;
        e->n_edge += b.at >= 0 && !e->used[s];
        if (!e->used[s])
            continue;
        tokens[n] = interpolate_sizes(t, s, &b, e);
        x[n] = e->ln_c[s];
        size[n] = e->ln_n[s];
        loss[n++] = e->ln_loss[s];
    }
    e->n_used = n;
    dtx_line_fit(n, x, size, NULL, &e->size);
    dtx_line_fit(n, x, tokens, NULL, &e->tokens);
    dtx_line_fit(n, x, loss, NULL, &e->loss);
}

/* How many sizes are best somewhere. */
static int64_t count_sizes(const struct table *t, const struct dtx_envelope *e)
{
    int64_t found = 0;
    for (int s = 0; s < STEPS; s++) {
        bool seen = !e->used[s];
        for (int k = 0; k < s && !seen; k++)
            seen = e->used[k] && fabs(t->ln_n[e->best[k]] - t->ln_n[e->best[s]]) <= same_size;
        found += !seen;
    }
    return found;
}

static enum dtx_status resample(struct dtx_ctx *ctx, const struct table *t, int64_t draws, uint64_t key, int threads,
                                struct dtx_envelope *e)
{
    void *memory, *counts;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 3 * draws, sizeof(double), &memory));
    e->size_slope = memory;
    e->tokens_slope = e->size_slope + draws;
    e->loss_slope = e->tokens_slope + draws;
    e->n_draws = draws;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, threads * t->n_curves, sizeof(int), &counts));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int k = 0; k < threads; k++) {
        int *count = (int *)counts + k * t->n_curves;
        for (int64_t i = k; i < draws; i += threads) {
            struct dtx_envelope drawn;
            memset(count, 0, sizeof *count * (size_t)t->n_curves);
            for (int64_t c = 0; c < t->n_curves; c++)
                count[(int64_t)(dtx_rng_uniform(key, (uint64_t)(i * t->n_curves + c)) * (double)t->n_curves)]++;
            follow(t, count, &drawn);
            e->size_slope[i] = drawn.size.slope;
            e->tokens_slope[i] = drawn.tokens.slope;
            e->loss_slope[i] = drawn.loss.slope;
        }
    }
    dtx_mem_free(counts);
    return DTX_OK;
}

static enum dtx_status make_table(struct dtx_ctx *ctx, const struct dtx_set *set, bool by_run, double smooth,
                                  struct table *t, void **owner)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 4 * set->n + 1, sizeof(int64_t), owner));
    t->order = *owner;
    t->first = t->order + set->n;
    t->ln_n = (double *)(t->first + set->n + 1);
    t->ln_rate = t->ln_n + set->n;
    find_curves(t, by_run);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, t->n_curves * STEPS, sizeof(double), &memory));
    t->ln_loss = memory;
    make_steps(t);
    for (int64_t c = 0; c < t->n_curves; c++)
        interpolate(t, c, smooth);
    return DTX_OK;
}

/* Every curve once, then drawn ones. */
static enum dtx_status make(struct dtx_ctx *ctx, const struct table *t, int64_t draws, uint64_t key, int threads,
                            struct dtx_envelope *e)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, t->n_curves, sizeof(int), &memory));
    int *once = memory;
    for (int64_t c = 0; c < t->n_curves; c++)
        once[c] = 1;
    follow(t, once, e);
    dtx_mem_free(memory);
    e->n_curves = t->n_curves;
    e->n_sizes = count_sizes(t, e);
    if (e->n_sizes < 2) {
        snprintf(e->dropped, sizeof e->dropped,
                 "%lld sizes between the smallest and the largest are the best of %lld curves anywhere; two are needed",
                 (long long)e->n_sizes, (long long)e->n_curves);
        return DTX_OK;
    }
    return resample(ctx, t, draws, key, threads, e);
}

enum dtx_status dtx_envelope_make(struct dtx_ctx *ctx, const struct dtx_set *set, bool by_run, double smooth,
                                  int64_t draws, uint64_t key, int threads, struct dtx_envelope *out)
{
    struct table t = {.set = set};
    void *owner = NULL;
    *out = (struct dtx_envelope){0};
    enum dtx_status status = make_table(ctx, set, by_run, smooth, &t, &owner);
    if (status == DTX_OK)
        status = make(ctx, &t, draws, key, threads, out);
    dtx_mem_free(t.ln_loss);
    dtx_mem_free(owner);
    if (status != DTX_OK)
        dtx_envelope_free(out);
    return status;
}

void dtx_envelope_free(struct dtx_envelope *envelope)
{
    dtx_mem_free(envelope->size_slope);
    *envelope = (struct dtx_envelope){0};
}
