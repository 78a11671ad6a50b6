/* All threads of a block. */
#ifndef DTX_KERNELS_DEVICE_BLOCK_H
#define DTX_KERNELS_DEVICE_BLOCK_H

#include "kernels/device/warp.h"

DTX_FN void dtx_block_sync(dtx_site site = {})
{
#if defined(__CUDACC__)
    __syncthreads();
#else
    dtx_simt_barrier(0, 0, "block barrier", site);
#endif
}

/* `threads` (a multiple of 32) of the block's threads meet on barrier `id`, 1 to 15. */
DTX_FN void dtx_block_sync_some(int id, int threads, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
    dtx_simt_barrier(id, threads, "named barrier", site);
#endif
}

/* Sum over a block of at most 1,024 threads, a multiple of 32, in x; the same value in every thread. `scratch`: 32
 * elements of shared memory, free again after the call. */
template <class T> DTX_FN T dtx_block_sum(T value, T *scratch, dtx_site site = {})
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = dtx_warp_sum(value, 32, site);
    if (lane == 0)
        scratch[warp] = value;
    dtx_block_sync(site);
    T sum = dtx_warp_sum(lane < warps ? scratch[lane] : T(0), 32, site);
    dtx_block_sync(site);
    return sum;
}
template <class T> DTX_FN T dtx_block_max(T value, T *scratch, dtx_site site = {})
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = dtx_warp_max(value, 32, site);
    if (lane == 0)
        scratch[warp] = value;
    dtx_block_sync(site);
    T max = dtx_warp_max(lane < warps ? scratch[lane] : scratch[0], 32, site);
    dtx_block_sync(site);
    return max;
}

#endif
