/*
 * The coordinate check (Yang et al., arXiv 2203.03466, appendix D.1): models of several widths and depths take the same
 * few steps, and for each kind of activation the change since the initial model is compared over the shapes. Where a
 * rule transfers, a coordinate changes by as much in every shape. One process, one thread of control.
 */
#ifndef DTX_LAUNCH_SWEEP_COORD_H
#define DTX_LAUNCH_SWEEP_COORD_H

#include <stdio.h>

#include "launch/curve/curve.h"
#include "trainer/engine.h"

enum { DTX_COORD_STEPS = 32, DTX_COORD_SHAPES = 16, DTX_COORD_PROBES = 4 };

/* What a layer adds to the stream counts before the factor that a rule gives it. */
enum dtx_coord_kind {
    DTX_COORD_EMBED,  /* the embedding's output */
    DTX_COORD_Q,      /* queries of all blocks */
    DTX_COORD_ATTN,   /* what attention makes */
    DTX_COORD_GATE,   /* gates before silu */
    DTX_COORD_FFN,    /* what SwiGLU makes */
    DTX_COORD_STREAM, /* the final norm's input */
    DTX_COORD_LOGITS,
    DTX_COORD_LAMBDA,
    DTX_COORD_KINDS
};
extern const char *const dtx_coord_names[DTX_COORD_KINDS];

/* One shape under one rule. Root mean squares over coordinates, positions and seeds, after 0, 1, … steps. */
struct dtx_coord_point {
    int64_t width, layers;
    double loss[DTX_COORD_STEPS]; /* mean over the seeds, of the batch before each step */
    double size[DTX_COORD_KINDS][DTX_COORD_STEPS + 1], change[DTX_COORD_KINDS][DTX_COORD_STEPS + 1];
    double error[DTX_COORD_KINDS][DTX_COORD_STEPS + 1]; /* standard error of ln change, from the seeds; one seed: 0 */
};

/* Several shapes under one rule that differ in width, or in depth. */
struct dtx_coord_series {
    enum dtx_transfer_rule rule;
    bool by_depth;
    int n;
    struct dtx_coord_point at[DTX_COORD_SHAPES];
};

/* Trains config's model for `steps` steps of lr on one batch of made text with each of the seeds 1 … seeds. */
enum dtx_status dtx_coord_measure(struct dtx_ctx *ctx, const struct dtx_engine_config *config,
                                  struct dtx_backend *backend, int seeds, int steps, double lr,
                                  struct dtx_coord_point *out);

/* d ln(change) / d ln(width or depth) after so many steps, least squares; NaN where something is 0 or not finite.
 * error: its standard error; may be NULL. */
double dtx_coord_slope(const struct dtx_coord_series *series, enum dtx_coord_kind kind, int step, double *error);
/* Prints the table; returns how many kinds have a slope that lies two standard errors beyond ±bound, or none. */
int dtx_coord_print(FILE *file, const struct dtx_coord_series *series, int steps, double bound);
/* A row for each rule, axis, shape, kind and step, with a header. */
void dtx_coord_put_csv(FILE *file, const struct dtx_coord_series *series, int n, int steps);
/* A panel for each kind, a row of them for each series. */
enum dtx_status dtx_coord_draw(struct dtx_ctx *ctx, const struct dtx_coord_series *series, int n, int steps,
                               enum dtx_plot_format format, const char *path);

/* "none", "mup", "completep". */
const char *dtx_coord_rule_name(enum dtx_transfer_rule rule);

#endif
