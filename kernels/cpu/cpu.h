/*
 * The CPU backend: host memory, operations run at once on the calling thread with OpenMP threads inside. Products go
 * through oneDNN (f64: plain loops). For each family a plain version for every dtype, and faster ones chosen when the
 * backend is opened.
 */
#ifndef DTX_KERNELS_CPU_CPU_H
#define DTX_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

enum dtx_status dtx_cpu_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out);
void dtx_cpu_close(struct dtx_backend *backend);
void dtx_cpu_limit_libraries(struct dtx_ctx *ctx, int isa);

#define DTX_OP(name) enum dtx_status dtx_cpu_##name(struct dtx_queue *queue, const struct dtx_##name##_args *args);
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t dtx_cpu_##name##_work_bytes(struct dtx_queue *queue, const struct dtx_##name##_args *args);
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK

#endif
