#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "kernels/base/clock.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/runner.h"
#include "trainer/run_status.h"

enum { CODE_STOPPED = 75, CODE_CONFIG = 78 };

/* How the process ended, in the exit codes of dtx train. Launchers change them: what the run's status says counts, if
 * this attempt wrote one. */
static int exit_code(const char *run, const struct dtx_sweep_child *c, int code, char cause[256])
{
    char path[DTX_SWEEP_PATH + 16], now[512] = "", text[256];
    snprintf(path, sizeof path, "%s/status", run);
    FILE *file = fopen(path, "re");
    if (file) {
        now[fread(now, 1, sizeof now - 1, file)] = '\0';
        fclose(file);
    }
    if (WIFSIGNALED(code))
        snprintf(cause, 256, "killed by signal %d", WTERMSIG(code));
    else
        snprintf(cause, 256, "exit code %d, see logs/attempt-%d.log", WEXITSTATUS(code), c->attempt);
    bool wrote = strcmp(now, c->before) != 0 && dtx_run_status_read(run, "state", text, sizeof text) &&
                 strcmp(text, "running") != 0;
    if (wrote && dtx_run_status_read(run, "cause", text, sizeof text) && *text)
        snprintf(cause, 256, "%.250s", text);
    int own = WIFEXITED(code) ? WEXITSTATUS(code) : 1;
    if (wrote && dtx_run_status_read(run, "code", text, sizeof text) && atoi(text) != 0)
        return atoi(text);
    return own || wrote ? own : 1;
}

enum dtx_status dtx_sweep_finish_verified(struct dtx_sweep_runner *r, int trial, int attempt, bool *done)
{
    struct dtx_sweep_record record;
    enum dtx_sweep_verdict verdict;
    char why[256], path[DTX_SWEEP_PATH];
    DTX_TRY(r->ctx, dtx_sweep_verify(r->ctx, &r->sweep, trial, &record, &verdict, why));
    *done = verdict == DTX_SWEEP_VERIFIED;
    if (!*done)
        return DTX_OK;
    record.attempts = attempt;
    DTX_TRY(r->ctx, dtx_sweep_record_write(r->ctx, &r->sweep, trial, &record));
    DTX_TRY(r->ctx, dtx_sweep_end_attempt(r->ctx, &r->sweep, trial, attempt, DTX_SWEEP_FINISHED, ""));
    snprintf(path, sizeof path, "%s/results.csv", r->sweep.dir);
    if (dtx_sweep_results_write(r->ctx, &r->sweep, path) != DTX_OK) { /* the records are there: it can be made later */
        dtx_log(r->ctx, DTX_LOG_WARN, "%s", r->ctx->error.text);
        dtx_error_clear(r->ctx);
    }
    r->state[trial].phase = DTX_SWEEP_DONE;
    r->state[trial].record = record;
    return DTX_OK;
}

/* What to do about a trial that is not done. */
static enum dtx_sweep_outcome choose(struct dtx_sweep_runner *r, const struct dtx_sweep_child *c, int code,
                                     int *crashes)
{
    int64_t saved = dtx_sweep_saved_step(&r->sweep, c->trial);
    *crashes = 0;
    if (dtx_sweep_run_busy(&r->sweep, c->trial)) /* refused: another host's, which was thought to be gone */
        return DTX_SWEEP_STOPPED;
    if (c->asked > 0 || (code == CODE_STOPPED && (saved > c->from || r->self.job[0])))
        return DTX_SWEEP_STOPPED;
    if (code == CODE_CONFIG)
        return DTX_SWEEP_FAILED;
    *crashes = 1;
    if (saved == c->from)
        *crashes += dtx_sweep_crashes_at(&r->sweep, c->trial, c->attempt - 1, saved, &r->self);
    return *crashes > r->retries ? DTX_SWEEP_FAILED : DTX_SWEEP_CRASHED;
}

enum dtx_status dtx_sweep_not_done(struct dtx_sweep_runner *r, struct dtx_sweep_child *c, int code, const char *cause)
{
    const char *label = r->sweep.trials.item[c->trial].label;
    int crashes;
    enum dtx_sweep_outcome outcome = choose(r, c, code, &crashes);
    if (outcome == DTX_SWEEP_STOPPED)
        dtx_log(r->ctx, DTX_LOG_INFO, "trial %d %s: stopped, saved at step %lld", c->trial + 1, label,
                (long long)dtx_sweep_saved_step(&r->sweep, c->trial));
    else if (outcome == DTX_SWEEP_FAILED)
        dtx_log(r->ctx, DTX_LOG_WARN, "trial %d %s failed and is given up: %s", c->trial + 1, label, cause);
    else {
        double wait = r->backoff * (double)(1 << (crashes < 10 ? crashes - 1 : 9));
        r->not_before[c->trial] = dtx_clock_now() + wait;
        dtx_log(r->ctx, DTX_LOG_WARN, "trial %d %s: %s; tried again in %.0f s (%d of %lld)", c->trial + 1, label, cause,
                wait, crashes, (long long)r->retries);
    }
    if (code == CODE_STOPPED && c->asked == 0 && r->self.job[0] && !r->stopping) {
        r->stopping = true; /* the job's time ends: for all */
        r->stopped_by = "the end of the job's time";
    }
    return dtx_sweep_end_attempt(r->ctx, &r->sweep, c->trial, c->attempt, outcome, cause);
}

enum dtx_status dtx_sweep_child_ended(struct dtx_sweep_runner *r, struct dtx_sweep_child *c, int code)
{
    char run[DTX_SWEEP_PATH], cause[256], why[256], took[16];
    struct dtx_sweep_record record;
    enum dtx_sweep_verdict verdict;
    bool done;
    const struct dtx_sweep_trial *t = &r->sweep.trials.item[c->trial];
    dtx_sweep_run_path(&r->sweep, c->trial, run);
    DTX_TRY(r->ctx, dtx_sweep_finish_verified(r, c->trial, c->attempt, &done));
    if (done) {
        dtx_format_duration(dtx_clock_now() - c->started, took);
        if (t->stem)
            dtx_log(r->ctx, DTX_LOG_INFO, "trial %d %s: done in %s", c->trial + 1, t->label, took);
        else
            dtx_log(r->ctx, DTX_LOG_INFO, "trial %d %s: held-out loss %.4f in %s", c->trial + 1, t->label,
                    r->state[c->trial].record.loss, took);
        return DTX_OK;
    }
    int ended = exit_code(run, c, code, cause);
    DTX_TRY(r->ctx, dtx_sweep_verify(r->ctx, &r->sweep, c->trial, &record, &verdict, why));
    if (verdict == DTX_SWEEP_DIVERGED) {
        dtx_log(r->ctx, DTX_LOG_WARN, "trial %d %s %s", c->trial + 1, t->label, why);
        return dtx_sweep_end_attempt(r->ctx, &r->sweep, c->trial, c->attempt, DTX_SWEEP_BLOWN, why);
    }
    if (ended == 0) { /* it says that it is done, so another attempt would change nothing */
        snprintf(cause, sizeof cause, "%s", why);
        ended = CODE_CONFIG;
    }
    return dtx_sweep_not_done(r, c, ended, cause);
}
