/* xent_max, xent_sum, xent_bwd. */
#include "kernels/cpu/impl.h"

enum dtx_status dtx_cpu_xent_max(struct dtx_queue *queue, const struct dtx_xent_max_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->xent_max[args->logits.dtype], args, args->logits.dim[0], 4);
    return DTX_OK;
}

enum dtx_status dtx_cpu_xent_sum(struct dtx_queue *queue, const struct dtx_xent_sum_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->xent_sum[args->logits.dtype], args, args->logits.dim[0], 4);
    return DTX_OK;
}

enum dtx_status dtx_cpu_xent_bwd(struct dtx_queue *queue, const struct dtx_xent_bwd_args *args)
{
    enum dtx_dtype act = args->dlogits.data ? args->dlogits.dtype : args->logits.dtype;
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->xent_bwd[act], args, args->logits.dim[0], 4);
    return DTX_OK;
}
