#include "launch/sweep/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"

static bool grow(struct dtx_figures_maker *m)
{
    struct dtx_figures *f = m->out;
    void *memory;
    m->status = dtx_mem_grow(m->ctx, f->at, f->n, sizeof *f->at, &f->capacity, &memory);
    if (m->status != DTX_OK)
        return false;
    f->at = memory;
    return true;
}

void dtx_figure_note(struct dtx_figure *f, const char *text)
{
    size_t n = f ? strlen(f->note) : 0;
    if (f)
        snprintf(f->note + n, sizeof f->note - n, "%s%s", n > 0 ? "; " : "", text);
}

void dtx_figure_extrapolated(struct dtx_figure *f)
{
    dtx_figure_note(f, "extrapolated");
    if (f)
        f->extrapolated = true;
}

const char *dtx_figure_infinite(const struct dtx_figure *f, double value)
{
    return value < 0 ? "-inf" : strcmp(f->unit, "ratio") == 0 ? "never" : "inf";
}

struct dtx_figure *dtx_figure_add(struct dtx_figures_maker *m, const char *variant, const char *method,
                                  const char *quantity, const char *at, const char *unit, double value, int64_t n_draws)
{
    char text[DTX_FIGURE_NOTE];
    int64_t none = 0;
    if (m->status != DTX_OK || !grow(m))
        return NULL;
    struct dtx_figure *f = &m->out->at[m->out->n++];
    *f = (struct dtx_figure){.variant = variant, .method = method, .unit = unit, .value = value};
    snprintf(f->quantity, sizeof f->quantity, "%s", quantity);
    snprintf(f->at, sizeof f->at, "%s", at);
    for (int64_t r = 0; r < n_draws; r++)
        none += isnan(m->draws[r]);
    if (none > 0) {
        snprintf(text, sizeof text, "%lld of %lld resamples have none", (long long)none, (long long)n_draws);
        dtx_figure_note(f, text);
    }
    f->spread = dtx_spread_of(n_draws, m->draws, m->fit->options.interval);
    return f;
}

struct dtx_figure *dtx_figure_ask(struct dtx_figures_maker *m, const char *variant, const char *method,
                                  const char *quantity, const char *at, const char *unit,
                                  const struct dtx_figure_query *query, const struct dtx_estimate *e,
                                  const struct dtx_estimate *base)
{
    int64_t n = base ? dtx_min64(e->n_draws, base->n_draws) : e->n_draws;
    double value = query->of(query, e->fit.p, base ? base->fit.p : NULL);
#pragma omp parallel for schedule(static) num_threads(m->fit->options.threads)
    for (int64_t r = 0; r < n; r++)
        m->draws[r] = query->of(query, e->draws + r * e->fit.n, base ? base->draws + r * base->fit.n : NULL);
    return dtx_figure_add(m, variant, method, quantity, at, unit, value, n);
}

static double shown(const struct dtx_figure_query *q, const double *p, const double *base)
{
    double values[DTX_LAW_PARAMETERS];
    (void)base;
    q->law->show(p, q->group, values);
    return values[q->index];
}

static const char *unit_of(const char *symbol)
{
    return strcmp(symbol, "E") == 0     ? "nats"
           : strcmp(symbol, "N_c") == 0 ? "weights"
           : strcmp(symbol, "D_c") == 0 ? "tokens"
                                        : "";
}

/* Parameters, then what they are worth. */
static void add_part(struct dtx_figures_maker *m, const char *variant, const char *method, const struct dtx_law *law,
                     int group, const struct dtx_fit_part *part, const char *at)
{
    const struct dtx_estimate *e = &part->estimate;
    for (int i = 0; law->symbols[i]; i++) {
        struct dtx_figure_query q = {.law = law, .group = group, .index = i, .of = shown};
        struct dtx_figure *f =
            dtx_figure_ask(m, variant, method, law->symbols[i], at, unit_of(law->symbols[i]), &q, e, NULL);
        if (f && strcmp(law->symbols[i], "E") == 0 && f->value < 1e-4)
            dtx_figure_note(f, "vanishes: these points show no irreducible loss");
    }
    dtx_figure_add(m, variant, method, "objective", at, "", e->fit.objective, 0);
    dtx_figure_add(m, variant, method, "residual_rms", at, "of ln L", e->goodness.rms, 0);
    dtx_figure_add(m, variant, method, "residual_worst", at, "of ln L", e->goodness.worst, 0);
    dtx_figure_add(m, variant, method, "r2", at, "of ln L", e->goodness.r2, 0);
    dtx_figure_add(m, variant, method, "points", at, "", (double)part->samples.n, 0);
}

static void put_slice(const struct dtx_law *law, const struct dtx_fit_part *part, char *at)
{
    at[0] = '\0';
    if (law->tokens == 1)
        snprintf(at, DTX_FIGURE_AT, "D=%.6g", part->fixed);
    if (law->sizes == 1)
        snprintf(at, DTX_FIGURE_AT, "N=%.6g", part->fixed);
}

static void add_laws(struct dtx_figures_maker *m, const struct dtx_fit_variant *v)
{
    static const char *const methods[DTX_FIT_LAWS] = {"approach 3",    "kaplan joint", "L(N) at one D",
                                                      "L(D) at one N", "kaplan L(N)",  "kaplan L(D)"};
    for (int k = 0; k < DTX_FIT_LAWS; k++) {
        char at[DTX_FIGURE_AT];
        put_slice(dtx_fit_laws[k], &v->part[k], at);
        if (!v->part[k].dropped[0])
            add_part(m, v->name, methods[k], dtx_fit_laws[k], 0, &v->part[k], at);
    }
}

static void add_shared(struct dtx_figures_maker *m)
{
    static const char *const methods[DTX_FIT_SHARED] = {"shared surface", "shared L(N) at one D",
                                                        "shared L(D) at one N"};
    for (int k = 0; k < DTX_FIT_SHARED; k++) {
        const struct dtx_fit_part *part = &m->fit->shared[k];
        const struct dtx_law *law = dtx_fit_laws[dtx_fit_shared[k]];
        char at[DTX_FIGURE_AT];
        put_slice(law, part, at);
        for (int v = 0; v < m->fit->n_variants && !part->dropped[0]; v++)
            add_part(m, m->fit->variant[v].name, methods[k], law, v, part, at);
    }
}

static void add_drawn(struct dtx_figures_maker *m, const char *variant, const char *method, const char *quantity,
                      double value, int64_t n, const double *draws)
{
    if (n > 0)
        memcpy(m->draws, draws, sizeof *draws * (size_t)n);
    dtx_figure_add(m, variant, method, quantity, "", "", value, n);
}

static void add_envelope(struct dtx_figures_maker *m, const struct dtx_fit_variant *v)
{
    static const char method[] = "approach 1";
    const struct dtx_envelope *e = &v->envelope;
    if (v->envelope_dropped[0])
        return;
    add_drawn(m, v->name, method, "a (N ~ C^a)", e->size.slope, e->n_draws, e->size_slope);
    add_drawn(m, v->name, method, "b (D ~ C^b)", e->tokens.slope, e->n_draws, e->tokens_slope);
    add_drawn(m, v->name, method, "loss exponent", e->loss.slope, e->n_draws, e->loss_slope);
    dtx_figure_add(m, v->name, method, "ln G (N = G (C/6)^a)", "", "", e->size.intercept + e->size.slope * log(6), 0);
    dtx_figure_add(m, v->name, method, "sizes", "", "", (double)e->n_sizes, 0);
}

static void add_budget(struct dtx_figures_maker *m, const struct dtx_fit_variant *v, const struct dtx_budget *b)
{
    static const char method[] = "approach 2";
    char at[DTX_FIGURE_AT];
    double n = exp(b->parabola.vertex), d = exp(dtx_budget_tokens(b));
    snprintf(at, sizeof at, "C=%.6g", exp(b->ln_c));
    struct dtx_figure *f = dtx_figure_add(m, v->name, method, "N_opt", at, "weights", n, 0);
    if (f)
        f->spread.se = b->se_vertex * n;
    f = dtx_figure_add(m, v->name, method, "D_opt", at, "tokens", d, 0);
    if (f)
        f->spread.se = b->se_vertex * d * fabs(b->tokens.slope);
    dtx_figure_add(m, v->name, method, "loss", at, "nats", b->parabola.least, 0);
}

static void add_isoflop(struct dtx_figures_maker *m, const struct dtx_fit_variant *v)
{
    static const char method[] = "approach 2";
    const struct dtx_isoflop *iso = &v->isoflop;
    if (v->isoflop_dropped[0])
        return;
    add_drawn(m, v->name, method, "a (N ~ C^a)", iso->lines.size.slope, iso->n_draws, iso->size_slope);
    add_drawn(m, v->name, method, "b (D ~ C^b)", iso->lines.tokens.slope, iso->n_draws, iso->tokens_slope);
    add_drawn(m, v->name, method, "loss exponent", iso->lines.loss.slope, iso->n_draws, iso->loss_slope);
    dtx_figure_add(m, v->name, method, "a weighted", "", "", iso->weighted.size.slope, 0);
    dtx_figure_add(m, v->name, method, "ln G (N = G (C/6)^a)", "", "",
                   iso->lines.size.intercept + iso->lines.size.slope * log(6), 0);
    dtx_figure_add(m, v->name, method, "budgets", "", "", iso->n_used, 0);
    for (int k = 0; k < iso->n_budgets; k++)
        if (!iso->budget[k].dropped[0])
            add_budget(m, v, &iso->budget[k]);
}

enum dtx_status dtx_figures_make(struct dtx_ctx *ctx, const struct dtx_fit *fit, struct dtx_figures *out)
{
    void *memory;
    struct dtx_figures figures = {0};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, fit->options.resamples, sizeof(double), &memory));
    struct dtx_figures_maker m = {ctx, fit, &figures, memory, DTX_OK};
    for (int v = 0; v < fit->n_variants; v++) {
        add_envelope(&m, &fit->variant[v]);
        add_isoflop(&m, &fit->variant[v]);
        add_laws(&m, &fit->variant[v]);
    }
    add_shared(&m);
    dtx_figures_frontier(&m);
    dtx_figures_predict(&m);
    dtx_figures_shares(&m);
    dtx_mem_free(memory);
    if (m.status == DTX_OK)
        *out = figures;
    else
        dtx_figures_free(&figures);
    return m.status;
}

void dtx_figures_free(struct dtx_figures *figures)
{
    dtx_mem_free(figures->at);
    *figures = (struct dtx_figures){0};
}
