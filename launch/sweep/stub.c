#include "launch/sweep/commands.h"

enum dtx_status dtx_sweep_submit(struct dtx_ctx *ctx, int argc, char **argv)
{
    return dtx_fail(ctx, DTX_E_UNSUPPORTED, "dtx sweep submit is not there yet (%d words, %s)", argc, argv[0]);
}
