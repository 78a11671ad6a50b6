/*
 * Stochastic rounding of fp32 to bf16 without state: which way a value goes is a hash of its own bits. Over values, and
 * over the steps of a weight that moves, it goes up as often as the part that is cut off says, so that the mean stays.
 * For host and device; vectors do the same (kernels/cpu/simd.h).
 */
#ifndef DTX_KERNELS_ROUND_H
#define DTX_KERNELS_ROUND_H

#include <stdint.h>

#ifndef DTX_FN
#define DTX_FN static inline
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

#endif
