#include "kernels/base/rng.h"

#include <math.h>

#include "kernels/base/hash.h"
#include "kernels/base/mutant.h"

void dtx_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                     (uint32_t)(counter_high >> 32)};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

uint64_t dtx_rng_key(uint64_t seed, const char *name)
{
    return dtx_hash_text(DTX_MUTANT(rng_key_without_name) ? "" : name, seed);
}

static double unit_from_bits(uint32_t high, uint32_t low)
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

double dtx_rng_uniform(uint64_t key, uint64_t i)
{
    uint32_t r[4];
    dtx_philox(key, i, 0, r);
    return unit_from_bits(r[0], r[1]);
}

double dtx_rng_normal(uint64_t key, uint64_t i)
{
    static const double two_pi = 6.283185307179586476925;
    uint32_t r[4];
    dtx_philox(key, i, 1, r);
    double u = 1.0 - unit_from_bits(r[0], r[1]); /* (0, 1]: log stays finite */
    return sqrt(-2.0 * log(u)) * cos(two_pi * unit_from_bits(r[2], r[3]));
}
