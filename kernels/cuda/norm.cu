/* rmsnorm_fwd, rmsnorm_bwd. A row belongs to a group of threads: a warp where rows are narrow, else a block. */
#include "kernels/cuda/impl.h"

static const int WIDE = 2048, MOST_BLOCKS = 1024, LEAST_ROWS = 16, SHARED_BYTES = 48 * 1024;

template <class T> struct norm_job {
    typedef typename dtx_wide<T>::type M;
    const T *dy, *x, *residual;
    const M *gain;
    T *out; /* y or dx */
    M *rstd, *partial;
    int64_t n, w, rows; /* rows: of one block of the sum for dgain */
    M eps, scale;
    bool aligned, shared; /* shared: the sum of a block is kept in shared memory */
};

template <class T, class M, bool WHOLE> DTX_KERNEL(THREADS, 1) rmsnorm_fwd_kernel(DTX_ARGUMENT(struct norm_job<T>) job)
{
    DTX_SHARED(M, scratch, WARP);
    int64_t row = group_index<WHOLE>();
    if (row >= job.n)
        return;
    const T *x = job.x + row * job.w;
    M squares = 0, v[PACK], gain[PACK];
    for (int64_t i = group_lane<WHOLE>() * PACK; i < job.w; i += group<WHOLE>::size * PACK) {
        load(x + i, job.w - i, job.aligned, v);
        for (int e = 0; e < PACK; e++)
            squares += v[e] * v[e];
    }
    M rstd = 1 / dtx_sqrt(group_sum<WHOLE>(squares, scratch) / (M)job.w + job.eps), factor = rstd * job.scale;
    if (group_lane<WHOLE>() == 0)
        job.rstd[row] = rstd;
    for (int64_t i = group_lane<WHOLE>() * PACK; i < job.w; i += group<WHOLE>::size * PACK) {
        load(x + i, job.w - i, job.aligned, v);
        for (int e = 0; e < PACK; e++)
            v[e] *= factor;
        if (job.gain) {
            load(job.gain + i, job.w - i, job.aligned, gain);
            for (int e = 0; e < PACK; e++)
                v[e] *= gain[e];
        }
        store(job.out + row * job.w + i, job.w - i, job.aligned, v);
    }
}

/* x̂ = x·rstd and e = out_scale·dy of PACK elements; into sum, if there is one, Σ e ⊙ x̂; then e ⊙= gain. */
template <class T, class M>
DTX_FN void norm_elements(const struct norm_job<T> &job, int64_t row, int64_t i, M rstd, M *sum, M (&xhat)[PACK],
                          M (&e)[PACK])
{
    int64_t left = job.w - i;
    M other[PACK];
    load(job.x + row * job.w + i, left, job.aligned, xhat);
    load(job.dy + row * job.w + i, left, job.aligned, e);
    for (int k = 0; k < PACK; k++) {
        xhat[k] *= rstd;
        e[k] *= job.scale;
    }
    if (sum) {
        load(sum + i, left, job.aligned, other);
        for (int k = 0; k < PACK; k++)
            other[k] += e[k] * xhat[k];
        store(sum + i, left, job.aligned, other);
    }
    if (job.gain) {
        load(job.gain + i, left, job.aligned, other);
        for (int k = 0; k < PACK; k++)
            e[k] *= other[k];
    }
}

/* A group: a block of rows, one after another; a thread has the same columns in each. With e = out_scale·gain ⊙ dy:
 * dx = rstd·(e − x̂·mean(e ⊙ x̂)), dgain += out_scale·Σ dy ⊙ x̂. */
template <class T, class M, bool WHOLE> DTX_KERNEL(THREADS, 1) rmsnorm_bwd_kernel(DTX_ARGUMENT(struct norm_job<T>) job)
{
    DTX_SHARED(M, scratch, WARP);
    DTX_SHARED_DYNAMIC(memory);
    int64_t block = group_index<WHOLE>(), first = block * job.rows;
    int64_t last = first + job.rows < job.n ? first + job.rows : job.n;
    int64_t start = group_lane<WHOLE>() * PACK;
    const int step = group<WHOLE>::size * PACK;
    if (first >= job.n)
        return;
    M *total = job.partial ? job.partial + block * job.w : NULL, *sum = total;
    if (total && job.shared)
        sum = (M *)memory + (WHOLE ? 0 : threadIdx.x / WARP) * job.w;
    M xhat[PACK], e[PACK], zero[PACK] = {0};
    for (int64_t i = start; sum && i < job.w; i += step)
        store(sum + i, job.w - i, job.aligned, zero);
    for (int64_t row = first; row < last; row++) {
        M rstd = job.rstd[row], dot = 0;
        for (int64_t i = start; i < job.w; i += step) {
            norm_elements(job, row, i, rstd, sum, xhat, e);
            for (int k = 0; k < PACK; k++)
                dot += e[k] * xhat[k];
        }
        M mean = group_sum<WHOLE>(dot, scratch) / (M)job.w;
        for (int64_t i = start; i < job.w; i += step) {
            norm_elements(job, row, i, rstd, (M *)NULL, xhat, e);
            for (int k = 0; k < PACK; k++)
                e[k] = (e[k] - xhat[k] * mean) * rstd;
            if (job.residual) {
                load(job.residual + row * job.w + i, job.w - i, job.aligned, xhat);
                for (int k = 0; k < PACK; k++)
                    e[k] += xhat[k];
            }
            store(job.out + row * job.w + i, job.w - i, job.aligned, e);
        }
    }
    for (int64_t i = start; sum != total && i < job.w; i += step) {
        load(sum + i, job.w - i, job.aligned, e);
        store(total + i, job.w - i, job.aligned, e);
    }
}

/* A thread: a column of dgain, to which the blocks' sums are added in order. */
template <class M> DTX_KERNEL(THREADS, 1) rmsnorm_dgain(const M *partial, int64_t blocks, int64_t w, M *dgain)
{
    int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    if (i >= w)
        return;
    M sum = dgain[i];
    for (int64_t block = 0; block < blocks - (DTX_MUTANT(cuda_dgain_last_block_lost) ? 1 : 0); block++)
        sum += partial[block * w + i];
    dgain[i] = sum;
}

template <class T> static norm_job<T> make_job(const struct dtx_tensor *x, const struct dtx_tensor *gain)
{
    norm_job<T> job = {};
    job.x = (const T *)x->data;
    job.gain = (const typename dtx_wide<T>::type *)gain->data;
    job.n = x->dim[0];
    job.w = x->dim[1];
    job.aligned = job.w % PACK == 0 && is_aligned(job.x) && is_aligned(job.gain);
    return job;
}

template <class T, class M>
static enum dtx_status forward(struct dtx_queue *queue, const struct dtx_rmsnorm_fwd_args *args)
{
    struct norm_job<T> job = make_job<T>(&args->x, &args->gain);
    job.out = (T *)args->y.data;
    job.rstd = (M *)args->rstd.data;
    job.eps = (M)args->eps;
    job.scale = (M)args->out_scale;
    job.aligned = job.aligned && is_aligned(job.out);
    if (job.w >= WIDE)
        return launch(queue, "rmsnorm_fwd", rmsnorm_fwd_kernel<T, M, true>, job.n, THREADS, 0, job);
    return launch(queue, "rmsnorm_fwd", rmsnorm_fwd_kernel<T, M, false>, dtx_div_up(job.n, group<false>::per_block),
                  THREADS, 0, job);
}

/* Rows of one block, by the number of rows alone. */
static int64_t block_rows(int64_t n)
{
    return dtx_max64(LEAST_ROWS, dtx_div_up(n, MOST_BLOCKS));
}

template <class T, class M>
static enum dtx_status backward(struct dtx_queue *queue, const struct dtx_rmsnorm_bwd_args *args)
{
    struct norm_job<T> job = make_job<T>(&args->x, &args->gain);
    job.dy = (const T *)args->dy.data;
    job.residual = (const T *)args->residual.data;
    job.out = (T *)args->dx.data;
    job.rstd = (M *)args->rstd.data;
    job.scale = (M)args->out_scale;
    job.rows = block_rows(job.n);
    job.partial = args->dgain.data ? (M *)args->work.data : NULL;
    job.aligned =
        job.aligned && is_aligned(job.dy) && is_aligned(job.residual) && is_aligned(job.out) && is_aligned(job.partial);
    int64_t blocks = dtx_div_up(job.n, job.rows), groups = job.w >= WIDE ? 1 : group<false>::per_block;
    int64_t bytes = job.partial ? groups * job.w * (int64_t)sizeof(M) : 0;
    job.shared = bytes <= SHARED_BYTES;
    size_t shared = job.shared ? (size_t)bytes : 0;
    enum dtx_status status =
        job.w >= WIDE ? launch(queue, "rmsnorm_bwd", rmsnorm_bwd_kernel<T, M, true>, blocks, THREADS, shared, job)
                      : launch(queue, "rmsnorm_bwd", rmsnorm_bwd_kernel<T, M, false>, dtx_div_up(blocks, groups),
                               THREADS, shared, job);
    if (status != DTX_OK || !job.partial)
        return status;
    return launch(queue, "rmsnorm_bwd", rmsnorm_dgain<M>, dtx_div_up(job.w, WARP), WARP, 0, (const M *)job.partial,
                  blocks, job.w, (M *)args->dgain.data);
}

enum dtx_status DTX_DEVICE(rmsnorm_fwd)(struct dtx_queue *queue, const struct dtx_rmsnorm_fwd_args *args)
{
#define CALL(T, M) forward<T, M>(queue, args)
    return BY_ACT(args->x.dtype, CALL);
#undef CALL
}

size_t DTX_DEVICE(rmsnorm_bwd_work_bytes)(struct dtx_queue *queue, const struct dtx_rmsnorm_bwd_args *args)
{
    (void)queue;
    /* The query may come before dgain has memory. */
    int64_t n = args->x.dim[0], blocks = dtx_div_up(n, block_rows(n));
    return (size_t)(blocks * args->x.dim[1]) * dtx_dtype_bytes(dtx_dtype_master(args->x.dtype));
}

enum dtx_status DTX_DEVICE(rmsnorm_bwd)(struct dtx_queue *queue, const struct dtx_rmsnorm_bwd_args *args)
{
    if (args->dgain.data)
        DTX_TRY(queue->backend->ctx,
                dtx_need_work(queue, "rmsnorm_bwd", &args->work, DTX_DEVICE(rmsnorm_bwd_work_bytes)(queue, args)));
#define CALL(T, M) backward<T, M>(queue, args)
    return BY_ACT(args->x.dtype, CALL);
#undef CALL
}
