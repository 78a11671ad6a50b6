/* `dtx sweep fit`: laws of a table, printed. */
#include <stdio.h>
#include <string.h>

#include "launch/sweep/commands.h"
#include "launch/sweep/fit_options.h"
#include "launch/sweep/fit_print.h"

static const struct dtx_opt_row rows[] = {
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print JSON: all figures, points used and dropped"},
    {"csv", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print all figures as CSV"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

static const char usage[] =
    "usage: dtx sweep fit TABLE.csv|SWEEP [options]\n\n"
    "Fits scaling laws to losses of trained models: one row each with two of N (weights), D (tokens), C (FLOPs), and "
    "the\n"
    "loss; further columns: variant, seed, run, state, dropped. TABLE may be anybody's; SWEEP is a folder of dtx "
    "sweep.\n\n"
    "  dtx sweep fit results.csv --predict \"C=1e21;N=7e9,D=1e12\"\n"
    "  dtx sweep fit published.csv --column.n \"Model Size\" --column.c \"Training FLOP\" --drop_highest 5\n\n";

static enum dtx_status print_json(struct dtx_ctx *ctx, const struct dtx_fit *fit, const struct dtx_figures *figures,
                                  int argc, char **argv)
{
    json_t *json = dtx_fit_json(fit, figures, argc, argv);
    bool written = json && json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) == 0;
    json_decref(json);
    putchar('\n');
    return written ? DTX_OK : dtx_fail(ctx, DTX_E_IO, "cannot write the JSON");
}

static enum dtx_status show(struct dtx_ctx *ctx, const struct dtx_fit_command *command, int argc, char **argv)
{
    struct dtx_fit fit;
    struct dtx_figures figures = {0};
    DTX_TRY(ctx, dtx_fit_make(ctx, &command->options, &fit));
    enum dtx_status status = dtx_figures_make(ctx, &fit, &figures);
    if (status == DTX_OK && dtx_opt_bool(command->opt, "json"))
        status = print_json(ctx, &fit, &figures, argc, argv);
    else if (status == DTX_OK && dtx_opt_bool(command->opt, "csv"))
        dtx_fit_print_csv(&figures, stdout);
    else if (status == DTX_OK)
        dtx_fit_print_table(&fit, &figures, stdout);
    dtx_figures_free(&figures);
    dtx_fit_free(&fit);
    return status;
}

enum dtx_status dtx_sweep_fit(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_fit_command command;
    enum dtx_status status = dtx_fit_command_read(ctx, usage, rows, argc, argv, &command);
    if (status == DTX_OK && !command.done && dtx_opt_bool(command.opt, "json") && dtx_opt_bool(command.opt, "csv"))
        status = dtx_fail(ctx, DTX_E_CONFIG, "--json or --csv, not both");
    if (status == DTX_OK && !command.done)
        status = show(ctx, &command, argc, argv);
    dtx_fit_command_free(&command);
    return status;
}
