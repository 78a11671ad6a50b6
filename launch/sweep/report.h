/*
 * `dtx sweep report`: a fit as one HTML file that needs nothing else (pictures are SVG within it), and its pictures as
 * files. gnuplot must be installed.
 */
#ifndef DTX_LAUNCH_SWEEP_REPORT_H
#define DTX_LAUNCH_SWEEP_REPORT_H

#include <stdio.h>

#include "launch/sweep/figures.h"

/* What pictures are drawn from. Each draws with its own `maker`, whose rows are thrown away. */
struct dtx_report {
    struct dtx_ctx *ctx;
    const struct dtx_fit *fit;
    const struct dtx_figures *figures;
    struct dtx_figures_maker maker;
    FILE *script; /* gnuplot's, while a picture is drawn */
};

/* A kind of picture: of one variant, or of all (then `variant` is 0). */
struct dtx_report_picture {
    const char *name, *title, *caption;
    bool per_variant;
    /* Is there anything to draw? */
    bool (*there)(const struct dtx_report *report, int variant);
    void (*draw)(struct dtx_report *report, int variant);
};
extern const struct dtx_report_picture dtx_report_pictures[]; /* ends with a name NULL */

/* Where a share holds: "N=… D=…" or "C_6nd=… N_opt=… D_opt=…". */
bool dtx_report_place(const char *at, double *n, double *d, double *c);

enum dtx_status dtx_report_draw(struct dtx_report *report, const struct dtx_report_picture *picture, int variant,
                                FILE *script);

/* Copies an SVG into the page: from <svg on, without groups that draw nothing, its ids made those of picture `number`.
 */
enum dtx_status dtx_report_inline_svg(struct dtx_ctx *ctx, FILE *svg, int number, FILE *page);

/* The page; `words`: the command line. */
enum dtx_status dtx_report_write_page(struct dtx_report *report, int n_words, char **words, const char *folder,
                                      FILE *page);

#endif
