#define DTX_EMU

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "kernels/simt/emu.h"

#include "kernels/device/names.h"
#include "kernels/simt/simt.h"

struct emu {
    struct dtx_backend backend;
    std::map<void *, size_t> sizes; /* of allocations */
};

static struct emu *emu_of(struct dtx_backend *backend)
{
    return (struct emu *)backend->impl;
}

void *dtx_emu_stream(struct dtx_queue *queue)
{
    return queue->impl;
}

enum dtx_status dtx_emu_launched(struct dtx_queue *queue, const char *op, int code)
{
    if (code == 0)
        return DTX_OK;
    enum dtx_status status =
        dtx_fail(queue->backend->ctx, DTX_E_LIBRARY, "%s in the emulator: %s", op, dtx_simt_fault_text());
    dtx_simt_fault_clear();
    return status;
}

static enum dtx_status memory_alloc(struct dtx_backend *backend, size_t bytes, void **out)
{
    void *p = dtx_simt_alloc(bytes);
    memset(p, 0, bytes);
    emu_of(backend)->sizes[p] = bytes;
    backend->allocated_bytes += bytes;
    if (backend->allocated_bytes > backend->peak_bytes)
        backend->peak_bytes = backend->allocated_bytes;
    *out = p;
    return DTX_OK;
}

static void memory_free(struct dtx_backend *backend, void *p)
{
    if (!p)
        return;
    auto found = emu_of(backend)->sizes.find(p);
    backend->allocated_bytes -= found->second;
    emu_of(backend)->sizes.erase(found);
    dtx_simt_free(p);
}

static enum dtx_status memory_copy(struct dtx_queue *, void *to, const void *from, size_t bytes)
{
    if (bytes)
        memmove(to, from, bytes);
    return DTX_OK;
}

static enum dtx_status memory_zero(struct dtx_queue *, void *to, size_t bytes)
{
    if (bytes)
        memset(to, 0, bytes);
    return DTX_OK;
}

static enum dtx_status queue_create(struct dtx_backend *backend, struct dtx_queue **out)
{
    *out = new (std::nothrow) dtx_queue{backend, NULL};
    return *out ? DTX_OK : dtx_fail(backend->ctx, DTX_E_MEMORY, "no memory for a queue");
}

static void queue_free(struct dtx_queue *queue)
{
    delete queue;
}

static enum dtx_status queue_wait(struct dtx_queue *)
{
    return DTX_OK;
}

static enum dtx_status refuse_capture(struct dtx_queue *queue)
{
    return dtx_fail(queue->backend->ctx, DTX_E_UNSUPPORTED, "the emulator cannot record launches");
}

static enum dtx_status refuse_end(struct dtx_queue *queue, void **)
{
    return refuse_capture(queue);
}

static enum dtx_status refuse_launch(struct dtx_queue *queue, void *)
{
    return refuse_capture(queue);
}

static const struct dtx_memory_table memory_table = {memory_alloc, memory_free, memory_copy,
                                                     memory_copy,  memory_copy, memory_zero};
static const struct dtx_queue_table queue_table = {queue_create,   queue_free, queue_wait,
                                                   refuse_capture, refuse_end, refuse_launch};
static const struct dtx_op_table op_table = {
#define DTX_OP(name)      .name = dtx_emu_##name,
#define DTX_OP_WORK(name) DTX_OP(name).name##_work_bytes = dtx_emu_##name##_work_bytes,
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK
};

static enum dtx_status choose_order(struct dtx_ctx *ctx)
{
    static const char *const names[] = {"fifo", "lifo", "random"};
    const char *name = getenv("DTX_EMU_ORDER");
    const char *architecture = getenv("DTX_EMU_ARCH");
    struct dtx_simt_settings settings = dtx_simt_get();
    settings.architecture = architecture ? atoi(architecture) : 80;
    for (int order = DTX_SIMT_FIFO; order <= DTX_SIMT_RANDOM; order++)
        if (strcmp(name ? name : "fifo", names[order]) == 0) {
            settings.order = (enum dtx_simt_order)order;
            settings.seed = 1;
            dtx_simt_set(&settings);
            return DTX_OK;
        }
    return dtx_fail(ctx, DTX_E_CONFIG, "DTX_EMU_ORDER is '%s' but must be fifo, lifo or random", name);
}

enum dtx_status dtx_emu_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out)
{
    DTX_TRY(ctx, choose_order(ctx));
    struct emu *e = new (std::nothrow) emu();
    if (!e)
        return dtx_fail(ctx, DTX_E_MEMORY, "no memory for the emulator");
    e->backend.name = "emu";
    e->backend.ctx = ctx;
    e->backend.memory = &memory_table;
    e->backend.queues = &queue_table;
    e->backend.ops = &op_table;
    e->backend.threads = threads;
    e->backend.isa = isa;
    e->backend.impl = e;
    *out = &e->backend;
    return DTX_OK;
}

void dtx_emu_close(struct dtx_backend *backend)
{
    delete emu_of(backend);
}
