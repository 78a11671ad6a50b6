/* rmsnorm_fwd, rmsnorm_bwd. */
#include "kernels/cpu/impl.h"

enum dtx_status dtx_cpu_rmsnorm_fwd(struct dtx_queue *queue, const struct dtx_rmsnorm_fwd_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->rmsnorm_fwd[args->x.dtype], args, args->x.dim[0], 64);
    return DTX_OK;
}

size_t dtx_cpu_rmsnorm_bwd_work_bytes(struct dtx_queue *queue, const struct dtx_rmsnorm_bwd_args *args)
{
    (void)queue;
    /* The query may come before dgain has memory. */
    int64_t blocks = dtx_div_up(args->x.dim[0], DTX_CPU_NORM_ROWS);
    return (size_t)(blocks * args->x.dim[1]) * dtx_dtype_bytes(dtx_dtype_master(args->x.dtype));
}

/* dgain += the blocks' sums, in order. */
static void add_blocks(const struct dtx_rmsnorm_bwd_args *args, int64_t blocks)
{
    int64_t width = args->x.dim[1];
    if (DTX_MUTANT(rmsnorm_dgain_last_block_lost))
        blocks--;
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t i = 0; i < width; i++)
            if (args->x.dtype == DTX_F64)
                ((double *)args->dgain.data)[i] += ((const double *)args->work.data)[block * width + i];
            else
                ((float *)args->dgain.data)[i] += ((const float *)args->work.data)[block * width + i];
}

enum dtx_status dtx_cpu_rmsnorm_bwd(struct dtx_queue *queue, const struct dtx_rmsnorm_bwd_args *args)
{
    struct dtx_cpu_rmsnorm_bwd job = {.args = args};
    int64_t blocks = dtx_div_up(args->x.dim[0], DTX_CPU_NORM_ROWS);
    if (args->dgain.data) {
        DTX_TRY(queue->backend->ctx,
                dtx_need_work(queue, "rmsnorm_bwd", &args->work, dtx_cpu_rmsnorm_bwd_work_bytes(queue, args)));
        job.partial = args->work.data;
    }
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->rmsnorm_bwd[args->x.dtype], &job, blocks, 1);
    if (args->dgain.data)
        add_blocks(args, blocks);
    return DTX_OK;
}
