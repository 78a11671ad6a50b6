#include "launch/bench/tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"

enum { FLUSH_LEAST = 32 << 20, FLUSH_MOST = 128 << 20 }; /* some systems tell the cache of all sockets */
static const double yardstick_seconds = 0.15;

struct dtx_tap {
    struct dtx_op_table table; /* first: the backend's pointer to it is the way back to the tap */
    const struct dtx_op_table *inner;
    struct dtx_backend *backend;
    struct dtx_yardstick *yardstick;
    enum dtx_bench_clock clock;
    int repeats, n;
    bool paused;          /* calls pass through uncounted */
    unsigned char *flush; /* [flush_bytes], larger than the caches, where the clock is; NULL without repeats */
    int64_t flush_bytes;
    struct dtx_tap_row rows[DTX_TAP_ROWS]; /* the last one takes what finds no room */
};

static struct dtx_tap *tap_of(struct dtx_queue *queue)
{
    return (struct dtx_tap *)(uintptr_t)queue->backend->ops;
}

static struct dtx_tap_row *find_row(struct dtx_tap *tap, const char *op, const struct dtx_cost *cost)
{
    for (int i = 0; i < tap->n; i++)
        if (tap->rows[i].op == op && strcmp(tap->rows[i].each.shape, cost->shape) == 0)
            return &tap->rows[i];
    if (tap->n == DTX_TAP_ROWS)
        return &tap->rows[DTX_TAP_ROWS - 1];
    struct dtx_tap_row *row = &tap->rows[tap->n++];
    row->op = op;
    row->each = *cost;
    return row;
}

static enum dtx_status flush_caches(struct dtx_tap *tap, struct dtx_queue *queue)
{
    if (tap->clock == DTX_BENCH_DEVICE)
        return tap->backend->memory->zero(queue, tap->flush, (size_t)tap->flush_bytes);
    for (int64_t i = 0; i < tap->flush_bytes; i += 64)
        tap->flush[i]++;
    return DTX_OK;
}

static enum dtx_status measure_peak(struct dtx_tap *tap)
{
    tap->paused = true;
    enum dtx_status status = dtx_yardstick_products(tap->yardstick, yardstick_seconds);
    tap->paused = false;
    return status;
}

/* One call through the tap. `call` and `args` are of one operation. */
#define DTX_OP(name)                                                                                                   \
    static enum dtx_status call_##name(struct dtx_tap *tap, struct dtx_queue *queue,                                   \
                                       const struct dtx_##name##_args *args, double *seconds)                          \
    {                                                                                                                  \
        double start;                                                                                                  \
        DTX_TRY(tap->backend->ctx, dtx_bench_begin(queue, tap->clock, &start));                                        \
        DTX_TRY(tap->backend->ctx, tap->inner->name(queue, args));                                                     \
        return dtx_bench_end(queue, tap->clock, start, seconds);                                                       \
    }                                                                                                                  \
    static enum dtx_status tap_##name(struct dtx_queue *queue, const struct dtx_##name##_args *args)                   \
    {                                                                                                                  \
        struct dtx_tap *tap = tap_of(queue);                                                                           \
        if (tap->paused)                                                                                               \
            return tap->inner->name(queue, args);                                                                      \
        struct dtx_cost cost = dtx_cost_##name(args);                                                                  \
        struct dtx_tap_row *row = find_row(tap, #name, &cost);                                                         \
        double seconds;                                                                                                \
        DTX_TRY(tap->backend->ctx, call_##name(tap, queue, args, &seconds));                                           \
        row->seconds += seconds;                                                                                       \
        if (row->calls++ == 0 && tap->repeats > 0 && tap->yardstick && row->each.flops > 0)                            \
            DTX_TRY(tap->backend->ctx, measure_peak(tap));                                                             \
        for (int i = 0; i < tap->repeats && row->calls == 1; i++) {                                                    \
            DTX_TRY(tap->backend->ctx, flush_caches(tap, queue));                                                      \
            DTX_TRY(tap->backend->ctx, call_##name(tap, queue, args, &seconds));                                       \
            dtx_samples_add(&row->repeats, seconds);                                                                   \
        }                                                                                                              \
        return DTX_OK;                                                                                                 \
    }
#define DTX_OP_WORK(name) DTX_OP(name)
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK

static void fill_table(struct dtx_tap *tap)
{
    tap->table = *tap->inner; /* the workspace queries stay */
#define DTX_OP(name)      tap->table.name = tap_##name;
#define DTX_OP_WORK(name) DTX_OP(name)
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK
}

enum dtx_status dtx_tap_open(struct dtx_backend *backend, enum dtx_bench_clock clock, int repeats,
                             struct dtx_yardstick *yardstick, struct dtx_tap **out)
{
    void *memory;
    DTX_TRY(backend->ctx, dtx_mem_alloc(backend->ctx, 1, sizeof(struct dtx_tap), &memory));
    struct dtx_tap *tap = memory;
    tap->backend = backend;
    tap->inner = backend->ops;
    tap->clock = clock;
    tap->repeats = repeats;
    tap->yardstick = yardstick;
    if (repeats > 0) {
        bool device = clock == DTX_BENCH_DEVICE;
        tap->flush_bytes = dtx_max64(FLUSH_LEAST, dtx_min64(2 * sysconf(_SC_LEVEL3_CACHE_SIZE), FLUSH_MOST));
        tap->flush_bytes = device ? FLUSH_MOST : tap->flush_bytes;
        enum dtx_status status = device ? backend->memory->alloc(backend, (size_t)tap->flush_bytes, &memory)
                                        : dtx_mem_alloc(backend->ctx, tap->flush_bytes, 1, &memory);
        if (status != DTX_OK) {
            dtx_mem_free(tap);
            return status;
        }
        tap->flush = memory;
    }
    fill_table(tap);
    backend->ops = &tap->table;
    *out = tap;
    return DTX_OK;
}

void dtx_tap_close(struct dtx_tap *tap)
{
    if (!tap)
        return;
    tap->backend->ops = tap->inner;
    if (tap->clock == DTX_BENCH_DEVICE)
        tap->backend->memory->free(tap->backend, tap->flush);
    else
        dtx_mem_free(tap->flush);
    dtx_mem_free(tap);
}

void dtx_tap_pause(struct dtx_tap *tap, bool paused)
{
    tap->paused = paused;
}

static int longer_first(const void *a, const void *b)
{
    double x = ((const struct dtx_tap_row *)a)->seconds, y = ((const struct dtx_tap_row *)b)->seconds;
    return (x < y) - (x > y);
}

struct dtx_tap_row *dtx_tap_rows(struct dtx_tap *tap, int *n)
{
    *n = tap->n;
    qsort(tap->rows, (size_t)tap->n, sizeof *tap->rows, longer_first);
    return tap->rows;
}
