/* For other stand-ins: work in the order of a stream of kernels/simt/runtime.cc. */
#ifndef DTX_KERNELS_SIMT_RUNTIME_H
#define DTX_KERNELS_SIMT_RUNTIME_H

#include <functional>

/* Runs work() when the stream comes to it; 0 or the fault of earlier work. waits: for other ranks. */
int dtx_emu_submit(void *stream, std::function<int()> work, bool waits);

#endif
