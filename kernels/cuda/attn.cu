/* attn_fwd, attn_bwd: with tensor cores where the table has a row for the job, else attn_any.cu. */
#include "kernels/cuda/attn.h"
#include "kernels/device/warp.h"

/* The first row that fits is taken. architecture 90: for devices of compute capability 9 only; 80: 8 and later. */
static const struct attn_row {
    int architecture, d, maps;
    int (*fwd)(void *stream, const attn_job &job);
    int (*bwd)(void *stream, const attn_job &job);
} table[] = {
#define ROW(architecture, kernels, d, maps)                                                                            \
    {                                                                                                                  \
        architecture, d, maps, DTX_DEVICE(kernels)<d, maps>::fwd, DTX_DEVICE(kernels)<d, maps>::bwd                    \
    }
    ROW(90, attn_tma, 64, 1), ROW(90, attn_tma, 128, 1), ROW(90, attn_tma, 64, 2), ROW(90, attn_tma, 128, 2),
    ROW(80, attn_mma, 32, 1), ROW(80, attn_mma, 64, 1),  ROW(80, attn_mma, 96, 1), ROW(80, attn_mma, 128, 1),
    ROW(80, attn_mma, 32, 2), ROW(80, attn_mma, 64, 2),  ROW(80, attn_mma, 96, 2), ROW(80, attn_mma, 128, 2),
#undef ROW
};

static bool is_hopper(void)
{
#if defined(__CUDACC__)
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
#else
    return dtx_simt_get().architecture == 90;
#endif
}

/* Copies take 16 bytes at a time. */
static bool is_aligned(const attn_job &job)
{
    const void *const list[] = {job.q, job.k, job.v, job.do_, job.o, job.o2, job.dq, job.dk, job.dv, job.norm.y};
    for (const void *p : list)
        if ((uintptr_t)p & 15)
            return false;
    return true;
}

/* NULL: no tensor-core kernel fits. */
static const attn_row *pick(enum dtx_dtype act, const attn_job &job)
{
    if (act != DTX_BF16 || job.dv_width != job.d * job.maps || !is_aligned(job))
        return NULL;
    const bool hopper = job.tq > 0 && job.tk > 0 && is_hopper(); /* a tile map has no empty dimension */
    for (const attn_row &row : table)
        if (row.d == job.d && row.maps == job.maps && (row.architecture != 90 || hopper))
            return &row;
    return NULL;
}

/* The lowest first key of each tile of queries, for every sample. */
DTX_KERNEL(ATTN_TILE_QUERIES, 1) attn_tile_first_kernel(DTX_ARGUMENT(attn_job) p)
{
    int i = (int)(blockIdx.x * ATTN_TILE_QUERIES + threadIdx.x), b = (int)blockIdx.y;
    int first = -dtx_warp_max(i < p.tq ? -attn_first_key(p, b, i) : -p.tk);
    if (threadIdx.x == 0)
        p.tile_first[b * (int)gridDim.x + (int)blockIdx.x] = first;
}

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
    const attn_row *row = pick(args->q.dtype, job);
    int code = row ? row->fwd(stream, job) : DTX_DEVICE(attn_any_fwd)(stream, args->q.dtype, job);
    return DTX_DEVICE(launched)(queue, "attn_fwd", code);
}

static int tiles_of(int64_t tq)
{
    return (int)((tq + ATTN_TILE_QUERIES - 1) / ATTN_TILE_QUERIES);
}

/* The first key of each tile of queries. */
size_t DTX_DEVICE(attn_bwd_work_bytes)(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    (void)queue;
    return (size_t)(args->q.dim[0] * tiles_of(args->q.dim[1])) * sizeof(int32_t);
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
    const attn_row *row = pick(args->q.dtype, job);
    int code = 0;
    if (row && job.doc_start)
        code = dtx_launch(stream, attn_tile_first_kernel, dim3((unsigned)tiles_of(job.tq), (unsigned)job.b),
                          ATTN_TILE_QUERIES, 0, job);
    if (!code)
        code = row ? row->bwd(stream, job) : DTX_DEVICE(attn_any_bwd)(stream, args->q.dtype, job);
    return DTX_DEVICE(launched)(queue, "attn_bwd", code);
}
