/* The pictures of a report, as scripts for gnuplot. */
#include <math.h>
#include <string.h>

#include "launch/curve/gnuplot.h"
#include "launch/sweep/frontier.h"
#include "launch/sweep/report.h"

enum { BAND = 48, CURVES_SHOWN = 60, CURVE_PIXELS = 300 };

static const char *const colours[] = {"#1f5fa8", "#d9541e", "#2a8c55", "#8a4fb0",
                                      "#b58900", "#c2316f", "#4a9ca6", "#666666"};
/* Of budgets and sizes, small to large. */
static const char ramp[] = "set palette defined (0 '#3b2c85', 1 '#2a72a8', 2 '#35a27a', 3 '#d8c22f')\n";

static const char *colour_of(const struct dtx_report *r, int variant)
{
    int others = variant < r->fit->baseline ? variant + 1 : variant;
    return colours[variant == r->fit->baseline ? 0 : others % 8];
}

static void put_title(struct dtx_report *r, const char *text)
{
    fputs(" title ", r->script);
    dtx_gnuplot_quote(r->script, text);
}

/* The variant's name as it is, whatever marks of gnuplot's are in it, and more. */
static void put_titles(struct dtx_report *r, const char *variant, const char *rest)
{
    char text[256];
    size_t n = 0;
    for (; *variant && n < sizeof text - 64; variant++) {
        if (strchr("_^{}@&~\\", *variant))
            text[n++] = '\\';
        text[n++] = *variant;
    }
    snprintf(text + n, sizeof text - n, "%s", rest);
    put_title(r, text);
}

/* The next item of a plot command. */
static FILE *next(struct dtx_report *r, bool *first)
{
    fputs(*first ? "plot " : ", ", r->script);
    *first = false;
    return r->script;
}

/* $BLOCK_VARIANT: x, value, low, high of a query along x between the logarithms low and high. */
static void put_band(struct dtx_report *r, const char *block, int variant, struct dtx_figure_query *q, double *x,
                     double low, double high, const struct dtx_estimate *estimate)
{
    fprintf(r->script, "$%s_%d << end\n", block, variant);
    for (int k = 0; k < BAND; k++) {
        *x = exp(low + (high - low) * k / (BAND - 1));
        const struct dtx_figure *f = dtx_figure_ask(&r->maker, "", "", "", "", "", q, estimate, NULL);
        if (f && isfinite(f->value))
            fprintf(r->script, "%.6g %.6g %.6g %.6g\n", *x, f->value,
                    isfinite(f->spread.low) ? f->spread.low : f->value,
                    isfinite(f->spread.high) ? f->spread.high : f->value);
    }
    fputs("end\n", r->script);
}

static void plot_band(struct dtx_report *r, const char *block, int variant, bool *first)
{
    const char *colour = colour_of(r, variant);
    fprintf(next(r, first),
            "$%s_%d using 1:3:4 with filledcurves fillcolor rgb '%s' fillstyle transparent solid 0.18 notitle", block,
            variant, colour);
    fprintf(next(r, first), "$%s_%d using 1:2 with lines linewidth 2 linecolor rgb '%s'", block, variant, colour);
}

static void extent(int64_t n, const double *values, double *low, double *high)
{
    for (int64_t i = 0; i < n; i++) {
        *low = fmin(*low, values[i]);
        *high = fmax(*high, values[i]);
    }
}

bool dtx_report_place(const char *at, double *n, double *d, double *c)
{
    *c = NAN;
    if (sscanf(at, "N=%lf D=%lf", n, d) == 2)
        return true;
    return sscanf(at, "C_6nd=%lf N_opt=%lf D_opt=%lf", c, n, d) == 3;
}

/* A line where the measured compute (size, tokens) ends. */
static void put_limit(struct dtx_report *r, double x)
{
    fprintf(r->script, "set arrow from %.6g, graph 0 to %.6g, graph 1 nohead dashtype 3 linecolor '#888888'\n", x, x);
}

/* --- shares ------------------------------------------------------------------------------------------------------- */
static const struct {
    const char *method, *name, *quantity;
} shares[] = {{"equivalence", ", own surfaces", "share of weights"},
              {"equivalence (shared surface)", ", shared surface", "share of weights"},
              {"equivalence (L(N) at one D)", ", L(N) at one D", "share of weights"},
              {"equivalence (shared L(N) at one D)", ", shared L(N)", "share of weights"},
              {"equivalence (L(D) at one N)", ", L(D) at one N (tokens)", "share of tokens"},
              {"equivalence (shared L(D) at one N)", ", shared L(D) (tokens)", "share of tokens"}};
enum { SHARES = sizeof shares / sizeof *shares };

/* Counts, and with a top > 0 writes, the shares of one method; *most grows to the largest. What is more than the top,
 * or never, stands at the top. */
static int put_shares(struct dtx_report *r, int variant, int method, double top, double *most)
{
    int n = 0;
    if (top > 0)
        fprintf(r->script, "$share_%d_%d << end\n", variant, method);
    for (int64_t i = 0; i < r->figures->n; i++) {
        const struct dtx_figure *f = &r->figures->at[i];
        double size, tokens, compute;
        if (strcmp(f->variant, r->fit->variant[variant].name) != 0 || strcmp(f->method, shares[method].method) != 0 ||
            strcmp(f->quantity, shares[method].quantity) != 0 || isnan(f->value) ||
            !dtx_report_place(f->at, &size, &tokens, &compute))
            continue;
        double low = isnan(f->spread.low) ? f->value : f->spread.low;
        double high = isnan(f->spread.high) ? f->value : f->spread.high;
        if (top > 0)
            fprintf(r->script, "%.6g %.6g %.6g %.6g\n", 6 * size * tokens, fmin(f->value, top), fmin(low, top),
                    fmin(high, top));
        *most = isinf(f->value) ? *most : fmax(*most, f->value);
        n++;
    }
    if (top > 0)
        fputs("end\n", r->script);
    return n;
}

static bool any_shares(const struct dtx_report *r, int variant)
{
    struct dtx_report copy = *r;
    double most = 0;
    (void)variant;
    for (int v = 0; v < r->fit->n_variants; v++)
        for (int k = 0; k < SHARES; k++)
            if (put_shares(&copy, v, k, 0, &most) > 0)
                return true;
    return false;
}

static void draw_shares(struct dtx_report *r, int variant)
{
    static const int points[SHARES] = {7, 5, 9, 11, 13, 15};
    bool first = true;
    double most = 1.25;
    (void)variant;
    for (int v = 0; v < r->fit->n_variants; v++)
        for (int k = 0; k < SHARES; k++)
            put_shares(r, v, k, 0, &most);
    double top = fmin(1.2 * most, 10);
    for (int v = 0; v < r->fit->n_variants; v++)
        for (int k = 0; k < SHARES; k++)
            put_shares(r, v, k, top, &most);
    fprintf(r->script,
            "set logscale x\nset format x '10^{%%T}'\nset xlabel 'C = 6 N D of the baseline (FLOPs)'\n"
            "set ylabel 'share of what the baseline needs'\nset key below\nset yrange [0:%.9g]\n",
            top);
    double low = INFINITY, high = -INFINITY;
    dtx_set_extent_6nd(&r->fit->variant[r->fit->baseline].set, &low, &high);
    put_limit(r, exp(high) * 1.3);
    for (int v = 0, shade = 1; v < r->fit->n_variants; v++)
        for (int k = 0; k < SHARES; k++) {
            if (put_shares(r, v, k, 0, &most) == 0)
                continue;
            fprintf(next(r, &first),
                    "$share_%d_%d using ($1*%g):2:3:4 with yerrorbars pointtype %d pointsize 0.8 linecolor rgb '%s'", v,
                    k, 1 + 0.05 * k, points[k], colours[shade++ % 8]);
            put_titles(r, r->fit->variant[v].name, shares[k].name);
        }
    fputs(", 1 with lines dashtype 2 linecolor rgb '#444444' notitle\n", r->script);
}

/* --- laws of one variable ----------------------------------------------------------------------------------------- */
static bool any_law(const struct dtx_report *r, enum dtx_fit_law which)
{
    for (int v = 0; v < r->fit->n_variants; v++)
        if (!r->fit->variant[v].part[which].dropped[0])
            return true;
    return false;
}

static void draw_line(struct dtx_report *r, enum dtx_fit_law which, bool size)
{
    bool first = true;
    double low = INFINITY, high = -INFINITY;
    for (int v = 0; v < r->fit->n_variants; v++) {
        const struct dtx_fit_part *part = &r->fit->variant[v].part[which];
        if (!part->dropped[0])
            extent(part->samples.n, size ? part->samples.x : part->samples.y, &low, &high);
    }
    for (int v = 0; v < r->fit->n_variants; v++) {
        const struct dtx_fit_part *part = &r->fit->variant[v].part[which];
        struct dtx_figure_query q = {.law = dtx_fit_laws[which], .n = 1, .d = 1, .of = dtx_figure_loss};
        if (part->dropped[0])
            continue;
        put_band(r, "band", v, &q, size ? &q.n : &q.d, low - 0.2, high + log(3), &part->estimate);
        fprintf(r->script, "$points_%d << end\n", v);
        for (int64_t i = 0; i < part->samples.n; i++)
            fprintf(r->script, "%.6g %.6g\n", exp(size ? part->samples.x[i] : part->samples.y[i]),
                    exp(part->samples.ln_loss[i]));
        fputs("end\n", r->script);
    }
    put_limit(r, exp(high));
    fprintf(r->script, "set logscale x\nset format x '10^{%%T}'\nset xlabel '%s'\nset ylabel 'loss (nats per token)'\n",
            size ? "weights N" : "tokens D");
    for (int v = 0; v < r->fit->n_variants; v++) {
        if (r->fit->variant[v].part[which].dropped[0])
            continue;
        plot_band(r, "band", v, &first);
        put_titles(r, r->fit->variant[v].name, size ? ": E + A/N^α" : ": E + B/D^β");
        fprintf(next(r, &first), "$points_%d with points pointtype 7 pointsize 0.9 linecolor rgb '%s' notitle", v,
                colour_of(r, v));
    }
    fputc('\n', r->script);
}

static bool any_size(const struct dtx_report *r, int variant)
{
    (void)variant;
    return any_law(r, DTX_FIT_SIZE);
}

static bool any_tokens(const struct dtx_report *r, int variant)
{
    (void)variant;
    return any_law(r, DTX_FIT_TOKENS);
}

static void draw_size(struct dtx_report *r, int variant)
{
    (void)variant;
    draw_line(r, DTX_FIT_SIZE, true);
}

static void draw_tokens(struct dtx_report *r, int variant)
{
    (void)variant;
    draw_line(r, DTX_FIT_TOKENS, false);
}

/* --- the surface -------------------------------------------------------------------------------------------------- */
static bool any_surface(const struct dtx_report *r, int variant)
{
    (void)variant;
    return any_law(r, DTX_FIT_SURFACE);
}

static void put_points(struct dtx_report *r, int v)
{
    const struct dtx_set *set = &r->fit->variant[v].set;
    fprintf(r->script, "$points_%d << end\n", v);
    for (int64_t i = 0; i < set->n; i++)
        fprintf(r->script, "%.6g %.6g\n", 6 * exp(set->ln_n[i] + set->ln_d[i]), set->loss[i]);
    fputs("end\n", r->script);
}

static void surface_extent(const struct dtx_report *r, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (int v = 0; v < r->fit->n_variants; v++)
        dtx_set_extent_6nd(&r->fit->variant[v].set, low, high);
}

static void draw_frontier(struct dtx_report *r, int variant)
{
    bool first = true;
    double low, high;
    (void)variant;
    surface_extent(r, &low, &high);
    for (int v = 0; v < r->fit->n_variants; v++) {
        const struct dtx_fit_part *part = &r->fit->variant[v].part[DTX_FIT_SURFACE];
        struct dtx_figure_query q = {.law = &dtx_law_surface, .of = dtx_figure_best_loss};
        put_points(r, v);
        if (!part->dropped[0])
            put_band(r, "band", v, &q, &q.c, low, high + log(100), &part->estimate);
    }
    put_limit(r, exp(high));
    fputs(
        "set logscale x\nset format x '10^{%T}'\nset xlabel 'C = 6 N D (FLOPs)'\nset ylabel 'loss (nats per token)'\n",
        r->script);
    for (int v = 0; v < r->fit->n_variants; v++) {
        fprintf(next(r, &first), "$points_%d with points pointtype 7 pointsize 0.6 linecolor rgb '%s'", v,
                colour_of(r, v));
        put_titles(r, r->fit->variant[v].name, ", measured");
        if (r->fit->variant[v].part[DTX_FIT_SURFACE].dropped[0])
            continue;
        plot_band(r, "band", v, &first);
        put_titles(r, r->fit->variant[v].name, ", best for C");
    }
    fputc('\n', r->script);
}

static void draw_residuals(struct dtx_report *r, int variant)
{
    bool first = true;
    (void)variant;
    for (int v = 0; v < r->fit->n_variants; v++) {
        const struct dtx_fit_part *part = &r->fit->variant[v].part[DTX_FIT_SURFACE];
        if (part->dropped[0])
            continue;
        fprintf(r->script, "$residuals_%d << end\n", v);
        for (int64_t i = 0; i < part->samples.n; i++) {
            double n = exp(part->samples.x[i]), d = exp(part->samples.y[i]);
            double fitted = dtx_law_loss(&dtx_law_surface, part->estimate.fit.p, n, d, 0);
            fprintf(r->script, "%.6g %.6g\n", 6 * n * d, 100 * (exp(part->samples.ln_loss[i]) / fitted - 1));
        }
        fputs("end\n", r->script);
    }
    fputs("set logscale x\nset format x '10^{%T}'\nset xlabel 'C = 6 N D (FLOPs)'\nset ylabel 'measured over fitted "
          "loss (%)'\n",
          r->script);
    for (int v = 0; v < r->fit->n_variants; v++) {
        if (r->fit->variant[v].part[DTX_FIT_SURFACE].dropped[0])
            continue;
        fprintf(next(r, &first), "$residuals_%d with points pointtype 7 pointsize 0.7 linecolor rgb '%s'", v,
                colour_of(r, v));
        put_titles(r, r->fit->variant[v].name, "");
    }
    fputs(", 0 with lines dashtype 2 linecolor rgb '#444444' notitle\n", r->script);
}

/* --- best sizes by all three approaches --------------------------------------------------------------------------- */
static bool any_best(const struct dtx_report *r, int v)
{
    const struct dtx_fit_variant *of = &r->fit->variant[v];
    return !of->part[DTX_FIT_SURFACE].dropped[0] || !of->isoflop_dropped[0] || !of->envelope_dropped[0];
}

/* $envelope: the logarithms `values` over C, with a gap where steps are left out. */
static void put_envelope(struct dtx_report *r, const struct dtx_fit_variant *of, const double *values)
{
    const struct dtx_envelope *e = &of->envelope;
    fputs("$envelope << end\n", r->script);
    for (int s = 0; s < DTX_ENVELOPE_STEPS && !of->envelope_dropped[0]; s++)
        if (e->used[s])
            fprintf(r->script, "%.6g %.6g\n", exp(e->ln_c[s]), exp(values[s]));
        else if (s > 0 && e->used[s - 1])
            fputc('\n', r->script);
    fputs("end\n", r->script);
}

static void put_best(struct dtx_report *r, const struct dtx_fit_variant *of)
{
    fputs("$vertices << end\n", r->script);
    for (int k = 0; k < of->isoflop.n_budgets && !of->isoflop_dropped[0]; k++) {
        const struct dtx_budget *b = &of->isoflop.budget[k];
        double se = isnan(b->se_vertex) ? 0 : 1.96 * b->se_vertex, at = b->parabola.vertex;
        if (!b->dropped[0])
            fprintf(r->script, "%.6g %.6g %.6g %.6g\n", exp(b->ln_c), exp(at), exp(at - se), exp(at + se));
    }
    fputs("end\n", r->script);
    put_envelope(r, of, of->envelope.ln_n);
}

static void draw_best(struct dtx_report *r, int v)
{
    const struct dtx_fit_variant *of = &r->fit->variant[v];
    bool first = true;
    double low = INFINITY, high = -INFINITY;
    struct dtx_figure_query q = {.law = &dtx_law_surface, .of = dtx_figure_best_size};
    extent(of->set.n, of->set.ln_c, &low, &high);
    put_best(r, of);
    if (!of->part[DTX_FIT_SURFACE].dropped[0])
        put_band(r, "band", v, &q, &q.c, low, high + log(10), &of->part[DTX_FIT_SURFACE].estimate);
    put_limit(r, exp(high));
    fputs("set logscale xy\nset format xy '10^{%T}'\nset key top left\nset xlabel 'C (FLOPs)'\nset ylabel 'best "
          "weights N'\n",
          r->script);
    if (!of->part[DTX_FIT_SURFACE].dropped[0]) {
        plot_band(r, "band", v, &first);
        put_title(r, "approach 3");
    }
    if (!of->isoflop_dropped[0]) {
        const struct dtx_line *l = &of->isoflop.lines.size;
        fprintf(next(r, &first), "$vertices with yerrorbars pointtype 7 pointsize 0.7 linecolor rgb '#8a4fb0'");
        put_title(r, "approach 2");
        fprintf(next(r, &first), "[%.6g:%.6g] exp(%.9g+%.9g*log(x)) with lines linecolor rgb '#8a4fb0' notitle",
                exp(low), exp(high), l->intercept, l->slope);
    }
    if (!of->envelope_dropped[0]) {
        fprintf(next(r, &first), "$envelope with lines linewidth 2 linecolor rgb '#2a8c55'");
        put_title(r, "approach 1");
    }
    fputc('\n', r->script);
}

/* --- budgets ------------------------------------------------------------------------------------------------------ */
static bool any_budget(const struct dtx_report *r, int v)
{
    return r->fit->variant[v].isoflop.n_used > 0;
}

/* The points of the parabolas (fitted) or the others, coloured by log₁₀ C. Those far above the parabolas would only
 * press the picture flat. */
static void put_budget_points(struct dtx_report *r, const struct dtx_fit_variant *of, bool fitted, double highest)
{
    const struct dtx_isoflop *iso = &of->isoflop;
    fprintf(r->script, "$%s << end\n", fitted ? "fitted" : "others");
    for (int64_t i = 0; i < of->set.n; i++) {
        const struct dtx_budget *b = &iso->budget[iso->budget_of[i]];
        if ((iso->fitted[i] && !b->dropped[0]) == fitted && of->set.loss[i] <= highest)
            fprintf(r->script, "%.6g %.6g %.6g\n", exp(of->set.ln_n[i]), of->set.loss[i], b->ln_c / log(10));
    }
    fputs("end\n", r->script);
}

static void put_parabolas(struct dtx_report *r, const struct dtx_isoflop *iso)
{
    fputs("$parabolas << end\n", r->script);
    for (int k = 0; k < iso->n_budgets; k++) {
        const struct dtx_budget *b = &iso->budget[k];
        for (int i = 0; i < BAND && !b->dropped[0]; i++) {
            double x = b->low + (b->high - b->low) * i / (BAND - 1);
            fprintf(r->script, "%.6g %.6g %.6g\n", exp(x), dtx_parabola_at(&b->parabola, x), b->ln_c / log(10));
        }
        fputs("\n", r->script);
    }
    fputs("end\n$best << end\n", r->script);
    for (int k = 0; k < iso->n_budgets; k++)
        if (!iso->budget[k].dropped[0])
            fprintf(r->script, "%.6g %.6g\n", exp(iso->budget[k].parabola.vertex), iso->budget[k].parabola.least);
    fputs("end\n", r->script);
}

static void draw_budgets(struct dtx_report *r, int v)
{
    const struct dtx_fit_variant *of = &r->fit->variant[v];
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < of->set.n; i++)
        if (of->isoflop.fitted[i])
            extent(1, &of->set.loss[i], &low, &high);
    put_budget_points(r, of, true, INFINITY);
    put_budget_points(r, of, false, high + 0.2 * (high - low));
    put_parabolas(r, &of->isoflop);
    fprintf(r->script,
            "set logscale x\nset format x '10^{%%T}'\nset xlabel 'weights N'\nset ylabel 'loss (nats per token)'\n%s"
            "set cblabel 'log_{10} C'\n"
            "plot $parabolas with lines linewidth 1.4 linecolor palette notitle, $fitted with points pointtype 7 "
            "pointsize 0.7 linecolor palette notitle, $others with points pointtype 6 pointsize 0.6 linecolor palette "
            "notitle, $best with points pointtype 2 pointsize 0.9 linecolor rgb '#222222' title 'vertex'\n",
            ramp);
}

/* --- loss curves -------------------------------------------------------------------------------------------------- */
static bool any_curve(const struct dtx_report *r, int v)
{
    return r->fit->variant[v].curves.n > 0;
}

/* Curves lie together in the table; a new one begins with another run or size. Points nearer than a pixel are one. */
static void draw_curves(struct dtx_report *r, int v)
{
    const struct dtx_fit_variant *of = &r->fit->variant[v];
    const struct dtx_set *set = &of->curves;
    double low = INFINITY, high = -INFINITY, at = 0;
    int shown = 0;
    extent(set->n, set->ln_c, &low, &high);
    fputs("$curves << end\n", r->script);
    for (int64_t i = 0; i < set->n; i++) {
        bool begins =
            i == 0 || strcmp(set->point[i]->run, set->point[i - 1]->run) != 0 || set->ln_n[i] != set->ln_n[i - 1];
        if (begins && shown++ == CURVES_SHOWN)
            break;
        if (!begins && set->ln_c[i] - at < (high - low) / CURVE_PIXELS)
            continue;
        at = set->ln_c[i];
        fprintf(r->script, "%s%.6g %.6g %.6g\n", begins && i ? "\n" : "", exp(at), set->loss[i],
                set->ln_n[i] / log(10));
    }
    fputs("end\n", r->script);
    put_envelope(r, of, of->envelope.ln_loss);
    fprintf(r->script,
            "set logscale x\nset format x '10^{%%T}'\nset xlabel 'C (FLOPs)'\nset ylabel 'loss (nats per token)'\n"
            "%sset cblabel 'log_{10} N'\n"
            "plot $curves using 1:2:3 with lines linewidth 1.2 linecolor palette notitle",
            ramp);
    if (!of->envelope_dropped[0])
        fputs(", $envelope with lines linewidth 2 linecolor rgb '#222222' title 'envelope'", r->script);
    fputc('\n', r->script);
}

const struct dtx_report_picture dtx_report_pictures[] = {
    {"shares", "What a variant needs to reach the baseline's loss",
     "Shares of weights (of tokens where one size was trained on several numbers of tokens) under which a variant has "
     "the "
     "baseline's loss, with bootstrap intervals; under 1 is less. What reaches the upper edge goes on beyond it, or "
     "the "
     "loss is never reached. To the right of the measured compute: extrapolated.",
     false, any_shares, draw_shares},
    {"size", "Loss over weights at one number of tokens", "Measured losses, fits and bootstrap bands.", false, any_size,
     draw_size},
    {"tokens", "Loss over tokens at one size", "Measured losses, fits and bootstrap bands.", false, any_tokens,
     draw_tokens},
    {"frontier", "Loss over compute",
     "Lines: the loss of the best size for each amount of compute by approach 3, with "
     "bootstrap bands; points: all models.",
     false, any_surface, draw_frontier},
    {"residuals", "Residuals of approach 3", "Measured over fitted loss: a pattern here is what the law does not say.",
     false, any_surface, draw_residuals},
    {"curves", "Loss curves",
     "Each line is a run, coloured by its size; black: the envelope between the smallest and the "
     "largest size (approach 1).",
     true, any_curve, draw_curves},
    {"isoflop", "IsoFLOP parabolas",
     "Filled points are fitted, hollow ones lie too far from the best size or belong to a "
     "budget that was dropped.",
     true, any_budget, draw_budgets},
    {"best", "Best size over compute", "By all approaches that could be made.", true, any_best, draw_best},
    {NULL, NULL, NULL, false, NULL, NULL}};
