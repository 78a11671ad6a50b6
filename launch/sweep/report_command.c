/* `dtx sweep report`: the page and, on request, its pictures as files. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "launch/curve/gnuplot.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/fit_options.h"
#include "launch/sweep/report.h"

enum { PATH_BYTES = 4096, FILE_WIDTH = 880, FILE_HEIGHT = 560 };

static const struct dtx_opt_row rows[] = {
    {"out", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "the page (empty: report.html, in a sweep's folder if there is one)"},
    {"pictures", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "write every picture as SVG and PNG into this folder too"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

static const char usage[] =
    "usage: dtx sweep report TABLE.csv|SWEEP [options]\n\n"
    "Fits as dtx sweep fit does and writes one HTML file: shares, loss curves, isoFLOP parabolas, fits with bands,\n"
    "residuals, tables, points, the command. It needs no network to read and no JavaScript. gnuplot draws the "
    "pictures.\n\n";

enum dtx_status dtx_report_draw(struct dtx_report *report, const struct dtx_report_picture *picture, int variant,
                                FILE *script)
{
    report->script = script;
    fputs("set border 3\nset offsets 0, 0, graph 0.05, graph 0.05\n", script);
    picture->draw(report, variant);
    report->script = NULL;
    return report->maker.status;
}

/* NAME[-VARIANT].EXTENSION with whatever is no letter or digit in the variant as _. */
static bool picture_path(const struct dtx_report *r, const char *folder, const struct dtx_report_picture *picture,
                         int v, const char *extension, char *path)
{
    char variant[64] = "";
    if (picture->per_variant)
        snprintf(variant, sizeof variant, "-%s", r->fit->variant[v].name);
    for (char *at = variant; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", *at))
            *at = '_';
    return snprintf(path, PATH_BYTES, "%s/%s%s.%s", folder, picture->name, variant, extension) < PATH_BYTES;
}

static enum dtx_status write_picture(struct dtx_report *r, const char *folder, const struct dtx_report_picture *picture,
                                     int v, enum dtx_plot_format format)
{
    char path[PATH_BYTES], title[256];
    if (!picture_path(r, folder, picture, v, format == DTX_PLOT_SVG ? "svg" : "png", path))
        return dtx_fail(r->ctx, DTX_E_CONFIG, "%.200s…: the name is too long", folder);
    FILE *script = tmpfile();
    if (!script)
        return dtx_fail(r->ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    dtx_gnuplot_begin(script, format, FILE_WIDTH, FILE_HEIGHT);
    snprintf(title, sizeof title, "%s%s%.60s", picture->title, picture->per_variant ? ", " : "",
             picture->per_variant ? r->fit->variant[v].name : "");
    fputs("set title noenhanced\nset title ", script);
    dtx_gnuplot_quote(script, title);
    fputc('\n', script);
    enum dtx_status status = dtx_report_draw(r, picture, v, script);
    if (status == DTX_OK)
        status = dtx_gnuplot_write(r->ctx, script, path);
    fclose(script);
    return status;
}

static enum dtx_status write_pictures(struct dtx_report *r, const char *folder)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return dtx_fail(r->ctx, dtx_status_of_path(errno), "%s: cannot make the folder: %s", folder, strerror(errno));
    for (int k = 0; dtx_report_pictures[k].name; k++)
        for (int v = 0; v < (dtx_report_pictures[k].per_variant ? r->fit->n_variants : 1); v++)
            if (dtx_report_pictures[k].there(r, v)) {
                DTX_TRY(r->ctx, write_picture(r, folder, &dtx_report_pictures[k], v, DTX_PLOT_SVG));
                DTX_TRY(r->ctx, write_picture(r, folder, &dtx_report_pictures[k], v, DTX_PLOT_PNG));
            }
    return DTX_OK;
}

/* Whole or not at all. */
static enum dtx_status write_page(struct dtx_report *r, const struct dtx_fit_command *command, int argc, char **argv)
{
    char path[PATH_BYTES], temporary[PATH_BYTES + 8];
    const char *out = dtx_opt_text(command->opt, "out");
    int n = *out ? snprintf(path, sizeof path, "%s", out)
                 : snprintf(path, sizeof path, "%s%sreport.html", command->folder, command->folder[0] ? "/" : "");
    if (n >= PATH_BYTES)
        return dtx_fail(r->ctx, DTX_E_CONFIG, "%.200s…: the name is too long", path);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *page = fopen(temporary, "w");
    if (!page)
        return dtx_fail(r->ctx, dtx_status_of_path(errno), "%s: cannot create the file: %s", temporary,
                        strerror(errno));
    enum dtx_status status = dtx_report_write_page(r, argc, argv, command->folder, page);
    bool failed = ferror(page) != 0;
    failed = fclose(page) != 0 || failed;
    if (status == DTX_OK && (failed || rename(temporary, path) != 0))
        status = dtx_fail(r->ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
    if (status != DTX_OK)
        unlink(temporary);
    else
        printf("report: %s\n", path);
    return status;
}

static enum dtx_status report_fit(struct dtx_ctx *ctx, const struct dtx_fit_command *command, const struct dtx_fit *fit,
                                  const struct dtx_figures *figures, int argc, char **argv)
{
    struct dtx_figures scratch = {0};
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, fit->options.resamples, sizeof(double), &memory));
    struct dtx_report report = {ctx, fit, figures, {ctx, fit, &scratch, memory, DTX_OK}, NULL};
    enum dtx_status status = write_page(&report, command, argc, argv);
    if (status == DTX_OK && *dtx_opt_text(command->opt, "pictures"))
        status = write_pictures(&report, dtx_opt_text(command->opt, "pictures"));
    dtx_figures_free(&scratch);
    dtx_mem_free(memory);
    return status;
}

static enum dtx_status run(struct dtx_ctx *ctx, const struct dtx_fit_command *command, int argc, char **argv)
{
    struct dtx_fit fit;
    struct dtx_figures figures = {0};
    DTX_TRY(ctx, dtx_fit_make(ctx, &command->options, &fit));
    enum dtx_status status = dtx_figures_make(ctx, &fit, &figures);
    if (status == DTX_OK)
        status = report_fit(ctx, command, &fit, &figures, argc, argv);
    dtx_figures_free(&figures);
    dtx_fit_free(&fit);
    return status;
}

enum dtx_status dtx_sweep_report(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_fit_command command;
    enum dtx_status status = dtx_fit_command_read(ctx, usage, rows, argc, argv, &command);
    if (status == DTX_OK && !command.done)
        status = run(ctx, &command, argc, argv);
    dtx_fit_command_free(&command);
    return status;
}
