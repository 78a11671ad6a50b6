/*
 * Minimises a function of a few variables from its values and gradients: BFGS with a dense inverse Hessian and the
 * bracketing search for the weak Wolfe conditions, which works on functions with kinks, as sums of absolute values
 * have (Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods", 2013). Pure; any thread.
 */
#ifndef DTX_LAUNCH_SWEEP_BFGS_H
#define DTX_LAUNCH_SWEEP_BFGS_H

#include <stdbool.h>

enum { DTX_BFGS_VARIABLES = 24 };

struct dtx_objective {
    /* The value at x, and its gradient; a value that is not finite means "too far". */
    double (*value)(const void *data, const double *x, double *gradient);
    const void *data;
    int n; /* variables, at most DTX_BFGS_VARIABLES */
};

/* Moves x [n] downhill until steps gain less than 1e-13 of the value or `iterations` are spent; returns the value at x,
 * infinity if that at the start is not finite. */
double dtx_bfgs(const struct dtx_objective *f, double *x, int iterations);

#endif
