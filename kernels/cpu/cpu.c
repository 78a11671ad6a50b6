#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/impl.h"

void dtx_cpu_parallel(struct dtx_queue *queue, dtx_cpu_loop *loop, const void *args, int64_t n, int64_t grain)
{
    if (DTX_MUTANT(units_32))
        n = (int32_t)n;
    int64_t pieces = dtx_div_up(n, grain);
    int threads = (int)dtx_min64(queue->backend->threads, pieces);
    if (threads <= 1) {
        if (n > 0)
            loop(args, 0, n);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t piece = 0; piece < pieces; piece++)
        loop(args, piece * grain, dtx_min64(n, (piece + 1) * grain));
}

/* Each allocation is preceded by 64 bytes that hold its size, so that the backend can count. */
enum { HEADER_BYTES = 64 };

static enum dtx_status memory_reserve(struct dtx_backend *backend, size_t bytes)
{
    (void)backend;
    (void)bytes;
    return DTX_OK;
}

static enum dtx_status memory_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    void *block;
    if (bytes > INT64_MAX - HEADER_BYTES)
        return dtx_fail(backend->ctx, DTX_E_MEMORY, "impossible allocation of %zu bytes", bytes);
    DTX_TRY(backend->ctx, dtx_mem_alloc(backend->ctx, (int64_t)(bytes + HEADER_BYTES), 1, &block));
    memcpy(block, &bytes, sizeof bytes);
    backend->allocated_bytes += dtx_piece_bytes(bytes);
    if (backend->allocated_bytes > backend->peak_bytes)
        backend->peak_bytes = backend->allocated_bytes;
    *out = (char *)block + HEADER_BYTES;
    return DTX_OK;
}

static void memory_free(struct dtx_backend *backend, void *data)
{
    if (!data)
        return;
    char *block = (char *)data - HEADER_BYTES;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    backend->allocated_bytes -= dtx_piece_bytes(bytes);
    dtx_mem_free(block);
}

static enum dtx_status memory_copy_in(struct dtx_queue *queue, void *to, const void *from_host, size_t bytes)
{
    (void)queue;
    if (bytes)
        memcpy(to, from_host, bytes);
    return DTX_OK;
}

static enum dtx_status memory_copy(struct dtx_queue *queue, void *to, const void *from, size_t bytes)
{
    (void)queue;
    if (bytes)
        memmove(to, from, bytes);
    return DTX_OK;
}

static enum dtx_status memory_zero(struct dtx_queue *queue, void *to, size_t bytes)
{
    (void)queue;
    if (bytes)
        memset(to, 0, bytes);
    return DTX_OK;
}

static enum dtx_status memory_host_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    return dtx_mem_alloc(backend->ctx, (int64_t)bytes, 1, out);
}

static void memory_host_free(struct dtx_backend *backend, void *data)
{
    (void)backend;
    dtx_mem_free(data);
}

static enum dtx_status memory_left(struct dtx_backend *backend, size_t *free_bytes, size_t *total)
{
    (void)backend;
    *free_bytes = *total = 0;
    return DTX_OK;
}

static enum dtx_status queue_create(struct dtx_backend *backend, struct dtx_queue **out)
{
    void *queue;
    DTX_TRY(backend->ctx, dtx_mem_alloc(backend->ctx, 1, sizeof(struct dtx_queue), &queue));
    *out = queue;
    (*out)->backend = backend;
    return DTX_OK;
}

static void queue_free(struct dtx_queue *queue)
{
    dtx_mem_free(queue);
}

static enum dtx_status queue_wait(struct dtx_queue *queue)
{
    (void)queue;
    return DTX_OK;
}

static enum dtx_status refuse_capture(struct dtx_queue *queue)
{
    return dtx_fail(queue->backend->ctx, DTX_E_UNSUPPORTED, "the CPU backend cannot record launches");
}

static enum dtx_status queue_begin_capture(struct dtx_queue *queue)
{
    return refuse_capture(queue);
}

static enum dtx_status queue_end_capture(struct dtx_queue *queue, void **graph)
{
    (void)graph;
    return refuse_capture(queue);
}

static enum dtx_status queue_launch(struct dtx_queue *queue, void *graph)
{
    (void)graph;
    return refuse_capture(queue);
}

static void queue_graph_free(struct dtx_queue *queue, void *graph)
{
    (void)queue, (void)graph; /* there are none */
}

static enum dtx_status queue_moment(struct dtx_queue *queue, int which)
{
    (void)which;
    return dtx_fail(queue->backend->ctx, DTX_E_UNSUPPORTED, "the CPU backend has no clock of its own");
}

static enum dtx_status queue_between(struct dtx_queue *queue, double *seconds)
{
    (void)seconds;
    return queue_moment(queue, 0);
}

static const struct dtx_memory_table memory_table = {.reserve = memory_reserve,
                                                     .alloc = memory_alloc,
                                                     .free = memory_free,
                                                     .copy_in = memory_copy_in,
                                                     .copy_out = memory_copy_in,
                                                     .copy = memory_copy,
                                                     .zero = memory_zero,
                                                     .host_alloc = memory_host_alloc,
                                                     .host_free = memory_host_free,
                                                     .left = memory_left};

static const struct dtx_queue_table queue_table = {.create = queue_create,
                                                   .free = queue_free,
                                                   .wait = queue_wait,
                                                   .begin_capture = queue_begin_capture,
                                                   .end_capture = queue_end_capture,
                                                   .launch = queue_launch,
                                                   .graph_free = queue_graph_free,
                                                   .moment = queue_moment,
                                                   .between = queue_between};

static const struct dtx_op_table op_table = {
#define DTX_OP(name)      .name = dtx_cpu_##name,
#define DTX_OP_WORK(name) DTX_OP(name).name##_work_bytes = dtx_cpu_##name##_work_bytes,
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK
};

static const struct dtx_cpu_loops *loops_of(int isa)
{
#if defined(__x86_64__)
    if (isa == DTX_ISA_AVX512_BF16)
        return &dtx_cpu_loops_avx512bf16;
    if (isa == DTX_ISA_AVX512)
        return &dtx_cpu_loops_avx512;
    if (isa == DTX_ISA_AVX2)
        return &dtx_cpu_loops_avx2;
#endif
    (void)isa;
    return &dtx_cpu_loops_plain;
}

enum dtx_status dtx_cpu_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_cpu), &memory));
    struct dtx_cpu *cpu = memory;
    enum dtx_status status = dtx_cpu_products_create(ctx, threads, &cpu->products);
    if (status != DTX_OK) {
        dtx_mem_free(cpu);
        return status;
    }
    cpu->loops = loops_of(isa);
    cpu->wide_loops = loops_of(isa < DTX_ISA_AVX512 ? isa : DTX_ISA_AVX512);
    cpu->backend = (struct dtx_backend){.name = "cpu",
                                        .ctx = ctx,
                                        .memory = &memory_table,
                                        .queues = &queue_table,
                                        .ops = &op_table,
                                        .threads = threads,
                                        .isa = isa,
                                        .impl = cpu};
    *out = &cpu->backend;
    return DTX_OK;
}

void dtx_cpu_close(struct dtx_backend *backend)
{
    struct dtx_cpu *cpu = backend->impl;
    dtx_cpu_products_free(cpu->products);
    dtx_mem_free(cpu);
}
