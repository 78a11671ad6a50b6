/* Lanes of a warp: all 32 take part unless a mask says otherwise. */
#ifndef DTX_KERNELS_DEVICE_WARP_H
#define DTX_KERNELS_DEVICE_WARP_H

#include "kernels/device/device.h"

#if !defined(__CUDACC__)
template <class T> struct dtx_simt_shuffle {
    T value;
    int from;
};
template <class T> static void dtx_simt_shuffle_combine(const void *const *in, void *const *out, const void *argument)
{
    (void)argument;
    for (int lane = 0; lane < 32; lane++)
        if (out[lane]) {
            int from = ((const dtx_simt_shuffle<T> *)in[lane])->from;
            *(T *)out[lane] = ((const dtx_simt_shuffle<T> *)in[in[from] ? from : lane])->value;
        }
}
#endif

/* The value of lane `from`. */
template <class T> DTX_FN T dtx_warp_take(T value, int from, uint32_t mask = 0xffffffffu, dtx_site site = {})
{
#if defined(__CUDACC__)
    return __shfl_sync(mask, value, from);
#else
    dtx_simt_shuffle<T> in = {value, from & 31};
    T out;
    dtx_simt_meet(mask, "shuffle by lane", site, &in, &out, dtx_simt_shuffle_combine<T>, nullptr);
    return out;
#endif
}

/* The value of the lane whose number differs in the bits of `bits`. */
template <class T> DTX_FN T dtx_warp_swap(T value, int bits, uint32_t mask = 0xffffffffu, dtx_site site = {})
{
#if defined(__CUDACC__)
    return __shfl_xor_sync(mask, value, bits);
#else
    dtx_simt_shuffle<T> in = {value, (dtx_simt_block_now()->thread->number & 31) ^ bits};
    T out;
    dtx_simt_meet(mask, "shuffle by bits", site, &in, &out, dtx_simt_shuffle_combine<T>, nullptr);
    return out;
#endif
}

/* Sum and maximum over groups of `width` lanes (a power of two), in the same order in every lane's tree. */
template <class T> DTX_FN T dtx_warp_sum(T value, int width = 32, dtx_site site = {})
{
    DTX_UNROLL for (int bits = width / 2; bits > 0; bits /= 2) value += dtx_warp_swap(value, bits, 0xffffffffu, site);
    return value;
}
template <class T> DTX_FN T dtx_warp_max(T value, int width = 32, dtx_site site = {})
{
    DTX_UNROLL for (int bits = width / 2; bits > 0; bits /= 2)
    {
        T other = dtx_warp_swap(value, bits, 0xffffffffu, site);
        value = other > value || other != other ? other : value; /* NaN stays */
    }
    return value;
}

DTX_FN void dtx_warp_sync(uint32_t mask = 0xffffffffu, dtx_site site = {})
{
#if defined(__CUDACC__)
    __syncwarp(mask);
#else
    dtx_simt_meet(
        mask, "warp barrier", site, nullptr, nullptr, [](const void *const *, void *const *, const void *) {}, nullptr);
#endif
}

#endif
