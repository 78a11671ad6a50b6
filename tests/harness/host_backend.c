#include "tests/harness/host_backend.h"

#include <string.h>

#include "kernels/base/mem.h"

static enum dtx_status host_reserve(struct dtx_backend *backend, size_t bytes)
{
    (void)backend;
    (void)bytes;
    return DTX_OK;
}

static enum dtx_status host_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    return dtx_mem_alloc(backend->ctx, (int64_t)bytes, 1, out);
}

static void host_free(struct dtx_backend *backend, void *p)
{
    (void)backend;
    dtx_mem_free(p);
}

static enum dtx_status host_copy(struct dtx_queue *queue, void *to, const void *from, size_t bytes)
{
    (void)queue;
    memmove(to, from, bytes);
    return DTX_OK;
}

static enum dtx_status host_zero(struct dtx_queue *queue, void *to, size_t bytes)
{
    (void)queue;
    memset(to, 0, bytes);
    return DTX_OK;
}

static enum dtx_status host_wait(struct dtx_queue *queue)
{
    ((struct host_backend *)queue->backend->impl)->waits++;
    return DTX_OK;
}

static enum dtx_status host_left(struct dtx_backend *backend, size_t *free_bytes, size_t *total)
{
    (void)backend;
    *free_bytes = *total = 0;
    return DTX_OK;
}

static const struct dtx_memory_table host_memory = {host_reserve, host_alloc, host_free,  host_copy, host_copy,
                                                    host_copy,    host_zero,  host_alloc, host_free, host_left};
static const struct dtx_queue_table host_queue = {.wait = host_wait};

void host_backend_init(struct host_backend *host, struct dtx_ctx *ctx)
{
    *host = (struct host_backend){
        .backend = {
            .name = "host", .ctx = ctx, .memory = &host_memory, .queues = &host_queue, .threads = 1, .impl = host}};
    host->queue.backend = &host->backend;
}
