/*
 * The final record of a trial, SWEEP/state/ID.done: made from the run's own folder only when everything agrees (state
 * and step, configuration, a finite held-out loss of the last step, the last checkpoint), with a checksum. A trial is
 * done when its record can be read and agrees with the table, not when a file is there. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_RECORD_H
#define DTX_LAUNCH_SWEEP_RECORD_H

#include "launch/sweep/table.h"

struct dtx_sweep_record {
    int64_t step;            /* the trial's last */
    double loss, train_loss; /* held-out, of the last step; mean of the last twentieth of the steps; NaN for a stem's */
    int attempts;
    char host[64], checkpoint[64];
};

enum dtx_sweep_verdict { DTX_SWEEP_VERIFIED, DTX_SWEEP_NOT_YET, DTX_SWEEP_DIVERGED };

/* What the run's folder says; why: a line when it is not VERIFIED. */
enum dtx_status dtx_sweep_verify(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                 struct dtx_sweep_record *out, enum dtx_sweep_verdict *verdict, char why[256]);
enum dtx_status dtx_sweep_record_write(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                       const struct dtx_sweep_record *record);
/* False: there is none that holds. */
bool dtx_sweep_record_read(const struct dtx_sweep *sweep, int trial, struct dtx_sweep_record *out);

#endif
