/* Two checkpoints compared array by array, however either side was cut. One process. */
#ifndef DTX_CHECKPOINTS_DIFF_H
#define DTX_CHECKPOINTS_DIFF_H

#include "kernels/base/status.h"

/* Prints what differs between two checkpoint folders and a summary; numbers within `limit` of each other count as
 * equal. Memory: two stored boxes. Where both sides were cut alike, each byte is read once. */
enum dtx_status dtx_ckpt_diff(struct dtx_ctx *ctx, const char *a, const char *b, double limit, bool *equal);

#endif
