#include "trainer/deadline.h"

#include <stdlib.h>

#include "kernels/base/mutant.h"

void dtx_deadline_open(struct dtx_deadline *deadline, double now, int64_t end)
{
    const char *scheduler = getenv("SLURM_JOB_END_TIME");
    *deadline = (struct dtx_deadline){.begin = now, .end = end > 0 ? (double)end : scheduler ? atof(scheduler) : 0};
}

void dtx_deadline_saved(struct dtx_deadline *deadline, double seconds)
{
    if (seconds > deadline->save_seconds)
        deadline->save_seconds = seconds;
}

enum dtx_deadline_verdict dtx_deadline_step(struct dtx_deadline *deadline, double now, double seconds)
{
    double slice = deadline->end - deadline->begin;
    if (deadline->n_steps++ > 0 && seconds > deadline->step_seconds)
        deadline->step_seconds = seconds;
    if (deadline->end <= 0 || DTX_MUTANT(end_time_ignored))
        return DTX_DEADLINE_NONE;
    /* The end itself: ranks, launcher and script need 5 % of the time, 2 s at least and 30 s at most. */
    double rest = 0.05 * slice,
           need = (deadline->saving ? 2.5 : 1.5) * deadline->save_seconds + 2 * deadline->step_seconds;
    need += rest < 2 ? 2 : rest > 30 ? 30 : rest;
    if (now + need >= deadline->end)
        return DTX_DEADLINE_STOP;
    if (deadline->save_seconds == 0 && !deadline->saving && now - deadline->begin > 0.1 * slice &&
        !DTX_MUTANT(save_not_measured))
        return DTX_DEADLINE_SAVE;
    return DTX_DEADLINE_NONE;
}
