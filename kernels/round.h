/*
 * Roundings that processors do not have, for host and device (C++: behind kernels/device/device.h).
 *
 * Stochastic rounding of fp32 to bf16 without state: which way a value goes is a hash of its own bits. Over values, and
 * over the steps of a weight that moves, it goes up as often as the part that is cut off says, so that the mean stays.
 * Vectors do the same (kernels/cpu/simd.h).
 */
#ifndef DTX_KERNELS_ROUND_H
#define DTX_KERNELS_ROUND_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifndef __cplusplus
#define DTX_FN static inline
DTX_FN uint32_t dtx_bits_of(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {f};
    return x.u;
}
DTX_FN float dtx_float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } x = {u};
    return x.f;
}
#endif

/* Bits of fp32 → bits of the fp32 number that bf16 holds exactly, one of the two neighbours; NaN and infinity stay.
 * Multipliers: Wellons, "Prospecting for hash functions" (lowbias32). */
DTX_FN uint32_t dtx_round_bits(uint32_t bits)
{
    uint32_t hash = bits ^ bits >> 16;
    hash *= 0x7feb352dU;
    hash ^= hash >> 15;
    hash *= 0x846ca68bU;
    hash ^= hash >> 16;
    return (bits & 0x7f800000U) == 0x7f800000U ? bits : (bits + (hash & 0xffffU)) & 0xffff0000U;
}

/* The nearest 8-bit float, E4M3 or E5M2: ties to even, subnormals too; the largest beyond it; NaN stays. */
DTX_FN float dtx_round_fp8(float x, bool e5m2)
{
    int32_t exponent = (int32_t)(dtx_bits_of(x) >> 23 & 255), least = e5m2 ? 127 - 14 : 127 - 6;
    float limit = e5m2 ? 57344.0f : 448.0f;
    float step = dtx_float_of((uint32_t)((exponent > least ? exponent : least) - (e5m2 ? 2 : 3)) << 23);
    float rounded = rintf(x / step) * step;
    return rounded > limit ? limit : rounded < -limit ? -limit : rounded;
}

/* What a tensor whose largest |x| is `most` is multiplied by before it is rounded; NaN where that is not finite. */
DTX_FN float dtx_fp8_stretch(float most, bool e5m2)
{
    return most < INFINITY ? (e5m2 ? 57344.0f : 448.0f) / (most > 1e-30f ? most : 1e-30f) : NAN;
}

#endif
