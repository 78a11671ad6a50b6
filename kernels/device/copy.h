/* Asynchronous copies from device to shared memory (sm_80), by thread: issue, commit a group, wait for groups. */
#ifndef DTX_KERNELS_DEVICE_COPY_H
#define DTX_KERNELS_DEVICE_COPY_H

#include "kernels/device/device.h"

#if defined(__CUDACC__)
DTX_FN uint32_t dtx_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

/* 16 bytes, both addresses aligned; zeros when not `valid`, and then `from` is not read. */
DTX_FN void dtx_copy_16(void *to, const void *from, bool valid, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dtx_shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
#else
    dtx_simt_copy(to, valid ? from : nullptr, 16, site);
#endif
}

DTX_FN void dtx_copy_commit()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    dtx_simt_copy_commit();
#endif
}

/* Until at most `Left` of this thread's groups are under way. Other threads see the data after a barrier. */
template <int Left> DTX_FN void dtx_copy_wait()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#else
    dtx_simt_copy_wait(Left);
#endif
}

#endif
