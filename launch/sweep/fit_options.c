#include "launch/sweep/fit_options.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char results_file[] = "results.csv";

const struct dtx_opt_row dtx_fit_option_rows[] = {
    {"column.n", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column of the weights N (empty: n, n_total, params, …)"},
    {"column.d", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column of the tokens D (empty: d, tokens, t, …)"},
    {"column.c", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column of the FLOPs C (empty: c, flops, …; without one 6 N D)"},
    {"column.loss", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "column of the loss (empty: loss, heldout_loss, val_loss, …)"},
    {"column.variant", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column of the variant (empty: variant, attention)"},
    {"column.seed", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column of the seed (empty: seed)"},
    {"column.run", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "column that names a run (empty: run, trial, id, …)"},
    {"column.state", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "column of a row's state; 'done' is used (empty: state, status)"},
    {"column.dropped", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "column that marks rows to drop (empty: dropped, outlier, …)"},
    {"where", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "only rows with column=value,column=value"},
    {"faults", DTX_OPT_CHOICE, "error", "error|drop", DTX_OPT_FREE,
     "rows that cannot be used (NaN, negative, repeated): fail, or go on without them"},
    {"repeats", DTX_OPT_CHOICE, "keep", "keep|lowest", DTX_OPT_FREE,
     "rows with the same variant, N and D: all are used, or that of the lowest loss"},
    {"drop_highest", DTX_OPT_INT, "0", "0..", DTX_OPT_FREE, "drop so many of each variant's highest losses"},
    {"baseline", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "variant that others are compared with (empty: softmax, or the first)"},
    {"curves", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "table of loss curves (run, N, D, loss) for approach 1 (a sweep has its own)"},
    {"smooth", DTX_OPT_REAL, "0.05", "0..2", DTX_OPT_FREE, "curves: mean over losses whose ln C is so near"},
    {"delta", DTX_OPT_REAL, "1e-3", "0..", DTX_OPT_FREE, "of the Huber loss; 0: sum of absolute differences"},
    {"isoflop.tolerance", DTX_OPT_REAL, "0.05", "0..10", DTX_OPT_FREE,
     "FLOPs of one budget differ by this share at most"},
    {"isoflop.span", DTX_OPT_REAL, "3", "0..", DTX_OPT_FREE,
     "parabola through sizes within this factor of the best one (0: all)"},
    {"predict", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "\"C=1e21;N=7e9,D=1e12\": best N and D of C, losses"},
    {"resamples", DTX_OPT_INT, "4000", "0..1000000", DTX_OPT_FREE, "bootstrap resamples (0: no intervals)"},
    {"seed", DTX_OPT_INT, "0", "0..", DTX_OPT_FREE, "of the resamples"},
    {"interval", DTX_OPT_REAL, "0.95", "0.01..0.9999", DTX_OPT_FREE, "share of resamples between the percentiles"},
    {"threads", DTX_OPT_INT, "0", "0..1024", DTX_OPT_FREE,
     "threads (0: as OpenMP says); results do not depend on them"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

/* The file itself, or that of a sweep's folder. */
static enum dtx_status place_files(struct dtx_ctx *ctx, const char *word, struct dtx_fit_command *c)
{
    struct stat st;
    bool folder = stat(word, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(c->folder, sizeof c->folder, "%s", folder ? word : "");
    int n = snprintf(c->table, sizeof c->table, "%s%s%s", word, folder ? "/" : "", folder ? results_file : "");
    if (n >= (int)sizeof c->table)
        return dtx_fail(ctx, DTX_E_CONFIG, "%.200s…: the name is too long", word);
    if (folder && stat(c->table, &st) != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: no %s in this folder: is it a sweep that has been run?", word,
                        results_file);
    return DTX_OK;
}

static void fill_options(struct dtx_fit_command *c)
{
    const struct dtx_opt *opt = c->opt;
    int threads = (int)dtx_opt_int(opt, "threads");
    struct dtx_points_options columns = {.n = dtx_opt_text(opt, "column.n"),
                                         .d = dtx_opt_text(opt, "column.d"),
                                         .c = dtx_opt_text(opt, "column.c"),
                                         .loss = dtx_opt_text(opt, "column.loss"),
                                         .variant = dtx_opt_text(opt, "column.variant"),
                                         .seed = dtx_opt_text(opt, "column.seed"),
                                         .run = dtx_opt_text(opt, "column.run"),
                                         .state = dtx_opt_text(opt, "column.state"),
                                         .dropped = dtx_opt_text(opt, "column.dropped"),
                                         .drop_faults = strcmp(dtx_opt_text(opt, "faults"), "drop") == 0};
    c->options =
        (struct dtx_fit_options){.points = columns,
                                 .baseline = dtx_opt_text(opt, "baseline"),
                                 .delta = dtx_opt_real(opt, "delta"),
                                 .resamples = dtx_opt_int(opt, "resamples"),
                                 .seed = dtx_opt_int(opt, "seed"),
                                 .interval = dtx_opt_real(opt, "interval"),
                                 .threads = threads > 0 ? threads : omp_get_max_threads(),
                                 .isoflop = {dtx_opt_real(opt, "isoflop.tolerance"), dtx_opt_real(opt, "isoflop.span")},
                                 .smooth = dtx_opt_real(opt, "smooth"),
                                 .predict = dtx_opt_text(opt, "predict")};
    c->options.folder = c->folder;
    c->options.points.path = c->table;
    c->options.points.where = dtx_opt_text(opt, "where");
    c->options.points.lowest = strcmp(dtx_opt_text(opt, "repeats"), "lowest") == 0;
    c->options.points.highest = dtx_opt_int(opt, "drop_highest");
    /* Columns of the table of points that the curves do not have need not be there. */
    c->options.curves = (struct dtx_points_options){
        .path = dtx_opt_text(opt, "curves"), .curves = true, .drop_faults = columns.drop_faults};
}

enum dtx_status dtx_fit_command_read(struct dtx_ctx *ctx, const char *usage, const struct dtx_opt_row *more, int argc,
                                     char **argv, struct dtx_fit_command *out)
{
    const struct dtx_opt_row *const tables[] = {dtx_fit_option_rows, more};
    const char *word = NULL;
    int n_words = 0;
    out->opt = NULL;
    out->done = false;
    for (int i = 0; i < argc; i++)
        out->done = out->done || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, more ? 2 : 1, &out->opt));
    if (out->done) {
        fputs(usage, stdout);
        dtx_opt_help(out->opt, stdout);
        return DTX_OK;
    }
    enum dtx_status status = dtx_opt_load_args(ctx, out->opt, argc, argv, &word, 1, &n_words);
    if (status == DTX_OK && n_words == 0)
        dtx_opt_fault(out->opt, "a table (CSV) or the folder of a sweep must be named");
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, out->opt);
    if (status == DTX_OK)
        status = place_files(ctx, word, out);
    if (status == DTX_OK)
        fill_options(out);
    return status;
}

void dtx_fit_command_free(struct dtx_fit_command *command)
{
    dtx_opt_free(command->opt);
    command->opt = NULL;
}
