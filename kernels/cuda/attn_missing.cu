/* Attention is not there yet. */
#include "kernels/cuda/impl.cuh"

#define MISSING(name)                                                                                                  \
    enum dtx_status DTX_DEVICE(name)(struct dtx_queue * queue, const struct dtx_##name##_args *)                       \
    {                                                                                                                  \
        return dtx_fail(queue->backend->ctx, DTX_E_UNSUPPORTED, "%s: not on this device", #name);                      \
    }
MISSING(attn_fwd)
MISSING(attn_bwd)
MISSING(attn_dots)
MISSING(attn_merge)
MISSING(attn_finish)

size_t DTX_DEVICE(attn_fwd_work_bytes)(struct dtx_queue *, const struct dtx_attn_fwd_args *)
{
    return 0;
}

size_t DTX_DEVICE(attn_bwd_work_bytes)(struct dtx_queue *, const struct dtx_attn_bwd_args *)
{
    return 0;
}
