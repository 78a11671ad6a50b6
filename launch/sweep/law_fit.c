/* Fitting a law to samples: the objective, the grid of starts, refits. */
#include "launch/sweep/law.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/bfgs.h"

enum { SURVEY_STEPS = 15, SECOND_STEPS = 100, SECOND_SHARE = 10, SECOND_LEAST = 50, STEPS = 1000 };

/* The sum of absolute differences is reached through ever sharper Huber losses. */
static const double sharper[] = {1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8}, agreement = 1e-4;
/* Ends that resampled points may prefer: their objective is at most so many times the lowest. */
static const double within_reach = 2, vanished = 1e-3;
enum { SHARPER = sizeof sharper / sizeof *sharper };

static_assert((int)DTX_LAW_PARAMETERS <= (int)DTX_BFGS_VARIABLES, "the parameters of the largest law fit");

void dtx_samples_free(struct dtx_samples *s)
{
    dtx_mem_free(s->x);
    dtx_mem_free(s->group);
    *s = (struct dtx_samples){0};
}

enum dtx_status dtx_samples_make(struct dtx_ctx *ctx, int64_t n, int groups, struct dtx_samples *out)
{
    void *reals, *group;
    if (groups > DTX_LAW_GROUPS)
        return dtx_fail(ctx, DTX_E_RANGE, "%d variants: a law is shared by at most %d", groups, DTX_LAW_GROUPS);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 4 * n, sizeof(double), &reals));
    enum dtx_status status = dtx_mem_alloc(ctx, n, sizeof(int), &group);
    if (status != DTX_OK) {
        dtx_mem_free(reals);
        return status;
    }
    double *x = reals;
    *out = (struct dtx_samples){n, groups, x, x + n, x + 2 * n, x + 3 * n, group};
    for (int64_t i = 0; i < n; i++)
        out->weight[i] = 1;
    return DTX_OK;
}

/* What the minimiser sees: origin in the middle of the data, where intercepts and exponents hardly depend on each
 * other, and the objective over δ, which is of the size of the sum of absolute differences for every δ. */
struct task {
    const struct dtx_law *law;
    const struct dtx_samples *s;
    double delta, x0, y0;
    int n;
};

static double task_value(const void *data, const double *p, double *gradient)
{
    const struct task *t = data;
    const struct dtx_samples *s = t->s;
    double sum = 0, g[DTX_BFGS_VARIABLES] = {0};
    bool one = s->groups == 1;
    memset(gradient, 0, sizeof *gradient * (size_t)t->n);
    for (int64_t i = 0; i < s->n; i++) {
        if (s->weight[i] == 0)
            continue;
        if (!one)
            memset(g, 0, sizeof *g * (size_t)t->n);
        double r = t->law->ln_loss(p, s->x[i] - t->x0, s->y[i] - t->y0, s->group[i], g) - s->ln_loss[i], size = fabs(r);
        bool inside = size < t->delta && !DTX_MUTANT(fit_huber_is_l1);
        sum += s->weight[i] * (inside ? r * r / (2 * t->delta) : size - t->delta / 2);
        double slope = s->weight[i] * (inside ? r / t->delta : copysign(1, r));
        for (int k = 0; k < t->n; k++)
            gradient[k] += slope * g[k];
    }
    return sum;
}

static struct task task_make(const struct dtx_law *law, const struct dtx_samples *s, double delta)
{
    struct task t = {law, s, delta, 0, 0, law->common + law->per_group * s->groups};
    for (int64_t i = 0; i < s->n; i++) {
        t.x0 += s->x[i] / (double)s->n;
        t.y0 += s->y[i] / (double)s->n;
    }
    return t;
}

/* From p, in ln N and ln D, downhill. Returns the objective over δ. */
static double descend(struct task *t, double *p, int steps)
{
    struct dtx_objective f = {task_value, t, t->n};
    t->law->move(p, t->s->groups, t->x0, t->y0);
    double value = dtx_bfgs(&f, p, steps);
    t->law->move(p, t->s->groups, -t->x0, -t->y0);
    return value;
}

double dtx_law_objective(const struct dtx_law *law, const struct dtx_samples *s, double delta, const double *p)
{
    struct task t = task_make(law, s, delta);
    double gradient[DTX_BFGS_VARIABLES];
    t.x0 = t.y0 = 0;
    double value = task_value(&t, p, gradient);
    return delta > 0 ? value * delta : value;
}

double dtx_law_loss(const struct dtx_law *law, const double *p, double n, double d, int group)
{
    double gradient[DTX_LAW_PARAMETERS];
    return exp(law->ln_loss(p, log(n), log(d), group, gradient));
}

static double mean_ln_loss(const struct dtx_samples *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++)
        sum += s->ln_loss[i] / (double)s->n;
    return sum;
}

/* The k-th start for all groups. */
static bool make_start(const struct task *t, int k, double ln_loss, double *p)
{
    if (!t->law->start(k, ln_loss, p))
        return false;
    for (int g = 1; g < t->s->groups; g++)
        for (int i = 0; i < t->law->per_group; i++)
            p[t->law->common + g * t->law->per_group + i] = p[t->law->common + i];
    if (!t->law->absolute_starts)
        t->law->move(p, t->s->groups, -t->x0, -t->y0);
    return true;
}

struct end {
    double value, p[DTX_LAW_PARAMETERS];
    int start;
};

/* Keeps the lowest ends that differ by more than the agreement in value; `best` is ascending. */
static void keep_best(struct end *best, int *n, const struct end *end)
{
    int at = *n;
    if (!isfinite(end->value))
        return;
    for (int i = 0; i < *n; i++)
        if (fabs(end->value - best[i].value) <= agreement * fabs(best[i].value)) {
            if (end->value < best[i].value)
                best[i] = *end;
            return;
        }
    while (at > 0 && end->value < best[at - 1].value)
        at--;
    if (at >= DTX_LAW_OPTIMA)
        return;
    *n = *n < DTX_LAW_OPTIMA ? *n + 1 : *n;
    memmove(best + at + 1, best + at, sizeof *best * (size_t)(*n - 1 - at));
    best[at] = *end;
}

static int compare_ends(const void *left, const void *right)
{
    const struct end *a = left, *b = right;
    return a->value != b->value ? (a->value > b->value) - (a->value < b->value)
                                : (a->start > b->start) - (a->start < b->start);
}

/* Every start a short way, then the lowest tenth of them a longer one: in threads, and sorted by value and start, so
 * that their number changes nothing. */
static enum dtx_status survey(struct dtx_ctx *ctx, const struct task *t, int threads, struct end *best,
                              struct dtx_law_fit *out)
{
    double p[DTX_LAW_PARAMETERS] = {0}, ln_loss = mean_ln_loss(t->s);
    void *memory;
    int starts = 0;
    while (make_start(t, starts, ln_loss, p))
        starts++;
    starts = DTX_MUTANT(fit_one_start) ? 1 : starts;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, starts, sizeof *best, &memory));
    struct end *ends = memory;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
    for (int k = 0; k < starts; k++) {
        struct task own = *t;
        ends[k].start = k;
        make_start(&own, k, ln_loss, ends[k].p);
        ends[k].value = descend(&own, ends[k].p, SURVEY_STEPS);
    }
    qsort(ends, (size_t)starts, sizeof *ends, compare_ends);
    int second = (int)dtx_min64(starts, dtx_max64(SECOND_LEAST, starts / SECOND_SHARE));
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads)
    for (int k = 0; k < second; k++) {
        struct task own = *t;
        if (isfinite(ends[k].value))
            ends[k].value = descend(&own, ends[k].p, SECOND_STEPS);
    }
    for (int k = 0; k < second; k++)
        keep_best(best, &out->n_optima, &ends[k]);
    out->starts = starts;
    dtx_mem_free(memory);
    return DTX_OK;
}

/* To the very bottom; for δ = 0 through ever sharper corners. */
static double finish(const struct task *t, double *p)
{
    struct task own = *t;
    double value = 0;
    if (t->delta > 0)
        return descend(&own, p, STEPS);
    for (int k = 0; k < SHARPER; k++) {
        own.delta = sharper[k];
        value = descend(&own, p, STEPS);
    }
    return value;
}

/* The given starts a short way. */
static void survey_given(const struct task *t, int n, double (*starts)[DTX_LAW_PARAMETERS], struct end *best,
                         struct dtx_law_fit *out)
{
    for (int k = 0; k < n; k++) {
        struct task own = *t;
        struct end end = {.start = k};
        memcpy(end.p, starts[k], sizeof end.p);
        end.value = descend(&own, end.p, SECOND_STEPS);
        keep_best(best, &out->n_optima, &end);
    }
    out->starts = n;
}

/* The k-th term's parameter; −1: there is none. */
static int term_at(const struct dtx_law *law, int groups, int k)
{
    if (law->common_term && k-- == 0)
        return 0;
    return k < law->own_terms * groups ? law->common + k / law->own_terms * law->per_group + k % law->own_terms : -1;
}

/* A term that is nothing in the middle of the data has no slope by which a refit could bring it back. */
static void revive_terms(const struct task *t, struct dtx_law_fit *fit)
{
    double p[DTX_LAW_PARAMETERS], largest = -INFINITY;
    memcpy(p, fit->p, sizeof p);
    t->law->move(p, t->s->groups, t->x0, t->y0);
    for (int k = 0, i; (i = term_at(t->law, t->s->groups, k)) >= 0; k++)
        largest = fmax(largest, p[i]);
    for (int k = 0, i; (i = term_at(t->law, t->s->groups, k)) >= 0 && fit->n_optima < DTX_LAW_OPTIMA; k++) {
        double *revived = fit->optima[fit->n_optima];
        if (p[i] > largest + log(vanished) || DTX_MUTANT(refit_vanished_stays))
            continue;
        memcpy(revived, p, sizeof p);
        revived[i] = largest + log(0.4);
        t->law->move(revived, t->s->groups, -t->x0, -t->y0);
        fit->n_optima++;
    }
}

enum dtx_status dtx_law_fit(struct dtx_ctx *ctx, const struct dtx_law *law, const struct dtx_samples *s, double delta,
                            int n_starts, double (*starts)[DTX_LAW_PARAMETERS], int threads, struct dtx_law_fit *out)
{
    struct task t = task_make(law, s, delta), first = t;
    struct end best[DTX_LAW_OPTIMA + 1];
    struct dtx_law_fit fit = {.law = law, .groups = s->groups, .n = t.n, .delta = delta};
    first.delta = delta > 0 ? delta : sharper[0];
    if (n_starts > 0)
        survey_given(&first, n_starts, starts, best, &fit);
    else
        DTX_TRY(ctx, survey(ctx, &first, threads, best, &fit));
    if (fit.n_optima == 0)
        return dtx_fail(ctx, DTX_E_NUMERIC, "%s: none of %d starts comes to a finite end", law->formula, fit.starts);
    int n = fit.n_optima;
    struct end ends[DTX_LAW_OPTIMA + 1];
    for (fit.n_optima = 0; n > 0; n--) {
        best[n - 1].value = finish(&t, best[n - 1].p);
        keep_best(ends, &fit.n_optima, &best[n - 1]);
    }
    while (fit.n_optima > 1 && ends[fit.n_optima - 1].value > within_reach * ends[0].value)
        fit.n_optima--;
    for (int i = 0; i < fit.n_optima; i++)
        memcpy(fit.optima[i], ends[i].p, sizeof ends[i].p);
    memcpy(fit.p, ends[0].p, sizeof fit.p);
    revive_terms(&t, &fit);
    fit.objective = dtx_law_objective(law, s, delta, fit.p);
    *out = fit;
    return DTX_OK;
}

double dtx_law_refit(const struct dtx_law_fit *fit, const struct dtx_samples *s, double *p)
{
    struct task t = task_make(fit->law, s, fit->delta);
    double lowest = INFINITY;
    for (int i = 0; i < (DTX_MUTANT(refit_from_nowhere) ? 0 : fit->n_optima); i++) {
        double own[DTX_LAW_PARAMETERS];
        memcpy(own, fit->optima[i], sizeof own);
        double value = finish(&t, own);
        if (value < lowest) {
            lowest = value;
            memcpy(p, own, sizeof *p * (size_t)fit->n);
        }
    }
    return fit->delta > 0 ? lowest * fit->delta : lowest;
}
