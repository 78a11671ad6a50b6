#include "launch/sweep/fit.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "launch/sweep/curves.h"

static const double near = 0.01; /* N or D within 1 % are the same size, the same number of tokens */

const struct dtx_law *const dtx_fit_laws[DTX_FIT_LAWS] = {&dtx_law_surface, &dtx_law_kaplan,  &dtx_law_size,
                                                          &dtx_law_tokens,  &dtx_law_power_n, &dtx_law_power_d};

const enum dtx_fit_law dtx_fit_shared[DTX_FIT_SHARED] = {DTX_FIT_SURFACE, DTX_FIT_SIZE, DTX_FIT_TOKENS};

/* --- which points a law is fitted to ------------------------------------------------------------------------------ */

/* Points whose `fixed` value lies near the i-th point's, as a mask; how many different values of `free` they have. */
static int mark_slice(const struct dtx_set *set, const double *fixed, const double *free, int64_t i, bool *mask,
                      double *values)
{
    int64_t n = 0;
    for (int64_t j = 0; j < set->n; j++) {
        mask[j] = fabs(fixed[j] - fixed[i]) <= near;
        if (mask[j])
            values[n++] = free[j];
    }
    return dtx_set_different(n, values, near);
}

static bool seen_before(const double *values, int64_t i)
{
    for (int64_t j = 0; j < i; j++)
        if (values[j] == values[i])
            return true;
    return false;
}

/* The slice with the most different values of `free`, of several the one with the highest `fixed`; that at *at, if it
 * is not 0 and has three. */
static void choose_slice(const struct dtx_set *set, const double *fixed, const double *free, bool *mask, double *values,
                         double *at)
{
    int64_t best = 0;
    int most = 0;
    for (int64_t i = 0; i < set->n; i++) {
        if (seen_before(fixed, i))
            continue;
        int n = mark_slice(set, fixed, free, i, mask, values);
        if (*at > 0 && fabs(fixed[i] - log(*at)) <= near && n >= 3) {
            best = i;
            break;
        }
        if (n > most || (n == most && fixed[i] > fixed[best])) {
            most = n;
            best = i;
        }
    }
    mark_slice(set, fixed, free, best, mask, values);
    *at = exp(fixed[best]);
}

static void append(const struct dtx_set *set, const bool *mask, int group, struct dtx_samples *s)
{
    for (int64_t i = 0; i < set->n; i++) {
        if (mask && !mask[i])
            continue;
        s->x[s->n] = set->ln_n[i];
        s->y[s->n] = set->ln_d[i];
        s->ln_loss[s->n] = log(set->loss[i]);
        s->group[s->n++] = group;
    }
}

/* Is it enough for a law of its groups? Else says why not. Several groups tell a curve from three points each. */
static bool suffices(const struct dtx_law *law, const struct dtx_samples *s, char *dropped)
{
    int sizes = dtx_set_different(s->n, s->x, near), tokens = dtx_set_different(s->n, s->y, near);
    int parameters = law->common + law->per_group * s->groups, most = s->groups > 1 ? 3 : INT_MAX;
    int need_sizes = law->sizes < most ? law->sizes : most, need_tokens = law->tokens < most ? law->tokens : most;
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < s->n; i++) {
        low = fmin(low, s->ln_loss[i]);
        high = fmax(high, s->ln_loss[i]);
    }
    if (s->n <= parameters)
        snprintf(dropped, DTX_FIT_REASON, "%lld points for %d parameters; at least %d are needed", (long long)s->n,
                 parameters, parameters + 1);
    else if (sizes < need_sizes || tokens < need_tokens)
        snprintf(dropped, DTX_FIT_REASON, "its points have %d different N and %d different D; %d and %d are needed",
                 sizes, tokens, need_sizes, need_tokens);
    else if (high - low < 1e-9)
        snprintf(dropped, DTX_FIT_REASON, "all its losses are equal (%g)", exp(low));
    else
        return true;
    return false;
}

/* --- one law ------------------------------------------------------------------------------------------------------ */

/* Fits and resamples; a fit that comes to no end is dropped. */
static enum dtx_status estimate(struct dtx_ctx *ctx, const struct dtx_fit *fit, const struct dtx_law *law, int n_starts,
                                double (*starts)[DTX_LAW_PARAMETERS], const uint64_t *keys, struct dtx_fit_part *part)
{
    const struct dtx_fit_options *o = &fit->options;
    struct dtx_law_fit best;
    enum dtx_status status = dtx_law_fit(ctx, law, &part->samples, o->delta, n_starts, starts, o->threads, &best);
    if (status == DTX_E_NUMERIC) {
        snprintf(part->dropped, sizeof part->dropped, "no start comes to a finite end");
        dtx_error_clear(ctx);
        return DTX_OK;
    }
    DTX_TRY(ctx, status);
    return dtx_estimate_make(ctx, &part->samples, &best, o->resamples, keys, o->threads, &part->estimate);
}

static uint64_t key_of(const struct dtx_fit *fit, int variant)
{
    return dtx_rng_key((uint64_t)fit->options.seed, fit->paired ? "points" : fit->variant[variant].name);
}

static enum dtx_status fit_law(struct dtx_ctx *ctx, struct dtx_fit *fit, int variant, enum dtx_fit_law which,
                               bool *mask, double *values)
{
    struct dtx_fit_variant *v = &fit->variant[variant];
    struct dtx_fit_part *part = &v->part[which];
    const struct dtx_law *law = dtx_fit_laws[which];
    bool of_size = law->tokens == 1, of_tokens = law->sizes == 1;
    uint64_t key = key_of(fit, variant);
    DTX_TRY(ctx, dtx_samples_make(ctx, v->set.n, 1, &part->samples));
    part->samples.n = 0;
    part->fixed = variant == fit->baseline ? 0 : fit->variant[fit->baseline].part[which].fixed;
    if (of_size)
        choose_slice(&v->set, v->set.ln_d, v->set.ln_n, mask, values, &part->fixed);
    if (of_tokens)
        choose_slice(&v->set, v->set.ln_n, v->set.ln_d, mask, values, &part->fixed);
    append(&v->set, of_size || of_tokens ? mask : NULL, 0, &part->samples);
    if (!suffices(law, &part->samples, part->dropped))
        return DTX_OK;
    return estimate(ctx, fit, law, 0, NULL, &key, part);
}

/* The samples of all variants, which must lie in the same slice. */
static bool gather_shared(const struct dtx_fit *fit, enum dtx_fit_law which, struct dtx_fit_part *part)
{
    part->samples.n = 0;
    part->fixed = fit->variant[fit->baseline].part[which].fixed;
    for (int v = 0; v < fit->n_variants; v++) {
        const struct dtx_fit_part *own = &fit->variant[v].part[which];
        struct dtx_samples *to = &part->samples;
        if (part->fixed > 0 && fabs(log(own->fixed) - log(part->fixed)) > near) {
            snprintf(part->dropped, sizeof part->dropped, "variants have no common %s",
                     dtx_fit_laws[which]->tokens == 1 ? "D" : "N");
            return false;
        }
        for (int64_t i = 0; i < own->samples.n; i++, to->n++) {
            to->x[to->n] = own->samples.x[i];
            to->y[to->n] = own->samples.y[i];
            to->ln_loss[to->n] = own->samples.ln_loss[i];
            to->group[to->n] = v;
        }
    }
    return suffices(dtx_fit_laws[which], &part->samples, part->dropped);
}

/* From the variants' own fits, where there are any, else from the grid of starts. */
static enum dtx_status fit_shared(struct dtx_ctx *ctx, struct dtx_fit *fit, int k)
{
    const enum dtx_fit_law which = dtx_fit_shared[k];
    const struct dtx_law *law = dtx_fit_laws[which];
    double starts[DTX_POINTS_VARIANTS][DTX_LAW_PARAMETERS] = {{0}};
    uint64_t keys[DTX_POINTS_VARIANTS];
    struct dtx_fit_part *part = &fit->shared[k];
    int n_starts = 0;
    if (fit->n_variants < 2) {
        snprintf(part->dropped, sizeof part->dropped, "there is one variant");
        return DTX_OK;
    }
    DTX_TRY(ctx, dtx_samples_make(ctx, fit->points.used, fit->n_variants, &part->samples));
    if (!gather_shared(fit, which, part))
        return DTX_OK;
    for (int v = 0; v < fit->n_variants; v++) {
        const struct dtx_fit_part *own = &fit->variant[v].part[which];
        const double *p = own->estimate.fit.p;
        keys[v] = key_of(fit, v);
        if (own->dropped[0])
            continue;
        memcpy(starts[n_starts], p, sizeof *p * (size_t)law->common);
        for (int g = 0; g < fit->n_variants; g++)
            memcpy(&starts[n_starts][law->common + law->per_group * g], p + law->common,
                   sizeof *p * (size_t)law->per_group);
        n_starts++;
    }
    return estimate(ctx, fit, law, n_starts, starts, keys, part);
}

static enum dtx_status fit_isoflop(struct dtx_ctx *ctx, struct dtx_fit *fit, int variant)
{
    const struct dtx_fit_options *o = &fit->options;
    struct dtx_fit_variant *v = &fit->variant[variant];
    enum dtx_status status = dtx_isoflop_make(ctx, &v->set, &o->isoflop, &v->isoflop);
    if (status == DTX_E_RANGE) {
        snprintf(v->isoflop_dropped, sizeof v->isoflop_dropped, "%.190s", ctx->error.text);
        dtx_error_clear(ctx);
        return DTX_OK;
    }
    DTX_TRY(ctx, status);
    if (v->isoflop.n_used < 2)
        snprintf(v->isoflop_dropped, sizeof v->isoflop_dropped,
                 "%d of %d budgets have a minimum among their sizes; two are needed (--isoflop.tolerance groups FLOPs)",
                 v->isoflop.n_used, v->isoflop.n_budgets);
    return dtx_isoflop_resample(ctx, &v->isoflop, &v->set, o->resamples, key_of(fit, variant), o->threads);
}

static enum dtx_status fit_envelope(struct dtx_ctx *ctx, struct dtx_fit *fit, int variant)
{
    const struct dtx_fit_options *o = &fit->options;
    struct dtx_fit_variant *v = &fit->variant[variant];
    bool curves = v->curves.n > 0;
    DTX_TRY(ctx,
            dtx_envelope_make(ctx, curves ? &v->curves : &v->set, curves && fit->curve_points.has_run,
                              curves ? o->smooth : 0, o->resamples, key_of(fit, variant), o->threads, &v->envelope));
    memcpy(v->envelope_dropped, v->envelope.dropped, sizeof v->envelope.dropped);
    if (v->envelope.dropped[0] && !curves)
        strcat(v->envelope_dropped, " (--curves gives loss curves)");
    return DTX_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */
static enum dtx_status choose_baseline(struct dtx_ctx *ctx, struct dtx_fit *fit)
{
    const char *wanted = fit->options.baseline && *fit->options.baseline ? fit->options.baseline : NULL;
    fit->baseline = wanted ? -1 : 0;
    for (int v = 0; v < fit->n_variants; v++)
        if (strcmp(fit->variant[v].name, wanted ? wanted : "softmax") == 0)
            fit->baseline = v;
    if (fit->baseline < 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "--baseline %s: %s has no such variant; the first is '%s'", wanted,
                        fit->points.path, fit->variant[0].name);
    return DTX_OK;
}

static enum dtx_status make_sets(struct dtx_ctx *ctx, struct dtx_fit *fit)
{
    const struct dtx_points *p = &fit->points, *c = &fit->curve_points;
    for (int v = 0; v < p->n_variants; v++) {
        struct dtx_fit_variant *to = &fit->variant[fit->n_variants];
        DTX_TRY(ctx, dtx_set_make(ctx, p, v, &to->set));
        to->name = p->variants[v];
        fit->n_variants++;
        for (int k = 0; k < c->n_variants; k++)
            if (strcmp(c->variants[k], to->name) == 0)
                DTX_TRY(ctx, dtx_set_make(ctx, c, k, &to->curves));
        if (to->set.n > 0)
            continue;
        dtx_set_free(&to->set); /* all of it was dropped */
        dtx_set_free(&to->curves);
        *to = (struct dtx_fit_variant){0};
        fit->n_variants--;
    }
    DTX_TRY(ctx, choose_baseline(ctx, fit));
    fit->paired = fit->n_variants > 1;
    for (int v = 0; v < fit->n_variants; v++)
        fit->paired =
            fit->paired && (v == fit->baseline || dtx_set_pair(&fit->variant[fit->baseline].set, &fit->variant[v].set));
    return DTX_OK;
}

/* An error when nothing at all came of it. */
static enum dtx_status check_made(struct dtx_ctx *ctx, const struct dtx_fit *fit)
{
    char text[2600] = "";
    size_t n = 0;
    for (int v = 0; v < fit->n_variants; v++) {
        const struct dtx_fit_variant *of = &fit->variant[v];
        if (!of->isoflop_dropped[0] || !of->envelope_dropped[0])
            return DTX_OK;
        for (int k = 0; k < DTX_FIT_LAWS; k++) {
            if (!of->part[k].dropped[0])
                return DTX_OK;
            if (v == 0 && n < sizeof text - 400)
                n += (size_t)snprintf(text + n, sizeof text - n, "\n  %s: %s", dtx_fit_laws[k]->formula,
                                      of->part[k].dropped);
        }
        if (v == 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "\n  isoFLOP parabolas: %s\n  envelope: %s",
                                  of->isoflop_dropped, of->envelope_dropped);
    }
    for (int k = 0; k < DTX_FIT_SHARED; k++)
        if (!fit->shared[k].dropped[0])
            return DTX_OK;
    const struct dtx_set *set = &fit->variant[0].set;
    return dtx_fail(ctx, DTX_E_FORMAT,
                    "%s: nothing can be fitted to the %lld rows of variant '%s' (lines %lld to %lld):%s",
                    fit->points.path, (long long)set->n, set->variant, (long long)set->point[0]->line,
                    (long long)set->point[set->n - 1]->line, text);
}

static enum dtx_status make(struct dtx_ctx *ctx, struct dtx_fit *fit)
{
    void *memory;
    DTX_TRY(ctx, dtx_points_read(ctx, &fit->options.points, &fit->points));
    if (fit->options.curves.path && *fit->options.curves.path)
        DTX_TRY(ctx, dtx_points_read(ctx, &fit->options.curves, &fit->curve_points));
    else if (fit->options.folder && *fit->options.folder)
        DTX_TRY(ctx, dtx_curves_of_sweep(ctx, fit->options.folder, &fit->points, &fit->curve_points));
    DTX_TRY(ctx, make_sets(ctx, fit));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, fit->points.n, sizeof(double) + sizeof(bool), &memory));
    double *values = memory;
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < fit->n_variants; i++) {
        int v = i == 0 ? fit->baseline : i <= fit->baseline ? i - 1 : i; /* the baseline first: its slices are wanted */
        for (int k = 0; k < DTX_FIT_LAWS && status == DTX_OK; k++)
            status = fit_law(ctx, fit, v, k, (bool *)(values + fit->points.n), values);
        if (status == DTX_OK)
            status = fit_isoflop(ctx, fit, v);
        if (status == DTX_OK)
            status = fit_envelope(ctx, fit, v);
    }
    dtx_mem_free(memory);
    DTX_TRY(ctx, status);
    for (int k = 0; k < DTX_FIT_SHARED; k++)
        DTX_TRY(ctx, fit_shared(ctx, fit, k));
    return check_made(ctx, fit);
}

enum dtx_status dtx_fit_make(struct dtx_ctx *ctx, const struct dtx_fit_options *options, struct dtx_fit *out)
{
    *out = (struct dtx_fit){.options = *options};
    enum dtx_status status = make(ctx, out);
    if (status != DTX_OK)
        dtx_fit_free(out);
    return status;
}

static void part_free(struct dtx_fit_part *part)
{
    dtx_samples_free(&part->samples);
    dtx_estimate_free(&part->estimate);
}

void dtx_fit_free(struct dtx_fit *fit)
{
    for (int v = 0; v < DTX_POINTS_VARIANTS; v++) {
        struct dtx_fit_variant *of = &fit->variant[v];
        dtx_set_free(&of->set);
        dtx_set_free(&of->curves);
        for (int k = 0; k < DTX_FIT_LAWS; k++)
            part_free(&of->part[k]);
        dtx_isoflop_free(&of->isoflop);
        dtx_envelope_free(&of->envelope);
    }
    for (int k = 0; k < DTX_FIT_SHARED; k++)
        part_free(&fit->shared[k]);
    dtx_points_free(&fit->points);
    dtx_points_free(&fit->curve_points);
}
