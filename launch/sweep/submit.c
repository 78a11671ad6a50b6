/* `dtx sweep submit`: what is left of a sweep as a Slurm array. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "launch/submit/script.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/state.h"

enum { LIST = 8192 };

static const struct dtx_opt_row rows[] = {
    {"concurrent", DTX_OPT_INT, "4", "0..100000", DTX_OPT_CALL, "tasks at once at most; 0: as many as Slurm starts"},
    {"again", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "also those that failed or diverged"},
    {"retries", DTX_OPT_INT, "3", "0..1000000", DTX_OPT_CALL, "as for dtx sweep run"},
    {"nodes", DTX_OPT_INT, "1", "1..1000000", DTX_OPT_CALL, "of a trial"},
    {"gpus-per-node", DTX_OPT_INT, "0", "0..1024", DTX_OPT_CALL, "GPUs of a node"},
    {"cpus-per-task", DTX_OPT_INT, "0", "0..4096", DTX_OPT_CALL, "cores of a rank; 0: the cluster's default"},
    {"time", DTX_OPT_TEXT, "24:00:00", NULL, DTX_OPT_CALL, "limit of one attempt; a trial goes on after it"},
    {"partition", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "partition"},
    {"account", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "account"},
    {"job-name", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "name of the job; default: the sweep's"},
    {"sbatch", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "further options of sbatch: \"qos=long mem=0\""},
    {"launcher", DTX_OPT_CHOICE, "srun", "srun|mpirun", DTX_OPT_CALL, "what starts several ranks of a trial"},
    {"dry-run", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print script and array, write and submit nothing"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const char usage[] = "usage: dtx sweep submit SWEEP [--concurrent N] [--time LIMIT] [--cpus-per-task C] …\n\n"
                            "Writes SWEEP/sweep.sbatch, a script to read and edit, and submits it as an array: task N "
                            "is trial N, of those that are\n"
                            "not done. Tasks requeue themselves until their trial is done. The same command again "
                            "submits what is left then.\n\n";

struct submission {
    struct dtx_ctx *ctx;
    struct dtx_opt *opt;
    struct dtx_sweep sweep;
    struct dtx_script script;
    struct dtx_sweep_state *state;
    char array[LIST + 64]; /* "--array=1-6%2" */
    int n, running;
};

static bool is_left(const struct submission *s, int i)
{
    enum dtx_sweep_phase phase = s->state[i].phase;
    bool ended = phase == DTX_SWEEP_GIVEN_UP || phase == DTX_SWEEP_IS_DIVERGED || s->state[i].blocked;
    return phase != DTX_SWEEP_DONE && phase != DTX_SWEEP_RUNNING && (!ended || dtx_opt_bool(s->opt, "again"));
}

/* "1-3,7,9-12": the trials that are left. */
static enum dtx_status list_left(struct submission *s)
{
    struct dtx_sweep_self self;
    void *memory;
    size_t used = (size_t)snprintf(s->array, sizeof s->array, "--array=");
    int n = s->sweep.trials.n;
    dtx_sweep_self_read(&self, 120);
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, n, sizeof *s->state, &memory));
    s->state = memory;
    DTX_TRY(s->ctx, dtx_sweep_look(s->ctx, &s->sweep, &self, NULL, s->state));
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        s->running += s->state[i].phase == DTX_SWEEP_RUNNING;
        if (!is_left(s, i))
            continue;
        while (end < n && is_left(s, end))
            end++;
        if (used > LIST)
            return dtx_fail(s->ctx, DTX_E_CONFIG,
                            "the list of trials is too long for sbatch: use dtx sweep run in jobs");
        used += (size_t)snprintf(s->array + used, sizeof s->array - used, s->n ? ",%d" : "%d", i + 1);
        if (end > i + 1)
            used += (size_t)snprintf(s->array + used, sizeof s->array - used, "-%d", end);
        s->n += end - i;
    }
    if (dtx_opt_int(s->opt, "concurrent"))
        snprintf(s->array + used, sizeof s->array - used, "%%%lld", (long long)dtx_opt_int(s->opt, "concurrent"));
    return DTX_OK;
}

static void fill_script(struct submission *s)
{
    struct dtx_script *script = &s->script;
    const char *name = dtx_opt_text(s->opt, "job-name");
    int64_t nodes = dtx_opt_int(s->opt, "nodes");
    char dtx[PATH_MAX], number[32];
    dtx_script_program(dtx, sizeof dtx);
    dtx_script_set(script, "#SBATCH --job-name=%s", *name ? name : s->sweep.name);
    dtx_script_set(script, "#SBATCH --nodes=%lld", (long long)nodes);
    dtx_script_set(script, "#SBATCH --ntasks-per-node=%lld", (long long)dtx_div_up(s->sweep.ranks, nodes));
    dtx_script_set(script, "#SBATCH --output=%s/logs/slurm-%%A_%%a.log", s->sweep.dir);
    dtx_script_set(script, "#SBATCH --chdir=%s", s->sweep.folder);
    dtx_script_set_job(script, s->opt);
    dtx_script_set_word(script, "dtx=", dtx);
    dtx_script_set_word(script, "sweep=", s->sweep.dir);
    dtx_script_set(script, "options=(");
    snprintf(number, sizeof number, "%lld", (long long)dtx_opt_int(s->opt, "retries"));
    dtx_script_word(script, "--retries");
    dtx_script_word(script, number);
    if (dtx_opt_bool(s->opt, "again"))
        dtx_script_word(script, "--again");
    dtx_script_close_list(script);
    dtx_script_set(script, "launcher=%s", dtx_opt_text(s->opt, "launcher"));
}

/* Never over a script that is there: it may have been edited. */
static enum dtx_status write_script(struct submission *s, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/logs", s->sweep.dir);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return dtx_fail(s->ctx, DTX_E_IO, "cannot make %s: %s", path, strerror(errno));
    snprintf(path, DTX_SWEEP_PATH, "%s/sweep.sbatch", s->sweep.dir);
    FILE *file = fopen(path, "wx");
    if (!file && errno == EEXIST) {
        dtx_log(s->ctx, DTX_LOG_INFO,
                "%s is there and is submitted as it stands; remove it to have other options in it", path);
        return DTX_OK;
    }
    if (!file)
        return dtx_fail(s->ctx, dtx_status_of_path(errno), "cannot write %s: %s", path, strerror(errno));
    enum dtx_status status = dtx_script_write(&s->script, file);
    if (fclose(file) != 0 && status == DTX_OK)
        status = dtx_fail(s->ctx, DTX_E_IO, "cannot write %s: %s", path, strerror(errno));
    if (status != DTX_OK)
        unlink(path);
    return status;
}

static enum dtx_status submit(struct submission *s, const char *dir)
{
    char path[DTX_SWEEP_PATH];
    DTX_TRY(s->ctx, dtx_sweep_read(s->ctx, dir, &s->sweep));
    if (s->sweep.ranks % dtx_opt_int(s->opt, "nodes"))
        return dtx_fail(s->ctx, DTX_E_CONFIG,
                        "nodes: %d ranks of a trial (sweep.ranks) are not a multiple of %lld nodes", s->sweep.ranks,
                        (long long)dtx_opt_int(s->opt, "nodes"));
    const char *const words[] = {s->sweep.dir, s->sweep.folder, s->sweep.name};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strpbrk(words[i], " \t\n\\%"))
            return dtx_fail(s->ctx, DTX_E_CONFIG, "sbatch does not take blanks, \\ and %% in '%s'", words[i]);
    DTX_TRY(s->ctx, list_left(s));
    fill_script(s);
    if (dtx_opt_bool(s->opt, "dry-run")) {
        DTX_TRY(s->ctx, dtx_script_write(&s->script, stdout));
        printf("# sbatch %s %s/sweep.sbatch\n", s->n ? s->array : "(nothing is left)", s->sweep.dir);
        return DTX_OK;
    }
    if (s->running)
        dtx_log(s->ctx, DTX_LOG_INFO, "%d trials are at work and are left out", s->running);
    if (s->n == 0) {
        dtx_log(s->ctx, DTX_LOG_INFO, "nothing is left to submit of %d trials", s->sweep.trials.n);
        return DTX_OK;
    }
    DTX_TRY(s->ctx, write_script(s, path));
    dtx_log(s->ctx, DTX_LOG_INFO, "%d trials: sbatch %s %s", s->n, s->array, path);
    return dtx_script_submit(s->ctx, path, s->array);
}

enum dtx_status dtx_sweep_submit(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct dtx_opt_row *const tables[] = {rows};
    void *memory;
    const char *dir;
    int n_words;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct submission), &memory));
    struct submission *s = memory;
    s->ctx = s->script.ctx = ctx;
    s->script.template = "sweep.sbatch";
    enum dtx_status status = dtx_command_options(ctx, tables, usage, "which sweep? dtx sweep submit SWEEP", argc, argv,
                                                 &dir, 1, &n_words, &s->opt);
    if (s->opt)
        status = submit(s, dir);
    dtx_sweep_free(&s->sweep);
    dtx_mem_free(s->state);
    dtx_opt_free(s->opt);
    dtx_mem_free(s);
    return status;
}
