/* `dtx bench comm`: the all-reduce that gradients and tensor-parallel sums go through, by size. */
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "launch/bench/bench.h"
#include "parallel/comm_nccl.h"

static const char usage[] =
    "usage: mpirun -n RANKS dtx bench comm [--largest BYTES] [--seconds S] [--json FILE]\n\n"
    "All-reduce (sum in rank order) of fp32 over all ranks, from 4 bytes on in steps of 16. A pass takes as long as "
    "its\n"
    "slowest rank. Payload: bytes of the tensor a second; sent: what each rank sends to the others, 2 (ranks - 1) /\n"
    "ranks of it, a second.\n";

static const struct dtx_opt_row rows[] = {
    {"largest", DTX_OPT_INT, "67108864", "4..", DTX_OPT_FREE, "bytes of the largest tensor"},
    {"seconds", DTX_OPT_REAL, "0.5", "0.001..60", DTX_OPT_FREE, "length of each size's measurement"},
    DTX_BENCH_COMMON_OPTIONS,
    {NULL, 0, NULL, NULL, 0, NULL}};

enum { SIZES = 16, STEP = 16, MAX_PASSES = 200, MIN_PASSES = 3 };

struct bench {
    struct dtx_comm *world, *between; /* what carries tensors of the backend */
    struct dtx_opt *opt;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_tensor tensor; /* f32, the largest size */
    struct dtx_bench_out out;
    int64_t bytes[SIZES];
    struct dtx_samples seconds[SIZES]; /* slowest rank of each pass */
    int n;
};

static enum dtx_status reduce(struct bench *b, const struct dtx_tensor *t, double *seconds)
{
    struct dtx_ctx *ctx = b->world->ctx;
    DTX_TRY(ctx, dtx_comm_barrier(b->world));
    double start = dtx_clock_now();
    DTX_TRY(ctx, dtx_comm_all_reduce_sum(b->between, b->queue, t));
    DTX_TRY(ctx, b->backend->queues->wait(b->queue));
    *seconds = dtx_clock_now() - start;
    struct dtx_tensor slowest = dtx_tensor_1d(seconds, DTX_F64, 1);
    return dtx_comm_all_reduce_max(b->world, NULL, &slowest);
}

/* Every rank runs the same number of passes: the slowest rank's first one decides. */
static enum dtx_status measure_size(struct bench *b, struct dtx_samples *samples, int64_t count)
{
    struct dtx_ctx *ctx = b->world->ctx;
    struct dtx_tensor t = dtx_tensor_rows(&b->tensor, 0, count);
    double first = 0, seconds, wanted = dtx_opt_real(b->opt, "seconds");
    for (int i = 0; i < 2; i++)
        DTX_TRY(ctx, reduce(b, &t, &first));
    int passes = first * MAX_PASSES < wanted ? MAX_PASSES : (int)(wanted / first);
    passes = passes < MIN_PASSES ? MIN_PASSES : passes;
    for (int i = 0; i < passes; i++) {
        DTX_TRY(ctx, reduce(b, &t, &seconds));
        dtx_samples_add(samples, seconds);
    }
    return DTX_OK;
}

static enum dtx_status measure(struct bench *b)
{
    struct dtx_ctx *ctx = b->world->ctx;
    int64_t largest = dtx_opt_int(b->opt, "largest") / 4;
    enum dtx_status status = b->backend->queues->create(b->backend, &b->queue);
    b->tensor = dtx_tensor_1d(NULL, DTX_F32, largest);
    if (status == DTX_OK)
        status = dtx_tensor_alloc(b->backend, &b->tensor); /* zeros: sums stay finite */
    DTX_TRY(ctx, dtx_comm_agree(b->world, status));
    for (int64_t count = 1; count <= largest && b->n < SIZES; b->n++) {
        b->bytes[b->n] = 4 * count;
        if (b->world->rank == 0)
            dtx_log(ctx, DTX_LOG_INFO, "all-reduce of %lld bytes", (long long)b->bytes[b->n]);
        DTX_TRY(ctx, measure_size(b, &b->seconds[b->n], count));
        count = count < largest ? dtx_min64(count * STEP, largest) : largest + 1;
    }
    return DTX_OK;
}

static enum dtx_status report(struct bench *b, int argc, char **argv)
{
    FILE *file = dtx_bench_table(&b->out);
    int ranks = b->world->size;
    double share = 2.0 * (ranks - 1) / ranks;
    json_t *root = dtx_bench_json(b->backend, ranks, "comm", argc, argv), *list = json_array();
    fprintf(file, "all-reduce of fp32 over %d ranks\n\n%12s %10s %10s %12s %12s\n", ranks, "bytes", "median", "least",
            "payload", "sent");
    for (int i = 0; i < b->n; i++) {
        double median = dtx_samples_median(&b->seconds[i]), speed = (double)b->bytes[i] / median;
        char time[32], low[32], payload[32], sent[32];
        dtx_report_seconds(median, time);
        dtx_report_seconds(dtx_samples_min(&b->seconds[i]), low);
        dtx_report_scaled(speed, "B/s", payload);
        dtx_report_scaled(share * speed, "B/s", sent);
        fprintf(file, "%12lld %*s %*s %12s %12s\n", (long long)b->bytes[i], strstr(time, "µ") ? 11 : 10, time,
                strstr(low, "µ") ? 11 : 10, low, payload, sent);
        json_array_append_new(list, json_pack("{s:I, s:o, s:f, s:f}", "bytes", (json_int_t)b->bytes[i], "seconds",
                                              dtx_samples_json(&b->seconds[i]), "bytes_per_second", speed,
                                              "sent_bytes_per_second", share * speed));
    }
    json_object_set_new(root, "all_reduce", list);
    return dtx_bench_out_write(b->world->ctx, &b->out, root);
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    struct dtx_ctx *ctx = b->world->ctx;
    bool root = b->world->rank == 0;
    if (b->world->size < 2)
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx bench comm needs two ranks or more: mpirun -n 2 dtx bench comm");
    enum dtx_status status = root ? dtx_bench_out_open(ctx, dtx_opt_text(b->opt, "json"), &b->out) : DTX_OK;
    DTX_TRY(ctx, dtx_comm_agree(b->world, status));
    status = dtx_bench_backend(ctx, b->opt, b->world->size, &b->backend);
    DTX_TRY(ctx, dtx_comm_agree(b->world, status));
    DTX_TRY(ctx, dtx_comm_nccl_create(b->world, b->backend, &b->between));
    DTX_TRY(ctx, measure(b));
    return dtx_comm_agree(b->world, root ? report(b, argc, argv) : DTX_OK);
}

enum dtx_status dtx_bench_comm(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done = false;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    enum dtx_status status = dtx_comm_open_world(ctx, &b->world);
    if (status == DTX_OK)
        status = dtx_bench_options(ctx, rows, usage, argc, argv, &b->opt, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    if (status == DTX_OK && b->between != b->world)
        dtx_comm_free(b->between);
    if (b->backend) {
        dtx_tensor_free(b->backend, &b->tensor);
        if (b->queue)
            b->backend->queues->free(b->queue);
    }
    dtx_backend_close(b->backend);
    dtx_opt_free(b->opt);
    status = dtx_comm_finish(b->world, status, DTX_COMM_GRACE);
    dtx_mem_free(b);
    return status;
}
