#include "kernels/rope_table.h"

#include <math.h>

enum dtx_status dtx_rope_table(struct dtx_ctx *ctx, double theta, int64_t d, int64_t positions, enum dtx_dtype dtype,
                               void *host)
{
    if (d < 2 || d % 2 != 0 || theta <= 0 || positions < 0)
        return dtx_fail(ctx, DTX_E_RANGE, "rope table: theta %g, head width %lld, %lld positions", theta, (long long)d,
                        (long long)positions);
    if (dtype != DTX_F64 && dtype != DTX_F32)
        return dtx_fail(ctx, DTX_E_RANGE, "rope table: dtype %s (f64 or f32 is needed)", dtx_dtype_name(dtype));
    for (int64_t i = 0; i < d / 2; i++) {
        double frequency = pow(theta, -2.0 * (double)i / (double)d);
        for (int64_t p = 0; p < positions; p++) {
            double c = cos((double)p * frequency), s = sin((double)p * frequency);
            if (dtype == DTX_F64) {
                ((double *)host)[p * d + 2 * i] = c;
                ((double *)host)[p * d + 2 * i + 1] = s;
            } else {
                ((float *)host)[p * d + 2 * i] = (float)c;
                ((float *)host)[p * d + 2 * i + 1] = (float)s;
            }
        }
    }
    return DTX_OK;
}
