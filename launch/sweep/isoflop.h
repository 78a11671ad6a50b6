/*
 * Chinchilla's approach 2: the points of one compute budget lie on a parabola of the loss over ln N, whose vertex is
 * the best size for that budget; lines through the vertices in logarithms say how size, tokens and loss go with
 * compute. A budget whose parabola cannot be trusted (too few sizes, no minimum, the vertex outside the sizes that it
 * was fitted to) is dropped and keeps its reason.
 */
#ifndef DTX_LAUNCH_SWEEP_ISOFLOP_H
#define DTX_LAUNCH_SWEEP_ISOFLOP_H

#include "launch/sweep/regress.h"
#include "launch/sweep/set.h"

enum { DTX_ISOFLOP_BUDGETS = 64, DTX_ISOFLOP_REASON = 160 };

struct dtx_isoflop_options {
    double tolerance; /* points whose C differ by this share belong to one budget */
    double span;      /* the parabola is that of sizes within this factor of the best one; 0: all */
};

struct dtx_budget {
    double ln_c;            /* mean of its points */
    int64_t n, fitted;      /* points; of them the parabola's */
    double low, high;       /* ln N of the fitted points, lowest and highest */
    struct dtx_line tokens; /* ln D over ln N of the budget's points: −1 steep where C = 6·N·D */
    struct dtx_parabola parabola;
    double rms;       /* of loss − parabola over the fitted points */
    double se_vertex; /* of ln N by resampling; NaN unknown */
    char dropped[DTX_ISOFLOP_REASON];
};

/* ln N*, ln D*, ln L* over ln C */
struct dtx_isoflop_lines {
    struct dtx_line size, tokens, loss;
};

struct dtx_isoflop {
    int n_budgets, n_used;
    struct dtx_budget budget[DTX_ISOFLOP_BUDGETS]; /* by ln_c, ascending */
    struct dtx_isoflop_lines lines, weighted;      /* ordinary; weighted by 1/se_vertex² */
    int *budget_of;                                /* [points]; -1: of no budget */
    bool *fitted;                                  /* [points] */
    double residual_scale; /* pooled residuals times this have the points' variance; 0: no freedom left */
    /* Resampled lines, [draws] each, NaN where fewer than two budgets were left. */
    int64_t n_draws;
    double *size_slope, *size_at, *tokens_slope, *loss_slope; /* size_at: intercept */
};

/* Budgets and lines. More than 64 budgets: DTX_E_CONFIG that says which option groups them. */
enum dtx_status dtx_isoflop_make(struct dtx_ctx *ctx, const struct dtx_set *set,
                                 const struct dtx_isoflop_options *options, struct dtx_isoflop *out);
/* Resamples residuals: the loss of every fitted point is its parabola's plus a residual drawn from all budgets. Fills
 * the draws, every budget's se_vertex and `weighted`. */
enum dtx_status dtx_isoflop_resample(struct dtx_ctx *ctx, struct dtx_isoflop *iso, const struct dtx_set *set,
                                     int64_t draws, uint64_t key, int threads);
/* ln D of a budget's best size. */
double dtx_budget_tokens(const struct dtx_budget *budget);
void dtx_isoflop_free(struct dtx_isoflop *iso);

#endif
