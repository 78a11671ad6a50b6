/*
 * Pipeline schedules: pure lists of compute steps. A schedule is one file in parallel/schedules exporting
 * dtx_schedule_<name>. pipe.c derives the messages from the lists. Every schedule does both backward parts of a chunk
 * in ascending micro-batch order, so that a weight's gradients are added in the same order whatever the schedule.
 *
 * Chunk c of stage s is the model's part c·stages + s: a micro-batch goes through chunk 0 of all stages, then chunk 1,
 * …
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
    int slot;  /* activation slot, below the schedule's peak: from forward to the weight part of backward */
    int keep;  /* split backward: gradient slot, below `kept`, from the input part to the weight part; else 0 */
};

struct dtx_schedule {
    const char *name;
    /* Number of steps of one stage and, when out is not NULL, the steps. */
    int (*steps)(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out);
    /* Slots a stage needs: the greatest number of micro-batches alive at once, all its chunks together. */
    int (*peak)(int stage, int stages, int micro_batches, int chunks);
    /* Gradient slots: the most micro-batches between the two parts of their backward. NULL: backward is never split. */
    int (*kept)(int stage, int stages, int micro_batches, int chunks);
    /* Idle share of the stages' time when forward, input part and weight part cost 1 each. NULL: nothing promised. */
    double (*bubble)(int stages, int micro_batches, int chunks);
    /* What micro_batches must be a multiple of; NULL: nothing. */
    int (*multiple)(int stages, int chunks);
    int max_chunks;
};

static inline int dtx_schedule_kept(const struct dtx_schedule *s, int stage, int stages, int micro_batches, int chunks)
{
    return s->kept ? s->kept(stage, stages, micro_batches, chunks) : 0;
}
static inline int dtx_schedule_multiple(const struct dtx_schedule *s, int stages, int chunks)
{
    return s->multiple ? s->multiple(stages, chunks) : 1;
}
enum { DTX_SCHEDULE_CHUNKS = 1 << 20 }; /* max_chunks of a schedule that takes any number */

/* NULL when there is none of that name; the list is in the order of the files' names. */
const struct dtx_schedule *dtx_schedule_find(const char *name);
const struct dtx_schedule *const *dtx_schedule_list(int *n);

/* Boundary buffers of each channel and end: a receive is posted ahead while one is free, a send completes when its
 * receive was posted, and its buffer is used again after that. */
enum { DTX_PIPE_BUFFERS = 2 };

/* Plays all stages' lists without MPI, with pipe.c's buffers, unbuffered sends, unit costs (forward 1, backward 2).
 * Fails (DTX_E_INTERNAL) naming the step on: a step missing or twice, a dependency broken, a deadlock, a slot in use or
 * beyond the peak, a peak that no step needs, backward out of order, another bubble than promised. DTX_E_RANGE: the
 * schedule does not take such numbers. bubble: idle share of the stages' time. */
enum dtx_status dtx_schedule_simulate(struct dtx_ctx *ctx, const struct dtx_schedule *schedule, int stages,
                                      int micro_batches, int chunks, double *bubble);

#endif
