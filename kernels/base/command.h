/* A subcommand of dtx: one file <name>_cmd.c in any folder, exporting dtx_command_<name>. */
#ifndef DTX_KERNELS_BASE_COMMAND_H
#define DTX_KERNELS_BASE_COMMAND_H

#include "kernels/base/status.h"

struct dtx_command {
    const char *name;    /* one word, or two: "data ledger" is longer than "data" and found before it */
    const char *summary; /* one line for `dtx --help` */
    /* argv[0] is the first word after the command's name. The command itself handles --help. */
    enum dtx_status (*run)(struct dtx_ctx *ctx, int argc, char **argv);
};

#endif
