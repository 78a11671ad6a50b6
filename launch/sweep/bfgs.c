#include "launch/sweep/bfgs.h"

#include <math.h>
#include <string.h>

enum { SEARCHES = 60, IDLE_STEPS = 3 };

static const double decrease = 1e-4, flattening = 0.9, least_gain = 1e-13;

/* Where the search stands. */
struct walk {
    const struct dtx_objective *f;
    double x[DTX_BFGS_VARIABLES], g[DTX_BFGS_VARIABLES], value;
    double h[DTX_BFGS_VARIABLES][DTX_BFGS_VARIABLES]; /* the inverse Hessian */
    bool fresh;                                       /* h is the identity */
};

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void forget_curvature(struct walk *w)
{
    memset(w->h, 0, sizeof w->h);
    for (int i = 0; i < w->f->n; i++)
        w->h[i][i] = 1;
    w->fresh = true;
}

/* Finds a step along `direction` that lowers the value enough and flattens the slope; x, g and value become those of
 * the best point that at least lowers it. False: there is none. */
static bool search(struct walk *w, const double *direction, double slope)
{
    int n = w->f->n;
    double low = 0, high = INFINITY, start = w->value, x0[DTX_BFGS_VARIABLES];
    double length = sqrt(dot(direction, direction, n)), step = w->fresh ? fmin(1, 1 / length) : 1;
    bool found = false;
    memcpy(x0, w->x, sizeof x0);
    for (int k = 0; k < SEARCHES; k++) {
        double x[DTX_BFGS_VARIABLES], g[DTX_BFGS_VARIABLES];
        for (int i = 0; i < n; i++)
            x[i] = x0[i] + step * direction[i];
        double value = w->f->value(w->f->data, x, g);
        if (!(value <= start + decrease * step * slope)) { /* NaN too */
            high = step;
        } else {
            memcpy(w->x, x, sizeof x);
            memcpy(w->g, g, sizeof g);
            w->value = value;
            found = true;
            if (dot(g, direction, n) >= flattening * slope)
                return true;
            low = step;
        }
        step = isinf(high) ? 2 * low : (low + high) / 2;
        if (high - low <= 1e-15 * high)
            break;
    }
    return found;
}

/* H ← (I − s yᵀ/sᵀy) H (I − y sᵀ/sᵀy) + s sᵀ/sᵀy; left alone where the curvature sᵀy is not positive. */
static void learn_curvature(struct walk *w, const double *s, const double *y)
{
    int n = w->f->n;
    double sy = dot(s, y, n), yy = dot(y, y, n), hy[DTX_BFGS_VARIABLES];
    if (!(sy > 1e-16 * sqrt(yy * dot(s, s, n))))
        return;
    if (w->fresh)
        for (int i = 0; i < n; i++)
            w->h[i][i] = sy / yy;
    w->fresh = false;
    for (int i = 0; i < n; i++)
        hy[i] = dot(w->h[i], y, n);
    double scale = (1 + dot(y, hy, n) / sy) / sy;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            w->h[i][j] += scale * s[i] * s[j] - (hy[i] * s[j] + s[i] * hy[j]) / sy;
}

/* One step; false when nothing is to be gained any more. */
static bool advance(struct walk *w)
{
    int n = w->f->n;
    double direction[DTX_BFGS_VARIABLES], s[DTX_BFGS_VARIABLES], y[DTX_BFGS_VARIABLES];
    for (int i = 0; i < n; i++)
        direction[i] = -dot(w->h[i], w->g, n);
    double slope = dot(direction, w->g, n);
    memcpy(s, w->x, sizeof s);
    memcpy(y, w->g, sizeof y);
    if (!(slope < 0) || !search(w, direction, slope)) {
        if (w->fresh)
            return false;
        forget_curvature(w);
        return true;
    }
    for (int i = 0; i < n; i++) {
        s[i] = w->x[i] - s[i];
        y[i] = w->g[i] - y[i];
    }
    learn_curvature(w, s, y);
    return true;
}

double dtx_bfgs(const struct dtx_objective *f, double *x, int iterations)
{
    struct walk w = {.f = f};
    memcpy(w.x, x, sizeof *x * (size_t)f->n);
    w.value = f->value(f->data, w.x, w.g);
    if (!isfinite(w.value))
        return INFINITY;
    forget_curvature(&w);
    for (int k = 0, idle = 0; k < iterations && idle < IDLE_STEPS; k++) {
        double before = w.value;
        if (!advance(&w))
            break;
        idle = before - w.value <= least_gain * fabs(before) ? idle + 1 : 0;
    }
    memcpy(x, w.x, sizeof *x * (size_t)f->n);
    return w.value;
}
