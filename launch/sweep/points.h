/*
 * Measured losses: one row of a table is one trained model, whoever trained it. Columns are found by usual names
 * (points.c lists them) or named by the user. Of N, D and C two must be there; the third is by C = 6·N·D.
 *
 * A row that cannot be used (no number, not positive, a repetition of another row) is a fault that names file and line,
 * or, on request, is dropped; rows that say themselves that they are no results (a state that is not "done", a flag)
 * are dropped in any case. What is dropped keeps its reason.
 */
#ifndef DTX_LAUNCH_SWEEP_POINTS_H
#define DTX_LAUNCH_SWEEP_POINTS_H

#include "launch/sweep/csv.h"

enum { DTX_POINTS_VARIANTS = 8, DTX_POINTS_REASON = 160, DTX_POINTS_ORIGIN = 128 };

/* Names of columns, NULL or "": the usual ones. */
struct dtx_points_options {
    const char *path;
    const char *n, *d, *c, *loss, *variant, *seed, *run, *state, *dropped;
    const char *where; /* "column=value,column=value": other rows are passed over */
    bool drop_faults;  /* drop what cannot be used instead of failing */
    bool lowest;       /* of rows with the same variant, N and D only the lowest loss is used */
    bool curves;       /* rows are points of loss curves: a run has many, "state" is not looked at */
    int64_t highest;   /* drop so many of each variant's highest losses */
};

struct dtx_point {
    double n, d, c, loss; /* weights, tokens, FLOPs, nats per token */
    int64_t line;
    int variant;
    const char *seed, *run;          /* cells; "" where there is none */
    char dropped[DTX_POINTS_REASON]; /* "": used */
};

struct dtx_points {
    struct dtx_csv csv; /* owns the texts */
    const char *path;
    int64_t n, used, passed_over; /* rows after `where`; of them used; left out by `where` */
    struct dtx_point *at;         /* [n], in the file's order */
    int n_variants;
    const char *variants[DTX_POINTS_VARIANTS]; /* in order of appearance; one "all" without a column */
    bool has_c;                                /* C is a column of the table */
    bool has_run;
    /* What N, D, C and the loss are: "column 'flops'" or "flops_6nd: 6·N·D". */
    char origin_n[DTX_POINTS_ORIGIN], origin_d[DTX_POINTS_ORIGIN], origin_c[DTX_POINTS_ORIGIN];
    char origin_loss[DTX_POINTS_ORIGIN];
};

enum dtx_status dtx_points_read(struct dtx_ctx *ctx, const struct dtx_points_options *options, struct dtx_points *out);
/* The same of a table that was read; takes its memory in any case. */
enum dtx_status dtx_points_take(struct dtx_ctx *ctx, const struct dtx_points_options *options, struct dtx_csv *csv,
                                struct dtx_points *out);
void dtx_points_free(struct dtx_points *points);

#endif
