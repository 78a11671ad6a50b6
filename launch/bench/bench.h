/*
 * What the benches share: samples of a quantity, the yardstick (this machine's peak, measured in turns with what is
 * benched), the machine's description and the JSON file. Functions are not collective unless they say so.
 */
#ifndef DTX_LAUNCH_BENCH_BENCH_H
#define DTX_LAUNCH_BENCH_BENCH_H

#include <jansson.h>

#include "kernels/base/opt.h"
#include "launch/doctor/report.h"
#include "parallel/comm.h"

/* Repeated measurements of one quantity; after the first DTX_SAMPLES more are dropped. */
enum { DTX_SAMPLES = 512 };
struct dtx_samples {
    int n;
    double value[DTX_SAMPLES];
};
void dtx_samples_add(struct dtx_samples *samples, double value);
double dtx_samples_median(const struct dtx_samples *samples); /* 0 without any */
double dtx_samples_min(const struct dtx_samples *samples);
double dtx_samples_max(const struct dtx_samples *samples);
json_t *dtx_samples_json(const struct dtx_samples *samples); /* {"median", "min", "max", "n"} */

/* What seconds are: the wall's, or those in which this thread had a CPU (one thread only): figures of a busy machine;
 * or, of what a queue does, the device's. */
enum dtx_bench_clock { DTX_BENCH_WALL, DTX_BENCH_CPU, DTX_BENCH_DEVICE };
const char *dtx_bench_clock_name(enum dtx_bench_clock clock);
double dtx_bench_now(enum dtx_bench_clock clock);
/* Around what is submitted to the queue: its seconds, once it is done. */
enum dtx_status dtx_bench_begin(struct dtx_queue *queue, enum dtx_bench_clock clock, double *start);
enum dtx_status dtx_bench_end(struct dtx_queue *queue, enum dtx_bench_clock clock, double start, double *seconds);
/* From the option "clock", on a device its own; DTX_BENCH_CPU with more than one thread is DTX_E_CONFIG. */
enum dtx_status dtx_bench_clock_choose(struct dtx_backend *backend, const struct dtx_opt *opt,
                                       enum dtx_bench_clock *clock);
#define DTX_BENCH_CLOCK_OPTION                                                                                         \
    {                                                                                                                  \
        "clock", DTX_OPT_CHOICE, "wall", "wall|cpu", DTX_OPT_FREE,                                                     \
            "cpu: count only time in which the one thread had a CPU, on machines that are busy"                        \
    }

/* Square products of n = 512, 1024 and 2048 with results of master dtype, and a triad over arrays beyond the caches. On
 * a GPU products four times as large, and copies of 512 MiB from the device to itself. */
enum { DTX_YARDSTICK_SIZES = 3 };
struct dtx_yardstick;
enum dtx_status dtx_yardstick_open(struct dtx_backend *backend, enum dtx_dtype dtype, enum dtx_bench_clock clock,
                                   struct dtx_yardstick **out);
void dtx_yardstick_close(struct dtx_yardstick *yardstick); /* accepts NULL */
/* One round of samples, about `seconds` long: at least one product of each size, but none of a size that would take
 * several times as long. */
enum dtx_status dtx_yardstick_products(struct dtx_yardstick *yardstick, double seconds);
enum dtx_status dtx_yardstick_triad(struct dtx_yardstick *yardstick, double seconds);
/* The best median over the three sizes of all rounds, FLOP/s; the triad's median, bytes/s. 0: not measured. */
double dtx_yardstick_flops(const struct dtx_yardstick *yardstick);
double dtx_yardstick_bytes(const struct dtx_yardstick *yardstick);
/* Of all ranks together: their sums on every rank. Collective over world. */
enum dtx_status dtx_yardstick_gather(const struct dtx_yardstick *yardstick, struct dtx_comm *world, double *flops,
                                     double *bytes);
json_t *dtx_yardstick_json(const struct dtx_yardstick *yardstick, double flops, double bytes);
/* "peak" lines of a table. */
void dtx_yardstick_print(const struct dtx_yardstick *yardstick, double flops, double bytes, FILE *file);

/* CPU seconds of this process so far, all threads. */
double dtx_bench_cpu_seconds(void);
/* Warns on standard error when `share` of the wanted CPU time (threads × wall) was not had. */
void dtx_bench_warn_busy(const struct dtx_ctx *ctx, double share);

/* The JSON file, under FILE.partial until it is whole; "-" is standard output, "" none. Opening it first shows a wrong
 * path before anything is measured. */
struct dtx_bench_out {
    FILE *file; /* NULL: none wanted */
    const char *path;
};
enum dtx_status dtx_bench_out_open(struct dtx_ctx *ctx, const char *path, struct dtx_bench_out *out);
/* Takes `root` over. A tree that ran out of memory on its way is reported here. */
enum dtx_status dtx_bench_out_write(struct dtx_ctx *ctx, struct dtx_bench_out *out, json_t *root);
void dtx_bench_out_discard(struct dtx_bench_out *out); /* removes what is unfinished */
/* Where the table goes: standard error when the JSON takes standard output. */
FILE *dtx_bench_table(const struct dtx_bench_out *out);

/* {"bench", "program", "commit", "command", "time", "machine": {…}} */
json_t *dtx_bench_json(const struct dtx_backend *backend, int ranks, const char *name, int argc, char **argv);
/* "f32, 2 threads (avx512), AMD EPYC" */
void dtx_bench_describe(const struct dtx_backend *backend, const char *dtype, int ranks, char *text, size_t bytes);

/* Options of a bench without configuration; --help prints `usage` and sets *done. */
enum dtx_status dtx_bench_options(struct dtx_ctx *ctx, const struct dtx_opt_row *rows, const char *usage, int argc,
                                  char **argv, struct dtx_opt **out, bool *done);
/* From the options "device", "threads" (0: the cores allowed, shared by `local` ranks) and "isa". */
enum dtx_status dtx_bench_backend(struct dtx_ctx *ctx, const struct dtx_opt *opt, int local, struct dtx_backend **out);
#define DTX_BENCH_COMMON_OPTIONS                                                                                       \
    {"device", DTX_OPT_CHOICE, "auto", "auto|cpu|cuda|emu", DTX_OPT_FREE, "where to compute"},                         \
        {"threads", DTX_OPT_INT,  "0",                                                                                 \
         "0..4096", DTX_OPT_FREE, "threads of each rank; 0: the allowed cores shared by the node's ranks"},            \
        {"isa",        DTX_OPT_CHOICE,                                                                                 \
         "auto",       "auto|plain|avx2|avx512|avx512_bf16",                                                           \
         DTX_OPT_FREE, "highest instruction set used"},                                                                \
        {"json", DTX_OPT_TEXT, "",                                                                                     \
         NULL,   DTX_OPT_FREE, "write the figures to this file; -: standard output, the table to standard error"},     \
    {                                                                                                                  \
        "help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print this"                                                \
    }

/* The benches. argv[0] is the first word after the bench's name. */
enum dtx_status dtx_bench_step(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_kernels(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_attention(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_comm(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_checkpoint(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_stream(struct dtx_ctx *ctx, int argc, char **argv);
enum dtx_status dtx_bench_tokenizer(struct dtx_ctx *ctx, int argc, char **argv);

#endif
