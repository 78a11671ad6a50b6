/*
 * Starting kernels from C++ launchers, and the names that launchers export. The launchers are compiled twice: by nvcc
 * as dtx_cuda_<op>, by the host's compiler (with DTX_EMU) as dtx_emu_<op>.
 */
#ifndef DTX_KERNELS_DEVICE_LAUNCH_H
#define DTX_KERNELS_DEVICE_LAUNCH_H

#include <tuple>

#include "kernels/device/device.h"
#include "kernels/device/names.h"

/* Starts kernel(args…) on `stream` (cudaStream_t); 0 or a cudaError_t. An empty grid is no work. */
template <class... P, class... A>
static int dtx_launch(void *stream, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return 0;
#if defined(__CUDACC__)
    if (shared_bytes > 48 * 1024)
        if (int code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes))
            return code;
    kernel<<<grid, block, shared_bytes, (cudaStream_t)stream>>>(P(args)...);
    return cudaPeekAtLastError();
#else
    struct call {
        void (*kernel)(P...);
        std::tuple<P...> args;
    };
    call *c = new call{kernel, std::tuple<P...>(P(args)...)};
    auto body = [](const void *p) { std::apply(((const call *)p)->kernel, ((const call *)p)->args); };
    auto release = [](void *p) { delete (call *)p; };
    std::vector<dtx_simt_argument> parameters;
    std::apply([&](const auto &...a) { parameters = {{&a, sizeof a}...}; }, c->args);
    return dtx_simt_submit(stream, dtx_simt_job_make(grid, block, shared_bytes, body, c, release,
                                                     reinterpret_cast<const void *>(kernel), parameters));
#endif
}

#endif
