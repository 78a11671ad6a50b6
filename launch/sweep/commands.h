/* The subcommands of `dtx sweep`: each takes the words behind its own name and handles --help itself. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_COMMANDS_H
#define DTX_LAUNCH_SWEEP_COMMANDS_H

#include "kernels/base/status.h"

enum dtx_status dtx_sweep_plan(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_run(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_submit(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_status(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_fit(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_coordcheck(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_sweep_report(struct dtx_ctx *ctx, int argc, char **argv);

#endif
