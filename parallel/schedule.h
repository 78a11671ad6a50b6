/*
 * Pipeline schedules: pure lists of compute steps. A schedule is one file in parallel/schedules exporting
 * dtx_schedule_<name>. pipe.c derives the messages from the lists. Every schedule does the backward of a chunk in
 * ascending micro-batch order, so that weight gradients are added in the same order whatever the schedule.
 */
#ifndef DTX_PARALLEL_SCHEDULE_H
#define DTX_PARALLEL_SCHEDULE_H

#include "kernels/base/status.h"

/* BACKWARD is BACKWARD_INPUT (sends the gradient on) and BACKWARD_WEIGHT (frees the slot) in one. */
enum dtx_step_kind { DTX_STEP_FORWARD, DTX_STEP_BACKWARD, DTX_STEP_BACKWARD_INPUT, DTX_STEP_BACKWARD_WEIGHT };

struct dtx_step {
    enum dtx_step_kind kind;
    int micro_batch;
    int chunk; /* model chunk of this stage; 0 where there is one */
    int slot;  /* activation slot, below the schedule's peak */
};

struct dtx_schedule {
    const char *name;
    /* Number of steps of one stage and, when out is not NULL, the steps. */
    int (*steps)(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out);
    /* Slots a stage needs: the greatest number of micro-batches alive at once. */
    int (*peak)(int stage, int stages, int micro_batches, int chunks);
    int max_chunks;
};

/* NULL when there is none of that name; names for messages in dtx_schedule_names ("gpipe, 1f1b"). */
const struct dtx_schedule *dtx_schedule_find(const char *name);
const struct dtx_schedule *const *dtx_schedule_list(int *n);

/* Boundary buffers of each channel and end: a receive is posted ahead while one is free, a send completes when its
 * receive was posted, and its buffer is used again after that. */
enum { DTX_PIPE_BUFFERS = 2 };

/* Plays all stages' lists without MPI, with pipe.c's buffers, unbuffered sends, unit costs (forward 1, backward 2).
 * Fails (DTX_E_INTERNAL) naming the step on: a step missing or twice, a dependency broken, a deadlock, a slot in use or
 * beyond the peak, a peak that no step needs, backward out of order. bubble: idle share of the stages' time. */
enum dtx_status dtx_schedule_simulate(struct dtx_ctx *ctx, const struct dtx_schedule *schedule, int stages,
                                      int micro_batches, int chunks, double *bubble);

#endif
