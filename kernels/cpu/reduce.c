/* add, sqnorm. */
#include "kernels/cpu/impl.h"

enum { ELEMENTS = 1 << 15 }; /* of one piece for a thread */

enum dtx_status dtx_cpu_add(struct dtx_queue *queue, const struct dtx_add_args *args)
{
    enum dtx_dtype act = args->x.dtype;
    if (args->z.dtype == DTX_BF16 || (args->y.data && args->y.dtype == DTX_BF16))
        act = DTX_BF16;
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->add[act], args, dtx_tensor_count(&args->x), ELEMENTS);
    return DTX_OK;
}

enum dtx_status dtx_cpu_sqnorm(struct dtx_queue *queue, const struct dtx_sqnorm_args *args)
{
    int64_t n = args->blocks.dim[0];
    const double *blocks = args->blocks.data;
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->sqnorm[args->x.dtype], args, n, 64);
    double sum = 0;
    if (DTX_MUTANT(sqnorm_by_thread)) {
        for (int t = 0; t < queue->backend->threads; t++) {
            double part = 0;
            for (int64_t i = t; i < n; i += queue->backend->threads)
                part += blocks[i];
            sum += part;
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            sum += blocks[i];
    }
    *(double *)args->sum.data = sum;
    return DTX_OK;
}
