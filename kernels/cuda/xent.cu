/* xent_max, xent_sum, xent_bwd: a block for a row. A thread has the same columns each time: dlogits may be logits. */
#include "kernels/cuda/impl.h"

/* Columns from `valid` on count for nothing; nor does NaN, which the sum will show. */
template <class M> DTX_KERNEL(THREADS, 1) xent_max_kernel(const M *logits, int64_t columns, int64_t valid, M *max)
{
    DTX_SHARED(M, scratch, WARP);
    const M *x = logits + (int64_t)blockIdx.x * columns;
    bool aligned = columns % PACK == 0 && ((uintptr_t)logits & 15) == 0;
    M most = (M)-INFINITY, v[PACK];
    for (int64_t i = threadIdx.x * PACK; i < valid; i += THREADS * PACK) {
        load(x + i, valid - i, aligned, v);
        for (int e = 0; e < PACK; e++)
            if (i + e < valid && v[e] > most)
                most = v[e];
    }
    most = dtx_block_max(most, scratch);
    if (threadIdx.x == 0)
        max[blockIdx.x] = most;
}

template <class M> struct xent_job {
    const M *logits, *max, *scale;
    M *sums;
    const int32_t *targets;
    double *loss;
    void *dlogits;
    int64_t columns, first, valid;
    bool bf16, aligned; /* dlogits is bf16 */
};

/* The column of the row's target, or −1 when it has none here. */
template <class M> DTX_FN int64_t target_column(const struct xent_job<M> &job, int64_t row)
{
    int64_t target = job.targets[row], column = target - job.first;
    return target >= 0 && column >= 0 && column < job.valid ? column : -1;
}

template <class M> DTX_KERNEL(THREADS, 1) xent_sum_kernel(DTX_ARGUMENT(struct xent_job<M>) job)
{
    DTX_SHARED(M, scratch, WARP);
    int64_t row = blockIdx.x, valid = DTX_MUTANT(cuda_xent_padded_column) ? job.columns : job.valid;
    const M *x = job.logits + row * job.columns;
    M most = job.max[row], sum = 0, v[PACK];
    for (int64_t i = threadIdx.x * PACK; i < valid; i += THREADS * PACK) {
        load(x + i, valid - i, job.aligned, v);
        for (int e = 0; e < PACK; e++)
            sum += i + e < valid ? dtx_exp(v[e] - most) : (M)0;
    }
    sum = dtx_block_sum(sum, scratch);
    if (threadIdx.x != 0)
        return;
    int64_t column = target_column(job, row);
    job.sums[2 * row] = sum;
    job.sums[2 * row + 1] = column < 0 ? (M)0 : x[column];
}

template <class M> DTX_KERNEL(THREADS, 1) xent_bwd_kernel(DTX_ARGUMENT(struct xent_job<M>) job)
{
    int64_t row = blockIdx.x, target = job.targets[row], column = target_column(job, row);
    const M *x = job.logits + row * job.columns;
    M most = job.max[row], total = job.sums[2 * row], scale = *job.scale, factor = scale / total, v[PACK];
    if (threadIdx.x == 0)
        job.loss[row] = target < 0 ? 0 : log((double)total) + ((double)most - (double)job.sums[2 * row + 1]);
    if (!job.dlogits)
        return;
    for (int64_t i = threadIdx.x * PACK; i < job.columns; i += THREADS * PACK) {
        int64_t left = job.columns - i;
        load(x + i, left, job.aligned, v);
        for (int e = 0; e < PACK; e++) {
            M p = dtx_exp(v[e] - most);
            v[e] = target < 0 || i + e >= job.valid ? (M)0 : i + e == column ? (p / total - 1) * scale : p * factor;
        }
        store_at(job.dlogits, job.bf16, row * job.columns + i, left, job.aligned, v);
    }
}

template <class M> static enum dtx_status max_of(struct dtx_queue *queue, const struct dtx_xent_max_args *args)
{
    return launch(queue, "xent_max", xent_max_kernel<M>, args->logits.dim[0], THREADS, 0, (const M *)args->logits.data,
                  args->logits.dim[1], args->valid, (M *)args->max.data);
}

template <class M> static xent_job<M> make_job(const struct dtx_tensor *logits, const struct dtx_tensor *targets)
{
    xent_job<M> job = {};
    job.logits = (const M *)logits->data;
    job.targets = (const int32_t *)targets->data;
    job.columns = logits->dim[1];
    job.aligned = job.columns % PACK == 0 && is_aligned(job.logits);
    return job;
}

template <class M> static enum dtx_status sum(struct dtx_queue *queue, const struct dtx_xent_sum_args *args)
{
    struct xent_job<M> job = make_job<M>(&args->logits, &args->targets);
    job.max = (const M *)args->max.data;
    job.sums = (M *)args->sums.data;
    job.first = args->first;
    job.valid = args->valid;
    return launch(queue, "xent_sum", xent_sum_kernel<M>, args->logits.dim[0], THREADS, 0, job);
}

template <class M> static enum dtx_status backward(struct dtx_queue *queue, const struct dtx_xent_bwd_args *args)
{
    struct xent_job<M> job = make_job<M>(&args->logits, &args->targets);
    job.max = (const M *)args->max.data;
    job.sums = (M *)args->sums.data;
    job.scale = (const M *)args->scale.data;
    job.loss = (double *)args->loss.data;
    job.dlogits = args->dlogits.data;
    job.bf16 = args->dlogits.dtype == DTX_BF16;
    job.first = args->first;
    job.valid = args->valid;
    job.aligned = job.aligned && is_aligned(job.dlogits);
    return launch(queue, "xent_bwd", xent_bwd_kernel<M>, args->logits.dim[0], THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(xent_max)(struct dtx_queue *queue, const struct dtx_xent_max_args *args)
{
    return args->logits.dtype == DTX_F64 ? max_of<double>(queue, args) : max_of<float>(queue, args);
}

enum dtx_status DTX_DEVICE(xent_sum)(struct dtx_queue *queue, const struct dtx_xent_sum_args *args)
{
    return args->logits.dtype == DTX_F64 ? sum<double>(queue, args) : sum<float>(queue, args);
}

enum dtx_status DTX_DEVICE(xent_bwd)(struct dtx_queue *queue, const struct dtx_xent_bwd_args *args)
{
    return args->logits.dtype == DTX_F64 ? backward<double>(queue, args) : backward<float>(queue, args);
}
