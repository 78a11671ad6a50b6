/*
 * Names of a device backend, for its C files and its launchers: dtx_cuda_<name>, or dtx_emu_<name> in the build that
 * runs in the emulator.
 */
#ifndef DTX_KERNELS_DEVICE_NAMES_H
#define DTX_KERNELS_DEVICE_NAMES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h"

#ifdef DTX_EMU
#define DTX_DEVICE(name) dtx_emu_##name
#define DTX_DEVICE_TEXT  "emu"
#else
#define DTX_DEVICE(name) dtx_cuda_##name
#define DTX_DEVICE_TEXT  "cuda"
#endif

/* The stream of a queue (cudaStream_t). */
void *DTX_DEVICE(stream)(struct dtx_queue *queue);
/* DTX_OK when code is 0, else a report that names the operation and what the runtime says. */
enum dtx_status DTX_DEVICE(launched)(struct dtx_queue *queue, const char *op, int code);

/* The launchers: what backend's table of operations holds. */
#define DTX_OP(name) enum dtx_status DTX_DEVICE(name)(struct dtx_queue *, const struct dtx_##name##_args *);
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t DTX_DEVICE(name##_work_bytes)(struct dtx_queue *, const struct dtx_##name##_args *);
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK

#ifdef __cplusplus
}
#endif

#endif
