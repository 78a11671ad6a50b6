/*
 * What follows from a law: the best N and D for an amount of compute C = 6·N·D, and how much less of something one
 * variant needs to reach the loss of another. Pure.
 */
#ifndef DTX_LAUNCH_SWEEP_FRONTIER_H
#define DTX_LAUNCH_SWEEP_FRONTIER_H

#include "launch/sweep/law.h"

/* N* = G (C/6)^a, D* = (C/6)^b / G with G = (αA/βB)^(1/(α+β)), a = β/(α+β), b = α/(α+β). */
struct dtx_frontier {
    double g, a, b;
};

/* A surface's parameters of one group. All NaN where α or β is not positive: there is no best. */
struct dtx_frontier dtx_frontier_of(const double *p, int group);
double dtx_frontier_size(const struct dtx_frontier *f, double c);
double dtx_frontier_tokens(const struct dtx_frontier *f, double c);
/* The loss of the best model of C. */
double dtx_frontier_loss(const double *p, int group, double c);

/* One law's parameters and group. */
struct dtx_side {
    const struct dtx_law *law;
    const double *p;
    int group;
};

/* N'/N with L_other(N', D) = L_base(N, D): the share of weights that `other` needs; D'/D with L_other(N, D') =
 * L_base(N, D); C'/C with the losses of the best models of C. Infinity: never reached within a factor of e^20; 0: left
 * behind however small. */
double dtx_share_of_weights(const struct dtx_side *base, const struct dtx_side *other, double n, double d);
double dtx_share_of_tokens(const struct dtx_side *base, const struct dtx_side *other, double n, double d);
double dtx_share_of_compute(const struct dtx_side *base, const struct dtx_side *other, double c);

#endif
