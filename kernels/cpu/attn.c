/*
 * attn_fwd, attn_bwd: in tiles (attn_tiles*.h) for f32 and bf16 on vector instruction sets, else row by row
 * (attn_loops.h), as attn_merge, attn_finish and attn_dots always are.
 */
#include "kernels/cpu/attn.h"

#include "kernels/cpu/impl.h"

static bool is_tiled(struct dtx_queue *queue, enum dtx_dtype act)
{
    return act != DTX_F64 && queue->backend->isa >= DTX_ISA_AVX2;
}

static struct dtx_cpu_attn_tiles tiles_of(struct dtx_queue *queue, const void *args, struct dtx_cpu_attn_shape s)
{
    struct dtx_cpu_attn_tiles job = {.args = args, .s = s};
    (void)queue;
    job.dp = dtx_round_up(s.d, TILE_WIDTH);
    job.dvp = dtx_round_up(s.dv, TILE_WIDTH);
    job.q_tiles = dtx_div_up(s.tq, TILE_Q);
    job.k_tiles = dtx_div_up(s.tk, TILE_K);
    job.packed_tile = (s.maps * job.dp + job.dvp) * TILE_K;
    return job;
}

static struct dtx_cpu_attn_tiles forward_tiles(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    struct dtx_cpu_attn_tiles job = tiles_of(
        queue, args,
        dtx_cpu_attn_shape(&args->q, &args->k, &args->v, args->maps, args->q_first, args->k_first, &args->doc_start));
    job.thread_elements = 2 * TILE_Q * (job.dp + 2 * TILE_K + job.dvp);
    int64_t packed = job.s.b * job.s.kv_heads * job.k_tiles * job.packed_tile;
    job.work_bytes = (size_t)(packed + queue->backend->threads * job.thread_elements) * sizeof(float);
    job.packed = args->work.data;
    if (job.packed)
        job.threads = (float *)job.packed + packed;
    return job;
}

static struct dtx_cpu_attn_tiles backward_tiles(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    struct dtx_cpu_attn_tiles job = tiles_of(
        queue, args,
        dtx_cpu_attn_shape(&args->q, &args->k, &args->v, args->maps, args->q_first, args->k_first, &args->doc_start));
    job.piece_tiles = dtx_max64(1, dtx_div_up(job.k_tiles, TILE_PIECES));
    job.pieces = dtx_div_up(job.k_tiles, job.piece_tiles);
    job.thread_elements = TILE_K * (4 * job.dvp + 10 * job.dp) + 8 * TILE_Q * TILE_K;
    int64_t dq = job.pieces * job.s.b * job.s.heads * job.s.maps * job.q_tiles * TILE_Q * job.dp;
    job.work_bytes = (size_t)(dq + queue->backend->threads * job.thread_elements) * sizeof(float);
    job.dq = args->work.data;
    if (job.dq)
        job.threads = (float *)job.dq + dq;
    return job;
}

size_t dtx_cpu_attn_fwd_work_bytes(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    return is_tiled(queue, args->q.dtype) ? forward_tiles(queue, args).work_bytes : 0;
}

enum dtx_status dtx_cpu_attn_fwd(struct dtx_queue *queue, const struct dtx_attn_fwd_args *args)
{
    const struct dtx_cpu_loops *loops = dtx_cpu_of(queue)->loops;
    enum dtx_dtype act = args->q.dtype;
    if (!is_tiled(queue, act)) {
        int64_t rows = args->q.dim[0] * args->q.dim[1] * (args->q.dim[2] / args->maps);
        dtx_cpu_parallel(queue, loops->attn_fwd[act], args, rows, 8);
        return DTX_OK;
    }
    /* Parts are fp32 results: probabilities are not rounded to bf16 for them. */
    if (args->parts)
        loops = dtx_cpu_of(queue)->wide_loops;
    struct dtx_cpu_attn_tiles job = forward_tiles(queue, args);
    DTX_TRY(queue->backend->ctx, dtx_need_work(queue, "attn_fwd", &args->work, job.work_bytes));
    dtx_cpu_parallel(queue, loops->attn_pack[act], &job, job.s.b * job.s.kv_heads * job.k_tiles, 1);
    dtx_cpu_parallel(queue, loops->attn_tiles_fwd[act], &job, job.s.b * job.s.heads * job.q_tiles, 1);
    return DTX_OK;
}

enum dtx_status dtx_cpu_attn_merge(struct dtx_queue *queue, const struct dtx_attn_merge_args *args)
{
    int64_t rows = args->o.dim[0] * args->o.dim[1] * args->o.dim[2];
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->attn_merge[args->o.dtype], args, rows, 8);
    return DTX_OK;
}

enum dtx_status dtx_cpu_attn_finish(struct dtx_queue *queue, const struct dtx_attn_finish_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->attn_finish[args->o.dtype], args, args->o.dim[0] * args->o.dim[1],
                     8);
    return DTX_OK;
}

enum dtx_status dtx_cpu_attn_dots(struct dtx_queue *queue, const struct dtx_attn_dots_args *args)
{
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->attn_dots[args->do_.dtype], args, args->do_.dim[2], 1);
    return DTX_OK;
}

size_t dtx_cpu_attn_bwd_work_bytes(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    return is_tiled(queue, args->q.dtype) ? backward_tiles(queue, args).work_bytes : 0;
}

enum dtx_status dtx_cpu_attn_bwd(struct dtx_queue *queue, const struct dtx_attn_bwd_args *args)
{
    const struct dtx_cpu_loops *loops = dtx_cpu_of(queue)->loops;
    enum dtx_dtype act = args->q.dtype;
    if (!is_tiled(queue, act)) {
        int64_t rows = args->q.dim[0] * args->q.dim[1] * (args->q.dim[2] / args->maps);
        int64_t keys = args->k.dim[0] * args->k.dim[1] * args->v.dim[2];
        dtx_cpu_parallel(queue, loops->attn_bwd_q[act], args, rows, 8);
        dtx_cpu_parallel(queue, loops->attn_bwd_kv[act], args, keys, 8);
        return DTX_OK;
    }
    if (args->parts) /* fp32 results, as in attn_fwd */
        loops = dtx_cpu_of(queue)->wide_loops;
    struct dtx_cpu_attn_tiles job = backward_tiles(queue, args);
    DTX_TRY(queue->backend->ctx, dtx_need_work(queue, "attn_bwd", &args->work, job.work_bytes));
    dtx_cpu_parallel(queue, loops->attn_tiles_bwd[act], &job, job.s.b * job.s.kv_heads * job.pieces, 1);
    dtx_cpu_parallel(queue, loops->attn_tiles_dq[act], &job, job.s.b * job.s.tq, 16);
    return DTX_OK;
}
