#include "launch/sweep/regress.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/base/mutant.h"

static double weight_at(const double *weight, int64_t i)
{
    return weight && !DTX_MUTANT(regress_weights_ignored) ? weight[i] : 1;
}

static double mean_of(int64_t n, const double *x, const double *weight)
{
    double sum = 0, total = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += weight_at(weight, i) * x[i];
        total += weight_at(weight, i);
    }
    return sum / total;
}

/* Different values of x with positive weight, counted to at most `most`. */
static int count_different(int64_t n, const double *x, const double *weight, int most)
{
    int found = 0;
    for (int64_t i = 0; i < n && found < most; i++) {
        bool seen = !(weight_at(weight, i) > 0);
        for (int64_t j = 0; j < i && !seen; j++)
            seen = x[j] == x[i] && weight_at(weight, j) > 0;
        found += !seen;
    }
    return found;
}

bool dtx_line_fit(int64_t n, const double *x, const double *y, const double *weight, struct dtx_line *out)
{
    double xx = 0, xy = 0, yy = 0;
    *out = (struct dtx_line){NAN, NAN, NAN};
    if (count_different(n, x, weight, 2) < 2)
        return false;
    double mx = mean_of(n, x, weight), my = mean_of(n, y, weight);
    for (int64_t i = 0; i < n; i++) {
        double w = weight_at(weight, i);
        xx += w * (x[i] - mx) * (x[i] - mx);
        xy += w * (x[i] - mx) * (y[i] - my);
        yy += w * (y[i] - my) * (y[i] - my);
    }
    double slope = xy / xx;
    *out = (struct dtx_line){my - slope * mx, slope, yy > 0 ? slope * xy / yy : 1};
    return true;
}

/* By polynomials that are orthogonal on the points, so that nothing cancels: 1, u = x − mean, v = u² − a·u − b. */
bool dtx_parabola_fit(int64_t n, const double *x, const double *y, const double *weight, struct dtx_parabola *out)
{
    double total = 0, uu = 0, uuu = 0, uy = 0, vv = 0, vy = 0;
    *out = (struct dtx_parabola){NAN, NAN, NAN};
    if (count_different(n, x, weight, 3) < 3)
        return false;
    double mx = mean_of(n, x, weight), my = mean_of(n, y, weight);
    for (int64_t i = 0; i < n; i++) {
        double w = weight_at(weight, i), u = x[i] - mx;
        total += w;
        uu += w * u * u;
        uuu += w * u * u * u;
        uy += w * u * (y[i] - my);
    }
    double a = uuu / uu, b = uu / total;
    for (int64_t i = 0; i < n; i++) {
        double w = weight_at(weight, i), u = x[i] - mx, v = u * u - a * u - b;
        vv += w * v * v;
        vy += w * v * (y[i] - my);
    }
    double c2 = vy / vv, c1 = uy / uu, at = (a - c1 / c2) / 2; /* the vertex in u */
    *out = (struct dtx_parabola){mx + at, my + c1 * at + c2 * (at * at - a * at - b), c2};
    return true;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double percentile(int64_t n, const double *sorted, double share)
{
    double at = share * (double)(n - 1);
    int64_t below = (int64_t)at;
    if (below + 1 >= n || sorted[below] == sorted[below + 1])
        return sorted[below];
    double part = at - (double)below;
    return part > 0 ? sorted[below] + part * (sorted[below + 1] - sorted[below]) : sorted[below];
}

struct dtx_spread dtx_spread_of(int64_t n, double *values, double level)
{
    int64_t kept = 0;
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(values[i]))
            values[kept++] = values[i];
    if (kept < 2)
        return (struct dtx_spread){NAN, NAN, NAN};
    qsort(values, (size_t)kept, sizeof *values, compare);
    for (int64_t i = 0; i < kept; i++)
        mean += values[i] / (double)kept;
    for (int64_t i = 0; i < kept; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    double tail = DTX_MUTANT(interval_one_sided) ? 1 - level : (1 - level) / 2;
    double se = isfinite(mean) ? sqrt(sum / (double)(kept - 1)) : NAN;
    return (struct dtx_spread){se, percentile(kept, values, tail), percentile(kept, values, 1 - tail)};
}
