/* Loss curves of a sweep's runs, as points of approach 1. */
#ifndef DTX_LAUNCH_SWEEP_CURVES_H
#define DTX_LAUNCH_SWEEP_CURVES_H

#include "launch/sweep/points.h"

/* Reads FOLDER/runs/RUN/metrics.jsonl of every used point: held-out losses where there are eight or more, else training
 * losses; D and C grow evenly to those of the point at the last step. Losses of steps within 3 % are one point, their
 * mean. Runs without metrics are passed over. `out` borrows texts of `points`. */
enum dtx_status dtx_curves_of_sweep(struct dtx_ctx *ctx, const char *folder, const struct dtx_points *points,
                                    struct dtx_points *out);

#endif
