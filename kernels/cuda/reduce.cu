/* add, sqnorm. */
#include "kernels/cuda/impl.h"

struct add_job {
    const void *x, *y;
    void *z;
    double alpha;
    int64_t n;
    bool x_narrow, y_narrow, z_narrow, aligned, stochastic;
};

/* A thread: PACK elements. */
template <class M> DTX_KERNEL(THREADS, 1) add_kernel(DTX_ARGUMENT(struct add_job) job)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PACK, left = job.n - i;
    if (left <= 0)
        return;
    M x[PACK], y[PACK] = {0};
    load_at<M>(job.x, job.x_narrow, i, left, job.aligned, x);
    if (job.y)
        load_at<M>(job.y, job.y_narrow, i, left, job.aligned, y);
    for (int e = 0; e < PACK; e++)
        x[e] = (M)job.alpha * x[e] + y[e];
    if (job.stochastic && job.z_narrow)
        round_all(x);
    store_at(job.z, job.z_narrow, i, left, job.aligned, x);
}

enum dtx_status DTX_DEVICE(add)(struct dtx_queue *queue, const struct dtx_add_args *args)
{
    struct add_job job = {.x = args->x.data,
                          .y = args->y.data,
                          .z = args->z.data,
                          .alpha = args->alpha,
                          .n = dtx_tensor_count(&args->x),
                          .x_narrow = args->x.dtype == DTX_BF16,
                          .y_narrow = args->y.dtype == DTX_BF16,
                          .z_narrow = args->z.dtype == DTX_BF16,
                          .stochastic = args->stochastic};
    job.aligned = is_aligned(job.x) && is_aligned(job.y) && is_aligned(job.z);
    int64_t blocks = dtx_div_up(job.n, THREADS * PACK);
    if (args->x.dtype == DTX_F64)
        return launch(queue, "add", add_kernel<double>, blocks, THREADS, 0, job);
    return launch(queue, "add", add_kernel<float>, blocks, THREADS, 0, job);
}

/* Blocks of sqnorm that one CUDA block sums, a thread each, and the elements of each that are brought in at once. */
static const int SQNORM_BLOCK = 1024, SQNORM_SIDE = 64, SQNORM_STEP = 32, SQNORM_ROWS = SQNORM_SIDE / SQNORM_STEP;

template <class M> DTX_KERNEL(THREADS, 1) sqnorm_blocks(const M *x, int64_t n, double *blocks)
{
    DTX_SHARED(M, tile, SQNORM_SIDE * (SQNORM_STEP + 1));
    int64_t first = (int64_t)blockIdx.x * SQNORM_SIDE;
    int thread = threadIdx.x, column = thread % SQNORM_STEP;
    const M *own = tile + thread * (SQNORM_STEP + 1);
    double sum = 0;
    for (int step = 0; step < SQNORM_BLOCK; step += SQNORM_STEP) {
        for (int row = thread / SQNORM_STEP; row < SQNORM_SIDE; row += SQNORM_ROWS) {
            int64_t i = (first + row) * SQNORM_BLOCK + step + column;
            tile[row * (SQNORM_STEP + 1) + column] = i < n ? x[i] : (M)0;
        }
        dtx_block_sync();
        for (int i = 0; i < SQNORM_STEP; i++)
            sum += (double)own[i] * (double)own[i];
        if (!DTX_MUTANT(cuda_sqnorm_sync))
            dtx_block_sync();
    }
    if ((first + thread) * SQNORM_BLOCK < n)
        blocks[first + thread] = sum;
}

/* One CUDA block; its first thread adds in order. */
DTX_KERNEL(THREADS, 1) sqnorm_total(const double *blocks, int64_t count, double *sum)
{
    DTX_SHARED(double, part, THREADS);
    double total = 0;
    for (int64_t first = 0; first < count; first += THREADS) {
        int64_t i = first + threadIdx.x;
        part[threadIdx.x] = i < count ? blocks[i] : 0;
        dtx_block_sync();
        for (int e = 0; threadIdx.x == 0 && e < THREADS; e++)
            total += part[e];
        dtx_block_sync();
    }
    if (threadIdx.x == 0)
        *sum = total;
}

enum dtx_status DTX_DEVICE(sqnorm)(struct dtx_queue *queue, const struct dtx_sqnorm_args *args)
{
    int64_t n = args->x.dim[0], count = args->blocks.dim[0];
    double *blocks = (double *)args->blocks.data;
    int64_t grid = dtx_div_up(count, SQNORM_SIDE);
    enum dtx_status status = args->x.dtype == DTX_F64 ? launch(queue, "sqnorm", sqnorm_blocks<double>, grid,
                                                               SQNORM_SIDE, 0, (const double *)args->x.data, n, blocks)
                                                      : launch(queue, "sqnorm", sqnorm_blocks<float>, grid, SQNORM_SIDE,
                                                               0, (const float *)args->x.data, n, blocks);
    DTX_TRY(queue->backend->ctx, status);
    return launch(queue, "sqnorm", sqnorm_total, 1, THREADS, 0, (const double *)blocks, count,
                  (double *)args->sum.data);
}
