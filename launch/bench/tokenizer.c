/* `dtx bench tokenizer`: one thread encodes a text with a cold and a warm cache, in turns with what it does on the way
 * and with memcpy of the same text. */
#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/pretokenize.h"
#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "launch/bench/bench.h"

static const char usage[] =
    "usage: dtx bench tokenizer --tokenizer FILE --text FILE [--passes N] [--clock wall|cpu] [--json FILE]\n\n"
    "Encodes the text with one thread in parts of a MiB, as `dtx tokenize` does: cold, with a new encoder (nothing in\n"
    "its cache of pieces) for each pass, and warm, once more with the same one. Beside it: memcpy, the check of UTF-8\n"
    "and the cutting into pieces of the same text, which both encodings hold, and decoding.\n";

static const struct dtx_opt_row rows[] = {
    {"tokenizer", DTX_OPT_TEXT, "tokenizer.json", NULL, DTX_OPT_FREE, "what `dtx tokenize --tokenizer` takes"},
    {"text", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "a text file"},
    {"passes", DTX_OPT_INT, "5", "1..500", DTX_OPT_FREE, "measured passes of each"},
    DTX_BENCH_CLOCK_OPTION,
    {"json", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,
     "write the figures to this file; -: standard output, the table to standard error"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL}};

enum { COPY, CHECK, PIECES, COLD, WARM, DECODE, KINDS };
static const char *const names[KINDS] = {"memcpy", "check", "pieces", "cold", "warm", "decode"};
enum { PART_BYTES = 1 << 20, SPANS = 256 };

struct bench {
    struct dtx_ctx *ctx;
    struct dtx_opt *opt;
    struct dtx_backend *backend; /* only described */
    struct dtx_bench_out out;
    enum dtx_bench_clock clock;
    struct dtx_tokenizer *tokenizer;
    struct dtx_bytes text, copy, decoded;
    struct dtx_ids ids;
    int64_t tokens, pieces;
    struct dtx_samples seconds[KINDS];
    double cpu, wall; /* of all passes */
};

static enum dtx_status read_text(struct bench *b)
{
    const char *path = dtx_opt_text(b->opt, "text");
    int fd;
    int64_t bytes;
    if (!path[0])
        return dtx_fail(b->ctx, DTX_E_CONFIG, "text: --text FILE is missing");
    DTX_TRY(b->ctx, dtx_file_open(b->ctx, path, &fd, &bytes));
    enum dtx_status status = dtx_bytes_reserve(b->ctx, &b->text, bytes);
    if (status == DTX_OK)
        status = dtx_bytes_reserve(b->ctx, &b->copy, bytes);
    if (status == DTX_OK)
        status = dtx_file_read_at(b->ctx, fd, path, b->text.data, (size_t)bytes, 0);
    close(fd);
    if (status == DTX_OK && bytes == 0)
        status = dtx_fail(b->ctx, DTX_E_CONFIG, "text: %s is empty", path);
    b->text.n = bytes;
    return status;
}

/* Bytes of the next part of the text from `at` on. */
static int64_t part_at(const struct bench *b, int64_t at)
{
    int64_t rest = b->text.n - at, cut = 0;
    if (rest > PART_BYTES && dtx_tokenizer_may_cut(b->tokenizer))
        cut = dtx_split_point(b->text.data + at, PART_BYTES);
    return cut > 0 ? cut : rest;
}

static enum dtx_status encode(struct bench *b, struct dtx_encoder *e)
{
    int64_t invalid = 0;
    b->tokens = 0;
    for (int64_t at = 0, n; at < b->text.n; at += n) {
        n = part_at(b, at);
        b->ids.n = 0;
        DTX_TRY(b->ctx, dtx_encoder_run(b->ctx, e, b->text.data + at, n, &b->ids, &invalid));
        b->tokens += b->ids.n;
    }
    return DTX_OK;
}

static enum dtx_status count_pieces(struct bench *b, struct dtx_splitter *s)
{
    struct dtx_piece_span spans[SPANS];
    int64_t found = 1;
    dtx_splitter_start(s, b->text.data, b->text.n);
    for (b->pieces = 0; found > 0; b->pieces += found)
        DTX_TRY(b->ctx, dtx_splitter_next(b->ctx, s, spans, SPANS, &found));
    return DTX_OK;
}

/* All ids of the text once more into one array, and back. */
static enum dtx_status decode(struct bench *b, double *start)
{
    *start = dtx_bench_now(b->clock);
    b->decoded.n = 0;
    return dtx_tokenizer_decode(b->ctx, b->tokenizer, b->ids.data, b->ids.n, &b->decoded);
}

static enum dtx_status one(struct bench *b, int kind, struct dtx_encoder *e, struct dtx_splitter *s, double *start)
{
    switch (kind) {
    case COPY:
        memcpy(b->copy.data, b->text.data, (size_t)b->text.n);
        return DTX_OK;
    case CHECK:
        for (int64_t at = 0; at < b->text.n; at++) /* past every byte that is not valid */
            at += dtx_utf8_valid(b->text.data + at, b->text.n - at);
        return DTX_OK;
    case PIECES:
        return count_pieces(b, s);
    case DECODE:
        return decode(b, start);
    default:
        return encode(b, e);
    }
}

static enum dtx_status pass(struct bench *b)
{
    struct dtx_encoder *e = NULL;
    struct dtx_splitter *s = NULL;
    enum dtx_status status;
    DTX_TRY_GOTO(b->ctx, status, dtx_encoder_create(b->ctx, b->tokenizer, &e), done);
    DTX_TRY_GOTO(b->ctx, status, dtx_splitter_create(b->ctx, b->tokenizer->pattern, &s), done);
    for (int kind = 0; kind < KINDS; kind++) {
        double start = dtx_bench_now(b->clock);
        DTX_TRY_GOTO(b->ctx, status, one(b, kind, e, s, &start), done);
        dtx_samples_add(&b->seconds[kind], dtx_bench_now(b->clock) - start);
    }
done:
    dtx_encoder_free(e);
    dtx_splitter_free(s);
    return status;
}

static enum dtx_status report(struct bench *b, int argc, char **argv)
{
    FILE *file = dtx_bench_table(&b->out);
    double bytes = (double)b->text.n;
    json_t *passes = json_object();
    fprintf(file, "tokenizer   %s, %lld ids\ntext        %s, %.1f MB, %lld pieces, %lld tokens, %.3f bytes a token\n\n",
            dtx_opt_text(b->opt, "tokenizer"), (long long)dtx_tokenizer_vocab(b->tokenizer),
            dtx_opt_text(b->opt, "text"), bytes / 1e6, (long long)b->pieces, (long long)b->tokens,
            bytes / (double)b->tokens);
    fprintf(file, "%-8s %10s %10s %10s %14s\n", "", "median", "least", "most", "speed");
    for (int k = 0; k < KINDS; k++) {
        char median[32], least[32], most[32];
        double done = k == DECODE ? (double)b->decoded.n : bytes;
        dtx_report_seconds(dtx_samples_median(&b->seconds[k]), median);
        dtx_report_seconds(dtx_samples_min(&b->seconds[k]), least);
        dtx_report_seconds(dtx_samples_max(&b->seconds[k]), most);
        double speed = done / dtx_samples_median(&b->seconds[k]);
        fprintf(file, "%-8s %10s %10s %10s %9.1f MB/s\n", names[k], median, least, most, speed / 1e6);
        json_object_set_new(
            passes, names[k],
            json_pack("{s:o, s:f}", "seconds", dtx_samples_json(&b->seconds[k]), "bytes_per_second", speed));
    }
    dtx_bench_warn_busy(b->ctx, b->clock == DTX_BENCH_WALL ? b->cpu / b->wall : 1);
    json_t *root = dtx_bench_json(b->backend, 1, "tokenizer", argc, argv);
    json_t *fields = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:o}", "clock", dtx_opt_text(b->opt, "clock"),
                               "tokenizer", dtx_opt_text(b->opt, "tokenizer"), "text", dtx_opt_text(b->opt, "text"),
                               "bytes", (json_int_t)b->text.n, "pieces", (json_int_t)b->pieces, "tokens",
                               (json_int_t)b->tokens, "cpu_share", b->cpu / b->wall, "passes", passes);
    json_object_update(root, fields);
    json_decref(fields);
    return dtx_bench_out_write(b->ctx, &b->out, root);
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    DTX_TRY(b->ctx, dtx_backend_open(b->ctx, "cpu", 1, dtx_isa_detect(), &b->backend));
    DTX_TRY(b->ctx, dtx_bench_clock_choose(b->backend, b->opt, &b->clock));
    DTX_TRY(b->ctx, dtx_bench_out_open(b->ctx, dtx_opt_text(b->opt, "json"), &b->out));
    DTX_TRY(b->ctx, dtx_tokenizer_load(b->ctx, dtx_opt_text(b->opt, "tokenizer"), &b->tokenizer));
    DTX_TRY(b->ctx, read_text(b));
    b->cpu = -dtx_bench_cpu_seconds();
    b->wall = -dtx_clock_now();
    for (int64_t i = 0; i < dtx_opt_int(b->opt, "passes"); i++)
        DTX_TRY(b->ctx, pass(b));
    b->cpu += dtx_bench_cpu_seconds();
    b->wall += dtx_clock_now();
    return report(b, argc, argv);
}

enum dtx_status dtx_bench_tokenizer(struct dtx_ctx *ctx, int argc, char **argv)
{
    bool done;
    struct bench b = {.ctx = ctx};
    DTX_TRY(ctx, dtx_bench_options(ctx, rows, usage, argc, argv, &b.opt, &done));
    enum dtx_status status = done ? DTX_OK : run(&b, argc, argv);
    dtx_bench_out_discard(&b.out);
    dtx_tokenizer_free(b.tokenizer);
    dtx_bytes_free(&b.text);
    dtx_bytes_free(&b.copy);
    dtx_bytes_free(&b.decoded);
    dtx_ids_free(&b.ids);
    if (b.backend)
        dtx_backend_close(b.backend);
    dtx_opt_free(b.opt);
    return status;
}
