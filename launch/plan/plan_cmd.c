/* `dtx plan`: which meshes fit a model on a machine, what they take, and how fast they should be. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/command.h"
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
    {"per-node", DTX_OPT_INT, "0", "0..1000000", DTX_OPT_CALL, "ranks that share this machine; 0: all (machine cpu)"},
    {"init", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "as for dtx train; changes nothing here"},
    {"efficiency", DTX_OPT_REAL, "0", "0..1", DTX_OPT_CALL, "share of the peak that layers reach; 0: the machine's"},
    {"top", DTX_OPT_INT, "8", "1..100000", DTX_OPT_CALL, "rows shown of those that fit, and of those that do not"},
    {"all", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "every setting of every mesh, not each mesh's best"},
    {"stages", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "memory of every stage of the rows shown"},
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print JSON"},
    {"flags", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print the best mesh alone, as options of dtx train"},
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

static void print_word(void *self, const char *text)
{
    int *n = self;
    printf("%s%s", (*n)++ ? " " : "", text);
}

/* The first row in one line; nothing when it does not fit. */
static void print_flags(const struct dtx_plan *plan)
{
    int n = 0;
    if (plan->row[0].verdict != DTX_PLAN_FITS)
        return;
    dtx_plan_flags(&plan->row[0], print_word, &n);
    printf("\n");
}

static enum dtx_status show(struct dtx_plan *plan, const struct dtx_opt *opt)
{
    int top = (int)dtx_opt_int(opt, "top");
    bool stages = dtx_opt_bool(opt, "stages");
    DTX_TRY(plan->ctx, dtx_plan_search(plan, dtx_opt_bool(opt, "all")));
    if (dtx_opt_bool(opt, "flags")) {
        print_flags(plan);
        return dtx_plan_check(plan);
    }
    DTX_TRY(plan->ctx, play_shown(plan, top));
    DTX_TRY(plan->ctx,
            dtx_opt_bool(opt, "json") ? dtx_plan_print_json(plan, top, stages) : dtx_plan_print(plan, top, stages));
    fflush(stdout);
    return dtx_plan_check(plan);
}

static enum dtx_status run_plan(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_plan plan = {.ctx = ctx};
    struct dtx_opt *opt = NULL;
    DTX_TRY(ctx, read_options(ctx, argc, argv, false, &plan.held));
    enum dtx_status status = DTX_OK;
    if (dtx_opt_bool(plan.held, "help")) {
        printf("%s", usage);
        dtx_opt_help(plan.held, stdout);
    } else {
        status = read_options(ctx, argc, argv, true, &opt);
        if (status == DTX_OK)
            status = dtx_opt_check(ctx, opt);
        if (status == DTX_OK)
            status = dtx_plan_open(&plan, opt, (int)dtx_opt_int(opt, "ranks"), (int)dtx_opt_int(opt, "per-node"));
        if (status == DTX_OK)
            status = show(&plan, opt);
    }
    dtx_plan_free(&plan);
    dtx_opt_free(opt);
    return status;
}

const struct dtx_command dtx_command_plan = {"plan", "meshes that fit a model on a machine: memory, traffic, time",
                                             run_plan};
