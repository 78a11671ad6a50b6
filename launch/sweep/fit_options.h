/* The options of `dtx sweep fit`, which `dtx sweep report` has too. */
#ifndef DTX_LAUNCH_SWEEP_FIT_OPTIONS_H
#define DTX_LAUNCH_SWEEP_FIT_OPTIONS_H

#include "kernels/base/opt.h"
#include "launch/sweep/fit.h"

extern const struct dtx_opt_row dtx_fit_option_rows[];

/* A parsed command line: TABLE and options. */
struct dtx_fit_command {
    struct dtx_opt *opt; /* owns the texts of `options` */
    struct dtx_fit_options options;
    char table[4096];  /* the file: in a sweep's folder results.csv */
    char folder[4096]; /* the sweep's; "": TABLE is a file */
    bool done;         /* --help was printed: nothing is left to do */
};

/* Words and options of these rows (NULL-ended table, or NULL) beside the fit's. Faults are reported together. */
enum dtx_status dtx_fit_command_read(struct dtx_ctx *ctx, const char *usage, const struct dtx_opt_row *more, int argc,
                                     char **argv, struct dtx_fit_command *out);
void dtx_fit_command_free(struct dtx_fit_command *command);

#endif
