/*
 * matmul without a library: for f64, for shapes that cuBLASLt refuses, and where there is no cuBLASLt. A block makes a
 * tile of c and walks along k in order, so an element depends neither on m nor on anything but its row and column.
 * Also what cuBLASLt leaves to do: the largest |c|.
 */
#include "kernels/cuda/impl.h"
#include "kernels/cuda/lt.h"

/* A block of THREADS makes TILE × TILE elements, a thread SIDE × SIDE of them, STEP of k at once. */
static const int TILE = 64, SIDE = 4, STEP = 16, COLUMNS = TILE / SIDE, AMAX_EACH = 4096;

template <class M> struct product_job {
    const void *a, *b;
    void *c;
    const M *scale; /* absent: 1 */
    int64_t m, n, k, row_tiles;
    bool transpose_a, transpose_b, accumulate, bf16; /* bf16: c */
};

/* Elements [row, row + TILE) × [at, at + STEP) of op(x), a row after another in `tile`, 0 outside. Neighbouring
 * threads read neighbouring addresses. transpose: x is [k,rows], else [rows,k]. */
template <class T, class M>
DTX_FN void bring(const T *x, bool transpose, int64_t rows, int64_t k, int64_t row, int64_t at, M *tile)
{
    for (int i = threadIdx.x; i < TILE * STEP; i += THREADS) {
        int r = transpose ? i % TILE : i / STEP, c = transpose ? i / TILE : i % STEP;
        bool inside = row + r < rows && at + c < k;
        int64_t from = transpose ? (at + c) * rows + row + r : (row + r) * k + at + c;
        tile[c * (TILE + 1) + r] = inside ? (M)dtx_load(x + from) : (M)0;
    }
}

template <class T, class M> DTX_KERNEL(THREADS, 1) product_kernel(DTX_ARGUMENT(struct product_job<M>) job)
{
    DTX_SHARED(M, a, STEP * (TILE + 1));
    DTX_SHARED(M, b, STEP * (TILE + 1));
    int64_t row = blockIdx.x % job.row_tiles * TILE, column = blockIdx.x / job.row_tiles * TILE;
    int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS; /* rows r, r + COLUMNS, … of the tile */
    M sum[SIDE][SIDE] = {};
    for (int64_t at = 0; at < job.k; at += STEP) {
        bring((const T *)job.a, job.transpose_a, job.m, job.k, row, at, a);
        bring((const T *)job.b, !job.transpose_b, job.n, job.k, column, at, b);
        dtx_block_sync();
        for (int k = 0; k < STEP; k++) {
            M x[SIDE], y[SIDE];
            DTX_UNROLL for (int i = 0; i < SIDE; i++)
            {
                x[i] = a[k * (TILE + 1) + r + i * COLUMNS];
                y[i] = b[k * (TILE + 1) + c + i * COLUMNS];
            }
            DTX_UNROLL for (int i = 0; i < SIDE; i++)
            {
                DTX_UNROLL for (int j = 0; j < SIDE; j++) sum[i][j] += x[i] * y[j];
            }
        }
        if (!DTX_MUTANT(cuda_matmul_sync))
            dtx_block_sync();
    }
    M scale = job.scale ? *job.scale : (M)1;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            int64_t y = row + r + i * COLUMNS, x = column + c + j * COLUMNS, at = y * job.n + x;
            if (y >= job.m || x >= job.n)
                continue;
            M value = sum[i][j] * scale;
            if (sizeof(T) < sizeof(M) && job.bf16) {
                T *to = (T *)job.c + at;
                dtx_store(to, job.accumulate ? value + (M)dtx_load(to) : value);
            } else {
                M *to = (M *)job.c + at;
                *to = job.accumulate ? value + *to : value;
            }
        }
}

/* The largest |c| of a block's share into partial[block]; a NaN is larger than all. */
template <class T, class M> DTX_KERNEL(THREADS, 1) amax_kernel(const T *c, int64_t n, M *partial)
{
    DTX_SHARED(M, scratch, WARP);
    M most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        M value = dtx_load(c + i);
        value = value < 0 ? -value : value;
        most = value > most || value != value ? value : most;
    }
    most = dtx_block_max(most, scratch);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = most;
}

static int64_t amax_blocks(const struct dtx_tensor *c)
{
    return dtx_min64(LT_LARGEST_PARTS, dtx_div_up(dtx_tensor_count(c), AMAX_EACH));
}

template <class T, class M> static enum dtx_status product(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    product_job<M> job = {.a = args->a.data,
                          .b = args->b.data,
                          .c = args->c.data,
                          .scale = (const M *)args->scale.data,
                          .m = args->c.dim[0],
                          .n = args->c.dim[1],
                          .k = args->a.dim[args->transpose_a ? 0 : 1],
                          .row_tiles = dtx_div_up(args->c.dim[0], TILE),
                          .transpose_a = args->transpose_a,
                          .transpose_b = args->transpose_b,
                          .accumulate = args->accumulate,
                          .bf16 = args->c.dtype == DTX_BF16};
    return launch(queue, "matmul", product_kernel<T, M>, job.row_tiles * dtx_div_up(job.n, TILE), THREADS, 0, job);
}

template <class T, class M>
static enum dtx_status amax(struct dtx_queue *queue, const struct dtx_tensor *c, M *partial, M *out)
{
    int64_t n = dtx_tensor_count(c), blocks = amax_blocks(c);
    DTX_TRY(queue->backend->ctx,
            launch(queue, "matmul", amax_kernel<T, M>, blocks, THREADS, 0, (const T *)c->data, n, partial));
    return launch(queue, "matmul", amax_kernel<M, M>, 1, THREADS, 0, (const M *)partial, blocks, out);
}

enum dtx_status DTX_DEVICE(largest)(struct dtx_queue *queue, const struct dtx_tensor *x, void *partial, void *out)
{
    if (x->dtype == DTX_F64)
        return amax<double>(queue, x, (double *)partial, (double *)out);
    if (x->dtype == DTX_F32)
        return amax<float>(queue, x, (float *)partial, (float *)out);
    return amax<dtx_bf16>(queue, x, (float *)partial, (float *)out);
}

enum dtx_status DTX_DEVICE(own_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
#define CALL(T, M) product<T, M>(queue, args)
    return BY_ACT(args->a.dtype, CALL);
#undef CALL
}

static size_t library_bytes(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    return args->fp8 ? DTX_DEVICE(fp8_work_bytes)(queue, args) : DTX_DEVICE(lt_work_bytes)(queue, args);
}

/* Workspace: cuBLASLt's or fp8's, then the parts of amax. */
size_t DTX_DEVICE(matmul_work_bytes)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    int64_t parts = args->amax.data ? amax_blocks(&args->c) : 0;
    return library_bytes(queue, args) + (size_t)parts * dtx_dtype_bytes(dtx_dtype_master(args->c.dtype));
}

enum dtx_status DTX_DEVICE(matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    bool done = false;
    DTX_TRY(ctx, dtx_need_work(queue, "matmul", &args->work, DTX_DEVICE(matmul_work_bytes)(queue, args)));
    if (args->fp8) {
        DTX_TRY(ctx, DTX_DEVICE(fp8_matmul)(queue, args));
    } else {
        DTX_TRY(ctx, DTX_DEVICE(lt_matmul)(queue, args, &done));
        if (!done)
            DTX_TRY(ctx, DTX_DEVICE(own_matmul)(queue, args));
    }
    if (!args->amax.data)
        return DTX_OK;
    return DTX_DEVICE(largest)(queue, &args->c, (char *)args->work.data + library_bytes(queue, args), args->amax.data);
}
