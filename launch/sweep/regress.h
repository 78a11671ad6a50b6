/* Weighted least squares of lines and parabolas, and percentiles. Pure. */
#ifndef DTX_LAUNCH_SWEEP_REGRESS_H
#define DTX_LAUNCH_SWEEP_REGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* y = intercept + slope·x */
struct dtx_line {
    double intercept, slope, r2; /* r2: share of the weighted variance of y */
};

/* y = least + curvature·(x − vertex)² */
struct dtx_parabola {
    double vertex, least, curvature;
};

/* weight may be NULL. False, and *out NaN, with fewer than two (three) different x of positive weight. */
bool dtx_line_fit(int64_t n, const double *x, const double *y, const double *weight, struct dtx_line *out);
bool dtx_parabola_fit(int64_t n, const double *x, const double *y, const double *weight, struct dtx_parabola *out);

static inline double dtx_parabola_at(const struct dtx_parabola *p, double x)
{
    return p->least + p->curvature * (x - p->vertex) * (x - p->vertex);
}

/* The spread of resampled values: standard deviation (NaN with an infinite value) and the percentiles that leave out
 * (1 − level)/2 on each side, linear between order statistics. NaN values are left out; fewer than two: all NaN. Sorts
 * `values`. */
struct dtx_spread {
    double se, low, high;
};
struct dtx_spread dtx_spread_of(int64_t n, double *values, double level);

#endif
