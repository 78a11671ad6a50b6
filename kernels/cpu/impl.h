/* What the files of the CPU backend share. */
#ifndef DTX_KERNELS_CPU_IMPL_H
#define DTX_KERNELS_CPU_IMPL_H

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/loops.h"

struct dtx_cpu_products; /* oneDNN's products by shape: gemm.c */

struct dtx_cpu {
    struct dtx_backend backend;
    const struct dtx_cpu_loops *loops;
    const struct dtx_cpu_loops *wide_loops; /* the same, but bf16 is always widened to fp32 before products */
    struct dtx_cpu_products *products;
};

static inline struct dtx_cpu *dtx_cpu_of(struct dtx_queue *queue)
{
    return queue->backend->impl;
}

/* Runs loop(args, …) over units [0, n) on the backend's threads, in pieces of a multiple of `grain` units. */
void dtx_cpu_parallel(struct dtx_queue *queue, dtx_cpu_loop *loop, const void *args, int64_t n, int64_t grain);

/* gemm_fp8.c: matmul with fp8. */
size_t dtx_cpu_fp8_work_bytes(struct dtx_queue *queue, const struct dtx_matmul_args *args);
enum dtx_status dtx_cpu_fp8_matmul(struct dtx_queue *queue, const struct dtx_matmul_args *args);

enum dtx_status dtx_cpu_products_create(struct dtx_ctx *ctx, int threads, struct dtx_cpu_products **out);
void dtx_cpu_products_free(struct dtx_cpu_products *products);

#endif
