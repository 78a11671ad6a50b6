/*
 * The progress of training for people: on a terminal one live line, redrawn at most five times a second and cut to the
 * terminal's width; elsewhere a plain line every `every` steps. The first and last step, every held-out loss and every
 * skipped step get a line of their own in both. Speed is the mean since the last line.
 *
 * The ETA counts evaluation, saving and all else that happens between two records. Rank 0 alone; not thread-safe.
 */
#ifndef DTX_TRAINER_PROGRESS_H
#define DTX_TRAINER_PROGRESS_H

#include <stdio.h>

#include "kernels/base/meter.h"
#include "trainer/metrics.h"

struct dtx_progress;

/* AUTO asks whether `file` is a terminal. Under mpirun it never is (standard error is a pipe to the launcher): a script
 * that knows better says LIVE and exports COLUMNS. */
enum dtx_progress_mode { DTX_PROGRESS_AUTO, DTX_PROGRESS_LIVE, DTX_PROGRESS_PLAIN };

/* `file` (standard error) outlives the object; every >= 1. Time runs from here. */
enum dtx_status dtx_progress_open(struct dtx_ctx *ctx, FILE *file, enum dtx_progress_mode mode, int64_t every,
                                  struct dtx_progress **out);
void dtx_progress_step(struct dtx_progress *progress, const struct dtx_step_record *record);
/* Seconds that so many further steps will take. */
double dtx_progress_left(const struct dtx_progress *progress, int64_t steps);
/* Wipes the live line, so that a message can be printed; the next step draws it again. */
void dtx_progress_clear(struct dtx_progress *progress);
/* Wipes the live line; accepts NULL. */
void dtx_progress_close(struct dtx_progress *progress);

/* Smoothed wall time of a step: the mean of the first 100, then moving with that horizon. The first interval holds
 * set-up (primitives, caches) and counts only while it is the only one. */
struct dtx_pace {
    double last_time, seconds; /* of one step */
    int64_t intervals;
};
void dtx_pace_start(struct dtx_pace *pace, double now);
void dtx_pace_step(struct dtx_pace *pace, double now);

#endif
