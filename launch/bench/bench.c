#include "launch/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/host.h"

extern char **environ;

static const double busy_limit = 0.9; /* under this share of the CPU time the user is warned */

void dtx_samples_add(struct dtx_samples *samples, double value)
{
    if (samples->n < DTX_SAMPLES)
        samples->value[samples->n++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dtx_samples_median(const struct dtx_samples *samples)
{
    double sorted[DTX_SAMPLES];
    int n = samples->n;
    if (n == 0)
        return 0;
    memcpy(sorted, samples->value, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double dtx_samples_min(const struct dtx_samples *samples)
{
    double least = samples->n ? samples->value[0] : 0;
    for (int i = 1; i < samples->n; i++)
        least = samples->value[i] < least ? samples->value[i] : least;
    return least;
}

double dtx_samples_max(const struct dtx_samples *samples)
{
    double most = samples->n ? samples->value[0] : 0;
    for (int i = 1; i < samples->n; i++)
        most = samples->value[i] > most ? samples->value[i] : most;
    return most;
}

json_t *dtx_samples_json(const struct dtx_samples *samples)
{
    return json_pack("{s:f, s:f, s:f, s:i}", "median", dtx_samples_median(samples), "min", dtx_samples_min(samples),
                     "max", dtx_samples_max(samples), "n", samples->n);
}

double dtx_bench_cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec);
}

const char *dtx_bench_clock_name(enum dtx_bench_clock clock)
{
    static const char *const names[] = {"wall", "cpu", "device"};
    return names[clock];
}

double dtx_bench_now(enum dtx_bench_clock clock)
{
    struct timespec t;
    if (clock != DTX_BENCH_CPU || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return dtx_clock_now();
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum dtx_status dtx_bench_begin(struct dtx_queue *queue, enum dtx_bench_clock clock, double *start)
{
    *start = dtx_bench_now(clock);
    return clock == DTX_BENCH_DEVICE ? queue->backend->queues->moment(queue, 0) : DTX_OK;
}

enum dtx_status dtx_bench_end(struct dtx_queue *queue, enum dtx_bench_clock clock, double start, double *seconds)
{
    if (clock == DTX_BENCH_DEVICE) {
        DTX_TRY(queue->backend->ctx, queue->backend->queues->moment(queue, 1));
        return queue->backend->queues->between(queue, seconds);
    }
    DTX_TRY(queue->backend->ctx, queue->backend->queues->wait(queue));
    *seconds = dtx_bench_now(clock) - start;
    return DTX_OK;
}

enum dtx_status dtx_bench_clock_choose(struct dtx_backend *backend, const struct dtx_opt *opt,
                                       enum dtx_bench_clock *clock)
{
    size_t left, total;
    DTX_TRY(backend->ctx, backend->memory->left(backend, &left, &total));
    *clock = strcmp(dtx_opt_text(opt, "clock"), "cpu") == 0 ? DTX_BENCH_CPU
             : total > 0                                    ? DTX_BENCH_DEVICE
                                                            : DTX_BENCH_WALL;
    if (*clock == DTX_BENCH_CPU && backend->threads != 1)
        return dtx_fail(backend->ctx, DTX_E_CONFIG,
                        "clock: cpu counts the time of one thread, and this bench has %d; add --threads 1",
                        backend->threads);
    return DTX_OK;
}

void dtx_bench_warn_busy(const struct dtx_ctx *ctx, double share)
{
    if (share > 0 && share < busy_limit)
        dtx_log(ctx, DTX_LOG_WARN, "the machine is busy: only %.0f %% of the CPU time was had; the figures are too low",
                100 * share);
}

static bool is_standard_output(const char *path)
{
    return strcmp(path, "-") == 0;
}

static void partial_path(const char *path, char *partial, size_t bytes)
{
    snprintf(partial, bytes, "%s.partial", path);
}

enum dtx_status dtx_bench_out_open(struct dtx_ctx *ctx, const char *path, struct dtx_bench_out *out)
{
    char partial[4096];
    *out = (struct dtx_bench_out){NULL, path};
    if (!*path)
        return DTX_OK;
    partial_path(path, partial, sizeof partial);
    out->file = is_standard_output(path) ? stdout : fopen(partial, "w");
    if (!out->file)
        return dtx_fail(ctx, DTX_E_IO, "json: %s: cannot write: %s", partial, strerror(errno));
    return DTX_OK;
}

enum dtx_status dtx_bench_out_write(struct dtx_ctx *ctx, struct dtx_bench_out *out, json_t *root)
{
    char partial[4096];
    FILE *file = out->file;
    bool good = true;
    out->file = NULL;
    if (file) {
        good = root && json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', file) != EOF;
        good = fflush(file) == 0 && good;
    }
    json_decref(root);
    if (file && !is_standard_output(out->path)) {
        partial_path(out->path, partial, sizeof partial);
        good = fclose(file) == 0 && good;
        good = good && rename(partial, out->path) == 0;
    }
    if (!good)
        return dtx_fail(ctx, DTX_E_IO, "json: %s: the figures could not be written whole", out->path);
    return DTX_OK;
}

void dtx_bench_out_discard(struct dtx_bench_out *out)
{
    char partial[4096];
    if (!out->file || is_standard_output(out->path))
        return;
    partial_path(out->path, partial, sizeof partial);
    fclose(out->file);
    unlink(partial);
    out->file = NULL;
}

FILE *dtx_bench_table(const struct dtx_bench_out *out)
{
    return is_standard_output(out->path) ? stderr : stdout;
}

static json_t *command_line(const char *name, int argc, char **argv)
{
    json_t *words = json_pack("[s, s, s]", "dtx", "bench", name);
    for (int i = 0; i < argc; i++)
        json_array_append_new(words, json_string(argv[i]));
    return words;
}

json_t *dtx_bench_json(const struct dtx_backend *backend, int ranks, const char *name, int argc, char **argv)
{
    static const char commit[] =
#include "launch/commit.inc"
        ;
    struct dtx_host host;
    double load[1] = {-1};
    char when[32];
    time_t now = (time_t)dtx_clock_wall();
    struct tm tm;
    dtx_host_read("", &host);
    if (getloadavg(load, 1) != 1)
        load[0] = -1;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    json_t *machine = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:f}", "host", backend->ctx->host, "cpu",
                                host.cpu_model, "isa", dtx_isa_name(backend->isa), "backend", backend->name, "ranks",
                                ranks, "threads", backend->threads, "cores_allowed", host.cores_allowed, "memory_bytes",
                                (json_int_t)host.memory_allowed_bytes, "load_average", load[0]);
    return json_pack("{s:s, s:s, s:s, s:o, s:s, s:o}", "bench", name, "program", "dtx " DTX_VERSION, "commit", commit,
                     "command", command_line(name, argc, argv), "time", when, "machine", machine);
}

void dtx_bench_describe(const struct dtx_backend *backend, const char *dtype, int ranks, char *text, size_t bytes)
{
    struct dtx_host host;
    char many[32] = "";
    dtx_host_read("", &host);
    if (ranks > 1)
        snprintf(many, sizeof many, "%d ranks of ", ranks);
    snprintf(text, bytes, "%s, %s%d thread%s (%s), %s", dtype, many, backend->threads, backend->threads == 1 ? "" : "s",
             dtx_isa_name(backend->isa), host.cpu_model);
}

enum dtx_status dtx_bench_options(struct dtx_ctx *ctx, const struct dtx_opt_row *rows, const char *usage, int argc,
                                  char **argv, struct dtx_opt **out, bool *done)
{
    const struct dtx_opt_row *const tables[] = {rows};
    struct dtx_opt *opt;
    int n_words;
    *done = false;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_args(ctx, opt, argc, argv, NULL, 0, &n_words);
    if (status == DTX_OK && dtx_opt_bool(opt, "help")) {
        if (ctx->rank == 0) {
            printf("%s\n", usage);
            dtx_opt_help(opt, stdout);
        }
        *done = true;
    } else if (status == DTX_OK) {
        status = dtx_opt_check(ctx, opt);
    }
    if (status != DTX_OK) {
        dtx_opt_free(opt);
        return status;
    }
    *out = opt;
    return DTX_OK;
}

enum dtx_status dtx_bench_backend(struct dtx_ctx *ctx, const struct dtx_opt *opt, int local, struct dtx_backend **out)
{
    struct dtx_host host;
    int isa = dtx_isa_detect(), asked, threads = (int)dtx_opt_int(opt, "threads");
    dtx_host_read("", &host);
    if (dtx_isa_parse(dtx_opt_text(opt, "isa"), &asked) && asked < isa)
        isa = asked;
    return dtx_backend_open(ctx, dtx_opt_text(opt, "device"), threads ? threads : dtx_host_threads(&host, local), isa,
                            out);
}
