#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "launch/curve/curve.h"

static double finite_mean(const double *values, int64_t first, int64_t end)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = first; i < end; i++)
        if (isfinite(values[i])) {
            sum += values[i];
            n++;
        }
    return n ? sum / (double)n : NAN;
}

void dtx_sparkline(const double *values, int64_t n, char out[DTX_SPARK_BYTES])
{
    static const char blocks[8][4] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double mean[DTX_SPARK_COLUMNS], low = INFINITY, high = -INFINITY;
    int columns = (int)dtx_min64(n, DTX_SPARK_COLUMNS);
    for (int c = 0; c < columns; c++) {
        mean[c] = finite_mean(values, c * n / columns, (c + 1) * n / columns);
        low = fmin(low, mean[c]);
        high = fmax(high, mean[c]);
    }
    out[0] = '\0';
    for (int c = 0; c < columns; c++) {
        int level = high > low ? (int)(8 * (mean[c] - low) / (high - low)) : 3;
        strcat(out, isnan(mean[c]) ? " " : blocks[dtx_min64(level, 7)]);
    }
}
