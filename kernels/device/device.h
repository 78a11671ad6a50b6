/*
 * What a kernel's source is written in. Under nvcc these are thin wrappers; under the host's C++ compiler the kernel
 * runs in the emulator (kernels/simt). A kernel includes only headers of this folder.
 *
 *   DTX_KERNEL(threads, blocks_per_sm) name(args)        a kernel; pass structs as DTX_ARGUMENT(type) name
 *   DTX_FN                                               a function that kernels call
 *   DTX_SHARED(type, name, count)                        static shared memory, name is a pointer
 *   DTX_SHARED_DYNAMIC(name)                             the launch's shared bytes, 1024-byte aligned
 */
#ifndef DTX_KERNELS_DEVICE_DEVICE_H
#define DTX_KERNELS_DEVICE_DEVICE_H

#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" {
#include "kernels/base/mutant.h"
}

#if defined(__CUDACC__)
#include <cuda_runtime.h>

/* Planted faults of kernels exist in the emulator only: a device has no environment. */
#undef DTX_MUTANT
#define DTX_MUTANT(name) 0

#define DTX_KERNEL(threads, blocks)   static __global__ void __launch_bounds__(threads, blocks)
#define DTX_ARGUMENT(type)            const __grid_constant__ type
#define DTX_FN                        static __device__ __forceinline__
#define DTX_SHARED(type, name, count) __shared__ type name[count]
#define DTX_SHARED_DYNAMIC(name)      extern __shared__ __align__(1024) unsigned char name[]
#define DTX_UNROLL                    _Pragma("unroll")

struct dtx_site {
};
#else
#include "kernels/simt/simt.h"

#define DTX_KERNEL(threads, blocks) static void
#define DTX_ARGUMENT(type)          const type
#define DTX_FN                      static inline
#define DTX_SHARED(type, name, count)                                                                                  \
    static char name##_key;                                                                                            \
    type *name = (type *)dtx_simt_shared(&name##_key, sizeof(type) * (size_t)(count))
#define DTX_SHARED_DYNAMIC(name) unsigned char *name = dtx_simt_block_now()->dynamic
#define DTX_UNROLL
#define threadIdx (dtx_simt_block_now()->thread->index)
#define blockIdx  (dtx_simt_block_now()->index)
#define blockDim  (dtx_simt_block_now()->block)
#define gridDim   (dtx_simt_block_now()->grid)
#endif

struct dtx_bf16 {
    uint16_t bits;
};

/* The type in which values of T are computed and summed. */
template <class T> struct dtx_wide {
    typedef float type;
};
template <> struct dtx_wide<double> {
    typedef double type;
};

DTX_FN uint32_t dtx_bits_of(float f)
{
#if defined(__CUDACC__)
    return __float_as_uint(f);
#else
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
#endif
}

DTX_FN float dtx_float_of(uint32_t u)
{
#if defined(__CUDACC__)
    return __uint_as_float(u);
#else
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
#endif
}

DTX_FN double dtx_load(const double *p)
{
    return *p;
}
DTX_FN float dtx_load(const float *p)
{
    return *p;
}
DTX_FN float dtx_load(const dtx_bf16 *p)
{
    return dtx_float_of((uint32_t)p->bits << 16);
}

/* Two floats rounded to nearest even; `low` in the lower half, which is the first in memory. */
DTX_FN uint32_t dtx_pack_bf16(float low, float high)
{
#if defined(__CUDACC__)
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    uint32_t out = 0;
    const float value[2] = {low, high};
    for (int i = 0; i < 2; i++) {
        uint32_t u = dtx_bits_of(value[i]);
        uint32_t half = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
        out |= half << 16 * i;
    }
    return out;
#endif
}
DTX_FN float dtx_bf16_low(uint32_t pair)
{
    return dtx_float_of(pair << 16);
}
DTX_FN float dtx_bf16_high(uint32_t pair)
{
    return dtx_float_of(pair & 0xffff0000u);
}

DTX_FN void dtx_store(double *p, double x)
{
    *p = x;
}
DTX_FN void dtx_store(float *p, double x)
{
    *p = (float)x;
}
DTX_FN void dtx_store(float *p, float x)
{
    *p = x;
}
DTX_FN void dtx_store(dtx_bf16 *p, float x)
{
    p->bits = (uint16_t)dtx_pack_bf16(x, 0.f);
}

/* 2^x; 0 for −∞. */
DTX_FN float dtx_exp2(float x)
{
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1/√x within 2 ulp. Without the branches of an exact division and root, which cost a kernel registers. */
DTX_FN float dtx_rsqrt(float x)
{
#if defined(__CUDACC__)
    return rsqrtf(x);
#else
    return 1.f / sqrtf(x);
#endif
}

#endif
