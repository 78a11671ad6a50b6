/* Pictures by gnuplot: a script in a temporary file, run without a shell. */
#ifndef DTX_LAUNCH_CURVE_GNUPLOT_H
#define DTX_LAUNCH_CURVE_GNUPLOT_H

#include <stdio.h>

#include "kernels/base/status.h"

enum dtx_plot_format { DTX_PLOT_SVG, DTX_PLOT_PNG };

/* Terminal, borders, grid and key of all our pictures; PNG has 1.5 times the pixels. */
void dtx_gnuplot_begin(FILE *script, enum dtx_plot_format format, int width, int height);
/* A text in single quotes: a quote is doubled, nothing else has a meaning. */
void dtx_gnuplot_quote(FILE *script, const char *text);
/* Runs the script; the picture goes to the descriptor `picture`, a file. `path` is for messages. */
enum dtx_status dtx_gnuplot_run(struct dtx_ctx *ctx, FILE *script, int picture, const char *path);
/* The same into a file, at once (temporary name, then rename). */
enum dtx_status dtx_gnuplot_write(struct dtx_ctx *ctx, FILE *script, const char *path);

#endif
