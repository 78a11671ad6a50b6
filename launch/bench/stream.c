/* `dtx bench stream`: how fast a rank gets its samples from files that are in the page cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/loader.h"
#include "kernels/base/mem.h"
#include "launch/bench/bench.h"

static const char usage[] =
    "usage: dtx bench stream [--length L] [--data FILES] [--repeats N] [--json FILE]\n\n"
    "Samples in the order of training, as batches of inputs, targets and document starts, read by one thread: choice "
    "of\n"
    "the source and of the sample, reading, checking every id. In turns with it the same file is read through once in\n"
    "pieces of 1 MiB, which is what the system gives at best. Without --data a file of random ids is made in TMPDIR.\n";

static const struct dtx_opt_row rows[] = {
    {"length", DTX_OPT_INT, "4096", "1..16777216", DTX_OPT_FREE, "tokens of a sample"},
    {"batch", DTX_OPT_INT, "16", "1..100000", DTX_OPT_FREE, "samples of a batch"},
    {"data", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "token files, as data.train"},
    {"vocab", DTX_OPT_INT, "50304", "1..2147483647", DTX_OPT_FREE, "ids at or beyond it are refused"},
    {"type", DTX_OPT_TEXT, "auto", NULL, DTX_OPT_FREE, "type of tokens in files that do not say it"},
    {"megabytes", DTX_OPT_INT, "128", "1..1000000", DTX_OPT_FREE, "size of the file that is made"},
    {"doc_reset", DTX_OPT_BOOL, "true", NULL, DTX_OPT_FREE, "find documents' starts"},
    {"advise", DTX_OPT_BOOL, "true", NULL, DTX_OPT_FREE, "tell the system of a batch's samples first"},
    {"mmap", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "map the files"},
    {"seconds", DTX_OPT_REAL, "0.5", "0.001..60", DTX_OPT_FREE, "length of each measurement"},
    {"repeats", DTX_OPT_INT, "5", "1..512", DTX_OPT_FREE, "measurements"},
    DTX_BENCH_CLOCK_OPTION,
    DTX_BENCH_COMMON_OPTIONS,
    {NULL, 0, NULL, NULL, 0, NULL}};

struct bench {
    struct dtx_ctx *ctx;
    struct dtx_opt *opt;
    struct dtx_backend *backend;
    struct dtx_bench_out out;
    struct dtx_stream *stream;
    struct dtx_loader *loader;
    enum dtx_bench_clock clock;
    char made[4096];                      /* the file, while it exists */
    int fd;                               /* of it, for the yardstick; −1: the user's files */
    struct dtx_samples tokens, yardstick; /* tokens a second */
};

/* Ids under 50,304, spread evenly, about every thousandth a separator (0). */
static enum dtx_status make_file(struct bench *b)
{
    enum { BLOCK = 1 << 16 };
    const char *base = getenv("TMPDIR");
    uint16_t ids[BLOCK];
    uint64_t x = 88172645463325252;
    snprintf(b->made, sizeof b->made, "%s/dtx-bench-XXXXXX.npy", base && *base ? base : "/tmp");
    b->fd = mkstemps(b->made, 4);
    if (b->fd < 0) {
        enum dtx_status status =
            dtx_fail(b->ctx, DTX_E_IO, "cannot make %s: %s; set TMPDIR or give --data", b->made, strerror(errno));
        b->made[0] = '\0';
        return status;
    }
    for (int64_t left = dtx_opt_int(b->opt, "megabytes") * 1000000 / (int64_t)sizeof ids + 1; left > 0; left--) {
        for (int i = 0; i < BLOCK; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            ids[i] = x % 1000 == 0 ? 0 : (uint16_t)((x >> 20) % 50304);
        }
        if (write(b->fd, ids, sizeof ids) != (ssize_t)sizeof ids)
            return dtx_fail(b->ctx, DTX_E_IO, "cannot write %s: %s; give less --megabytes", b->made, strerror(errno));
    }
    return DTX_OK;
}

static enum dtx_status open_stream(struct bench *b)
{
    const char *paths = dtx_opt_text(b->opt, "data");
    if (!*paths)
        DTX_TRY(b->ctx, make_file(b));
    struct dtx_stream_config config = {.paths = *paths ? paths : b->made,
                                       .length = dtx_opt_int(b->opt, "length"),
                                       .seed = 1,
                                       .vocab = dtx_opt_int(b->opt, "vocab"),
                                       .separator = 0,
                                       .doc_reset = dtx_opt_bool(b->opt, "doc_reset"),
                                       .mmap = dtx_opt_bool(b->opt, "mmap"),
                                       .type = *paths ? dtx_opt_text(b->opt, "type") : "u16"};
    struct dtx_loader_config loader = {.first_sample = -1,
                                       .global_batch = dtx_opt_int(b->opt, "batch"),
                                       .dp_size = 1,
                                       .depth = 1,
                                       .advise = dtx_opt_bool(b->opt, "advise")};
    enum dtx_status status = dtx_stream_open(b->ctx, &config, &b->stream);
    if (status == DTX_OK)
        status = dtx_loader_open(b->ctx, b->stream, &loader, &b->loader);
    return status;
}

static enum dtx_status measure_stream(struct bench *b, double wanted)
{
    struct dtx_batch batch;
    int64_t tokens = 0;
    double start = dtx_bench_now(b->clock), seconds;
    do {
        DTX_TRY(b->ctx, dtx_loader_next(b->ctx, b->loader, &batch));
        tokens += batch.n * batch.length;
        seconds = dtx_bench_now(b->clock) - start;
    } while (seconds < wanted);
    dtx_samples_add(&b->tokens, (double)tokens / seconds);
    return DTX_OK;
}

static enum dtx_status measure_reading(struct bench *b)
{
    enum { PIECE = 1 << 20 };
    void *piece;
    int64_t bytes = 0;
    ssize_t got;
    if (b->fd < 0)
        return DTX_OK;
    DTX_TRY(b->ctx, dtx_mem_alloc(b->ctx, PIECE, 1, &piece));
    double start = dtx_bench_now(b->clock);
    while ((got = pread(b->fd, piece, PIECE, bytes)) > 0)
        bytes += got;
    dtx_samples_add(&b->yardstick, (double)bytes / 2 / (dtx_bench_now(b->clock) - start));
    dtx_mem_free(piece);
    return DTX_OK;
}

static enum dtx_status report(struct bench *b, int argc, char **argv)
{
    FILE *file = dtx_bench_table(&b->out);
    double speed = dtx_samples_median(&b->tokens), best = dtx_samples_median(&b->yardstick);
    char text[32], low[32], reading[32];
    json_t *root = dtx_bench_json(b->backend, 1, "stream", argc, argv);
    dtx_report_scaled(speed, "tokens/s", text);
    dtx_report_scaled(dtx_samples_min(&b->tokens), "tokens/s", low);
    fprintf(file, "samples of %lld tokens, one thread: %s (least %s)\n", (long long)dtx_opt_int(b->opt, "length"), text,
            low);
    if (best > 0) {
        dtx_report_scaled(best, "tokens/s", reading);
        fprintf(file, "the same bytes read in order: %s; share %.0f %%\n", reading, 100 * speed / best);
    }
    json_object_set_new(root, "length", json_integer(dtx_opt_int(b->opt, "length")));
    json_object_set_new(root, "tokens_per_second", dtx_samples_json(&b->tokens));
    json_object_set_new(root, "read_tokens_per_second", dtx_samples_json(&b->yardstick));
    return dtx_bench_out_write(b->ctx, &b->out, root);
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    double seconds = dtx_opt_real(b->opt, "seconds");
    DTX_TRY(b->ctx, dtx_bench_out_open(b->ctx, dtx_opt_text(b->opt, "json"), &b->out));
    DTX_TRY(b->ctx, dtx_bench_backend(b->ctx, b->opt, 1, &b->backend));
    DTX_TRY(b->ctx, dtx_bench_clock_choose(b->backend, b->opt, &b->clock));
    DTX_TRY(b->ctx, open_stream(b));
    DTX_TRY(b->ctx, measure_reading(b)); /* into the page cache */
    DTX_TRY(b->ctx, measure_stream(b, seconds));
    b->tokens.n = b->yardstick.n = 0;
    for (int64_t i = dtx_opt_int(b->opt, "repeats"); i > 0; i--) {
        DTX_TRY(b->ctx, measure_stream(b, seconds));
        DTX_TRY(b->ctx, measure_reading(b));
    }
    return report(b, argc, argv);
}

enum dtx_status dtx_bench_stream(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done = false;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    b->ctx = ctx;
    b->fd = -1;
    enum dtx_status status = dtx_bench_options(ctx, rows, usage, argc, argv, &b->opt, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    dtx_loader_close(b->loader);
    dtx_stream_close(b->stream);
    if (b->fd >= 0)
        close(b->fd);
    if (b->made[0])
        unlink(b->made);
    dtx_backend_close(b->backend);
    dtx_opt_free(b->opt);
    dtx_mem_free(b);
    return status;
}
