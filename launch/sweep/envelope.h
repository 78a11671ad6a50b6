/*
 * Chinchilla's approach 1: at every amount of compute the lowest of all loss curves says which size is best for it;
 * lines through these in logarithms. Between sizes a parabola through the best and its neighbours is read. A curve is a
 * run's losses along its training, or runs of one size with several numbers of tokens. Amounts at which the best size
 * is the smallest or the largest that reaches them are left out: a better one may lie beyond.
 */
#ifndef DTX_LAUNCH_SWEEP_ENVELOPE_H
#define DTX_LAUNCH_SWEEP_ENVELOPE_H

#include "launch/sweep/regress.h"
#include "launch/sweep/set.h"

enum { DTX_ENVELOPE_STEPS = 256 }; /* amounts of compute, even in the logarithm */

struct dtx_envelope {
    int64_t n_curves, n_sizes;
    double ln_c[DTX_ENVELOPE_STEPS], ln_n[DTX_ENVELOPE_STEPS], ln_loss[DTX_ENVELOPE_STEPS]; /* at the best; NaN: none */
    int64_t best[DTX_ENVELOPE_STEPS];                                                       /* curve; -1: none */
    bool used[DTX_ENVELOPE_STEPS];
    int n_used, n_edge;                 /* steps in the lines; left out at an edge */
    struct dtx_line size, tokens, loss; /* ln N, ln D, ln L over ln C */
    char dropped[160];                  /* "": it could be made */
    int64_t n_draws;
    double *size_slope, *tokens_slope, *loss_slope; /* [draws], curves drawn with replacement */
};

/* `smooth`: each loss becomes the mean of those whose ln C is at most so far away. Curves are told apart by the run,
 * without one by N. */
enum dtx_status dtx_envelope_make(struct dtx_ctx *ctx, const struct dtx_set *set, bool by_run, double smooth,
                                  int64_t draws, uint64_t key, int threads, struct dtx_envelope *out);
void dtx_envelope_free(struct dtx_envelope *envelope);

#endif
