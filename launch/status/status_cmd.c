/* `dtx status`: many runs in a table, once or live. */
#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/meter.h"
#include "kernels/base/opt.h"
#include "launch/status/cells.h"
#include "launch/status/run_view.h"

extern const struct dtx_command dtx_command_status;

enum { MOST_RUNS = 1024, COLUMNS = 10 };

static const struct dtx_opt_row rows[] = {
    {"watch", DTX_OPT_REAL, "0", "0..86400", DTX_OPT_CALL, "show again every so many seconds; 0: once"},
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print JSON, an object a run"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const char usage[] =
    "usage: dtx status RUN… [--watch SECONDS] [--json]\n\n"
    "Runs in a table: state, step, losses, speed, time left, attempts, last checkpoint, age of "
    "the last sign, and why the\n"
    "last attempt and the one before it ended. A folder of runs (an array's) stands for all of them. 'silent': the "
    "run says that it runs, and\n"
    "nothing has come from it for ten minutes and twenty of its steps.\n\n";

struct table {
    char cell[MOST_RUNS + 1][COLUMNS][DTX_CELL];
    char cause[MOST_RUNS + 1][DTX_CELL], before[MOST_RUNS + 1][DTX_CELL];
    int n;
};

static void add_row(struct table *t, const struct dtx_run_view *v)
{
    char(*c)[DTX_CELL] = t->cell[t->n];
    char count[16] = "-";
    snprintf(c[0], DTX_CELL, "%s", v->path);
    snprintf(c[1], DTX_CELL, "%s", v->state);
    snprintf(c[2], DTX_CELL, "%lld/%lld", (long long)v->step, (long long)v->steps);
    dtx_cell_number(v->loss, "%.4f", c[3]);
    dtx_cell_number(v->heldout, "%.4f", c[4]);
    if (!isnan(v->tokens_per_s))
        dtx_format_count(v->tokens_per_s, count);
    strcpy(c[5], count);
    dtx_cell_duration(v->left_seconds, c[6]);
    snprintf(c[7], DTX_CELL, v->attempts ? "%lld" : "-", (long long)v->attempts);
    snprintf(c[8], DTX_CELL, strcmp(v->local, "-") == 0 ? "%s" : "%s, local %s", v->checkpoint, v->local);
    dtx_cell_duration(v->age_seconds, c[9]);
    snprintf(t->cause[t->n], DTX_CELL, "%.*s", DTX_CELL - 1, v->cause);
    snprintf(t->before[t->n], DTX_CELL, "%.*s", DTX_CELL - 1, v->before);
    t->n++;
}

static void print_causes(const void *self, int row)
{
    const struct table *t = self;
    if (t->cause[row][0])
        printf("    %s\n", t->cause[row]);
    if (t->before[row][0])
        printf("    before: %s\n", t->before[row]);
}

static void print_table(struct table *t)
{
    static const char *const heads[COLUMNS] = {"run",      "state", "step",     "loss",       "held-out",
                                               "tokens/s", "left",  "attempts", "checkpoint", "last sign"};
    dtx_cells_print(heads, COLUMNS, t->cell[0], t->n, print_causes, t);
}

static void print_json(const struct dtx_run_view *v)
{
    json_t *line =
        json_pack("{ss ss sI sI sI ss ss ss ss}", "run", v->path, "state", v->state, "step", (json_int_t)v->step,
                  "steps", (json_int_t)v->steps, "attempts", (json_int_t)v->attempts, "checkpoint", v->checkpoint,
                  "local_checkpoint", v->local, "cause", v->cause, "before", v->before);
    const struct {
        const char *key;
        double value;
    } reals[] = {{"loss", v->loss},
                 {"heldout_loss", v->heldout},
                 {"tokens_per_s", v->tokens_per_s},
                 {"step_seconds", v->step_seconds},
                 {"left_seconds", v->left_seconds},
                 {"age_seconds", v->age_seconds}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        json_object_set_new(line, reals[i].key, isfinite(reals[i].value) ? json_real(reals[i].value) : json_null());
    json_dumpf(line, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(line);
}

static void show(struct table *t, const char *path, bool json, int *found)
{
    struct dtx_run_view view;
    if (t->n == MOST_RUNS || !dtx_run_view_read(path, dtx_clock_wall(), &view))
        return;
    ++*found;
    if (json)
        print_json(&view);
    else
        add_row(t, &view);
}

/* A run, or the runs in a folder. */
static enum dtx_status show_word(struct dtx_ctx *ctx, struct table *t, const char *word, bool json, char *paths[])
{
    int found = 0;
    show(t, word, json, &found);
    struct dirent **entries = NULL;
    int n = found ? 0 : scandir(word, &entries, NULL, versionsort);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && t->n < MOST_RUNS &&
            asprintf(&paths[t->n], "%s/%s", word, entries[i]->d_name) > 0) {
            int before = t->n;
            show(t, paths[before], json, &found);
            if (t->n == before) { /* not kept: it names no row */
                free(paths[before]);
                paths[before] = NULL;
            }
        }
        free(entries[i]);
    }
    free(entries);
    return found ? DTX_OK
                 : dtx_fail(ctx, DTX_E_CONFIG, "%s: no run there, nor runs in it (no status, no metrics)", word);
}

static enum dtx_status show_all(struct dtx_ctx *ctx, const char *const *words, int n_words, bool json, bool live)
{
    struct table *t = calloc(1, sizeof *t);
    char **paths = calloc(MOST_RUNS, sizeof *paths);
    enum dtx_status status = t && paths ? DTX_OK : dtx_fail(ctx, DTX_E_MEMORY, "status: no memory");
    for (int i = 0; i < n_words && status == DTX_OK; i++)
        status = show_word(ctx, t, words[i], json, paths);
    if (status == DTX_OK && live && !json)
        printf("\033[H\033[J"); /* the terminal's first line, the rest empty */
    if (status == DTX_OK && !json)
        print_table(t);
    fflush(stdout);
    for (int i = 0; paths && i < MOST_RUNS; i++)
        free(paths[i]);
    free(paths);
    free(t);
    return status;
}

/* Once, or again and again. */
static enum dtx_status watch(struct dtx_ctx *ctx, const struct dtx_opt *opt, const char *const *words, int n_words)
{
    double seconds = dtx_opt_real(opt, "watch");
    do {
        DTX_TRY(ctx, show_all(ctx, words, n_words, dtx_opt_bool(opt, "json"), seconds > 0 && isatty(STDOUT_FILENO)));
        if (seconds > 0)
            dtx_clock_sleep(seconds);
    } while (seconds > 0);
    return DTX_OK;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct dtx_opt_row *const tables[] = {rows};
    const char *words[MOST_RUNS];
    int n_words;
    struct dtx_opt *opt;
    enum dtx_status status = dtx_command_options(ctx, tables, usage, "which runs? dtx status RUN…", argc, argv, words,
                                                 MOST_RUNS, &n_words, &opt);
    if (opt)
        status = watch(ctx, opt, words, n_words);
    dtx_opt_free(opt);
    return status;
}

const struct dtx_command dtx_command_status = {"status",
                                               "many runs in a table: state, step, losses, time left, attempts", run};
