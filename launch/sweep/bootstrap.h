/*
 * A fitted law with what it is worth: residuals, and the parameters of fits to resampled points (each resample draws as
 * many points as there are, with replacement, within each group). Resample r is a pure function of (key, r): the same
 * key draws the same positions, which pairs resamples of sets that lie in the same order. Samples of a group lie
 * together. Threads change nothing.
 */
#ifndef DTX_LAUNCH_SWEEP_BOOTSTRAP_H
#define DTX_LAUNCH_SWEEP_BOOTSTRAP_H

#include "launch/sweep/law.h"

struct dtx_goodness {
    double rms, mean, worst; /* of ln L − ln L_i: root mean square, mean of sizes, largest size */
    int64_t worst_at;        /* sample */
    double r2;               /* of ln L */
};

struct dtx_estimate {
    struct dtx_law_fit fit;
    struct dtx_goodness goodness;
    int64_t n_draws;
    double *draws; /* [n_draws][fit.n] */
};

/* keys [groups]. A resample with fewer different points than parameters, or one in a group, is drawn again. */
enum dtx_status dtx_estimate_make(struct dtx_ctx *ctx, const struct dtx_samples *s, const struct dtx_law_fit *fit,
                                  int64_t draws, const uint64_t *keys, int threads, struct dtx_estimate *out);
void dtx_estimate_free(struct dtx_estimate *e);

#endif
