/* Slopes, the table, CSV and the picture of a coordinate check. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "launch/sweep/coord.h"

const char *const dtx_coord_names[DTX_COORD_KINDS] = {"embedding", "queries", "attention", "gates",
                                                      "ffn",       "stream",  "logits",    "lambda"};

const char *dtx_coord_rule_name(enum dtx_transfer_rule rule)
{
    return rule == DTX_TRANSFER_NONE ? "none" : rule == DTX_TRANSFER_MUP ? "mup" : "completep";
}

static double shape_of(const struct dtx_coord_series *s, int i)
{
    return (double)(s->by_depth ? s->at[i].layers : s->at[i].width);
}

double dtx_coord_slope(const struct dtx_coord_series *s, enum dtx_coord_kind kind, int step, double *error)
{
    double x_mean = 0, y_mean = 0, xy = 0, xx = 0, squares = 0;
    for (int i = 0; i < s->n; i++) {
        x_mean += log(shape_of(s, i)) / s->n;
        y_mean += log(s->at[i].change[kind][step]) / s->n;
    }
    for (int i = 0; i < s->n; i++) {
        double x = log(shape_of(s, i)) - x_mean;
        xy += x * (log(s->at[i].change[kind][step]) - y_mean);
        xx += x * x;
        squares += x * x * s->at[i].error[kind][step] * s->at[i].error[kind][step];
    }
    if (error)
        *error = sqrt(squares) / xx;
    return isfinite(xy / xx) ? xy / xx : NAN;
}

static bool has_lambda(const struct dtx_coord_series *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i].size[DTX_COORD_LAMBDA][0] > 0)
            return true;
    return false;
}

int dtx_coord_print(FILE *file, const struct dtx_coord_series *s, int steps, double bound)
{
    int beyond = 0, kinds = 0;
    fprintf(file, "\nrule %s, by %s (%s %lld): change of a coordinate after %d steps\n%-10s",
            dtx_coord_rule_name(s->rule), s->by_depth ? "depth" : "width", s->by_depth ? "width" : "layers",
            (long long)(s->by_depth ? s->at[0].width : s->at[0].layers), steps, "");
    for (int i = 0; i < s->n; i++)
        fprintf(file, " %10.0f", shape_of(s, i));
    fprintf(file, "          slope\n");
    for (int k = 0; k < DTX_COORD_KINDS; k++) {
        if (k == DTX_COORD_LAMBDA && !has_lambda(s))
            continue;
        double error, slope = dtx_coord_slope(s, k, steps, &error);
        bool holds = fabs(slope) <= bound, moves = !(fabs(slope) - 2 * error <= bound);
        kinds++;
        beyond += moves;
        fprintf(file, "%-10s", dtx_coord_names[k]);
        for (int i = 0; i < s->n; i++)
            fprintf(file, " %10.3g", s->at[i].change[k][steps]);
        fprintf(file, "  %+6.2f ± %.2f  %s\n", slope, error,
                holds          ? "holds"
                : isnan(slope) ? "not finite"
                : moves        ? "moves"
                               : "unclear: more seeds would tell");
    }
    fprintf(file, "%-10s", "loss");
    for (int i = 0; i < s->n; i++)
        fprintf(file, " %10.4f", s->at[i].loss[steps - 1]);
    fprintf(file, "\n%s: %d of %d slopes are beyond ±%.2f\n", beyond ? "does not transfer" : "transfers", beyond, kinds,
            bound);
    return beyond;
}

void dtx_coord_put_csv(FILE *file, const struct dtx_coord_series *series, int n, int steps)
{
    fprintf(file, "rule,axis,width,layers,kind,step,rms,change,ln_change_se\n");
    for (int i = 0; i < n; i++)
        for (int p = 0; p < series[i].n; p++)
            for (int k = 0; k < DTX_COORD_KINDS; k++)
                for (int step = 0; step <= steps; step++) {
                    const struct dtx_coord_point *at = &series[i].at[p];
                    fprintf(file, "%s,%s,%lld,%lld,%s,%d,%.9g,%.9g,%.4g\n", dtx_coord_rule_name(series[i].rule),
                            series[i].by_depth ? "depth" : "width", (long long)at->width, (long long)at->layers,
                            dtx_coord_names[k], step, at->size[k][step], at->change[k][step], at->error[k][step]);
                }
}

/* The change beside the smallest model's: 1 everywhere where a rule transfers. */
static double relative(const struct dtx_coord_series *s, int point, int kind, int step)
{
    return s->at[point].change[kind][step] / s->at[0].change[kind][step];
}

static void put_panel(FILE *script, const struct dtx_coord_series *s, int kind, int steps, bool first)
{
    char title[64];
    fputs("$data << end\n", script);
    for (int i = 0; i < s->n; i++) {
        fprintf(script, "%.0f", shape_of(s, i));
        for (int step = 1; step <= steps; step++)
            fprintf(script, " %.6g", relative(s, i, kind, step));
        fputc('\n', script);
    }
    fputs("end\n", script);
    snprintf(title, sizeof title, "%s  %+.2f", dtx_coord_names[kind], dtx_coord_slope(s, kind, steps, NULL));
    fputs("set title ", script);
    dtx_gnuplot_quote(script, title);
    fprintf(script, "\nset xlabel '%s'\n", s->by_depth ? "layers" : "width");
    if (first)
        fprintf(script, "set ylabel 'rule %s'\n", dtx_coord_rule_name(s->rule));
    else
        fputs("unset ylabel\n", script);
    fputs("set xtics (", script);
    for (int i = 0; i < s->n; i++)
        fprintf(script, "%s%.0f", i ? ", " : "", shape_of(s, i));
    fprintf(script, ")\nplot 1 with lines dashtype 2 linecolor '#888888' notitle");
    for (int step = 1; step <= steps; step++)
        fprintf(
            script,
            ", $data using 1:%d with linespoints pointtype 7 pointsize 0.5 linewidth 1.6 linecolor palette cb %d %s",
            step + 1, step, "notitle");
    fputc('\n', script);
}

enum dtx_status dtx_coord_draw(struct dtx_ctx *ctx, const struct dtx_coord_series *series, int n, int steps,
                               enum dtx_plot_format format, const char *path)
{
    double low = 0.5, high = 2;
    bool lambda = false;
    for (int i = 0; i < n; i++) {
        lambda = lambda || has_lambda(&series[i]);
        for (int p = 0; p < series[i].n; p++)
            for (int k = 0; k < DTX_COORD_KINDS; k++)
                for (int step = 1; step <= steps; step++) {
                    double r = relative(&series[i], p, k, step);
                    low = isfinite(r) && r > 0 ? fmin(low, r) : low;
                    high = isfinite(r) ? fmax(high, r) : high;
                }
    }
    FILE *script = tmpfile();
    if (!script)
        return dtx_fail(ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    int kinds = lambda ? DTX_COORD_KINDS : DTX_COORD_LAMBDA;
    dtx_gnuplot_begin(script, format, 230 * kinds, 200 * n + 60);
    fprintf(script,
            "set logscale xy\nset xtics font ',9'\nset yrange [%.4g:%.4g]\nset palette defined (1 '#a6c8e8', 2 "
            "'#1f5fa8')\nset cbrange [1:%d]\nunset colorbox\n"
            "set multiplot layout %d,%d title 'Change of a coordinate since the initial model, beside the smallest "
            "model''s; lines: steps 1 (light) to %d (dark); number: slope at the last step'\n",
            low / 1.2, high * 1.2, steps > 1 ? steps : 2, n, kinds, steps);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < kinds; k++)
            put_panel(script, &series[i], k, steps, k == 0);
    fputs("unset multiplot\n", script);
    enum dtx_status status = dtx_gnuplot_write(ctx, script, path);
    fclose(script);
    return status;
}
