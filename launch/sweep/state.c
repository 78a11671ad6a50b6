#include "launch/sweep/state.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mutant.h"
#include "launch/status/run_view.h"
#include "trainer/run_folder.h"

const char *dtx_sweep_phase_name(enum dtx_sweep_phase phase)
{
    static const char *const names[DTX_SWEEP_PHASES] = {"pending", "running", "done", "failed", "diverged"};
    return names[phase];
}

int64_t dtx_sweep_saved_step(const struct dtx_sweep *sweep, int trial)
{
    char run[DTX_SWEEP_PATH], path[DTX_SWEEP_PATH + 320];
    long long step, newest = 0;
    dtx_sweep_run_path(sweep, trial, run);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(path, sizeof path, "%s/checkpoints/%s/COMPLETE", run, entry->d_name);
        if (sscanf(entry->d_name, "step-%lld", &step) == 1 && step > newest && access(path, F_OK) == 0)
            newest = step;
    }
    if (folder)
        closedir(folder);
    return newest;
}

int dtx_sweep_crashes_at(const struct dtx_sweep *sweep, int trial, int attempts, int64_t from,
                         const struct dtx_sweep_self *self)
{
    int crashes = 0;
    for (int k = attempts; k > 0; k--) {
        struct dtx_sweep_attempt a;
        dtx_sweep_attempt_read(sweep, trial, k, self, &a);
        bool crash = a.outcome == DTX_SWEEP_CRASHED || a.outcome == DTX_SWEEP_FAILED;
        if (crash && a.from != from)
            break;
        crashes += crash;
    }
    return crashes;
}

bool dtx_sweep_run_busy(const struct dtx_sweep *sweep, int trial)
{
    char run[DTX_SWEEP_PATH], checkpoints[DTX_SWEEP_PATH + 16];
    dtx_sweep_run_path(sweep, trial, run);
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run);
    return !dtx_run_folder_idle(run, checkpoints, NULL);
}

static void look_at(const struct dtx_sweep *sweep, int trial, const struct dtx_sweep_self *self,
                    struct dtx_sweep_state *s)
{
    s->phase = DTX_SWEEP_PENDING;
    if (s->attempts == 0)
        return;
    if (dtx_sweep_record_read(sweep, trial, &s->record)) {
        s->phase = DTX_SWEEP_DONE;
        return;
    }
    s->failures = 0;
    for (int k = 1; k <= s->attempts; k++) {
        dtx_sweep_attempt_read(sweep, trial, k, self, &s->last);
        s->failures += s->last.outcome == DTX_SWEEP_CRASHED || s->last.outcome == DTX_SWEEP_FAILED;
    }
    /* Whoever is at work in the run after its attempt has ended (another host's trainer that was thought to be lost,
     * ranks that outlive their launcher) would refuse another attempt. */
    if (s->last.alive || (s->last.outcome < DTX_SWEEP_FAILED && dtx_sweep_run_busy(sweep, trial)))
        s->phase = DTX_SWEEP_RUNNING;
    else if (s->last.outcome == DTX_SWEEP_FAILED)
        s->phase = DTX_SWEEP_GIVEN_UP;
    else if (s->last.outcome == DTX_SWEEP_BLOWN)
        s->phase = DTX_SWEEP_IS_DIVERGED;
}

enum dtx_status dtx_sweep_look(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const struct dtx_sweep_self *self,
                               const bool *wanted, struct dtx_sweep_state states[])
{
    int n = sweep->trials.n;
    int *attempts = malloc((size_t)n * sizeof *attempts + 1);
    if (!attempts)
        return dtx_fail(ctx, DTX_E_MEMORY, "sweep: no memory");
    enum dtx_status status = dtx_sweep_count_attempts(ctx, sweep, attempts);
    for (int i = 0; i < n && status == DTX_OK; i++) { /* what a trial starts from stands before it */
        struct dtx_sweep_state *s = &states[i];
        int start = sweep->trials.item[i].start;
        if (wanted && !wanted[i])
            continue;
        s->attempts = attempts[i];
        if (s->phase != DTX_SWEEP_DONE)
            look_at(sweep, i, self, s);
        const struct dtx_sweep_state *from = start >= 0 ? &states[start] : NULL;
        bool pending = s->phase == DTX_SWEEP_PENDING;
        s->ready = pending && (!from || from->phase == DTX_SWEEP_DONE);
        s->blocked = pending && from &&
                     (from->blocked || from->phase == DTX_SWEEP_GIVEN_UP || from->phase == DTX_SWEEP_IS_DIVERGED);
    }
    free(attempts);
    return status;
}

struct dtx_sweep_progress dtx_sweep_progress(const struct dtx_sweep *sweep, const struct dtx_sweep_state states[],
                                             const bool *wanted)
{
    struct dtx_sweep_progress p = {0};
    double rate = 0;
    for (int i = 0; i < sweep->trials.n; i++) {
        const struct dtx_sweep_trial *t = &sweep->trials.item[i];
        struct dtx_run_view view;
        char run[DTX_SWEEP_PATH];
        if (wanted && !wanted[i])
            continue;
        double cost = dtx_sweep_cost(t), step = t->flops[DTX_SWEEP_EXACT] / (double)t->steps;
        p.all += cost;
        if (states[i].phase == DTX_SWEEP_DONE)
            p.done += cost;
        if (states[i].phase != DTX_SWEEP_RUNNING)
            continue;
        dtx_sweep_run_path(sweep, i, run);
        if (!dtx_run_view_read(run, dtx_clock_wall(), &view))
            continue;
        if (view.step > t->start_step)
            p.done += step * (double)(view.step - t->start_step);
        if (view.step_seconds > 0)
            rate += step / view.step_seconds;
    }
    p.left_seconds = rate > 0 ? (p.all - p.done) / rate : NAN;
    return p;
}
