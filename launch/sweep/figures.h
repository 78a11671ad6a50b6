/*
 * Every number that comes of a fit, one row each, in the order in which they are shown: what the table, the CSV, the
 * JSON and the report print.
 */
#ifndef DTX_LAUNCH_SWEEP_FIGURES_H
#define DTX_LAUNCH_SWEEP_FIGURES_H

#include "launch/sweep/fit.h"

enum { DTX_FIGURE_NAME = 24, DTX_FIGURE_AT = 80, DTX_FIGURE_NOTE = 96 };

struct dtx_figure {
    const char *variant, *method;
    char quantity[DTX_FIGURE_NAME];
    char at[DTX_FIGURE_AT]; /* where: "C=1e+20", "N=1.2e+08 D=3e+09"; "" */
    const char *unit;       /* "nats", "weights", "tokens", "flops_6nd", "ratio", "" */
    double value;
    struct dtx_spread spread; /* NaN: none */
    bool extrapolated;        /* beyond what was measured; the note says so too */
    char note[DTX_FIGURE_NOTE];
};

struct dtx_figures {
    int64_t n, capacity;
    struct dtx_figure *at;
};

enum dtx_status dtx_figures_make(struct dtx_ctx *ctx, const struct dtx_fit *fit, struct dtx_figures *out);
void dtx_figures_free(struct dtx_figures *figures);
/* What stands for an infinite value of a figure: a share that nothing suffices for is "never". */
const char *dtx_figure_infinite(const struct dtx_figure *figure, double value);

/* --- for the files that make them --- */
struct dtx_figures_maker {
    struct dtx_ctx *ctx;
    const struct dtx_fit *fit;
    struct dtx_figures *out;
    double *draws;          /* [resamples] */
    enum dtx_status status; /* the first failure; what follows it does nothing */
};

/* Adds a row whose spread is that of the first n_draws of maker->draws (0: none). Draws without a value are left out
 * of it, and the note counts them. */
struct dtx_figure *dtx_figure_add(struct dtx_figures_maker *maker, const char *variant, const char *method,
                                  const char *quantity, const char *at, const char *unit, double value,
                                  int64_t n_draws);

/* Something that follows from a law's parameters p, and for shares from the baseline's. */
struct dtx_figure_query {
    const struct dtx_law *law;
    int group, base_group, index;
    double n, d, c;
    double (*of)(const struct dtx_figure_query *query, const double *p, const double *base);
};

/* The query's value and spread; `base` NULL where it needs none. */
struct dtx_figure *dtx_figure_ask(struct dtx_figures_maker *maker, const char *variant, const char *method,
                                  const char *quantity, const char *at, const char *unit,
                                  const struct dtx_figure_query *query, const struct dtx_estimate *estimate,
                                  const struct dtx_estimate *base);

/* Adds to the note; accepts NULL. */
void dtx_figure_note(struct dtx_figure *figure, const char *text);
void dtx_figure_extrapolated(struct dtx_figure *figure);

/* Queries: the loss at n, d; the best N for c and its loss by a surface. */
double dtx_figure_loss(const struct dtx_figure_query *query, const double *p, const double *base);
double dtx_figure_best_size(const struct dtx_figure_query *query, const double *p, const double *base);
double dtx_figure_best_loss(const struct dtx_figure_query *query, const double *p, const double *base);

/* The frontier of every surface, the predictions asked for, and the shares of variants against the baseline. */
void dtx_figures_frontier(struct dtx_figures_maker *maker);
void dtx_figures_predict(struct dtx_figures_maker *maker);
void dtx_figures_shares(struct dtx_figures_maker *maker);

#endif
