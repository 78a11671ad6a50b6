/* `dtx sweep`: from a grid of models and tokens to a table of losses, and from the table to scaling laws. */
#include <stdio.h>
#include <string.h>

#include "kernels/base/command.h"
#include "launch/sweep/commands.h"

extern const struct dtx_command dtx_command_sweep;

static const struct {
    const char *name, *summary;
    enum dtx_status (*run)(struct dtx_ctx *, int, char **);
} commands[] = {
    {"plan", "make the table of trials of a SPEC.yaml, with what it will cost", dtx_sweep_plan},
    {"run", "train what is left of a sweep on this machine", dtx_sweep_run},
    {"submit", "train what is left as a Slurm array", dtx_sweep_submit},
    {"status", "the trials in a table: state, loss, time left", dtx_sweep_status},
    {"fit", "fit scaling laws to a table of (N, D, loss)", dtx_sweep_fit},
    {"report", "the fit as one HTML page, its pictures as SVG and PNG", dtx_sweep_report},
    {"coordcheck", "how coordinates change over width and depth, with and without a rule of transfer",
     dtx_sweep_coordcheck},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *file)
{
    fprintf(file, "usage: dtx sweep COMMAND [options]    (dtx sweep COMMAND --help)\n\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        print_help(stdout);
        return DTX_OK;
    }
    if (argc == 0) {
        print_help(stderr);
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx sweep needs the name of one of these commands");
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(ctx, argc - 1, argv + 1);
    return dtx_fail(ctx, DTX_E_CONFIG, "there is no 'dtx sweep %s'; dtx sweep --help lists the commands", argv[0]);
}

const struct dtx_command dtx_command_sweep = {"sweep", "many trainings as one: plan, run, fit scaling laws", run};
