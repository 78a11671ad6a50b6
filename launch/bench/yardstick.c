/* The peak that everything is compared with: the products of kernels/peak.h, but spread over the whole bench. */
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/bench/bench.h"

enum { TRIAD = 1 << 23 };  /* elements: 64 MiB an array */
enum { ROUND = 16 };       /* samples of one size at a time, so that many rounds fit */
enum { COPY = 512 << 20 }; /* bytes */
static const int64_t host_sizes[DTX_YARDSTICK_SIZES] = {512, 1024, 2048};

struct dtx_yardstick {
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    enum dtx_bench_clock clock;
    int64_t sizes[DTX_YARDSTICK_SIZES];
    struct dtx_matmul_args product[DTX_YARDSTICK_SIZES]; /* views of the largest one's memory */
    struct dtx_tensor a, b, c, work;
    struct dtx_samples speed[DTX_YARDSTICK_SIZES]; /* FLOP/s */
    struct dtx_samples triad;                      /* or of copies; bytes/s */
};

/* Small values of both signs: no product is trivial or subnormal. */
static enum dtx_status fill(struct dtx_yardstick *y, const struct dtx_tensor *t)
{
    struct dtx_ctx *ctx = y->backend->ctx;
    int64_t n = dtx_tensor_count(t);
    void *host;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, dtx_dtype_bytes(t->dtype), &host));
    for (int64_t i = 0; i < n; i++) {
        double value = (double)(i * 37 % 113 - 56) / 113;
        if (t->dtype == DTX_F64)
            ((double *)host)[i] = value;
        else if (t->dtype == DTX_F32)
            ((float *)host)[i] = (float)value;
        else
            ((uint16_t *)host)[i] = dtx_f32_to_bf16((float)value);
    }
    enum dtx_status status = dtx_tensor_set(y->queue, t, host);
    dtx_mem_free(host);
    return status;
}

static enum dtx_status allocate(struct dtx_yardstick *y, enum dtx_dtype dtype)
{
    struct dtx_ctx *ctx = y->backend->ctx;
    bool gpu = strcmp(y->backend->name, "cuda") == 0; /* the emulated one is slower than the CPU */
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++)
        y->sizes[i] = host_sizes[i] * (gpu ? 4 : 1);
    const int64_t *sizes = y->sizes;
    int64_t n = sizes[DTX_YARDSTICK_SIZES - 1];
    size_t work = 0;
    DTX_TRY(ctx, y->backend->queues->create(y->backend, &y->queue));
    y->a = y->b = dtx_tensor_2d(NULL, dtype, n, n);
    y->c = dtx_tensor_2d(NULL, dtx_dtype_master(dtype), n, n);
    struct dtx_tensor *all[] = {&y->a, &y->b, &y->c, &y->work};
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++) {
        y->product[i] = (struct dtx_matmul_args){.a = dtx_tensor_2d(NULL, dtype, sizes[i], sizes[i]),
                                                 .b = dtx_tensor_2d(NULL, dtype, sizes[i], sizes[i]),
                                                 .c = dtx_tensor_2d(NULL, y->c.dtype, sizes[i], sizes[i])};
        size_t bytes = dtx_matmul_work_bytes(y->queue, &y->product[i]);
        work = bytes > work ? bytes : work;
    }
    y->work = dtx_tensor_1d(NULL, DTX_U8, (int64_t)work);
    for (int i = 0; i < (work ? 4 : 3); i++)
        DTX_TRY(ctx, dtx_tensor_alloc(y->backend, all[i]));
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++) {
        y->product[i].a.data = y->a.data;
        y->product[i].b.data = y->b.data;
        y->product[i].c.data = y->c.data;
        y->product[i].work = y->work;
    }
    DTX_TRY(ctx, fill(y, &y->a));
    return fill(y, &y->b);
}

enum dtx_status dtx_yardstick_open(struct dtx_backend *backend, enum dtx_dtype dtype, enum dtx_bench_clock clock,
                                   struct dtx_yardstick **out)
{
    void *memory;
    DTX_TRY(backend->ctx, dtx_mem_alloc(backend->ctx, 1, sizeof(struct dtx_yardstick), &memory));
    struct dtx_yardstick *y = memory;
    y->backend = backend;
    y->clock = clock;
    enum dtx_status status = allocate(y, dtype);
    if (status != DTX_OK) {
        dtx_yardstick_close(y);
        return status;
    }
    *out = y;
    return DTX_OK;
}

void dtx_yardstick_close(struct dtx_yardstick *y)
{
    if (!y)
        return;
    struct dtx_tensor *all[] = {&y->a, &y->b, &y->c, &y->work};
    for (int i = 0; i < 4; i++)
        dtx_tensor_free(y->backend, all[i]);
    if (y->queue)
        y->backend->queues->free(y->queue);
    dtx_mem_free(y);
}

static double flops_of(const struct dtx_yardstick *y, int i)
{
    return 2.0 * (double)y->sizes[i] * (double)y->sizes[i] * (double)y->sizes[i];
}

static enum dtx_status run_product(struct dtx_yardstick *y, int i, double *seconds)
{
    struct dtx_ctx *ctx = y->backend->ctx;
    double start;
    DTX_TRY(ctx, dtx_bench_begin(y->queue, y->clock, &start));
    DTX_TRY(ctx, dtx_matmul(y->queue, &y->product[i]));
    return dtx_bench_end(y->queue, y->clock, start, seconds);
}

enum dtx_status dtx_yardstick_products(struct dtx_yardstick *y, double seconds)
{
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++) {
        if (i > 0 && 8 * flops_of(y, i - 1) / dtx_samples_median(&y->speed[i - 1]) > 4 * seconds)
            break;
        double start = dtx_bench_now(y->clock), time;
        if (y->speed[i].n == 0) /* the first makes the library's kernels: not counted */
            DTX_TRY(y->backend->ctx, run_product(y, i, &time));
        for (int k = 0; k < ROUND && (k == 0 || dtx_bench_now(y->clock) - start < seconds / DTX_YARDSTICK_SIZES); k++) {
            DTX_TRY(y->backend->ctx, run_product(y, i, &time));
            dtx_samples_add(&y->speed[i], flops_of(y, i) / time);
        }
    }
    return DTX_OK;
}

/* a = b + 3c over arrays beyond the caches, 24 bytes an element as STREAM counts; each thread has its own part. */
static void triad(double *a, const double *b, const double *c, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < TRIAD; i++)
        a[i] = b[i] + 3 * c[i];
}

/* Reads and writes of the device's memory. */
static enum dtx_status copies(struct dtx_yardstick *y, double seconds)
{
    struct dtx_ctx *ctx = y->backend->ctx;
    struct dtx_tensor both = dtx_tensor_2d(NULL, DTX_U8, 2, COPY);
    DTX_TRY(ctx, dtx_tensor_alloc(y->backend, &both));
    char *from = both.data;
    enum dtx_status status = DTX_OK;
    double begin = dtx_bench_now(y->clock), start, time = 0;
    for (int i = 0; status == DTX_OK && (i < 2 || dtx_bench_now(y->clock) - begin < seconds); i++) {
        status = dtx_bench_begin(y->queue, y->clock, &start);
        if (status == DTX_OK)
            status = y->backend->memory->copy(y->queue, from + COPY, from, COPY);
        if (status == DTX_OK)
            status = dtx_bench_end(y->queue, y->clock, start, &time);
        if (status == DTX_OK && i > 0) /* the first is not counted */
            dtx_samples_add(&y->triad, 2.0 * COPY / time);
    }
    dtx_tensor_free(y->backend, &both);
    return status;
}

enum dtx_status dtx_yardstick_triad(struct dtx_yardstick *y, double seconds)
{
    if (y->clock == DTX_BENCH_DEVICE)
        return copies(y, seconds);
    int threads = y->backend->threads;
    void *memory;
    DTX_TRY(y->backend->ctx, dtx_mem_alloc(y->backend->ctx, 3 * (int64_t)TRIAD, sizeof(double), &memory));
    double *a = memory, *b = a + TRIAD, *c = b + TRIAD, start = dtx_bench_now(y->clock);
    triad(a, b, c, threads); /* not counted: pages come */
    do {
        double t = dtx_bench_now(y->clock);
        triad(a, b, c, threads);
        dtx_samples_add(&y->triad, 24.0 * TRIAD / (dtx_bench_now(y->clock) - t));
    } while (dtx_bench_now(y->clock) - start < seconds);
    dtx_mem_free(memory);
    return DTX_OK;
}

double dtx_yardstick_flops(const struct dtx_yardstick *y)
{
    double best = 0;
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++) {
        double speed = dtx_samples_median(&y->speed[i]);
        best = speed > best || DTX_MUTANT(bench_peak_of_last_size) ? speed : best;
    }
    return best;
}

double dtx_yardstick_bytes(const struct dtx_yardstick *y)
{
    return dtx_samples_median(&y->triad);
}

enum dtx_status dtx_yardstick_gather(const struct dtx_yardstick *y, struct dtx_comm *world, double *flops,
                                     double *bytes)
{
    struct dtx_ctx *ctx = world->ctx;
    double mine[2] = {dtx_yardstick_flops(y), dtx_yardstick_bytes(y)}, *all;
    void *memory;
    *flops = *bytes = 0;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, world->size, sizeof mine, &memory));
    all = memory;
    enum dtx_status status = dtx_comm_gather_bytes(world, mine, sizeof mine, all);
    for (int r = 0; r < world->size && status == DTX_OK; r++) {
        *flops += all[2 * r];
        *bytes += all[2 * r + 1];
    }
    dtx_mem_free(memory);
    return status;
}

json_t *dtx_yardstick_json(const struct dtx_yardstick *y, double flops, double bytes)
{
    json_t *products = json_array();
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++)
        json_array_append_new(products, json_pack("{s:I, s:o}", "n", (json_int_t)y->sizes[i], "flops_per_second",
                                                  dtx_samples_json(&y->speed[i])));
    json_t *peak = json_pack("{s:f, s:o}", "flops_per_second", flops, "products", products);
    if (bytes > 0)
        json_object_set_new(peak, y->clock == DTX_BENCH_DEVICE ? "copy_bytes_per_second" : "triad_bytes_per_second",
                            json_real(bytes));
    return peak;
}

void dtx_yardstick_print(const struct dtx_yardstick *y, double flops, double bytes, FILE *file)
{
    char text[32];
    dtx_report_scaled(flops, "FLOP/s", text);
    fprintf(file, "peak        %s; products of this rank:", text);
    for (int i = 0; i < DTX_YARDSTICK_SIZES; i++) {
        if (y->speed[i].n == 0)
            continue;
        dtx_report_scaled(dtx_samples_median(&y->speed[i]), "FLOP/s", text);
        fprintf(file, "%s n = %lld %s", i ? "," : "", (long long)y->sizes[i], text);
    }
    fprintf(file, "\n");
    if (bytes > 0) {
        dtx_report_scaled(bytes, "B/s", text);
        fprintf(file, "memory      %s (%s)\n", text, y->clock == DTX_BENCH_DEVICE ? "copy" : "triad");
    }
}
