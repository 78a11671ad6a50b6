#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cuda/collectives.h"
#include "kernels/cuda/lt.h"

enum { WHY = 256, LEAST_MAJOR = 8 };

struct allocation {
    void *data;
    size_t bytes, first; /* where in the arena, or DTX_ARENA_FULL */
};

struct cuda {
    struct dtx_backend backend;
    const struct dtx_cuda_runtime *runtime;
    struct dtx_cuda_device device;
    int number;   /* of the device */
    void *stream; /* of allocations, which are zeroed */
    struct dtx_cuda_products *products;
    void *moment[2]; /* events with times; NULL until asked for */
    struct allocation *allocations;
    int64_t count, capacity;
    bool arenas;        /* not switched off */
    void *arena_memory; /* of arena.bytes */
    struct dtx_arena arena;
};

static struct cuda *cuda_of(struct dtx_backend *backend)
{
    return backend->impl;
}

/* DTX_OK for code 0; else a report of what the runtime says. A fault of an earlier launch may show only now. */
static enum dtx_status check(struct dtx_backend *backend, int code, const char *what)
{
    enum { OUT_OF_MEMORY = 2 };
    if (code == 0)
        return DTX_OK;
    return dtx_fail(backend->ctx, code == OUT_OF_MEMORY ? DTX_E_MEMORY : DTX_E_LIBRARY, "CUDA: %s: %s (%d)", what,
                    cuda_of(backend)->runtime->error_text(code), code);
}

void *DTX_DEVICE(stream)(struct dtx_queue *queue)
{
    return queue->impl;
}

struct dtx_cuda_products *DTX_DEVICE(products)(struct dtx_queue *queue)
{
    return cuda_of(queue->backend)->products;
}

enum dtx_status DTX_DEVICE(launched)(struct dtx_queue *queue, const char *op, int code)
{
    return check(queue->backend, code, op);
}

static enum dtx_status refuse(struct cuda *c, size_t bytes, int code)
{
    return dtx_fail(c->backend.ctx, DTX_E_MEMORY, "%s: %zu bytes cannot be allocated beside the %zu in use of %zu: %s",
                    c->device.name, bytes, c->backend.allocated_bytes, c->device.memory_bytes,
                    c->runtime->error_text(code));
}

static enum dtx_status memory_reserve(struct dtx_backend *backend, size_t bytes)
{
    struct cuda *c = cuda_of(backend);
    if (!c->arenas || c->arena.n > 0 || bytes <= c->arena.bytes)
        return DTX_OK;
    if (c->arena.bytes)
        c->runtime->arena_free(c->arena_memory);
    c->arena.bytes = 0;
    int code = c->runtime->arena_alloc(&c->arena_memory, bytes);
    if (code)
        return refuse(c, bytes, code);
    c->arena.bytes = bytes;
    return DTX_OK;
}

/* From the arena, else an allocation of its own. */
static enum dtx_status take(struct cuda *c, size_t bytes, struct allocation *out)
{
    void *data = NULL;
    size_t first;
    DTX_TRY(c->backend.ctx, dtx_arena_cut(c->backend.ctx, &c->arena, bytes, &first));
    if (first != DTX_ARENA_FULL) {
        *out = (struct allocation){c->runtime->piece_cut(c->arena_memory, first, bytes), bytes, first};
        return DTX_OK;
    }
    int code = c->runtime->alloc(&data, bytes ? bytes : 1);
    if (code)
        return refuse(c, bytes, code);
    *out = (struct allocation){data, bytes, first};
    if (c->arena.bytes)
        c->backend.outside_bytes += dtx_piece_bytes(bytes);
    return DTX_OK;
}

/* Work that was begun may still use the memory: free waits by itself, a piece could be cut again at once. */
static void give_back(struct cuda *c, const struct allocation *a)
{
    if (a->first == DTX_ARENA_FULL) {
        c->runtime->free(a->data);
        return;
    }
    if (!DTX_MUTANT(cuda_piece_unwaited))
        c->runtime->wait();
    c->runtime->piece_join(c->arena_memory, a->data);
    dtx_arena_join(&c->arena, a->first);
}

static enum dtx_status memory_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    struct cuda *c = cuda_of(backend);
    struct allocation a;
    void *list;
    DTX_TRY(backend->ctx,
            dtx_mem_grow(backend->ctx, c->allocations, c->count, sizeof *c->allocations, &c->capacity, &list));
    c->allocations = list;
    DTX_TRY(backend->ctx, take(c, bytes, &a));
    bool zeroed = a.first != DTX_ARENA_FULL && DTX_MUTANT(cuda_piece_not_zeroed);
    int code = zeroed ? 0 : c->runtime->zero(a.data, bytes, c->stream);
    if (!code)
        code = c->runtime->stream_wait(c->stream);
    if (code) {
        give_back(c, &a);
        return check(backend, code, "zeroing fresh memory");
    }
    c->allocations[c->count++] = a;
    backend->allocated_bytes += dtx_piece_bytes(bytes);
    if (backend->allocated_bytes > backend->peak_bytes)
        backend->peak_bytes = backend->allocated_bytes;
    *out = a.data;
    return DTX_OK;
}

static void memory_free(struct dtx_backend *backend, void *data)
{
    struct cuda *c = cuda_of(backend);
    for (int64_t i = c->count - 1; data && i >= 0; i--)
        if (c->allocations[i].data == data) {
            struct allocation a = c->allocations[i];
            backend->allocated_bytes -= dtx_piece_bytes(a.bytes);
            c->allocations[i] = c->allocations[--c->count];
            give_back(c, &a);
            return;
        }
    if (data)
        dtx_log(backend->ctx, DTX_LOG_ERROR, "%s: memory at %p is given back that is not allocated", c->device.name,
                data);
}

static enum dtx_status memory_copy(struct dtx_queue *queue, void *to, const void *from, size_t bytes)
{
    if (!bytes)
        return DTX_OK;
    return check(queue->backend, cuda_of(queue->backend)->runtime->copy(to, from, bytes, queue->impl), "copy");
}

static enum dtx_status queue_wait(struct dtx_queue *queue)
{
    return check(queue->backend, cuda_of(queue->backend)->runtime->stream_wait(queue->impl), "waiting for the device");
}

static enum dtx_status memory_copy_out(struct dtx_queue *queue, void *to_host, const void *from, size_t bytes)
{
    DTX_TRY(queue->backend->ctx, memory_copy(queue, to_host, from, bytes));
    return DTX_MUTANT(cuda_copy_out_early) ? DTX_OK : queue_wait(queue);
}

static enum dtx_status memory_zero(struct dtx_queue *queue, void *to, size_t bytes)
{
    if (!bytes)
        return DTX_OK;
    return check(queue->backend, cuda_of(queue->backend)->runtime->zero(to, bytes, queue->impl), "zero");
}

/* Pinned, else ordinary, which is only slower. */
static enum dtx_status memory_host_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    int code = cuda_of(backend)->runtime->host_alloc(out, bytes ? bytes : 1);
    if (!code) {
        memset(*out, 0, bytes);
        return DTX_OK;
    }
    dtx_log(backend->ctx, DTX_LOG_WARN, "%.1f GiB of host memory cannot be pinned (%s): copies from and to it are slow",
            (double)bytes / 1073741824.0, cuda_of(backend)->runtime->error_text(code));
    return dtx_mem_alloc(backend->ctx, (int64_t)bytes, 1, out);
}

static void memory_host_free(struct dtx_backend *backend, void *data)
{
    enum { NOT_PINNED = 1 }; /* by any other code a broken device refuses everything: the memory may be pinned */
    if (data && cuda_of(backend)->runtime->host_free(data) == NOT_PINNED)
        dtx_mem_free(data);
}

static enum dtx_status memory_left(struct dtx_backend *backend, size_t *free_bytes, size_t *total)
{
    return check(backend, cuda_of(backend)->runtime->memory_left(free_bytes, total), "asking for free memory");
}

static enum dtx_status new_queue(struct dtx_backend *backend, bool urgent, struct dtx_queue **out)
{
    void *memory;
    DTX_TRY(backend->ctx, dtx_mem_alloc(backend->ctx, 1, sizeof(struct dtx_queue), &memory));
    struct dtx_queue *queue = memory;
    queue->backend = backend;
    int code = cuda_of(backend)->runtime->stream_create(&queue->impl, urgent);
    if (code) {
        dtx_mem_free(queue);
        return check(backend, code, "creating a stream");
    }
    *out = queue;
    return DTX_OK;
}

static enum dtx_status queue_create(struct dtx_backend *backend, struct dtx_queue **out)
{
    return new_queue(backend, false, out);
}

static void queue_free(struct dtx_queue *queue)
{
    if (!queue)
        return;
    cuda_of(queue->backend)->runtime->stream_free(queue->impl);
    dtx_mem_free(queue);
}

static enum dtx_status queue_begin_capture(struct dtx_queue *queue)
{
    return check(queue->backend, cuda_of(queue->backend)->runtime->capture_begin(queue->impl), "recording launches");
}

static enum dtx_status queue_end_capture(struct dtx_queue *queue, void **graph)
{
    const struct dtx_cuda_runtime *runtime = cuda_of(queue->backend)->runtime;
    void *recorded = NULL;
    int code = runtime->capture_end(queue->impl, &recorded);
    if (graph) {
        *graph = recorded;
        return check(queue->backend, code, "ending a record of launches");
    }
    if (recorded)
        runtime->graph_free(recorded);
    return DTX_OK;
}

static void queue_graph_free(struct dtx_queue *queue, void *graph)
{
    if (graph && !DTX_MUTANT(cuda_graph_kept))
        cuda_of(queue->backend)->runtime->graph_free(graph);
}

static enum dtx_status queue_launch(struct dtx_queue *queue, void *graph)
{
    return check(queue->backend, cuda_of(queue->backend)->runtime->graph_launch(graph, queue->impl),
                 "launching a record");
}

static enum dtx_status queue_moment(struct dtx_queue *queue, int which)
{
    struct cuda *c = cuda_of(queue->backend);
    int code = c->moment[which] ? 0 : c->runtime->event_create(&c->moment[which], true);
    if (!code)
        code = c->runtime->event_record(c->moment[which], queue->impl);
    return check(queue->backend, code, "reading the device's clock");
}

static enum dtx_status queue_between(struct dtx_queue *queue, double *seconds)
{
    struct cuda *c = cuda_of(queue->backend);
    DTX_TRY(queue->backend->ctx, queue_wait(queue));
    return check(queue->backend, c->runtime->event_seconds(c->moment[0], c->moment[1], seconds),
                 "reading the device's clock");
}

static const struct dtx_memory_table memory_table = {.reserve = memory_reserve,
                                                     .alloc = memory_alloc,
                                                     .free = memory_free,
                                                     .copy_in = memory_copy,
                                                     .copy_out = memory_copy_out,
                                                     .copy = memory_copy,
                                                     .zero = memory_zero,
                                                     .host_alloc = memory_host_alloc,
                                                     .host_free = memory_host_free,
                                                     .left = memory_left};

static const struct dtx_queue_table queue_table = {.create = queue_create,
                                                   .free = queue_free,
                                                   .wait = queue_wait,
                                                   .records = true,
                                                   .begin_capture = queue_begin_capture,
                                                   .end_capture = queue_end_capture,
                                                   .launch = queue_launch,
                                                   .graph_free = queue_graph_free,
                                                   .moment = queue_moment,
                                                   .between = queue_between};

static const struct dtx_op_table op_table = {
#define DTX_OP(name)      .name = DTX_DEVICE(name),
#define DTX_OP_WORK(name) DTX_OP(name).name##_work_bytes = DTX_DEVICE(name##_work_bytes),
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK
};

const struct dtx_cuda_runtime *DTX_DEVICE(runtime_of)(struct dtx_backend *backend)
{
    return cuda_of(backend)->runtime;
}

enum dtx_status DTX_DEVICE(urgent_queue)(struct dtx_backend *backend, struct dtx_queue **out)
{
    return new_queue(backend, true, out);
}

int DTX_DEVICE(attach)(struct dtx_backend *backend)
{
    return cuda_of(backend)->runtime->device_choose(cuda_of(backend)->number);
}

const struct dtx_collectives DTX_DEVICE(collectives) = {.load = DTX_DEVICE(nccl_load),
                                                        .runtime = DTX_DEVICE(runtime_of),
                                                        .stream = DTX_DEVICE(stream),
                                                        .urgent_queue = DTX_DEVICE(urgent_queue),
                                                        .attach = DTX_DEVICE(attach),
                                                        .fold = DTX_DEVICE(fold)};

int DTX_DEVICE(count)(void)
{
    char why[WHY];
    const struct dtx_cuda_runtime *runtime = DTX_DEVICE(runtime)(why, sizeof why);
    int count = 0;
    return runtime && runtime->device_count(&count) == 0 ? count : 0;
}

/* This rank's number on its node. */
static int local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text && *text)
            return atoi(text);
    }
    return 0;
}

/* The runtime and this rank's device, or NULL and the reason. */
static const struct dtx_cuda_runtime *find(char *why, size_t size, int *number, struct dtx_cuda_device *device)
{
    const struct dtx_cuda_runtime *runtime = DTX_DEVICE(runtime)(why, size);
    if (!runtime)
        return NULL;
    int count = 0, code = runtime->device_count(&count);
    *number = count > 0 && !DTX_MUTANT(cuda_first_device) ? local_rank() % count : 0;
    if (!code)
        code = runtime->device_describe(*number, device);
    if (code) {
        snprintf(why, size, "GPU %d cannot be used: %s (%d)", *number, runtime->error_text(code), code);
        return NULL;
    }
    if (device->major < LEAST_MAJOR) {
        snprintf(why, size, "GPU %d (%.100s) has compute capability %d.%d; dtx needs %d.0", *number, device->name,
                 device->major, device->minor, LEAST_MAJOR);
        return NULL;
    }
    return runtime;
}

bool DTX_DEVICE(available)(char *why, size_t size, char *text, size_t text_size)
{
    struct dtx_cuda_device device;
    int number;
    if (!find(why, size, &number, &device))
        return false;
    if (text)
        snprintf(text, text_size, "GPU %d: %.100s, compute capability %d.%d, %d processors, %.1f GB", number,
                 device.name, device.major, device.minor, device.processors, (double)device.memory_bytes / 1e9);
    return true;
}

enum dtx_status DTX_DEVICE(open)(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out)
{
    char why[WHY];
    void *memory;
    int number;
    struct dtx_cuda_device device;
    const struct dtx_cuda_runtime *runtime = find(why, sizeof why, &number, &device);
    if (!runtime)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "device: %s", why);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct cuda), &memory));
    struct cuda *c = memory;
    const char *arenas = getenv("DTX_ARENA");
    *c = (struct cuda){
        .runtime = runtime, .device = device, .number = number, .arenas = !arenas || strcmp(arenas, "0") != 0};
    c->backend = (struct dtx_backend){.name = DTX_DEVICE_TEXT,
                                      .ctx = ctx,
                                      .memory = &memory_table,
                                      .queues = &queue_table,
                                      .ops = &op_table,
                                      .threads = threads,
                                      .isa = isa,
                                      .impl = c};
    int code = runtime->device_choose(number);
    if (!code)
        code = runtime->stream_create(&c->stream, false);
    enum dtx_status status = check(&c->backend, code, "opening the device");
    if (status == DTX_OK)
        status = DTX_DEVICE(products_create)(ctx, &c->products);
    if (status != DTX_OK) {
        DTX_DEVICE(close)(&c->backend);
        return status;
    }
    *out = &c->backend;
    return DTX_OK;
}

void DTX_DEVICE(close)(struct dtx_backend *backend)
{
    struct cuda *c = cuda_of(backend);
    DTX_DEVICE(products_free)(c->products);
    for (int i = 0; i < 2; i++)
        if (c->moment[i])
            c->runtime->event_free(c->moment[i]);
    if (c->stream)
        c->runtime->stream_free(c->stream);
    while (c->count > 0)
        give_back(c, &c->allocations[--c->count]);
    if (c->arena.bytes && !DTX_MUTANT(cuda_arena_kept))
        c->runtime->arena_free(c->arena_memory);
    dtx_arena_free(&c->arena);
    dtx_mem_free(c->allocations);
    dtx_mem_free(c);
}
