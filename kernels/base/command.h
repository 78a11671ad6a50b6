/* A subcommand of dtx: one file <name>_cmd.c in any folder, exporting dtx_command_<name>; and what they share. Not
 * collective. */
#ifndef DTX_KERNELS_BASE_COMMAND_H
#define DTX_KERNELS_BASE_COMMAND_H

#include "kernels/base/opt.h"
#include "kernels/base/status.h"

struct dtx_command {
    const char *name;    /* one word, or two: "data ledger" is longer than "data" and found before it */
    const char *summary; /* one line for `dtx --help` */
    /* argv[0] is the first word after the command's name. The command itself handles --help. */
    enum dtx_status (*run)(struct dtx_ctx *ctx, int argc, char **argv);
};

/* Runs the one of n commands that argv[0] names: for a command that has commands of its own. group: its name; what: one
 * of them ("bench"); footer: further lines of --help, which lists them. */
enum dtx_status dtx_command_choose(struct dtx_ctx *ctx, const char *group, const char *what,
                                   const struct dtx_command *commands, int n, const char *footer, int argc,
                                   char **argv);

/* Flags and words of a command that works on what its words name; none is the fault `missing`. rows: one table, a row
 * of it `help`: then `usage` and the rows are printed and *out is NULL, as after a failure. Free *out. */
enum dtx_status dtx_command_options(struct dtx_ctx *ctx, const struct dtx_opt_row *const *rows, const char *usage,
                                    const char *missing, int argc, char **argv, const char **words, int max_words,
                                    int *n_words, struct dtx_opt **out);

#endif
