/* attn_fwd, attn_dots, attn_bwd. */
#include "kernels/cpu/attn.h"

#include "kernels/cpu/impl.h"

size_t dtx_cpu_attn_fwd_work_bytes(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    (void)queue;
    (void)args;
    return 0;
}

enum dtx_status dtx_cpu_attn_fwd(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    int64_t rows = args->q.dim[0] * args->q.dim[1] * (args->q.dim[2] / args->maps);
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->attn_fwd[args->q.dtype], args, rows, 8);
    return DTX_OK;
}

enum dtx_status dtx_cpu_attn_dots(struct dtx_queue *queue, const struct dtx_attn_dots_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->attn_dots[args->do_.dtype], args, args->do_.dim[2], 1);
    return DTX_OK;
}

size_t dtx_cpu_attn_bwd_work_bytes(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    (void)queue;
    (void)args;
    return 0;
}

enum dtx_status dtx_cpu_attn_bwd(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    const struct dtx_cpu_loops *loops = dtx_cpu_of(queue)->loops;
    int64_t rows = args->q.dim[0] * args->q.dim[1] * (args->q.dim[2] / args->maps);
    int64_t keys = args->k.dim[0] * args->k.dim[1] * args->v.dim[2];
    dtx_cpu_parallel(queue, loops->attn_bwd_q[args->q.dtype], args, rows, 8);
    dtx_cpu_parallel(queue, loops->attn_bwd_kv[args->q.dtype], args, keys, 8);
    return DTX_OK;
}
