/* The script for gnuplot and its run: no shell, so no name is ever parsed but as a quoted text. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "launch/curve/curve.h"

enum { PLOT_POINTS = 1200, PATH_BYTES = 4096 };

extern char **environ;

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

void dtx_gnuplot_put_quoted(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc((unsigned char)*text < ' ' ? '?' : *text, script);
    }
    fputc('\'', script);
}

static enum dtx_status put_script(struct dtx_ctx *ctx, FILE *script, const struct dtx_plot *plot,
                                  enum dtx_plot_format format)
{
    const struct dtx_losses *l = plot->losses;
    fputs(format == DTX_PLOT_SVG ? "set terminal svg size 880,520 dynamic font 'Helvetica,14' background '#ffffff'\n"
                                 : "set terminal pngcairo size 1320,780 font 'Sans,13' fontscale 1.1 linewidth 1.5\n",
          script);
    fputs(
        "set encoding utf8\nset border 3 linecolor '#555555'\nset tics nomirror textcolor '#333333'\n"
        "set grid linecolor '#dddddd' linetype 1 linewidth 0.7\nset key top right Left reverse samplen 2 spacing 1.25\n"
        "set xlabel 'step'\nset ylabel 'loss (nats per token)'\nset format x '%.0f'\nset xrange [0:*]\n"
        "set offsets 0, 0, graph 0.04, graph 0.04\nset title noenhanced\nset title ",
        script);
    dtx_gnuplot_put_quoted(script, plot->title);
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

static enum dtx_status spawn_gnuplot(struct dtx_ctx *ctx, int script, int picture, int messages, int *exit_status)
{
    char name[] = "gnuplot", defaults[] = "-d", from_stdin[] = "-"; /* spawn takes no const */
    char *argv[] = {name, defaults, from_stdin, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory starting gnuplot");
    posix_spawn_file_actions_adddup2(&actions, script, 0);
    posix_spawn_file_actions_adddup2(&actions, picture, 1);
    posix_spawn_file_actions_adddup2(&actions, messages, 2);
    int cause = posix_spawnp(&child, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (cause == ENOENT)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "gnuplot is not installed, and pictures need it: install the package gnuplot-nox, or do "
                        "without --svg and --png");
    if (cause != 0)
        return dtx_fail(ctx, DTX_E_LIBRARY, "gnuplot cannot be started: %s", strerror(cause));
    while (waitpid(child, exit_status, 0) < 0)
        if (errno != EINTR)
            return dtx_fail(ctx, DTX_E_INTERNAL, "lost gnuplot: %s", strerror(errno));
    return DTX_OK;
}

/* Runs the script; the picture goes to `picture`. */
static enum dtx_status run_gnuplot(struct dtx_ctx *ctx, FILE *script, int picture, const char *path)
{
    int exit_status = 0;
    struct stat st;
    FILE *messages = tmpfile();
    if (!messages)
        return dtx_fail(ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    enum dtx_status status = spawn_gnuplot(ctx, fileno(script), picture, fileno(messages), &exit_status);
    if (status == DTX_OK && (exit_status != 0 || fstat(picture, &st) != 0 || st.st_size == 0)) {
        char text[600];
        rewind(messages);
        size_t n = fread(text, 1, sizeof text - 1, messages);
        text[n] = '\0';
        status =
            dtx_fail(ctx, DTX_E_LIBRARY, "gnuplot failed to make %s (wait status %d): %s", path, exit_status, text);
    }
    fclose(messages);
    return status;
}

static enum dtx_status write_picture(struct dtx_ctx *ctx, FILE *script, const char *path)
{
    char temporary[PATH_BYTES];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= PATH_BYTES)
        return dtx_fail(ctx, DTX_E_CONFIG, "%.200s…: the name is too long", path);
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot create the file: %s", temporary, strerror(errno));
    enum dtx_status status = run_gnuplot(ctx, script, fd, path);
    if (close(fd) != 0 && status == DTX_OK)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot write: %s", temporary, strerror(errno));
    if (status == DTX_OK && rename(temporary, path) != 0)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot rename to %s: %s", temporary, path, strerror(errno));
    if (status != DTX_OK)
        unlink(temporary);
    return status;
}

enum dtx_status dtx_gnuplot_write(struct dtx_ctx *ctx, FILE *script, const char *path)
{
    if (fflush(script) != 0 || lseek(fileno(script), 0, SEEK_SET) != 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot write a temporary file: %s", strerror(errno));
    return write_picture(ctx, script, path);
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
