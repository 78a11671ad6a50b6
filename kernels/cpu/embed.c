/* embed_fwd, embed_bwd. */
#include "kernels/cpu/impl.h"

enum dtx_status dtx_cpu_embed_fwd(struct dtx_queue *queue, const struct dtx_embed_fwd_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->embed_fwd[args->table.dtype], args, args->tokens.dim[0], 64);
    return DTX_OK;
}

enum dtx_status dtx_cpu_embed_bwd(struct dtx_queue *queue, const struct dtx_embed_bwd_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->embed_bwd[args->dout.dtype], args, args->dout.dim[1], 64);
    return DTX_OK;
}
