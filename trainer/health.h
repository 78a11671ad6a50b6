/*
 * Is a step fit to be taken? Judged after the reductions and before the optimizer, from loss and gradient norm alone:
 * their bits are equal on all ranks, so each rank judges for itself and all judge alike, without a message.
 *
 * A step is unfit when loss or norm is not finite, when its loss lies more than health.z standard deviations above the
 * mean of the last health.window steps (a spike), or when its norm is above health.max_grad_norm (0: the same rule as
 * for the loss). What then happens is an option for each; of several the gravest. trainer/health.md has the rules and
 * the text that a checkpoint keeps. Not collective.
 */
#ifndef DTX_TRAINER_HEALTH_H
#define DTX_TRAINER_HEALTH_H

#include "kernels/base/opt.h"
#include "trainer/engine.h"

/* Ascending gravity. */
enum dtx_health_action {
    DTX_HEALTH_NONE,
    DTX_HEALTH_WARN,     /* the step is taken */
    DTX_HEALTH_SKIP,     /* nothing is updated */
    DTX_HEALTH_ROLLBACK, /* back to the snapshot, past the samples since then */
    DTX_HEALTH_STOP
};

struct dtx_health {
    enum dtx_health_action nonfinite, spike, norm;
    int window, max_skips, max_rollbacks;
    double z, max_norm;
    double *losses, *norms; /* [window], step k of those remembered at k mod window */
    int64_t seen;           /* remembered so far, also those that were overwritten */
    int skipped;            /* steps in a row without an update, up to now */
    int rollbacks;          /* to the present snapshot */
    int64_t all_rollbacks;  /* of the run */
};

struct dtx_health_verdict {
    enum dtx_health_action action;
    double z;      /* of the loss, in standard deviations above the mean; NaN: the window is not full */
    char why[256]; /* "": fit */
};

/* Does an option of the section ask for a snapshot? */
bool dtx_health_rolls_back(const struct dtx_opt *opt);
enum dtx_status dtx_health_open(struct dtx_ctx *ctx, const struct dtx_opt *opt, struct dtx_health *out);
void dtx_health_close(struct dtx_health *health);
void dtx_health_judge(const struct dtx_health *health, const struct dtx_step_result *result,
                      struct dtx_health_verdict *out);
/* Before a snapshot, by what the step's update made: weights that are not finite are no snapshot, and gone back from.
 */
void dtx_health_judge_weights(const struct dtx_health *health, bool finite, struct dtx_health_verdict *verdict);
/* The step is over; result->skipped: without an update. */
void dtx_health_note(struct dtx_health *health, const struct dtx_step_result *result);
/* A snapshot is taken; `then`, opened with the same options, remembers what `health` does now. */
void dtx_health_keep(struct dtx_health *health, struct dtx_health *then);
/* Back to it: one more rollback. */
void dtx_health_return(const struct dtx_health *then, struct dtx_health *health);

/* As text (free with dtx_mem_free), and back; of a longer window than this one's the last steps. "" or NULL: nothing is
 * remembered. */
enum dtx_status dtx_health_write(struct dtx_ctx *ctx, const struct dtx_health *health, char **text);
enum dtx_status dtx_health_read(struct dtx_ctx *ctx, const char *text, struct dtx_health *health);

#endif
