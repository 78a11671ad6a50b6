#include "kernels/peak.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

enum { MAX_RUNS = 1000, MIN_RUNS = 3 };

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small values of both signs: no product is trivial or subnormal. host: f64, f32 or bf16 [n,n]. */
static void fill(void *host, enum dtx_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double value = (double)(i * 37 % 113 - 56) / 113;
        if (dtype == DTX_F64)
            ((double *)host)[i] = value;
        else if (dtype == DTX_F32)
            ((float *)host)[i] = (float)value;
        else
            ((uint16_t *)host)[i] = dtx_f32_to_bf16((float)value);
    }
}

static enum dtx_status run_once(struct dtx_queue *queue, const struct dtx_matmul_args *args, double *seconds)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    double start = dtx_clock_now();
    DTX_TRY(ctx, dtx_matmul(queue, args));
    DTX_TRY(ctx, queue->backend->queues->wait(queue));
    *seconds = dtx_clock_now() - start;
    return DTX_OK;
}

/* The median time of a product; its tensors are allocated and filled. */
static enum dtx_status median_time(struct dtx_queue *queue, const struct dtx_matmul_args *args, double budget,
                                   double *median)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    double times[MAX_RUNS], spent = 0;
    int n = 0;
    DTX_TRY(ctx, run_once(queue, args, &times[0])); /* makes the library's kernels: not counted */
    while (n < MAX_RUNS && (n < MIN_RUNS || spent < budget)) {
        DTX_TRY(ctx, run_once(queue, args, &times[n]));
        spent += times[n++];
    }
    qsort(times, (size_t)n, sizeof *times, compare_doubles);
    *median = times[n / 2];
    return DTX_OK;
}

/* Allocates and fills the tensors of one size, and measures; the caller frees the tensors. */
static enum dtx_status measure_size(struct dtx_queue *queue, struct dtx_matmul_args *args, double budget,
                                    double *median)
{
    struct dtx_backend *backend = queue->backend;
    struct dtx_ctx *ctx = backend->ctx;
    struct dtx_tensor *inputs[] = {&args->a, &args->b};
    void *host = NULL;
    enum dtx_status status;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)dtx_tensor_bytes(&args->a), 1, &host));
    fill(host, args->a.dtype, dtx_tensor_count(&args->a));
    for (int i = 0; i < 2; i++) {
        DTX_TRY_GOTO(ctx, status, dtx_tensor_alloc(backend, inputs[i]), done);
        DTX_TRY_GOTO(ctx, status, dtx_tensor_set(queue, inputs[i], host), done);
    }
    DTX_TRY_GOTO(ctx, status, dtx_tensor_alloc(backend, &args->c), done);
    args->work = dtx_tensor_1d(NULL, DTX_U8, (int64_t)dtx_matmul_work_bytes(queue, args));
    if (args->work.dim[0] > 0)
        DTX_TRY_GOTO(ctx, status, dtx_tensor_alloc(backend, &args->work), done);
    DTX_TRY_GOTO(ctx, status, median_time(queue, args, budget, median), done);
done:
    dtx_mem_free(host);
    return status;
}

enum dtx_status dtx_peak_measure(struct dtx_ctx *ctx, struct dtx_backend *backend, enum dtx_dtype dtype, double seconds,
                                 double *flops_per_second)
{
    static const int64_t sizes[] = {512, 1024, 2048};
    int64_t times = strcmp(backend->name, "cuda") == 0 ? 2 : 1; /* 128 MiB then, beside the model */
    struct dtx_queue *queue;
    enum dtx_status status = DTX_OK;
    double best = 0, median = 0, start = dtx_clock_now();
    DTX_TRY(ctx, backend->queues->create(backend, &queue));
    for (int i = 0; i < 3 && status == DTX_OK; i++) {
        int64_t n = times * sizes[i];
        if (dtx_clock_now() - start + 8 * median * (1 + MIN_RUNS) > 2 * seconds)
            break; /* the plain path of f64, or a core shared by several ranks */
        struct dtx_matmul_args args = {.a = dtx_tensor_2d(NULL, dtype, n, n),
                                       .b = dtx_tensor_2d(NULL, dtype, n, n),
                                       .c = dtx_tensor_2d(NULL, dtx_dtype_master(dtype), n, n)};
        status = measure_size(queue, &args, seconds / 3, &median);
        struct dtx_tensor *tensors[] = {&args.a, &args.b, &args.c, &args.work};
        for (int j = 0; j < 4; j++)
            dtx_tensor_free(backend, tensors[j]);
        double speed = status == DTX_OK ? 2.0 * (double)n * (double)n * (double)n / median : 0;
        best = speed > best ? speed : best;
    }
    backend->queues->free(queue);
    DTX_TRY(ctx, status);
    *flops_per_second = best;
    return DTX_OK;
}
