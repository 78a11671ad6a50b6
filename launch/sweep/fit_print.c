#include "launch/sweep/fit_print.h"

#include <math.h>
#include <string.h>

#include "launch/sweep/csv.h"

enum { DROPPED_SHOWN = 20, NUMBER = 32 };

void dtx_fit_each_missing(const struct dtx_fit *fit,
                          void (*show)(void *data, const char *variant, const char *what, const char *why), void *data)
{
    char what[64];
    for (int v = 0; v < fit->n_variants; v++) {
        const struct dtx_fit_variant *of = &fit->variant[v];
        if (of->envelope_dropped[0])
            show(data, of->name, "approach 1", of->envelope_dropped);
        if (of->isoflop_dropped[0])
            show(data, of->name, "approach 2", of->isoflop_dropped);
        for (int k = 0; k < of->isoflop.n_budgets; k++)
            if (of->isoflop.budget[k].dropped[0] && !(of->isoflop_dropped[0] && of->isoflop.n_used == 0)) {
                snprintf(what, sizeof what, "approach 2, C=%.4g", exp(of->isoflop.budget[k].ln_c));
                show(data, of->name, what, of->isoflop.budget[k].dropped);
            }
        for (int k = 0; k < DTX_FIT_LAWS; k++)
            if (of->part[k].dropped[0])
                show(data, of->name, dtx_fit_laws[k]->formula, of->part[k].dropped);
    }
    for (int k = 0; k < DTX_FIT_SHARED && fit->n_variants > 1; k++)
        if (fit->shared[k].dropped[0]) {
            snprintf(what, sizeof what, "shared %s", dtx_fit_laws[dtx_fit_shared[k]]->formula);
            show(data, "all", what, fit->shared[k].dropped);
        }
}

static void show_missing(void *data, const char *variant, const char *what, const char *why)
{
    fprintf(data, "  %s, %s: %s\n", variant, what, why);
}

static void print_points(const struct dtx_fit *fit, FILE *file)
{
    const struct dtx_points *p = &fit->points;
    int64_t dropped = p->n - p->used, shown = 0;
    fprintf(file, "points   %s: %lld used", p->path, (long long)p->used);
    for (int v = 0; v < fit->n_variants && fit->n_variants > 1; v++)
        fprintf(file, "%s%lld %s%s", v ? ", " : " (", (long long)fit->variant[v].set.n, fit->variant[v].name,
                v + 1 == fit->n_variants ? ")" : "");
    fprintf(file, ", %lld dropped, %lld passed over by --where\n", (long long)dropped, (long long)p->passed_over);
    fprintf(file, "N        weights, %s\nD        tokens, %s\nC        FLOPs, %s\nL        nats per token, %s\n",
            p->origin_n, p->origin_d, p->origin_c, p->origin_loss);
    for (int64_t i = 0; i < p->n && shown < DROPPED_SHOWN; i++)
        if (p->at[i].dropped[0]) {
            fprintf(file, "dropped  line %lld: %s\n", (long long)p->at[i].line, p->at[i].dropped);
            shown++;
        }
    if (dropped > shown)
        fprintf(file, "dropped  and %lld more (--json lists all)\n", (long long)(dropped - shown));
    if (fit->n_variants > 1)
        fprintf(file, "baseline %s; resamples of variants are %s\n", fit->variant[fit->baseline].name,
                fit->paired ? "paired: every point has its partner of the same N, D and seed" : "independent");
}

static const char *real(const struct dtx_figure *f, double value, const char *format, char *text)
{
    if (isnan(value))
        strcpy(text, "");
    else if (isinf(value))
        strcpy(text, dtx_figure_infinite(f, value));
    else
        snprintf(text, NUMBER, format, value);
    return text;
}

/* "0.655 ± 0.0078 [0.64, 0.67] unit (note)" with what exists of it. */
static void print_value(const struct dtx_figure *f, FILE *file)
{
    char value[NUMBER], se[NUMBER], low[NUMBER], high[NUMBER];
    fputs(real(f, f->value, "%.6g", value), file);
    if (!isnan(f->spread.se))
        fprintf(file, " ± %s", real(f, f->spread.se, "%.2g", se));
    if (!isnan(f->spread.low))
        fprintf(file, " [%s, %s]", real(f, f->spread.low, "%.4g", low), real(f, f->spread.high, "%.4g", high));
    if (f->unit[0] && strcmp(f->unit, "ratio") != 0)
        fprintf(file, " %s", f->unit);
    if (f->note[0])
        fprintf(file, " (%s)", f->note);
    fputc('\n', file);
}

static bool together(const struct dtx_figure *a, const struct dtx_figure *b)
{
    return strcmp(a->variant, b->variant) == 0 && strcmp(a->method, b->method) == 0 && strcmp(a->at, b->at) == 0;
}

/* Those of one place stand under it; the next figure's index. */
static int64_t print_place(const struct dtx_figures *figures, int64_t i, FILE *file)
{
    const struct dtx_figure *first = &figures->at[i];
    fprintf(file, "  %s\n", first->at);
    for (; i < figures->n && together(first, &figures->at[i]); i++) {
        fprintf(file, "    %-18s ", figures->at[i].quantity);
        print_value(&figures->at[i], file);
    }
    return i;
}

static int64_t print_figure(const struct dtx_figures *figures, int64_t i, FILE *file)
{
    const struct dtx_figure *f = &figures->at[i];
    if (f->at[0])
        return print_place(figures, i, file);
    fprintf(file, "  %-20s ", f->quantity);
    print_value(f, file);
    return i + 1;
}

static const char *formula_of(const char *method)
{
    static const struct {
        const char *method, *text;
    } texts[] = {{"approach 1", "envelope of the loss curves"},
                 {"approach 2", "isoFLOP parabolas in ln N"},
                 {"approach 3", "L = E + A/N^alpha + B/D^beta"},
                 {"shared surface", "L = E + A/N^alpha + B/D^beta, E, alpha and beta of all variants"},
                 {"shared L(N) at one D", "L = E + A/N^alpha, E and alpha of all variants"},
                 {"shared L(D) at one N", "L = E + B/D^beta, E and beta of all variants"},
                 {"kaplan joint", "L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D"},
                 {"kaplan L(N)", "L = (N_c/N)^alpha"},
                 {"kaplan L(D)", "L = (D_c/D)^beta"},
                 {"L(N) at one D", "L = E + A/N^alpha"},
                 {"L(D) at one N", "L = E + B/D^beta"},
                 {"frontier", "best N and D for C = 6 N D, by approach 3"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].method, method) == 0)
            return texts[i].text;
    return "";
}

void dtx_fit_print_table(const struct dtx_fit *fit, const struct dtx_figures *figures, FILE *file)
{
    print_points(fit, file);
    for (int64_t i = 0; i < figures->n;) {
        const struct dtx_figure *f = &figures->at[i], *before = i ? f - 1 : NULL;
        if (!before || strcmp(before->variant, f->variant) != 0 || strcmp(before->method, f->method) != 0) {
            const char *formula = formula_of(f->method);
            bool share = strncmp(f->method, "equivalence", 11) == 0;
            fprintf(file, "\n%s, %s%s%s%s%s\n", f->variant, f->method, *formula ? ": " : "", formula,
                    share ? ": what it needs to reach the loss of " : "",
                    share ? fit->variant[fit->baseline].name : "");
        }
        i = print_figure(figures, i, file);
    }
    fprintf(file, "\nnot made\n");
    dtx_fit_each_missing(fit, show_missing, file);
    fprintf(file, "\nintervals: %g %% of %lld bootstrap resamples, seed %lld\n", 100 * fit->options.interval,
            (long long)fit->options.resamples, (long long)fit->options.seed);
}

static void put_real(FILE *file, double value)
{
    if (!isnan(value))
        fprintf(file, "%.12g", value);
}

void dtx_fit_print_csv(const struct dtx_figures *figures, FILE *file)
{
    fputs("variant,method,quantity,at,unit,value,se,low,high,note\n", file);
    for (int64_t i = 0; i < figures->n; i++) {
        const struct dtx_figure *f = &figures->at[i];
        const char *const texts[] = {f->variant, f->method, f->quantity, f->at, f->unit};
        const double numbers[] = {f->value, f->spread.se, f->spread.low, f->spread.high};
        for (int k = 0; k < 5; k++) {
            dtx_csv_put(file, texts[k]);
            fputc(',', file);
        }
        for (int k = 0; k < 4; k++) {
            put_real(file, numbers[k]);
            fputc(',', file);
        }
        dtx_csv_put(file, f->note);
        fputc('\n', file);
    }
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : isinf(value) ? json_string(value > 0 ? "inf" : "-inf") : json_null();
}

static void add_missing(void *data, const char *variant, const char *what, const char *why)
{
    json_array_append_new(data, json_pack("{s:s, s:s, s:s}", "variant", variant, "what", what, "why", why));
}

static json_t *points_json(const struct dtx_points *p)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < p->n; i++) {
        const struct dtx_point *at = &p->at[i];
        json_t *row = json_pack("{s:I, s:s}", "line", (json_int_t)at->line, "variant", p->variants[at->variant]);
        if (at->dropped[0])
            json_object_set_new(row, "dropped", json_string(at->dropped));
        else
            json_object_update_new(row, json_pack("{s:o, s:o, s:o, s:o}", "n", number(at->n), "d", number(at->d), "c",
                                                  number(at->c), "loss", number(at->loss)));
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *figures_json(const struct dtx_figures *figures)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < figures->n; i++) {
        const struct dtx_figure *f = &figures->at[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s}", "variant", f->variant,
                                        "method", f->method, "quantity", f->quantity, "at", f->at, "unit", f->unit,
                                        "value", number(f->value), "se", number(f->spread.se), "low",
                                        number(f->spread.low), "high", number(f->spread.high), "note", f->note));
    }
    return list;
}

json_t *dtx_fit_json(const struct dtx_fit *fit, const struct dtx_figures *figures, int argc, char **argv)
{
    static const char commit[] =
#include "launch/commit.inc"
        ;
    const struct dtx_points *p = &fit->points;
    json_t *missing = json_array(), *words = json_pack("[s, s, s]", "dtx", "sweep", "fit");
    for (int i = 0; i < argc; i++)
        json_array_append_new(words, json_string(argv[i]));
    dtx_fit_each_missing(fit, add_missing, missing);
    json_t *columns =
        json_pack("{s:s, s:s, s:s, s:s}", "n", p->origin_n, "d", p->origin_d, "c", p->origin_c, "loss", p->origin_loss);
    json_t *settings = json_pack("{s:f, s:I, s:I, s:f, s:f, s:f, s:b}", "delta", fit->options.delta, "resamples",
                                 (json_int_t)fit->options.resamples, "seed", (json_int_t)fit->options.seed, "interval",
                                 fit->options.interval, "isoflop_tolerance", fit->options.isoflop.tolerance,
                                 "isoflop_span", fit->options.isoflop.span, "paired", fit->paired);
    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "program", "dtx " DTX_VERSION,
                     "commit", commit, "command", words, "table", p->path, "baseline", fit->variant[fit->baseline].name,
                     "used", (json_int_t)p->used, "passed_over", (json_int_t)p->passed_over, "columns", columns,
                     "settings", settings, "figures", figures_json(figures), "not_made", missing, "points",
                     points_json(p));
}
