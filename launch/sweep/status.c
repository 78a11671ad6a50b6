/* `dtx sweep status`: the trials in a table, once or live. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "launch/status/cells.h"
#include "launch/status/run_view.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/state.h"

enum { COLUMNS = 10 };

static const struct dtx_opt_row rows[] = {
    {"watch", DTX_OPT_REAL, "0", "0..86400", DTX_OPT_CALL, "show again every so many seconds; 0: once"},
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print JSON, an object a trial, then one for all"},
    {"csv", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "write the results so far to this file, as results.csv"},
    {"stale", DTX_OPT_REAL, "120", "1..86400", DTX_OPT_CALL, "as for dtx sweep run"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const char usage[] = "usage: dtx sweep status SWEEP [--watch SECONDS] [--json] [--csv FILE]\n\n"
                            "Where the trials stand: pending, running, done (a verified final record), failed(n) after "
                            "n crashes, diverged; step,\n"
                            "losses, time left, attempts, who is at work, and why a trial failed.\n\n";

struct view {
    struct dtx_ctx *ctx;
    struct dtx_sweep sweep;
    struct dtx_sweep_self self;
    struct dtx_sweep_state *state;   /* [trials] */
    char (*cell)[COLUMNS][DTX_CELL]; /* [trials] */
};

struct numbers { /* of one trial, as far as they are known */
    int64_t step;
    double loss, heldout, left, age;
};

static struct numbers read_numbers(const struct view *v, int i)
{
    const struct dtx_sweep_state *s = &v->state[i];
    const struct dtx_sweep_trial *t = &v->sweep.trials.item[i];
    struct numbers n = {t->start_step, NAN, NAN, NAN, NAN};
    struct dtx_run_view run;
    char path[DTX_SWEEP_PATH];
    dtx_sweep_run_path(&v->sweep, i, path);
    if (s->phase == DTX_SWEEP_DONE) {
        n.step = s->record.step;
        n.loss = s->record.train_loss;
        n.heldout = s->record.loss;
    } else if (s->attempts > 0 && dtx_run_view_read(path, dtx_clock_wall(), &run)) {
        n.step = run.step > n.step ? run.step : n.step;
        n.loss = run.loss;
        n.heldout = run.heldout;
        n.age = run.age_seconds;
        if (s->phase == DTX_SWEEP_RUNNING)
            n.left = (double)(dtx_sweep_last_step(t) - n.step) * run.step_seconds;
    }
    return n;
}

/* "failed(3)"; "pending" behind one that cannot be done: "blocked". */
static void state_text(const struct dtx_sweep_state *s, char out[DTX_CELL])
{
    if (s->phase == DTX_SWEEP_GIVEN_UP)
        snprintf(out, DTX_CELL, "failed(%d)", s->failures);
    else
        snprintf(out, DTX_CELL, "%s", s->blocked ? "blocked" : dtx_sweep_phase_name(s->phase));
}

static void fill_row(const struct view *v, int i)
{
    const struct dtx_sweep_state *s = &v->state[i];
    const struct dtx_sweep_trial *t = &v->sweep.trials.item[i];
    struct numbers n = read_numbers(v, i);
    char(*c)[DTX_CELL] = v->cell[i];
    snprintf(c[0], DTX_CELL, "%d", i + 1);
    snprintf(c[1], DTX_CELL, "%s", t->label);
    state_text(s, c[2]);
    snprintf(c[3], DTX_CELL, "%lld/%lld", (long long)n.step, (long long)dtx_sweep_last_step(t));
    dtx_cell_number(n.loss, "%.4f", c[4]);
    dtx_cell_number(n.heldout, "%.4f", c[5]);
    dtx_cell_duration(n.left, c[6]);
    snprintf(c[7], DTX_CELL, s->attempts ? "%d" : "-", s->attempts);
    snprintf(c[8], DTX_CELL, "%s%s%s", s->attempts ? s->last.host : "-", s->last.job[0] ? " job " : "", s->last.job);
    if (s->phase == DTX_SWEEP_DONE)
        snprintf(c[8], DTX_CELL, "%s", s->record.host);
    dtx_cell_duration(n.age, c[9]);
}

static void print_cause(const void *self, int row)
{
    const struct dtx_sweep_state *s = &((const struct view *)self)->state[row];
    if (s->phase != DTX_SWEEP_DONE && s->last.cause[0])
        printf("       %s\n", s->last.cause);
}

static void print_table(const struct view *v)
{
    static const char *const heads[COLUMNS] = {"trial",    "label", "state",    "step", "loss",
                                               "held-out", "left",  "attempts", "host", "last sign"};
    dtx_cells_print(heads, COLUMNS, v->cell[0], v->sweep.trials.n, print_cause, v);
}

static void count_phases(const struct view *v, int phase[DTX_SWEEP_PHASES])
{
    memset(phase, 0, DTX_SWEEP_PHASES * sizeof *phase);
    for (int i = 0; i < v->sweep.trials.n; i++)
        phase[v->state[i].phase]++;
}

static void print_summary(const struct view *v)
{
    struct dtx_sweep_progress p = dtx_sweep_progress(&v->sweep, v->state, NULL);
    int phase[DTX_SWEEP_PHASES];
    char left[16];
    count_phases(v, phase);
    dtx_format_duration(p.left_seconds, left);
    printf("\nsweep %s: ", v->sweep.name);
    for (int i = 0; i < DTX_SWEEP_PHASES; i++)
        printf("%s%d %s", i ? ", " : "", phase[i], dtx_sweep_phase_name((enum dtx_sweep_phase)i));
    printf("; %.1f%% of %.3g FLOPs, ETA %s\n", p.all > 0 ? 100 * p.done / p.all : 100, p.all, left);
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void print_json(const struct view *v)
{
    struct dtx_sweep_progress p = dtx_sweep_progress(&v->sweep, v->state, NULL);
    int phase[DTX_SWEEP_PHASES];
    for (int i = 0; i < v->sweep.trials.n; i++) {
        const struct dtx_sweep_state *s = &v->state[i];
        const struct dtx_sweep_trial *t = &v->sweep.trials.item[i];
        struct numbers n = read_numbers(v, i);
        json_t *line = json_pack(
            "{s:i, s:s, s:s, s:s, s:b, s:I, s:I, s:o, s:o, s:o, s:i, s:i, s:s, s:s, s:s}", "trial", i + 1, "id", t->id,
            "label", t->label, "state", dtx_sweep_phase_name(s->phase), "blocked", s->blocked, "step",
            (json_int_t)n.step, "steps", (json_int_t)dtx_sweep_last_step(t), "loss", real_or_null(n.loss),
            "heldout_loss", real_or_null(n.heldout), "left_seconds", real_or_null(n.left), "attempts", s->attempts,
            "failures", s->failures, "host", s->phase == DTX_SWEEP_DONE ? s->record.host : s->last.host, "job",
            s->last.job, "cause", s->phase == DTX_SWEEP_DONE ? "" : s->last.cause);
        json_dumpf(line, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(line);
    }
    count_phases(v, phase);
    json_t *line = json_pack("{s:s, s:f, s:f, s:o}", "sweep", v->sweep.name, "flops_done", p.done, "flops", p.all,
                             "left_seconds", real_or_null(p.left_seconds));
    for (int i = 0; i < DTX_SWEEP_PHASES; i++)
        json_object_set_new(line, dtx_sweep_phase_name((enum dtx_sweep_phase)i), json_integer(phase[i]));
    json_dumpf(line, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(line);
}

static enum dtx_status show(struct view *v, bool json, bool live)
{
    DTX_TRY(v->ctx, dtx_sweep_look(v->ctx, &v->sweep, &v->self, NULL, v->state));
    if (live && !json)
        printf("\033[H\033[J"); /* the terminal's first line, the rest empty */
    if (json)
        print_json(v);
    for (int i = 0; i < v->sweep.trials.n && !json; i++)
        fill_row(v, i);
    if (!json) {
        print_table(v);
        print_summary(v);
    }
    fflush(stdout);
    return DTX_OK;
}

static enum dtx_status show_sweep(struct view *v, const struct dtx_opt *opt, const char *dir)
{
    void *memory;
    double seconds = dtx_opt_real(opt, "watch");
    const char *csv = dtx_opt_text(opt, "csv");
    DTX_TRY(v->ctx, dtx_sweep_read(v->ctx, dir, &v->sweep));
    DTX_TRY(v->ctx, dtx_mem_alloc(v->ctx, v->sweep.trials.n, sizeof *v->state, &memory));
    v->state = memory;
    DTX_TRY(v->ctx, dtx_mem_alloc(v->ctx, v->sweep.trials.n, sizeof *v->cell, &memory));
    v->cell = memory;
    dtx_sweep_self_read(&v->self, dtx_opt_real(opt, "stale"));
    if (*csv)
        DTX_TRY(v->ctx, dtx_sweep_results_write(v->ctx, &v->sweep, csv));
    do {
        DTX_TRY(v->ctx, show(v, dtx_opt_bool(opt, "json"), seconds > 0 && isatty(STDOUT_FILENO)));
        if (seconds > 0)
            dtx_clock_sleep(seconds);
    } while (seconds > 0);
    return DTX_OK;
}

enum dtx_status dtx_sweep_status(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct dtx_opt_row *const tables[] = {rows};
    struct view view = {.ctx = ctx};
    const char *dir;
    int n_words;
    struct dtx_opt *opt;
    enum dtx_status status = dtx_command_options(ctx, tables, usage, "which sweep? dtx sweep status SWEEP", argc, argv,
                                                 &dir, 1, &n_words, &opt);
    if (opt)
        status = show_sweep(&view, opt, dir);
    dtx_sweep_free(&view.sweep);
    dtx_mem_free(view.state);
    dtx_mem_free(view.cell);
    dtx_opt_free(opt);
    return status;
}
