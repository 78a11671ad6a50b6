/*
 * `dtx sweep fit`: from a table of losses to laws, per variant and between variants.
 *
 *   points ── sets (one per variant) ─┬─ approach 1: envelope.h    ├─ approach 3 and power laws: law.h, bootstrap.h
 *                                     └─ approach 2: isoflop.h     └─ frontier, shares: frontier.h → figures.h
 *
 * What cannot be made of the points says why; only when nothing can is it an error. The result is a pure function of
 * the files and the options: threads change nothing.
 */
#ifndef DTX_LAUNCH_SWEEP_FIT_H
#define DTX_LAUNCH_SWEEP_FIT_H

#include "launch/sweep/bootstrap.h"
#include "launch/sweep/envelope.h"
#include "launch/sweep/isoflop.h"

enum { DTX_FIT_REASON = 200 };

enum dtx_fit_law {
    DTX_FIT_SURFACE,
    DTX_FIT_KAPLAN,
    DTX_FIT_SIZE,
    DTX_FIT_TOKENS,
    DTX_FIT_POWER_N,
    DTX_FIT_POWER_D,
    DTX_FIT_LAWS
};

/* Laws that variants may share: what of DTX_FIT_… */
enum { DTX_FIT_SHARED = 3 };
extern const enum dtx_fit_law dtx_fit_shared[DTX_FIT_SHARED];

struct dtx_fit_options {
    struct dtx_points_options points, curves; /* curves.path "": none */
    const char *folder;                       /* of a sweep, whose runs have curves; "" */
    const char *baseline;                     /* "": "softmax", else the first variant */
    double delta;                             /* of the Huber loss; 0: absolute differences */
    int64_t resamples, seed;
    double interval; /* share of resamples between the percentiles */
    int threads;
    struct dtx_isoflop_options isoflop;
    double smooth;       /* of curves, in ln C */
    const char *predict; /* "C=1e21;N=7e9,D=1e12" */
};

/* One law of one variant, or of all. */
struct dtx_fit_part {
    struct dtx_samples samples;
    struct dtx_estimate estimate;
    double fixed;                 /* the D of a law of N alone, the N of one of D alone */
    char dropped[DTX_FIT_REASON]; /* why it was not made; "" */
};

struct dtx_fit_variant {
    const char *name;
    struct dtx_set set, curves;
    struct dtx_fit_part part[DTX_FIT_LAWS];
    struct dtx_isoflop isoflop;
    struct dtx_envelope envelope;
    char isoflop_dropped[DTX_FIT_REASON], envelope_dropped[DTX_FIT_REASON];
};

struct dtx_fit {
    struct dtx_fit_options options; /* texts belong to the caller */
    struct dtx_points points, curve_points;
    int n_variants, baseline;
    struct dtx_fit_variant variant[DTX_POINTS_VARIANTS];
    /* Every variant has a partner for each point of the baseline: resamples draw the same places. */
    bool paired;
    /* E and exponents of all variants, A and B of each: more than one variant's points can say alone. */
    struct dtx_fit_part shared[DTX_FIT_SHARED];
};

extern const struct dtx_law *const dtx_fit_laws[DTX_FIT_LAWS];

/* For one OpenMP team at a time; prints nothing. */
enum dtx_status dtx_fit_make(struct dtx_ctx *ctx, const struct dtx_fit_options *options, struct dtx_fit *out);
void dtx_fit_free(struct dtx_fit *fit);

#endif
