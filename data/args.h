/* Command lines of this folder's commands: options by kernels/base/opt.h, other words, --help. */
#ifndef DTX_DATA_ARGS_H
#define DTX_DATA_ARGS_H

#include "kernels/base/opt.h"

struct dtx_args {
    struct dtx_opt *opt;
    const char **words; /* what is no option, in order; they belong to argv */
    int n_words;
    bool help; /* --help was asked for and printed: nothing is left to do */
};

/* `usage` is printed above the options; rows end with a NULL key. Faults of the command line end in DTX_E_CONFIG, fewer
 * than min_words words too. */
enum dtx_status dtx_args_read(struct dtx_ctx *ctx, const char *usage, const struct dtx_opt_row *rows, int min_words,
                              int argc, char **argv, struct dtx_args *out);
void dtx_args_free(struct dtx_args *args);

#endif
