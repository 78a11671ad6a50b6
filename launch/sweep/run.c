/* `dtx sweep run`: trains what is left of a sweep, on this machine, beside any number of others that do the same. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/needs.h"
#include "launch/sweep/runner.h"
#include "trainer/config.h"
#include "trainer/stop.h"

extern char **environ;

enum { MOST_JOBS = 1024, MOST_WORDS = 1024 };
static const double POLL = 0.1, LOOK = 1, LIVE = 0.5, PLAIN = 60; /* seconds */

static const struct dtx_opt_row rows[] = {
    {"jobs", DTX_OPT_INT, "0", "0..1024", DTX_OPT_CALL,
     "trials at once; 0: as many as GPUs, or cores and memory, allow"},
    {"gpus", DTX_OPT_TEXT, "auto", NULL, DTX_OPT_CALL,
     "GPUs that are dealt out among trials at once, one a rank: 0,1,3; none: every trial sees all of them"},
    {"trial", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "these alone, and what they start from: numbers, labels, ids, separated by commas"},
    {"retries", DTX_OPT_INT, "3", "0..1000000", DTX_OPT_CALL,
     "a trial that crashes more often than this with no checkpoint in between is given up"},
    {"backoff", DTX_OPT_REAL, "2", "0..3600", DTX_OPT_CALL, "seconds before it is tried again, doubled each time"},
    {"again", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "try those that failed or diverged once more"},
    {"stale", DTX_OPT_REAL, "120", "1..86400", DTX_OPT_CALL,
     "a trial whose process on another host gave no sign for so many seconds is taken over"},
    {"launcher", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "what starts a trial's ranks: 'srun --mpi=pmix -n 4'; default: mpirun, for one rank nothing"},
    {"dry-run", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "say what would be run"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const char usage[] = "usage: dtx sweep run SWEEP [--jobs N] [--trial 3,7] [--retries N] [--again]\n\n"
                            "Trains the trials that are not done, several at once. May be stopped and killed at any "
                            "time and started again, here\n"
                            "and on other machines at once: each trial is one process's at a time, goes on from its "
                            "own checkpoints, and never runs\n"
                            "again once it is done. One that fails does not stop the others. Exit code 0: all done; "
                            "75: stopped, all saved; 1: some\n"
                            "failed or diverged. SWEEP/results.csv has the losses.\n\n";

/* Variables would change every trial behind the table's back. */
static enum dtx_status check_environment(struct dtx_ctx *ctx)
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct dtx_opt *opt;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_env(ctx, opt, environ);
    for (const struct dtx_opt_row *row = dtx_train_options; row->key; row++)
        if (row->resume != DTX_OPT_CALL && dtx_sweep_counts(row->key) && dtx_opt_is_given(opt, row->key))
            dtx_opt_fault(opt, "%s is set: it would change every trial; unset it, or plan with it",
                          dtx_opt_from(opt, row->key));
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    dtx_opt_free(opt);
    return status;
}

static int by_cost(const void *a, const void *b, void *trials)
{
    int i = *(const int *)a, j = *(const int *)b;
    const struct dtx_sweep_trial *t = trials;
    double x = dtx_sweep_cost(&t[i]), y = dtx_sweep_cost(&t[j]);
    return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

static void want(struct dtx_sweep_runner *r, int trial)
{
    for (; trial >= 0; trial = r->sweep.trials.item[trial].start)
        r->wanted[trial] = true;
}

static enum dtx_status choose_trials(struct dtx_sweep_runner *r, const char *list)
{
    char copy[4096], *rest = copy;
    int n = r->sweep.trials.n;
    if (snprintf(copy, sizeof copy, "%s", list) >= (int)sizeof copy)
        return dtx_fail(r->ctx, DTX_E_CONFIG, "trial: the list is too long");
    for (char *word; *list && (word = strsep(&rest, ", "));) {
        int found = dtx_sweep_find(&r->sweep, word);
        if (*word && found < 0)
            return dtx_fail(r->ctx, DTX_E_CONFIG,
                            "trial: '%s' is none of the %d trials (a number, a label, an id), or several", word, n);
        if (*word)
            want(r, found);
    }
    for (int i = 0; i < n; i++) {
        r->order[i] = i;
        if (!*list)
            r->wanted[i] = true;
    }
    qsort_r(r->order, (size_t)n, sizeof *r->order, by_cost, r->sweep.trials.item);
    return DTX_OK;
}

/* As many at once as there are GPUs for, else as cores and memory allow. */
static enum dtx_status choose_jobs(struct dtx_sweep_runner *r, int64_t asked)
{
    struct dtx_sweep_counter counter;
    struct dtx_host host;
    struct dtx_sweep_needs needs = {0}, largest = {0};
    int first = 0;
    bool cpu = true;
    dtx_host_read("", &host);
    DTX_TRY(r->ctx, dtx_sweep_counter_open(r->ctx, &counter));
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < r->sweep.trials.n && status == DTX_OK; i++)
        if (r->wanted[i]) {
            status = dtx_sweep_needs(r->ctx, &r->sweep, i, &counter, &needs);
            cpu = cpu && needs.cpu;
            first = first ? first : needs.threads;
            largest.memory_bytes = fmax(largest.memory_bytes, needs.memory_bytes);
        }
    dtx_sweep_counter_close(&counter);
    DTX_TRY(r->ctx, status);
    r->gpus = cpu ? 0 : r->gpus;
    int cores = dtx_host_threads(&host, 1), threads = first > 0 ? first : 1;
    int64_t jobs = asked > 0 ? asked : dtx_max64(1, cores / (threads * r->sweep.ranks));
    int64_t fit =
        largest.memory_bytes > 0 ? (int64_t)(0.9 * (double)host.memory_allowed_bytes / largest.memory_bytes) : jobs;
    if (asked == 0 && r->gpus > 0) {
        jobs = dtx_max64(1, r->gpus / r->sweep.ranks);
        dtx_log(r->ctx, DTX_LOG_INFO, "%d GPUs are dealt out among %lld trials at once", r->gpus, (long long)jobs);
    } else if (asked == 0 && fit < jobs) {
        jobs = dtx_max64(1, fit);
        dtx_log(r->ctx, DTX_LOG_INFO, "memory allows %lld of the largest trials at once", (long long)jobs);
    }
    r->jobs = (int)dtx_min64(jobs, MOST_JOBS);
    if (first == 0)
        r->threads = (int)dtx_max64(1, cores / (jobs * r->sweep.ranks));
    return DTX_OK;
}

static enum dtx_status look(struct dtx_sweep_runner *r)
{
    return dtx_sweep_look(r->ctx, &r->sweep, &r->self, r->wanted, r->state);
}

/* What was given up before this call is pending to it with --again. */
static bool startable(const struct dtx_sweep_runner *r, int trial)
{
    const struct dtx_sweep_state *s = &r->state[trial];
    int start = r->sweep.trials.item[trial].start;
    bool ended = s->phase == DTX_SWEEP_GIVEN_UP || s->phase == DTX_SWEEP_IS_DIVERGED;
    return r->wanted[trial] && dtx_clock_now() >= r->not_before[trial] &&
           (s->ready ||
            (ended && s->attempts <= r->again_to[trial] && (start < 0 || r->state[start].phase == DTX_SWEEP_DONE)));
}

/* Takes the trial if nobody else does, and begins. What goes wrong is the trial's failure, not the sweep's. */
static enum dtx_status begin(struct dtx_sweep_runner *r, int trial, struct dtx_sweep_child *c)
{
    char run[DTX_SWEEP_PATH], path[DTX_SWEEP_PATH + 16];
    struct dtx_sweep_record record;
    bool won, done;
    *c = (struct dtx_sweep_child){
        .trial = trial, .attempt = r->state[trial].attempts + 1, .from = dtx_sweep_saved_step(&r->sweep, trial)};
    DTX_TRY(r->ctx, dtx_sweep_claim(r->ctx, &r->sweep, trial, c->attempt, &r->self, c->from, &won));
    if (!won)
        return look(r);
    r->state[trial].attempts = c->attempt;
    r->state[trial].phase = DTX_SWEEP_RUNNING;
    r->state[trial].ready = false;
    if (dtx_sweep_record_read(&r->sweep, trial, &record)) { /* done between our look and our claim */
        r->state[trial].phase = DTX_SWEEP_DONE;
        return dtx_sweep_end_attempt(r->ctx, &r->sweep, trial, c->attempt, DTX_SWEEP_FINISHED, "");
    }
    DTX_TRY(r->ctx, dtx_sweep_finish_verified(r, trial, c->attempt,
                                              &done)); /* whoever trained it was killed before he said so */
    if (done)
        return DTX_OK;
    dtx_sweep_run_path(&r->sweep, trial, run);
    snprintf(path, sizeof path, "%s/status", run);
    FILE *file = fopen(path, "re");
    if (file) {
        c->before[fread(c->before, 1, sizeof c->before - 1, file)] = '\0';
        fclose(file);
    }
    enum dtx_status status = dtx_sweep_child_start(r, c);
    if (status == DTX_OK) {
        dtx_log(r->ctx, DTX_LOG_INFO, "trial %d %s: attempt %d%s", trial + 1, r->sweep.trials.item[trial].label,
                c->attempt, c->from > 0 ? ", goes on" : "");
        return DTX_OK;
    }
    char cause[512];
    snprintf(cause, sizeof cause, "%.500s", r->ctx->error.text);
    dtx_error_clear(r->ctx);
    DTX_TRY(r->ctx, dtx_sweep_not_done(r, c, dtx_status_exit_code(status), cause));
    return look(r);
}

/* Fills free places. */
static enum dtx_status begin_some(struct dtx_sweep_runner *r)
{
    int place = 0;
    for (int i = 0; i < r->sweep.trials.n && !r->stopping; i++) {
        while (place < r->jobs && r->child[place].pid)
            place++;
        if (place == r->jobs)
            return DTX_OK;
        if (startable(r, r->order[i]))
            DTX_TRY(r->ctx, begin(r, r->order[i], &r->child[place]));
    }
    return DTX_OK;
}

static enum dtx_status reap(struct dtx_sweep_runner *r, int *running)
{
    bool ended = false;
    *running = 0;
    for (int i = 0; i < r->jobs; i++) {
        struct dtx_sweep_child *c = &r->child[i];
        int code;
        pid_t pid = c->pid ? waitpid(c->pid, &code, WNOHANG) : 0;
        if (pid == 0) {
            *running += c->pid != 0;
            continue;
        }
        if (pid < 0) {
            if (errno == EINTR)
                continue;
            code = 0x100; /* nobody knows: exit code 1 */
        }
        c->pid = 0;
        ended = true;
        DTX_TRY(r->ctx, dtx_sweep_child_ended(r, c, code));
        if (DTX_MUTANT(sweep_failure_ends_all) && r->state[c->trial].phase != DTX_SWEEP_DONE)
            return dtx_fail(r->ctx, DTX_E_PEER, "trial %d failed", c->trial + 1);
    }
    return ended ? look(r) : DTX_OK;
}

struct tally {
    int phase[DTX_SWEEP_PHASES], blocked, own, elsewhere, later, total; /* own: processes of this call */
};

static struct tally count(const struct dtx_sweep_runner *r)
{
    struct tally t = {0};
    for (int i = 0; i < r->sweep.trials.n; i++) {
        const struct dtx_sweep_state *s = &r->state[i];
        if (!r->wanted[i])
            continue;
        bool again =
            (s->phase == DTX_SWEEP_GIVEN_UP || s->phase == DTX_SWEEP_IS_DIVERGED) && s->attempts <= r->again_to[i];
        t.total++;
        t.phase[again ? DTX_SWEEP_PENDING : s->phase]++;
        t.blocked += s->blocked;
        t.later += again || (s->phase == DTX_SWEEP_PENDING && !s->blocked);
    }
    for (int i = 0; i < r->jobs; i++)
        t.own += r->child[i].pid != 0;
    t.elsewhere = t.phase[DTX_SWEEP_RUNNING] - t.own;
    return t;
}

static void make_line(const struct dtx_sweep_runner *r, char line[256])
{
    struct tally t = count(r);
    struct dtx_sweep_progress p = dtx_sweep_progress(&r->sweep, r->state, r->wanted);
    char left[16], bad[64] = "";
    int failed = t.phase[DTX_SWEEP_GIVEN_UP] + t.phase[DTX_SWEEP_IS_DIVERGED];
    dtx_format_duration(p.left_seconds, left);
    if (failed)
        snprintf(bad, sizeof bad, ", %d failed or diverged", failed);
    snprintf(line, 256, "sweep %s: %d/%d done, %d running%s, %.0f%%, ETA %s", r->sweep.name, t.phase[DTX_SWEEP_DONE],
             t.total, t.phase[DTX_SWEEP_RUNNING], bad, p.all > 0 ? 100 * p.done / p.all : 100, left);
}

static void show_progress(const struct dtx_sweep_runner *r, bool live, double *last)
{
    char line[256];
    double now = dtx_clock_now();
    if (now - *last < (live ? LIVE : PLAIN))
        return;
    *last = now;
    make_line(r, line);
    if (live)
        fprintf(stderr, "\r%.*s\033[K", dtx_terminal_width(stderr) - 1, line);
    else
        dtx_log(r->ctx, DTX_LOG_INFO, "%s", line);
}

static void pass_on_stop(struct dtx_sweep_runner *r)
{
    int asked = dtx_stop_requested();
    if (asked && !r->stopping) {
        r->stopping = true;
        r->stopped_by = dtx_stop_name(asked);
        dtx_log(r->ctx, DTX_LOG_INFO, "asked to stop by %s: the running trials save and end", r->stopped_by);
    }
    for (int i = 0; i < r->jobs && r->stopping; i++) /* again and again: one sent before they listen is lost */
        if (r->child[i].pid && dtx_clock_now() - r->child[i].asked > 2)
            dtx_sweep_child_stop(&r->child[i]);
}

static void give_signs_of_life(const struct dtx_sweep_runner *r, double *last)
{
    double now = dtx_clock_now();
    if (now - *last < r->self.stale / 8)
        return;
    *last = now;
    for (int i = 0; i < r->jobs; i++)
        if (r->child[i].pid)
            dtx_sweep_touch(&r->sweep, r->child[i].trial, r->child[i].attempt);
}

static enum dtx_status work(struct dtx_sweep_runner *r)
{
    bool live = dtx_terminal_live(stderr), told = false;
    double looked = 0, shown = dtx_clock_now(), touched = shown;
    for (int running;;) {
        DTX_TRY(r->ctx, reap(r, &running));
        pass_on_stop(r);
        if (dtx_clock_now() - looked > LOOK) {
            looked = dtx_clock_now();
            DTX_TRY(r->ctx, look(r));
        }
        DTX_TRY(r->ctx, begin_some(r));
        struct tally t = count(r);
        if (t.own == 0 && (r->stopping || t.elsewhere + t.later <= 0))
            break;
        if (t.own == 0 && t.elsewhere > 0 && !told) {
            dtx_log(r->ctx, DTX_LOG_INFO, "%d trials are at work elsewhere: waiting, in case they are lost",
                    t.elsewhere);
            told = true;
        }
        give_signs_of_life(r, &touched);
        show_progress(r, live, &shown);
        dtx_clock_sleep(POLL);
    }
    if (live)
        fprintf(stderr, "\r\033[K");
    return DTX_OK;
}

static enum dtx_status conclude(struct dtx_sweep_runner *r)
{
    char path[DTX_SWEEP_PATH];
    struct tally t = count(r);
    int bad = t.phase[DTX_SWEEP_GIVEN_UP] + t.phase[DTX_SWEEP_IS_DIVERGED];
    snprintf(path, sizeof path, "%s/results.csv", r->sweep.dir);
    DTX_TRY(r->ctx, dtx_sweep_results_write(r->ctx, &r->sweep, path));
    if (r->stopping && t.phase[DTX_SWEEP_DONE] + bad + t.blocked < t.total) {
        dtx_log(r->ctx, DTX_LOG_INFO,
                "stopped by %s with %d of %d trials done; everything is saved: the same command goes on", r->stopped_by,
                t.phase[DTX_SWEEP_DONE], t.total);
        return DTX_E_REQUEUE;
    }
    if (bad + t.blocked > 0)
        return dtx_fail(
            r->ctx, DTX_E_PEER,
            "of %d trials %d are done, %d failed, %d diverged, %d cannot begin without those: `dtx sweep status %s` "
            "says why, --again tries them once more",
            t.total, t.phase[DTX_SWEEP_DONE], t.phase[DTX_SWEEP_GIVEN_UP], t.phase[DTX_SWEEP_IS_DIVERGED], t.blocked,
            r->sweep.dir);
    dtx_log(r->ctx, DTX_LOG_INFO, "all %d trials are done: %s", t.total, path);
    return DTX_OK;
}

static enum dtx_status say_what(struct dtx_sweep_runner *r)
{
    for (int i = 0; i < r->sweep.trials.n; i++)
        if (startable(r, r->order[i]) || (r->wanted[r->order[i]] && r->state[r->order[i]].phase == DTX_SWEEP_PENDING))
            printf("%d %s\n", r->order[i] + 1, r->sweep.trials.item[r->order[i]].label);
    return DTX_OK;
}

static enum dtx_status allocate(struct dtx_sweep_runner *r)
{
    int64_t n = r->sweep.trials.n;
    const struct {
        void **place;
        int64_t count;
        size_t size;
    } arrays[] = {
        {(void **)&r->state, n, sizeof *r->state},           {(void **)&r->order, n, sizeof *r->order},
        {(void **)&r->wanted, n, sizeof *r->wanted},         {(void **)&r->again_to, n, sizeof *r->again_to},
        {(void **)&r->not_before, n, sizeof *r->not_before}, {(void **)&r->child, MOST_JOBS, sizeof *r->child}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, arrays[i].count, arrays[i].size, arrays[i].place));
    return DTX_OK;
}

static enum dtx_status run_sweep(struct dtx_sweep_runner *r, const struct dtx_opt *opt, const char *dir)
{
    struct dtx_stop stop;
    DTX_TRY(r->ctx, check_environment(r->ctx));
    DTX_TRY(r->ctx, dtx_sweep_read(r->ctx, dir, &r->sweep));
    DTX_TRY(r->ctx, allocate(r));
    DTX_TRY(r->ctx, choose_trials(r, dtx_opt_text(opt, "trial")));
    DTX_TRY(r->ctx, dtx_sweep_gpus_choose(r, dtx_opt_text(opt, "gpus")));
    DTX_TRY(r->ctx, choose_jobs(r, dtx_opt_int(opt, "jobs")));
    r->retries = dtx_opt_int(opt, "retries");
    r->backoff = dtx_opt_real(opt, "backoff");
    r->launcher = dtx_opt_text(opt, "launcher");
    dtx_sweep_self_read(&r->self, dtx_opt_real(opt, "stale"));
    DTX_TRY(r->ctx, look(r));
    for (int i = 0; i < r->sweep.trials.n && dtx_opt_bool(opt, "again"); i++)
        r->again_to[i] = r->state[i].attempts;
    if (dtx_opt_bool(opt, "dry-run"))
        return say_what(r);
    DTX_TRY(r->ctx, dtx_stop_install(r->ctx, &stop));
    enum dtx_status status = work(r);
    if (status == DTX_OK)
        status = conclude(r);
    dtx_stop_uninstall(&stop);
    return status;
}

enum dtx_status dtx_sweep_run(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct dtx_opt_row *const tables[] = {rows};
    struct dtx_sweep_runner runner = {.ctx = ctx};
    const char *dir;
    int n_words;
    struct dtx_opt *opt;
    enum dtx_status status = dtx_command_options(
        ctx, tables, usage, "which sweep? dtx sweep run SWEEP (the folder that dtx sweep plan made)", argc, argv, &dir,
        1, &n_words, &opt);
    if (opt)
        status = run_sweep(&runner, opt, dir);
    dtx_sweep_free(&runner.sweep);
    dtx_mem_free(runner.state);
    dtx_mem_free(runner.order);
    dtx_mem_free(runner.wanted);
    dtx_mem_free(runner.again_to);
    dtx_mem_free(runner.not_before);
    dtx_mem_free(runner.child);
    dtx_opt_free(opt);
    return status;
}
