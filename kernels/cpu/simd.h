/*
 * Vectors for the loops of this folder, in GCC's vector extensions: as wide as the file that includes this may use
 * (16 to 64 bytes). One vocabulary for three activation dtypes: a loop is written once with the upper-case names below
 * and included with ACT (f64, f32, bf16) and MST (its master dtype) defined.
 *
 *   T, M       element types of activation and master       V, W    vector of M, its lanes
 *   LOAD/STORE of T and LOADM/STOREM of M take the number of elements left in the row: lanes beyond it read as 0 and
 *   are not written. bf16 becomes fp32 on load and is rounded once on store.
 */
#ifndef DTX_KERNELS_CPU_SIMD_H
#define DTX_KERNELS_CPU_SIMD_H

#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/base/tensor.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between inlined functions only */

#if defined(__AVX512F__)
#define DTX_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define DTX_VECTOR_BYTES 32
#else
#define DTX_VECTOR_BYTES 16
#endif

typedef float vec_f32 __attribute__((vector_size(DTX_VECTOR_BYTES)));
typedef double vec_f64 __attribute__((vector_size(DTX_VECTOR_BYTES)));
typedef int32_t int_f32 __attribute__((vector_size(DTX_VECTOR_BYTES)));
typedef uint32_t uint_f32 __attribute__((vector_size(DTX_VECTOR_BYTES)));
typedef int64_t int_f64 __attribute__((vector_size(DTX_VECTOR_BYTES)));
typedef double elem_f64;
typedef float elem_f32;
typedef uint16_t elem_bf16;
enum { lanes_f32 = DTX_VECTOR_BYTES / 4, lanes_f64 = DTX_VECTOR_BYTES / 8 };

#define CAT_(a, b) a##_##b
#define CAT(a, b)  CAT_(a, b)
#define FN(name)   CAT(name, ACT)
#define T          CAT(elem, ACT)
#define M          CAT(elem, MST)
#define V          CAT(vec, MST)
#define W          ((int64_t)CAT(lanes, MST))
#define LOAD       CAT(load, ACT)
#define STORE      CAT(store, ACT)
#define ROUND      CAT(round, ACT)
#define LOADM      CAT(load, MST)
#define STOREM     CAT(store, MST)
#define EXP        CAT(exp, MST)
#define SQRT       CAT(sqrt, MST)
#define MAXV       CAT(max, MST)
#define SUMV       CAT(sum, MST)
#define SPLAT      CAT(splat, MST)

#define INLINE static inline __attribute__((always_inline, unused))

INLINE vec_f32 splat_f32(float x)
{
    return x - (vec_f32){0};
}
INLINE vec_f64 splat_f64(double x)
{
    return x - (vec_f64){0};
}

INLINE vec_f32 load_f32(const float *p, int64_t left)
{
    vec_f32 v = {0};
    if (left >= lanes_f32)
        memcpy(&v, p, sizeof v);
    else
        for (int64_t i = 0; i < left; i++)
            v[i] = p[i];
    return v;
}
INLINE vec_f64 load_f64(const double *p, int64_t left)
{
    vec_f64 v = {0};
    if (left >= lanes_f64)
        memcpy(&v, p, sizeof v);
    else
        for (int64_t i = 0; i < left; i++)
            v[i] = p[i];
    return v;
}
INLINE void store_f32(float *p, vec_f32 v, int64_t left)
{
    if (left >= lanes_f32)
        memcpy(p, &v, sizeof v);
    else
        for (int64_t i = 0; i < left; i++)
            p[i] = v[i];
}
INLINE void store_f64(double *p, vec_f64 v, int64_t left)
{
    if (left >= lanes_f64)
        memcpy(p, &v, sizeof v);
    else
        for (int64_t i = 0; i < left; i++)
            p[i] = v[i];
}

INLINE vec_f32 load_bf16(const uint16_t *p, int64_t left)
{
    vec_f32 v = {0};
    if (left < lanes_f32) {
        for (int64_t i = 0; i < left; i++)
            v[i] = dtx_bf16_to_f32(p[i]);
        return v;
    }
#if defined(__AVX512F__)
    return (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
    return (vec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    for (int64_t i = 0; i < lanes_f32; i++)
        v[i] = dtx_bf16_to_f32(p[i]);
    return v;
#endif
}
INLINE void store_bf16(uint16_t *p, vec_f32 v, int64_t left)
{
    if (left < lanes_f32) {
        for (int64_t i = 0; i < left; i++)
            p[i] = dtx_f32_to_bf16(v[i]);
        return;
    }
#if defined(__AVX512F__)
    __m512i bits = (__m512i)v, one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
#else
    for (int64_t i = 0; i < lanes_f32; i++)
        p[i] = dtx_f32_to_bf16(v[i]);
#endif
}

/* The neighbour in bf16 that kernels/round.h chooses, in fp32. Other dtypes are not rounded. */
INLINE vec_f32 round_bf16(vec_f32 v)
{
    uint_f32 bits = (uint_f32)v, hash = bits ^ bits >> 16, special = bits & 0x7f800000U;
    hash *= 0x7feb352dU;
    hash ^= hash >> 15;
    hash *= 0x846ca68bU;
    hash ^= hash >> 16;
    int_f32 finite = special != 0x7f800000U;
    uint_f32 rounded = (bits + (hash & 0xffffU)) & 0xffff0000U;
    return (vec_f32)(((uint_f32)finite & rounded) | (~(uint_f32)finite & bits));
}
INLINE vec_f32 round_f32(vec_f32 v)
{
    return v;
}
INLINE vec_f64 round_f64(vec_f64 v)
{
    return v;
}

/* mask lanes are all ones or all zeros, as comparisons make them. */
INLINE vec_f32 select_f32(int_f32 mask, vec_f32 a, vec_f32 b)
{
    return (vec_f32)((mask & (int_f32)a) | (~mask & (int_f32)b));
}
INLINE vec_f64 select_f64(int_f64 mask, vec_f64 a, vec_f64 b)
{
    return (vec_f64)((mask & (int_f64)a) | (~mask & (int_f64)b));
}
INLINE vec_f32 max_f32(vec_f32 a, vec_f32 b)
{
#if defined(__AVX512F__)
    return (vec_f32)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return select_f32(a > b, a, b);
#endif
}
INLINE vec_f64 max_f64(vec_f64 a, vec_f64 b)
{
    return select_f64(a > b, a, b);
}
INLINE vec_f32 sqrt_f32(vec_f32 x)
{
#if defined(__AVX512F__)
    return (vec_f32)_mm512_sqrt_ps((__m512)x);
#else
    for (int i = 0; i < lanes_f32; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}
INLINE vec_f64 sqrt_f64(vec_f64 x)
{
    for (int i = 0; i < lanes_f64; i++)
        x[i] = sqrt(x[i]);
    return x;
}
/* Sum of the lanes in a fixed tree. */
INLINE float sum_f32(vec_f32 v)
{
    float s[lanes_f32];
    memcpy(s, &v, sizeof s);
    for (int n = lanes_f32 / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            s[i] += s[i + n];
    return s[0];
}
INLINE double sum_f64(vec_f64 v)
{
    double s[lanes_f64];
    memcpy(s, &v, sizeof s);
    for (int n = lanes_f64 / 2; n; n /= 2)
        for (int i = 0; i < n; i++)
            s[i] += s[i + n];
    return s[0];
}

/* eʳ for |r| ≤ ln 2 / 2 (Cephes expf). */
INLINE vec_f32 exp_small_f32(vec_f32 r)
{
    vec_f32 p = splat_f32(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r + 1.0f;
}

/* eˣ within about 1 ulp: x = n·ln 2 + r, exp_small, n into the exponent. Below −87.3 the result is
 * 0 (so also for −inf), above 88.7 inf; NaN stays. */
INLINE vec_f32 exp_f32(vec_f32 x)
{
    const vec_f32 magic = splat_f32(12582912.0f), low = splat_f32(-87.33f), high = splat_f32(88.72f);
    int_f32 small = x<low, large = x> high;
    vec_f32 y = select_f32(small, low, select_f32(large, high, x));
    vec_f32 t = y * 1.44269504088896341f + magic, n = t - magic;
    vec_f32 r = y - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec_f32 p = exp_small_f32(r);
    /* 2¹²⁸ does not exist: the exponent is added in two halves. */
    int_f32 whole = (int_f32)t - (int_f32)magic, half = whole >> 1;
    vec_f32 e = p * (vec_f32)((half + 127) << 23) * (vec_f32)((whole - half + 127) << 23);
    e = select_f32(large, splat_f32(INFINITY), e);
    return (vec_f32)(~small & (int_f32)e);
}
INLINE vec_f64 exp_f64(vec_f64 x)
{
    for (int i = 0; i < lanes_f64; i++)
        x[i] = exp(x[i]);
    return x;
}

/* eˣ for x ≤ 0 (−inf too): no check for overflow. NaN stays. */
INLINE vec_f32 expneg_f32(vec_f32 x)
{
#if defined(__AVX512F__)
    __m512 y = _mm512_max_ps(_mm512_set1_ps(-104.0f), (__m512)x); /* NaN comes from the second operand */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504088896341f)), 0);
    vec_f32 r = (vec_f32)_mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
    r = (vec_f32)_mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), (__m512)r);
    vec_f32 p = exp_small_f32(r);
    return (vec_f32)_mm512_scalef_ps((__m512)p, n);
#else
    return exp_f32(x);
#endif
}
INLINE vec_f64 expneg_f64(vec_f64 x)
{
    return exp_f64(x);
}
/* All lanes *p, bit for bit. */
INLINE vec_f32 repeat_f32(const float *p)
{
#if defined(__AVX512F__)
    return (vec_f32)_mm512_set1_ps(*p);
#else
    return splat_f32(*p);
#endif
}
INLINE vec_f64 repeat_f64(const double *p)
{
    return splat_f64(*p);
}
/* The largest lane. */
INLINE float top_f32(vec_f32 v)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float top = v[0];
    for (int i = 1; i < lanes_f32; i++)
        top = v[i] > top ? v[i] : top;
    return top;
#endif
}
INLINE double top_f64(vec_f64 v)
{
    double top = v[0];
    for (int i = 1; i < lanes_f64; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

/* Pairs (2i, 2i+1) of lanes: the even or the odd one twice, the two swapped; −s, s, −s, s, … */
#if DTX_VECTOR_BYTES == 64
#define LANES_f32(a, b)                                                                                                \
    {                                                                                                                  \
        a, b, 2 + a, 2 + b, 4 + a, 4 + b, 6 + a, 6 + b, 8 + a, 8 + b, 10 + a, 10 + b, 12 + a, 12 + b, 14 + a, 14 + b   \
    }
#define LANES_f64(a, b)                                                                                                \
    {                                                                                                                  \
        a, b, 2 + a, 2 + b, 4 + a, 4 + b, 6 + a, 6 + b                                                                 \
    }
#elif DTX_VECTOR_BYTES == 32
#define LANES_f32(a, b)                                                                                                \
    {                                                                                                                  \
        a, b, 2 + a, 2 + b, 4 + a, 4 + b, 6 + a, 6 + b                                                                 \
    }
#define LANES_f64(a, b)                                                                                                \
    {                                                                                                                  \
        a, b, 2 + a, 2 + b                                                                                             \
    }
#else
#define LANES_f32(a, b)                                                                                                \
    {                                                                                                                  \
        a, b, 2 + a, 2 + b                                                                                             \
    }
#define LANES_f64(a, b)                                                                                                \
    {                                                                                                                  \
        a, b                                                                                                           \
    }
#endif
#define DTX_PAIRS(type)                                                                                                \
    INLINE vec_##type even_##type(vec_##type v)                                                                        \
    {                                                                                                                  \
        return __builtin_shuffle(v, (int_##type)LANES_##type(0, 0));                                                   \
    }                                                                                                                  \
    INLINE vec_##type odd_##type(vec_##type v)                                                                         \
    {                                                                                                                  \
        return __builtin_shuffle(v, (int_##type)LANES_##type(1, 1));                                                   \
    }                                                                                                                  \
    INLINE vec_##type swap_##type(vec_##type v)                                                                        \
    {                                                                                                                  \
        return __builtin_shuffle(v, (int_##type)LANES_##type(1, 0));                                                   \
    }                                                                                                                  \
    INLINE vec_##type signs_##type(elem_##type s)                                                                      \
    {                                                                                                                  \
        vec_##type v;                                                                                                  \
        for (int i = 0; i < lanes_##type; i += 2) {                                                                    \
            v[i] = -s;                                                                                                 \
            v[i + 1] = s;                                                                                              \
        }                                                                                                              \
        return v;                                                                                                      \
    }
DTX_PAIRS(f32)
DTX_PAIRS(f64)

#endif
