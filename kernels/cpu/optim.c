/* adamw. */
#include "kernels/cpu/impl.h"

enum dtx_status dtx_cpu_adamw(struct dtx_queue *queue, const struct dtx_adamw_args *args)
{
    enum dtx_dtype act = args->weight.data ? args->weight.dtype : args->master.dtype;
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->adamw[act], args, args->master.dim[0], 1 << 15);
    return DTX_OK;
}
