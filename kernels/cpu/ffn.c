/* swiglu_fwd, swiglu_bwd. */
#include "kernels/cpu/impl.h"

enum { ELEMENTS = 1 << 14 };

enum dtx_status dtx_cpu_swiglu_fwd(struct dtx_queue *queue, const struct dtx_swiglu_fwd_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->swiglu_fwd[args->g.dtype], args, dtx_tensor_count(&args->g),
                     ELEMENTS);
    return DTX_OK;
}

enum dtx_status dtx_cpu_swiglu_bwd(struct dtx_queue *queue, const struct dtx_swiglu_bwd_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->swiglu_bwd[args->g.dtype], args, dtx_tensor_count(&args->g),
                     ELEMENTS);
    return DTX_OK;
}
