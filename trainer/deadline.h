/*
 * The end of a job's time: rank 0 stops the run early enough to save, by what a save and a step have taken. Where no
 * save is due for long, one is made early in the job, so that there is a measure (and a disk that fails is found while
 * somebody may still look). Times are dtx_clock_wall's. Not collective.
 */
#ifndef DTX_TRAINER_DEADLINE_H
#define DTX_TRAINER_DEADLINE_H

#include "kernels/base/opt.h"

struct dtx_deadline {
    double begin, end;   /* of this call; end 0: none is known */
    double save_seconds; /* the longest save so far; 0: none was made */
    double step_seconds; /* the longest step with what belongs to it, but for the first, which warms up */
    int n_steps;
    bool saving; /* set before each step's verdict: a save is under way, which must end before the last one begins */
};

enum dtx_deadline_verdict { DTX_DEADLINE_NONE, DTX_DEADLINE_SAVE, DTX_DEADLINE_STOP };

/* `end`: train.end_time; 0: the variable SLURM_JOB_END_TIME, if it is set. */
void dtx_deadline_open(struct dtx_deadline *deadline, double now, int64_t end);
void dtx_deadline_saved(struct dtx_deadline *deadline, double seconds);
/* After each step, which took `seconds`. */
enum dtx_deadline_verdict dtx_deadline_step(struct dtx_deadline *deadline, double now, double seconds);

#endif
