/* The checked call of every operation, made from ops.def. */
#include "kernels/base/trace.h"
#include "kernels/backend.h"

/* The profiler's range of an operation: its place on the device's stream is seen below it. */
static void begin_range(const struct dtx_queue *queue, const char *name)
{
    const struct dtx_trace *trace = queue->backend->ctx->trace;
    if (trace && trace->ranges)
        trace->ranges->push(name);
}

static enum dtx_status end_range(const struct dtx_queue *queue, enum dtx_status status)
{
    const struct dtx_trace *trace = queue->backend->ctx->trace;
    if (trace && trace->ranges)
        trace->ranges->pop();
    return status;
}

#define DTX_OP(name)                                                                                                   \
    enum dtx_status dtx_##name(struct dtx_queue *queue, const struct dtx_##name##_args *args)                          \
    {                                                                                                                  \
        DTX_TRY(queue->backend->ctx, dtx_##name##_check(queue->backend->ctx, args));                                   \
        begin_range(queue, #name);                                                                                     \
        return end_range(queue, queue->backend->ops->name(queue, args));                                               \
    }
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t dtx_##name##_work_bytes(struct dtx_queue *queue, const struct dtx_##name##_args *args)                      \
    {                                                                                                                  \
        return queue->backend->ops->name##_work_bytes(queue, args);                                                    \
    }
#include "kernels/ops.def"
