/* The script for gnuplot. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "launch/curve/curve.h"

enum { PLOT_POINTS = 1200 };

static bool any_finite(const double *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i]))
            return true;
    return false;
}

/* Long runs: lowest and highest loss of each piece, drawn as a stroke, so that the file stays small and no spike is
 * lost. */
static void put_losses(FILE *script, const struct dtx_losses *l)
{
    int64_t pieces = dtx_min64(l->n, PLOT_POINTS);
    fputs("$train << end\n", script);
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * l->n / pieces, end = (p + 1) * l->n / pieces;
        double low = INFINITY, high = -INFINITY;
        for (int64_t i = first; i < end; i++)
            if (isfinite(l->loss[i])) {
                low = fmin(low, l->loss[i]);
                high = fmax(high, l->loss[i]);
            }
        if (high >= low)
            fprintf(script, "%lld %.6g\n", (long long)l->step[first], low);
        if (high > low)
            fprintf(script, "%lld %.6g\n", (long long)l->step[first], high);
    }
    fputs("end\n", script);
}

/* A centred mean whose window grows with the step (a fourth of it, at most a thirtieth of the run), so that the steep
 * beginning is not smeared. */
static void put_smooth(FILE *script, const struct dtx_losses *l, const double *sum, const int64_t *count)
{
    int64_t pieces = dtx_min64(l->n, PLOT_POINTS);
    fputs("$smooth << end\n", script);
    for (int64_t p = 0; p < pieces; p++) {
        int64_t i = pieces > 1 ? p * (l->n - 1) / (pieces - 1) : 0, half = dtx_min64(i / 8, l->n / 60);
        int64_t first = i - half, end = dtx_min64(i + half + 1, l->n), n = count[end] - count[first];
        if (n > 0)
            fprintf(script, "%lld %.6g\n", (long long)l->step[i], (sum[end] - sum[first]) / (double)n);
    }
    fputs("end\n", script);
}

static enum dtx_status put_data(struct dtx_ctx *ctx, FILE *script, const struct dtx_losses *l)
{
    void *sum_memory, *count_memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, l->n + 1, sizeof(double), &sum_memory));
    enum dtx_status status = dtx_mem_alloc(ctx, l->n + 1, sizeof(int64_t), &count_memory);
    if (status != DTX_OK) {
        dtx_mem_free(sum_memory);
        return status;
    }
    double *sum = sum_memory;      /* [n + 1] of the finite losses before i */
    int64_t *count = count_memory; /* [n + 1] */
    for (int64_t i = 0; i < l->n; i++) {
        sum[i + 1] = sum[i] + (isfinite(l->loss[i]) ? l->loss[i] : 0);
        count[i + 1] = count[i] + isfinite(l->loss[i]);
    }
    put_losses(script, l);
    put_smooth(script, l, sum, count);
    dtx_mem_free(sum);
    dtx_mem_free(count);
    fputs("$heldout << end\n", script);
    for (int64_t i = 0; i < l->n; i++)
        if (isfinite(l->heldout[i]))
            fprintf(script, "%lld %.6g\n", (long long)l->step[i], l->heldout[i]);
    fputs("end\n", script);
    return DTX_OK;
}

static enum dtx_status put_script(struct dtx_ctx *ctx, FILE *script, const struct dtx_plot *plot,
                                  enum dtx_plot_format format)
{
    const struct dtx_losses *l = plot->losses;
    dtx_gnuplot_begin(script, format, 880, 520);
    fputs("set xlabel 'step'\nset ylabel 'loss (nats per token)'\nset format x '%.0f'\nset xrange [0:*]\n"
          "set offsets 0, 0, graph 0.04, graph 0.04\nset title noenhanced\nset title ",
          script);
    dtx_gnuplot_quote(script, plot->title);
    fputc('\n', script);
    DTX_TRY(ctx, put_data(ctx, script, l));
    fputs("plot $train with lines linewidth 0.8 linecolor '#a6c8e8' title 'training loss', "
          "$smooth with lines linewidth 2.2 linecolor '#1f5fa8' title 'training loss, smoothed'",
          script);
    if (any_finite(l->heldout, l->n))
        fputs(", $heldout with linespoints linewidth 1.6 pointtype 7 pointsize 0.7 linecolor '#d9541e' title "
              "'held-out loss'",
              script);
    if (!isnan(plot->unigram))
        fprintf(script, ", %.9g with lines dashtype 2 linewidth 1.6 linecolor '#444444' title 'unigram entropy %.3f'",
                plot->unigram, plot->unigram);
    fputc('\n', script);
    return DTX_OK;
}

enum dtx_status dtx_plot_write(struct dtx_ctx *ctx, const struct dtx_plot *plot, enum dtx_plot_format format,
                               const char *path)
{
    if (!any_finite(plot->losses->loss, plot->losses->n))
        return dtx_fail(ctx, DTX_E_NUMERIC, "%s: no training loss is finite: there is nothing to draw", plot->title);
    FILE *script = tmpfile();
    if (!script)
        return dtx_fail(ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    enum dtx_status status = put_script(ctx, script, plot, format);
    if (status == DTX_OK)
        status = dtx_gnuplot_write(ctx, script, path);
    fclose(script);
    return status;
}
