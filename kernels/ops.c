/* The checked call of every operation, made from ops.def. */
#include "kernels/backend.h"

#define DTX_OP(name)                                                                                                   \
    enum dtx_status dtx_##name(struct dtx_queue *queue, const struct dtx_##name##_args *args)                          \
    {                                                                                                                  \
        DTX_TRY(queue->backend->ctx, dtx_##name##_check(queue->backend->ctx, args));                                   \
        return queue->backend->ops->name(queue, args);                                                                 \
    }
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t dtx_##name##_work_bytes(struct dtx_queue *queue, const struct dtx_##name##_args *args)                      \
    {                                                                                                                  \
        return queue->backend->ops->name##_work_bytes(queue, args);                                                    \
    }
#include "kernels/ops.def"
