/*
 * Counter-based random numbers (Philox 4x32-10): value i of a stream is a pure function of (key, i), so any part of an
 * array can be made on any rank and thread with the same bits.
 */
#ifndef DTX_KERNELS_BASE_RNG_H
#define DTX_KERNELS_BASE_RNG_H

#include <stdint.h>

/* Ten rounds of Philox on a 128-bit counter (low, high) and a 64-bit key. */
void dtx_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4]);
/* A key for a named stream of a seeded run: hash of (seed, name). */
uint64_t dtx_rng_key(uint64_t seed, const char *name);
/* Element i of the uniform stream, in [0, 1) with 53 bits. */
double dtx_rng_uniform(uint64_t key, uint64_t i);
/* Element i of the standard normal stream (Box-Muller on two uniforms, in double). */
double dtx_rng_normal(uint64_t key, uint64_t i);

#endif
