/* Figures that follow from laws: the frontier, predictions, what one variant needs to reach another's loss. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/sweep/figures.h"
#include "launch/sweep/frontier.h"

enum { DECADES = 24, SCALES = 10, BEYOND = 2 };

static double frontier_a(const struct dtx_figure_query *q, const double *p, const double *base)
{
    (void)base;
    return dtx_frontier_of(p, q->group).a;
}

static double frontier_b(const struct dtx_figure_query *q, const double *p, const double *base)
{
    (void)base;
    return dtx_frontier_of(p, q->group).b;
}

static double frontier_g(const struct dtx_figure_query *q, const double *p, const double *base)
{
    (void)base;
    return dtx_frontier_of(p, q->group).g;
}

double dtx_figure_best_size(const struct dtx_figure_query *q, const double *p, const double *base)
{
    struct dtx_frontier f = dtx_frontier_of(p, q->group);
    (void)base;
    return dtx_frontier_size(&f, q->c);
}

static double best_tokens(const struct dtx_figure_query *q, const double *p, const double *base)
{
    struct dtx_frontier f = dtx_frontier_of(p, q->group);
    (void)base;
    return dtx_frontier_tokens(&f, q->c);
}

double dtx_figure_best_loss(const struct dtx_figure_query *q, const double *p, const double *base)
{
    (void)base;
    return dtx_frontier_loss(p, q->group, q->c);
}

double dtx_figure_loss(const struct dtx_figure_query *q, const double *p, const double *base)
{
    (void)base;
    return dtx_law_loss(q->law, p, q->n, q->d, q->group);
}

static double weights_share(const struct dtx_figure_query *q, const double *p, const double *base)
{
    struct dtx_side own = {q->law, p, q->group}, other = {q->law, base, q->base_group};
    return dtx_share_of_weights(&other, &own, q->n, q->d);
}

static double tokens_share(const struct dtx_figure_query *q, const double *p, const double *base)
{
    struct dtx_side own = {q->law, p, q->group}, other = {q->law, base, q->base_group};
    return dtx_share_of_tokens(&other, &own, q->n, q->d);
}

static double compute_share(const struct dtx_figure_query *q, const double *p, const double *base)
{
    struct dtx_side own = {q->law, p, q->group}, other = {q->law, base, q->base_group};
    return dtx_share_of_compute(&other, &own, q->c);
}

/* ln of the highest 6·N·D */
static double highest(const struct dtx_set *set)
{
    double low = INFINITY, high = -INFINITY;
    dtx_set_extent_6nd(set, &low, &high);
    return high;
}

/* --- the frontier ------------------------------------------------------------------------------------------------- */
static void ask_frontier_at(struct dtx_figures_maker *m, const char *variant, const struct dtx_estimate *e, double c,
                            bool beyond)
{
    static const char method[] = "frontier";
    struct dtx_figure_query q = {.law = &dtx_law_surface, .c = c};
    char at[DTX_FIGURE_AT];
    static const struct {
        const char *name, *unit;
    } rows[] = {{"N_opt", "weights"}, {"D_opt", "tokens"}, {"loss", "nats"}};
    snprintf(at, sizeof at, "C_6nd=%.6g", c);
    for (int i = 0; i < 3; i++) { /* a figure moves when the next is asked for */
        q.of = i == 0 ? dtx_figure_best_size : i == 1 ? best_tokens : dtx_figure_best_loss;
        struct dtx_figure *f = dtx_figure_ask(m, variant, method, rows[i].name, at, rows[i].unit, &q, e, NULL);
        if (beyond)
            dtx_figure_extrapolated(f);
    }
}

void dtx_figures_frontier(struct dtx_figures_maker *m)
{
    static const char method[] = "frontier";
    for (int v = 0; v < m->fit->n_variants; v++) {
        const struct dtx_fit_variant *of = &m->fit->variant[v];
        const struct dtx_estimate *e = &of->part[DTX_FIT_SURFACE].estimate;
        struct dtx_figure_query q = {.law = &dtx_law_surface};
        if (of->part[DTX_FIT_SURFACE].dropped[0])
            continue;
        q.of = frontier_a;
        dtx_figure_ask(m, of->name, method, "a (N ~ C^a)", "", "", &q, e, NULL);
        q.of = frontier_b;
        dtx_figure_ask(m, of->name, method, "b (D ~ C^b)", "", "", &q, e, NULL);
        q.of = frontier_g;
        dtx_figure_ask(m, of->name, method, "G (N = G (C/6)^a)", "", "", &q, e, NULL);
        double low = INFINITY, high = -INFINITY;
        dtx_set_extent_6nd(&of->set, &low, &high);
        int first = (int)ceil(low / log(10) - 1e-9), last = (int)floor(high / log(10) + 1e-9) + BEYOND;
        for (int k = first; k <= last && k < first + DECADES; k++)
            ask_frontier_at(m, of->name, e, pow(10, k), k > high / log(10) + 1e-9);
    }
}

/* --- predictions -------------------------------------------------------------------------------------------------- */
struct prediction {
    double n, d, c; /* NaN: not given */
};

static enum dtx_status parse_prediction(struct dtx_ctx *ctx, char *text, struct prediction *out)
{
    char *save = NULL;
    *out = (struct prediction){NAN, NAN, NAN};
    for (char *word = strtok_r(text, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
        char *end = word;
        double value = word[0] && word[1] == '=' ? strtod(word + 2, &end) : NAN;
        double *to = word[0] == 'N' ? &out->n : word[0] == 'D' ? &out->d : word[0] == 'C' ? &out->c : NULL;
        if (!to || end == word || *end || !(value > 0 && isfinite(value)))
            return dtx_fail(ctx, DTX_E_CONFIG,
                            "--predict: '%s': expected C=1e21, or N=7e9,D=1e12, several with ; between", word);
        *to = value;
    }
    if (!isnan(out->n) && !isnan(out->d) && isnan(out->c))
        return DTX_OK;
    if (!isnan(out->c) && isnan(out->n) && isnan(out->d))
        return DTX_OK;
    return dtx_fail(ctx, DTX_E_CONFIG, "--predict: give N and D, or C alone (its best N and D are predicted)");
}

static void predict(struct dtx_figures_maker *m, const struct prediction *at)
{
    static const enum dtx_fit_law laws[] = {DTX_FIT_SURFACE, DTX_FIT_KAPLAN};
    static const char *const methods[] = {"prediction", "prediction (kaplan)"};
    for (int v = 0; v < m->fit->n_variants; v++)
        for (int k = 0; k < 2; k++) {
            const struct dtx_fit_variant *of = &m->fit->variant[v];
            const struct dtx_fit_part *part = &of->part[laws[k]];
            struct dtx_figure_query q = {
                .law = dtx_fit_laws[laws[k]], .n = at->n, .d = at->d, .c = at->c, .of = dtx_figure_loss};
            char text[DTX_FIGURE_AT];
            if (part->dropped[0] || (k > 0 && isnan(at->n)))
                continue;
            if (isnan(at->n)) {
                ask_frontier_at(m, of->name, &part->estimate, at->c, log(at->c) > highest(&of->set) + 1e-9);
                continue;
            }
            snprintf(text, sizeof text, "N=%.6g D=%.6g", at->n, at->d);
            dtx_figure_ask(m, of->name, methods[k], "loss", text, "nats", &q, &part->estimate, NULL);
        }
}

void dtx_figures_predict(struct dtx_figures_maker *m)
{
    char text[1024], *save = NULL;
    const char *wanted = m->fit->options.predict;
    if (m->status != DTX_OK || !wanted || !*wanted)
        return;
    if ((size_t)snprintf(text, sizeof text, "%s", wanted) >= sizeof text) {
        m->status = dtx_fail(m->ctx, DTX_E_CONFIG, "--predict is longer than %zu bytes", sizeof text - 1);
        return;
    }
    for (char *word = strtok_r(text, ";", &save); word && m->status == DTX_OK; word = strtok_r(NULL, ";", &save)) {
        struct prediction at;
        m->status = parse_prediction(m->ctx, word, &at);
        if (m->status == DTX_OK)
            predict(m, &at);
    }
}

/* --- shares ------------------------------------------------------------------------------------------------------- */

/* Estimates of one law for a variant and the baseline. */
struct pair {
    const char *variant, *method;
    const struct dtx_law *law;
    const struct dtx_estimate *own, *base;
    int group, base_group;
};

static void ask_share(struct dtx_figures_maker *m, const struct pair *p, const char *quantity, const char *at,
                      double (*of)(const struct dtx_figure_query *, const double *, const double *), double n, double d,
                      double c, bool beyond)
{
    struct dtx_figure_query q = {p->law, p->group, p->base_group, 0, n, d, c, of};
    struct dtx_figure *f = dtx_figure_ask(m, p->variant, p->method, quantity, at, "ratio", &q, p->own, p->base);
    if (beyond)
        dtx_figure_extrapolated(f);
}

/* Scales of the baseline: its sizes, at most SCALES of them, each with the most tokens that it was trained on. */
static int choose_scales(const struct dtx_set *set, double (*scales)[2])
{
    int n = 0, kept = 0;
    double sizes[256], tokens[256];
    for (int64_t i = 0; i < set->n; i++) {
        int k = 0;
        while (k < n && fabs(sizes[k] - set->ln_n[i]) > 0.01)
            k++;
        if (k == n && n < 256) {
            sizes[n] = set->ln_n[i];
            tokens[n++] = set->ln_d[i];
        } else if (k < n) {
            tokens[k] = fmax(tokens[k], set->ln_d[i]);
        }
    }
    for (int i = 1; i < n; i++) /* by size */
        for (int j = i; j > 0 && sizes[j] < sizes[j - 1]; j--) {
            double s = sizes[j], t = tokens[j];
            sizes[j] = sizes[j - 1];
            tokens[j] = tokens[j - 1];
            sizes[j - 1] = s;
            tokens[j - 1] = t;
        }
    for (int i = 0; i < n; i++)
        if (n <= SCALES || i * (SCALES - 1) / (n - 1) != (i - 1) * (SCALES - 1) / (n - 1) || i == 0) {
            scales[kept][0] = exp(sizes[i]);
            scales[kept++][1] = exp(tokens[i]);
        }
    return kept;
}

/* At the baseline's scales, and along its frontier to a hundred times its highest compute. */
static void share_surfaces(struct dtx_figures_maker *m, const struct pair *p, const struct dtx_set *base)
{
    double scales[SCALES + 1][2], most = exp(highest(base));
    char at[DTX_FIGURE_AT];
    int n = choose_scales(base, scales);
    for (int i = 0; i < n; i++) {
        snprintf(at, sizeof at, "N=%.6g D=%.6g", scales[i][0], scales[i][1]);
        ask_share(m, p, "share of weights", at, weights_share, scales[i][0], scales[i][1], 0, false);
        ask_share(m, p, "share of tokens", at, tokens_share, scales[i][0], scales[i][1], 0, false);
    }
    struct dtx_frontier f = dtx_frontier_of(p->base->fit.p, p->base_group);
    for (double times = 1; times <= 100 && f.g > 0; times *= 10) {
        double c = most * times, size = dtx_frontier_size(&f, c), tokens = dtx_frontier_tokens(&f, c);
        snprintf(at, sizeof at, "C_6nd=%.6g N_opt=%.4g D_opt=%.4g", c, size, tokens);
        ask_share(m, p, "share of weights", at, weights_share, size, tokens, 0, times > 1);
        ask_share(m, p, "share of tokens", at, tokens_share, size, tokens, 0, times > 1);
        ask_share(m, p, "share of compute", at, compute_share, 0, 0, c, times > 1);
    }
}

/* A law of N alone, or of D alone: at each of the baseline's points, and ten times beyond. */
static void share_lines(struct dtx_figures_maker *m, const struct pair *p, const struct dtx_fit_part *base, bool size)
{
    double most = 0, last = NAN;
    char at[DTX_FIGURE_AT];
    for (int64_t i = 0; i <= base->samples.n; i++) {
        bool beyond = i == base->samples.n;
        double x = beyond ? 10 * most : exp(size ? base->samples.x[i] : base->samples.y[i]);
        double n = size ? x : base->fixed, d = size ? base->fixed : x;
        if (fabs(log(x) - last) <= 0.01)
            continue;
        last = log(x);
        most = fmax(most, x);
        snprintf(at, sizeof at, "N=%.6g D=%.6g", n, d);
        ask_share(m, p, size ? "share of weights" : "share of tokens", at, size ? weights_share : tokens_share, n, d, 0,
                  beyond);
    }
}

/* At the scales of the baseline's points, base_part of base. */
static void share_laws(struct dtx_figures_maker *m, const struct pair *p, const struct dtx_fit_variant *base,
                       const struct dtx_fit_part *base_part)
{
    if (p->law == &dtx_law_surface)
        share_surfaces(m, p, &base->set);
    else
        share_lines(m, p, base_part, p->law == &dtx_law_size);
}

static void share_variant(struct dtx_figures_maker *m, const struct dtx_fit_variant *v,
                          const struct dtx_fit_variant *base, int group, int base_group)
{
    static const char *const methods[] = {"equivalence", "equivalence (L(N) at one D)", "equivalence (L(D) at one N)"};
    static const char *const shared_methods[] = {"equivalence (shared surface)", "equivalence (shared L(N) at one D)",
                                                 "equivalence (shared L(D) at one N)"};
    for (int k = 0; k < DTX_FIT_SHARED; k++) {
        const struct dtx_fit_part *own = &v->part[dtx_fit_shared[k]], *other = &base->part[dtx_fit_shared[k]];
        const struct dtx_fit_part *shared = &m->fit->shared[k];
        const struct dtx_law *law = dtx_fit_laws[dtx_fit_shared[k]];
        struct pair p = {v->name, methods[k], law, &own->estimate, &other->estimate, 0, 0};
        struct pair q = {v->name, shared_methods[k], law, &shared->estimate, &shared->estimate, group, base_group};
        bool one_slice = p.law == &dtx_law_surface || fabs(log(own->fixed) - log(other->fixed)) <= 0.01;
        if (!own->dropped[0] && !other->dropped[0] && one_slice)
            share_laws(m, &p, base, other);
        if (!shared->dropped[0])
            share_laws(m, &q, base, other);
    }
}

void dtx_figures_shares(struct dtx_figures_maker *m)
{
    const struct dtx_fit *fit = m->fit;
    for (int v = 0; v < fit->n_variants; v++)
        if (v != fit->baseline)
            share_variant(m, &fit->variant[v], &fit->variant[fit->baseline], v, fit->baseline);
}
