/* `dtx sweep`: from a grid of models and tokens to a table of losses, and from the table to scaling laws. */
#include "kernels/base/command.h"
#include "launch/sweep/commands.h"

extern const struct dtx_command dtx_command_sweep;

static const struct dtx_command commands[] = {
    {"plan", "make the table of trials of a SPEC.yaml, with what it will cost", dtx_sweep_plan},
    {"run", "train what is left of a sweep on this machine", dtx_sweep_run},
    {"submit", "train what is left as a Slurm array", dtx_sweep_submit},
    {"status", "the trials in a table: state, loss, time left", dtx_sweep_status},
    {"fit", "fit scaling laws to a table of (N, D, loss)", dtx_sweep_fit},
    {"report", "the fit as one HTML page, its pictures as SVG and PNG", dtx_sweep_report},
    {"coordcheck", "how coordinates change over width and depth, with and without a rule of transfer",
     dtx_sweep_coordcheck},
};

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    return dtx_command_choose(ctx, "sweep", "sweep command", commands, sizeof commands / sizeof *commands, "", argc,
                              argv);
}

const struct dtx_command dtx_command_sweep = {"sweep", "many trainings as one: plan, run, fit scaling laws", run};
