/* `dtx plan`: which meshes fit a model on a machine, what they take, and how fast they should be. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/command.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "launch/plan/plan.h"
#include "parallel/schedule.h"
#include "trainer/session.h"

extern const struct dtx_command dtx_command_plan;
extern char **environ;

const struct dtx_opt_row dtx_plan_options[] = {
    {"preset", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "a shipped configuration by name (bench-124m, …) or a path"},
    {"machine", DTX_OPT_TEXT, "h100", NULL, DTX_OPT_CALL, "a100, h100, h200, b200, cpu (this one) or a YAML file"},
    {"ranks", DTX_OPT_INT, "0", "0..1000000", DTX_OPT_CALL, "devices to use; 0: one node of the machine"},
    {"efficiency", DTX_OPT_REAL, "0", "0..1", DTX_OPT_CALL, "share of the peak that layers reach; 0: the machine's"},
    {"top", DTX_OPT_INT, "8", "1..100000", DTX_OPT_CALL, "rows shown of those that fit, and of those that do not"},
    {"all", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "every setting of every mesh, not each mesh's best"},
    {"stages", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "memory of every stage of the rows shown"},
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print JSON"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const char usage[] =
    "usage: dtx plan [CONFIG.yaml] [--preset NAME] [--machine NAME|FILE.yaml] [--ranks N] [options]\n\n"
    "Prints the meshes of N ranks that fit, the fastest first, with memory of the fullest stage by cause, idle share,\n"
    "bytes sent and predicted step time, and the reason beside each that does not fit. parallel.* and train.recompute\n"
    "given as flags or variables are kept, all others are varied.\n\n";

/* Flags and variables alone, or everything. */
static enum dtx_status read_options(struct dtx_ctx *ctx, int argc, char **argv, bool everything, struct dtx_opt **out)
{
    const struct dtx_opt_row *const tables[] = {dtx_plan_options, dtx_train_options};
    const char *word = NULL;
    int n_words = 0;
    struct dtx_opt *opt;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 2, &opt));
    enum dtx_status status = dtx_opt_load_args(ctx, opt, argc, argv, &word, 1, &n_words);
    if (status == DTX_OK)
        status = dtx_opt_load_env(ctx, opt, environ);
    if (status == DTX_OK && everything && n_words)
        status = dtx_opt_load_file(ctx, opt, word, DTX_OPT_FILE);
    if (status == DTX_OK && everything)
        status = dtx_session_load_preset(ctx, opt);
    if (status != DTX_OK)
        dtx_opt_free(opt);
    else
        *out = opt;
    return status;
}

/* Each schedule that is shown is played: its promises hold for these numbers. */
static enum dtx_status play_shown(struct dtx_plan *plan, int top)
{
    for (int i = 0; i < plan->n && i < top && plan->row[i].verdict == DTX_PLAN_FITS; i++) {
        struct dtx_plan_row *row = &plan->row[i];
        DTX_TRY(plan->ctx, dtx_schedule_simulate(plan->ctx, dtx_schedule_find(row->schedule), row->mesh[DTX_AXIS_PP],
                                                 row->micro_batches, row->chunks, &row->bubble));
    }
    return DTX_OK;
}

static enum dtx_status show(struct dtx_plan *plan, const struct dtx_opt *opt)
{
    int top = (int)dtx_opt_int(opt, "top");
    bool stages = dtx_opt_bool(opt, "stages");
    DTX_TRY(plan->ctx, dtx_plan_search(plan, dtx_opt_bool(opt, "all")));
    DTX_TRY(plan->ctx, play_shown(plan, top));
    DTX_TRY(plan->ctx,
            dtx_opt_bool(opt, "json") ? dtx_plan_print_json(plan, top, stages) : dtx_plan_print(plan, top, stages));
    fflush(stdout);
    if (plan->row[0].verdict != DTX_PLAN_FITS)
        return dtx_fail(plan->ctx, DTX_E_CONFIG,
                        "no mesh of %d ranks fits on %s; the closest: tp %d × pp %d × dp %d × cp %d: %s", plan->ranks,
                        plan->machine->name, plan->row[0].mesh[DTX_AXIS_TP], plan->row[0].mesh[DTX_AXIS_PP],
                        plan->row[0].mesh[DTX_AXIS_DP], plan->row[0].mesh[DTX_AXIS_CP], plan->row[0].reason);
    return DTX_OK;
}

/* With the options read: the machine, the search, the table. */
static enum dtx_status run_with(struct dtx_ctx *ctx, struct dtx_plan *plan, const struct dtx_opt *opt,
                                struct dtx_backend *backend)
{
    struct dtx_machine machine;
    enum dtx_dtype dtype = DTX_F32;
    int ranks = (int)dtx_opt_int(opt, "ranks");
    dtx_dtype_parse(dtx_opt_text(opt, "train.dtype"), &dtype);
    DTX_TRY(ctx, dtx_opt_dump(ctx, opt, &plan->options));
    DTX_TRY(ctx,
            dtx_machine_find(ctx, dtx_opt_text(opt, "machine"), ranks ? ranks : INT32_MAX, dtype, backend, &machine));
    plan->machine = &machine;
    plan->length = dtx_opt_int(opt, "train.length");
    plan->ranks = ranks ? ranks : (int)machine.devices_per_node;
    plan->efficiency = dtx_opt_real(opt, "efficiency") > 0 ? dtx_opt_real(opt, "efficiency") : machine.efficiency;
    DTX_TRY(ctx, backend->queues->create(backend, &plan->queue));
    enum dtx_status status = show(plan, opt);
    backend->queues->free(plan->queue);
    return status;
}

static enum dtx_status run_plan(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_plan plan = {.ctx = ctx};
    struct dtx_opt *opt = NULL;
    struct dtx_backend *backend = NULL;
    struct dtx_host host;
    DTX_TRY(ctx, read_options(ctx, argc, argv, false, &plan.held));
    enum dtx_status status = DTX_OK;
    if (dtx_opt_bool(plan.held, "help")) {
        printf("%s", usage);
        dtx_opt_help(plan.held, stdout);
    } else {
        status = read_options(ctx, argc, argv, true, &opt);
        if (status == DTX_OK)
            status = dtx_opt_check(ctx, opt);
        dtx_host_read("", &host);
        if (status == DTX_OK)
            status = dtx_backend_open(ctx, "cpu", host.cores_allowed, dtx_isa_detect(), &backend);
        if (status == DTX_OK)
            status = run_with(ctx, &plan, opt, backend);
    }
    dtx_plan_free(&plan);
    dtx_opt_free(opt);
    dtx_backend_close(backend);
    return status;
}

const struct dtx_command dtx_command_plan = {"plan", "meshes that fit a model on a machine: memory, traffic, time",
                                             run_plan};
