/* Pictures of a run's losses: a sparkline for the terminal, SVG and PNG by way of gnuplot. */
#ifndef DTX_LAUNCH_CURVE_CURVE_H
#define DTX_LAUNCH_CURVE_CURVE_H

#include "launch/curve/gnuplot.h"
#include "trainer/metrics.h"

enum { DTX_SPARK_COLUMNS = 60, DTX_SPARK_BYTES = 3 * DTX_SPARK_COLUMNS + 1 };

/* Means of the finite values of at most 60 equal pieces as blocks of eight heights, UTF-8; pieces without a finite
 * value are blanks. */
void dtx_sparkline(const double *values, int64_t n, char out[DTX_SPARK_BYTES]);

struct dtx_plot {
    const char *title;
    const struct dtx_losses *losses;
    double unigram; /* entropy in nats, drawn as a horizontal line; NaN: none */
};

/* Writes the file at once (temporary name, then rename). gnuplot must be installed. */
enum dtx_status dtx_plot_write(struct dtx_ctx *ctx, const struct dtx_plot *plot, enum dtx_plot_format format,
                               const char *path);

#endif
