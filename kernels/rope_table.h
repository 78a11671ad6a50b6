/* The table of cos and sin that the operation `rope` reads: angle of pair i at position p = p·theta^(−2i/d), computed
 * in double and rounded once. */
#ifndef DTX_KERNELS_ROPE_TABLE_H
#define DTX_KERNELS_ROPE_TABLE_H

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

/* host: [positions, d] of `dtype` (f64 or f32, the master dtype): cos, sin of pair 0, cos, sin of pair 1, … */
enum dtx_status dtx_rope_table(struct dtx_ctx *ctx, double theta, int64_t d, int64_t positions, enum dtx_dtype dtype,
                               void *host);

#endif
