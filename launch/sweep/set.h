/* The used points of one variant in logarithms, as the methods of fitting want them. */
#ifndef DTX_LAUNCH_SWEEP_SET_H
#define DTX_LAUNCH_SWEEP_SET_H

#include "launch/sweep/points.h"

struct dtx_set {
    const char *variant;
    int64_t n;
    double *ln_n, *ln_d, *ln_c, *loss; /* [n] */
    const struct dtx_point **point;    /* [n] */
};

/* A variant's used points in the file's order. */
enum dtx_status dtx_set_make(struct dtx_ctx *ctx, const struct dtx_points *points, int variant, struct dtx_set *out);
void dtx_set_free(struct dtx_set *set);

/* Puts `other` into the order of `base`, where every point of one has exactly one partner in the other: the same seed,
 * N and D within 1 %. False, and nothing moved, where it has not. */
bool dtx_set_pair(const struct dtx_set *base, struct dtx_set *other);

/* Widens low and high by the logarithms of 6·N·D, which is the compute that laws of N and D know, whatever C is. */
void dtx_set_extent_6nd(const struct dtx_set *set, double *low, double *high);

/* How many values are more than `tolerance` from all that count before them; no more than 256 are counted. */
int dtx_set_different(int64_t n, const double *values, double tolerance);

#endif
