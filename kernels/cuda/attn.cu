/* attn_fwd, attn_bwd: with tensor cores (attn_mma.cu) where there is such a kernel, else attn_any.cu. */
#include "kernels/cuda/attn.h"

/* What forward and backward have alike. */
template <class A> static attn_job job_of(const A *args)
{
    attn_job job = {};
    job.q = args->q.data;
    job.k = args->k.data;
    job.v = args->v.data;
    job.lambda = args->lambda.data;
    job.doc_start = (const int32_t *)args->doc_start.data;
    job.b = (int)args->q.dim[0];
    job.tq = (int)args->q.dim[1];
    job.tk = (int)args->k.dim[1];
    job.heads = (int)args->q.dim[2] / args->maps;
    job.kv_heads = (int)args->v.dim[2];
    job.maps = args->maps;
    job.d = (int)args->q.dim[3];
    job.dv_width = (int)args->v.dim[3];
    job.shift = (int)(args->q_first - args->k_first);
    job.k_first = (int)args->k_first;
    job.scale = args->scale;
    job.parts = args->parts;
    return job;
}

size_t DTX_DEVICE(attn_fwd_work_bytes)(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    (void)queue;
    (void)args;
    return 0;
}

enum dtx_status DTX_DEVICE(attn_fwd)(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    attn_job job = job_of(args);
    job.o = args->o.data;
    job.o2 = args->o2.data;
    job.lse = args->lse.data;
    job.norm = attn_norm_of(args->norm);
    if (job.b == 0 || job.tq == 0)
        return DTX_OK;
    void *stream = DTX_DEVICE(stream)(queue);
    const bool tensor_core = args->q.dtype == DTX_BF16 && DTX_DEVICE(attn_mma_has)(job);
    int code = tensor_core && DTX_DEVICE(attn_tma_has)(job) ? DTX_DEVICE(attn_tma_fwd)(stream, job)
               : tensor_core                                ? DTX_DEVICE(attn_mma_fwd)(stream, job)
                                                            : DTX_DEVICE(attn_any_fwd)(stream, args->q.dtype, job);
    return DTX_DEVICE(launched)(queue, "attn_fwd", code);
}

/* The first key of each tile of queries. */
size_t DTX_DEVICE(attn_bwd_work_bytes)(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    (void)queue;
    int64_t tiles = (args->q.dim[1] + ATTN_TILE_QUERIES - 1) / ATTN_TILE_QUERIES;
    return (size_t)(args->q.dim[0] * tiles) * sizeof(int32_t);
}

enum dtx_status DTX_DEVICE(attn_bwd)(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    DTX_TRY(queue->backend->ctx,
            dtx_need_work(queue, "attn_bwd", &args->work, DTX_DEVICE(attn_bwd_work_bytes)(queue, args)));
    attn_job job = job_of(args);
    job.do_ = args->do_.data;
    job.lse_in = args->lse.data;
    job.dsum = args->dsum.data;
    job.dq = args->dq.data;
    job.dk = args->dk.data;
    job.dv = args->dv.data;
    job.tile_first = (int32_t *)args->work.data;
    void *stream = DTX_DEVICE(stream)(queue);
    int code = args->q.dtype == DTX_BF16 && DTX_DEVICE(attn_mma_has)(job)
                   ? DTX_DEVICE(attn_mma_bwd)(stream, job)
                   : DTX_DEVICE(attn_any_bwd)(stream, args->q.dtype, job);
    return DTX_DEVICE(launched)(queue, "attn_bwd", code);
}
