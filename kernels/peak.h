/*
 * What this machine's products reach: the yardstick for every speed that dtx reports. Square products of n = 512, 1024
 * and 2048 (on a GPU twice that) run on the backend for `seconds` in all; the result is the best median of the three,
 * in FLOP/s (2n³ per product). bf16 products have fp32 results. Sizes that would take it beyond twice `seconds` are
 * left out, but for the first. Not collective: every rank measures by itself.
 */
#ifndef DTX_KERNELS_PEAK_H
#define DTX_KERNELS_PEAK_H

#include "kernels/backend.h"

enum dtx_status dtx_peak_measure(struct dtx_ctx *ctx, struct dtx_backend *backend, enum dtx_dtype dtype, double seconds,
                                 double *flops_per_second);

#endif
