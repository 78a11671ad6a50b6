#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/submit/script.h"
#include "launch/sweep/runner.h"

enum { MOST_WORDS = 64, TEXT = 16384 };

struct words {
    char text[TEXT];
    size_t used;
    char *word[MOST_WORDS + 1];
    int n;
    bool full;
};

static void add(struct words *w, const char *word)
{
    size_t length = strlen(word) + 1;
    if (w->n == MOST_WORDS || w->used + length > sizeof w->text) {
        w->full = true;
        return;
    }
    w->word[w->n++] = memcpy(w->text + w->used, word, length);
    w->word[w->n] = NULL;
    w->used += length;
}

static void add_option(struct words *w, const char *key, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    add(w, key);
    add(w, text);
}

/* What starts the ranks: the user's words, or mpirun, which leaves them a minute to save after TERM. */
static void add_launcher(struct words *w, const char *launcher, int ranks)
{
    char copy[4096], *rest = copy;
    snprintf(copy, sizeof copy, "%s", launcher);
    for (char *word; (word = strsep(&rest, " "));)
        if (*word)
            add(w, word);
    if (*launcher || ranks == 1)
        return;
    add(w, "mpirun");
    add_option(w, "-n", ranks);
    static const char *const more[] = {"--bind-to", "none", "--mca", "odls_base_sigkill_timeout", "60"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        add(w, more[i]);
}

static void make_words(const struct dtx_sweep_runner *r, const struct dtx_sweep_child *c, struct words *w)
{
    const struct dtx_sweep_trial *t = &r->sweep.trials.item[c->trial];
    char program[PATH_MAX], path[DTX_SWEEP_PATH], run[DTX_SWEEP_PATH + 64];
    dtx_script_program(program, sizeof program);
    add_launcher(w, r->launcher, r->sweep.ranks);
    add(w, program);
    add(w, "train");
    dtx_sweep_config_path(&r->sweep, c->trial, path);
    add(w, path);
    dtx_sweep_run_path(&r->sweep, c->trial, path);
    add(w, "--run.dir");
    add(w, path);
    add_option(w, "--train.until", t->until);
    add(w, "--log.progress");
    add(w, "plain");
    if (r->threads)
        add_option(w, "--cpu.threads", r->threads);
    if (c->from > 0 && !DTX_MUTANT(sweep_begins_anew)) {
        add(w, "--resume");
        add(w, "latest");
    } else if (t->start >= 0) {
        dtx_sweep_run_path(&r->sweep, t->start, path);
        snprintf(run, sizeof run, "%s/checkpoints/step-%08lld", path, (long long)t->start_step);
        add(w, "--resume");
        add(w, run);
    }
}

static enum dtx_status make_folder(struct dtx_ctx *ctx, const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? DTX_OK
               : dtx_fail(ctx, DTX_E_IO, "cannot make the folder %s: %s", path, strerror(errno));
}

/* The run's folder as the trainer wants it: what an attempt measured that saved nothing moves to the logs. */
static enum dtx_status prepare_run(const struct dtx_sweep_runner *r, const struct dtx_sweep_child *c, const char *run)
{
    char path[DTX_SWEEP_PATH + 64], aside[DTX_SWEEP_PATH + 64];
    DTX_TRY(r->ctx, make_folder(r->ctx, run));
    snprintf(path, sizeof path, "%s/logs", run);
    DTX_TRY(r->ctx, make_folder(r->ctx, path));
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    snprintf(aside, sizeof aside, "%s/logs/attempt-%d.metrics.jsonl", run, c->attempt - 1);
    if (c->from == 0 && rename(path, aside) != 0 && errno != ENOENT)
        return dtx_fail(r->ctx, DTX_E_IO, "cannot move %s: %s", path, strerror(errno));
    return DTX_OK;
}

/* Is the configuration that will be read the one of the table? */
static enum dtx_status check_config(const struct dtx_sweep_runner *r, int trial)
{
    const struct dtx_sweep_trial *t = &r->sweep.trials.item[trial];
    char path[DTX_SWEEP_PATH], id[DTX_SWEEP_ID], *text;
    int64_t bytes;
    dtx_sweep_config_path(&r->sweep, trial, path);
    DTX_TRY(r->ctx, dtx_disk_read(r->ctx, path, 1 << 24, &text, &bytes));
    enum dtx_status status = dtx_sweep_identify(r->ctx, text, t->start >= 0 ? r->sweep.trials.item[t->start].id : "",
                                                t->start_step, t->until, id);
    dtx_mem_free(text);
    DTX_TRY(r->ctx, status);
    if (strcmp(id, t->id) != 0)
        return dtx_fail(r->ctx, DTX_E_CONFIG,
                        "%s was edited: its options give the id %s; a changed trial is a new plan", path, id);
    return DTX_OK;
}

/* In the child: the trainer, or exit code 127. It is told to save and stop when the runner dies. */
static void become(const struct dtx_sweep_runner *r, const struct dtx_sweep_child *c, const struct words *w, int log,
                   pid_t runner)
{
    static const char *const others[] = {"DTX_RESUME", "DTX_INIT", "DTX_PRESET", "DTX_CHECKPOINT_DIR"};
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);            /* an interrupt from the terminal is the runner's to pass on */
    signal(SIGTERM, SIG_DFL); /* the runner's handler would swallow one that comes before exec */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != runner)
        _exit(127);
    dtx_sweep_note_child(&r->sweep, c->trial, c->attempt);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        unsetenv(others[i]);
    dtx_sweep_gpus_deal(r, (int)(c - r->child));
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (chdir(r->sweep.folder) == 0)
        execvp(w->word[0], w->word);
    dprintf(STDERR_FILENO, "dtx: cannot start %s in %s: %s\n", w->word[0], r->sweep.folder, strerror(errno));
    _exit(127);
}

enum dtx_status dtx_sweep_child_start(struct dtx_sweep_runner *r, struct dtx_sweep_child *c)
{
    char run[DTX_SWEEP_PATH], path[DTX_SWEEP_PATH + 64];
    void *memory;
    DTX_TRY(r->ctx, check_config(r, c->trial));
    dtx_sweep_run_path(&r->sweep, c->trial, run);
    DTX_TRY(r->ctx, prepare_run(r, c, run));
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, 1, sizeof(struct words), &memory));
    struct words *w = memory;
    make_words(r, c, w);
    snprintf(path, sizeof path, "%s/logs/attempt-%d.log", run, c->attempt);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    enum dtx_status status = DTX_OK;
    pid_t runner = getpid();
    if (log < 0 || w->full)
        status = dtx_fail(r->ctx, DTX_E_IO, "cannot write %s: %s", path, w->full ? "too many words" : strerror(errno));
    c->pid = status == DTX_OK ? fork() : 0;
    if (status == DTX_OK && c->pid == 0)
        become(r, c, w, log, runner);
    if (c->pid < 0) {
        c->pid = 0;
        status = dtx_fail(r->ctx, DTX_E_IO, "cannot start a process: %s", strerror(errno));
    }
    if (log >= 0)
        close(log);
    dtx_mem_free(memory);
    c->started = dtx_clock_now();
    c->asked = 0;
    return status;
}

void dtx_sweep_child_stop(struct dtx_sweep_child *c)
{
    kill(c->pid, SIGUSR1);
    c->asked = dtx_clock_now();
}
