/* `dtx doctor`: what this machine has, why what is missing is missing, and a second's measure of each resource. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"
#include "kernels/peak.h"
#include "launch/doctor/find.h"
#include "launch/doctor/measure.h"
#include "launch/doctor/preflight.h"

static const struct dtx_opt_row options[] = {
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print JSON instead of a table"},
    {"folder", DTX_OPT_TEXT, ".", NULL, DTX_OPT_FREE, "where the disk is measured (a file is written and removed)"},
    {"seconds", DTX_OPT_REAL, "1", "0.001..60", DTX_OPT_FREE, "length of each measurement"},
    {"device", DTX_OPT_CHOICE, "auto", "auto|cpu|cuda|emu", DTX_OPT_FREE, "backend"},
    {"cpu.threads", DTX_OPT_INT, "0", "0..4096", DTX_OPT_FREE,
     "threads of each rank; 0: the allowed cores shared by the node's ranks"},
    {"cpu.isa", DTX_OPT_CHOICE, "auto", "auto|plain|avx2|avx512|avx512_bf16", DTX_OPT_FREE, "instruction set"},
    {NULL, 0, NULL, NULL, 0, NULL}};

enum measure { GEMM_F32, GEMM_BF16, TRIAD, DISK, DISK_READ, DISK_SYNC, REDUCE, REDUCE_LATENCY, MEASURES };

static const struct {
    const char *key, *label, *unit;
    bool is_time;
} measures[MEASURES] = {{"gemm_f32_flops_per_second", "GEMM fp32", "FLOP/s", false},
                        {"gemm_bf16_flops_per_second", "GEMM bf16", "FLOP/s", false},
                        {"triad_bytes_per_second", "memory (triad)", "B/s", false},
                        {"disk_bytes_per_second", "disk write + fsync", "B/s", false},
                        {"disk_read_bytes_per_second", "disk read", "B/s", false},
                        {"disk_sync_seconds", "  4 KiB + fsync", "s", true},
                        {"all_reduce_bytes_per_second", "all-reduce 16 MiB", "B/s", false},
                        {"all_reduce_latency_seconds", "  of one number", "s", true}};

/* What one rank found; exchanged as bytes. */
struct rank_result {
    char host[64];
    int threads;
    double values[MEASURES]; /* NaN: not measured */
    char failure[512];       /* the first failure's report */
    enum dtx_status status;
};

/* A measurement that fails is reported as such; the others go on. */
static void note_failure(struct dtx_ctx *ctx, struct rank_result *result, enum dtx_status status)
{
    if (status == DTX_OK)
        return;
    if (result->status == DTX_OK) {
        result->status = status;
        snprintf(result->failure, sizeof result->failure, "%.*s", (int)sizeof result->failure - 1, ctx->error.text);
    }
    dtx_error_clear(ctx);
}

static void measure_all(struct dtx_comm *world, struct dtx_backend *backend, const struct dtx_opt *opt,
                        const struct dtx_host *host, struct rank_result *result)
{
    struct dtx_ctx *ctx = world->ctx;
    double seconds = dtx_opt_real(opt, "seconds"), *v = result->values;
    note_failure(ctx, result, dtx_peak_measure(ctx, backend, DTX_F32, seconds, &v[GEMM_F32]));
    note_failure(ctx, result, dtx_peak_measure(ctx, backend, DTX_BF16, seconds, &v[GEMM_BF16]));
    note_failure(ctx, result, dtx_measure_triad(ctx, backend->threads, host->memory_allowed_bytes, seconds, &v[TRIAD]));
    struct dtx_disk_speed disk = {NAN, NAN, NAN};
    note_failure(ctx, result, dtx_measure_disk(ctx, dtx_opt_text(opt, "folder"), seconds, &disk));
    v[DISK] = disk.write_bytes;
    v[DISK_READ] = disk.read_bytes;
    v[DISK_SYNC] = disk.sync;
    if (world->size > 1)
        note_failure(ctx, result, dtx_measure_all_reduce(world, backend, seconds, &v[REDUCE], &v[REDUCE_LATENCY]));
}

/* One row per measurement: of one rank its value, of several the range and where the worst is. */
static void report_measure(struct dtx_report *report, const struct rank_result *results, int size, int m)
{
    int worst = -1, best = -1;
    for (int r = 0; r < size; r++) {
        double sign = measures[m].is_time ? -1 : 1, value = sign * results[r].values[m];
        if (isnan(value))
            continue;
        worst = worst < 0 || value < sign * results[worst].values[m] ? r : worst;
        best = best < 0 || value > sign * results[best].values[m] ? r : best;
    }
    if (worst < 0)
        return;
    char low[32], high[32];
    double value = results[worst].values[m];
    if (measures[m].is_time) {
        dtx_report_seconds(value, low);
        dtx_report_seconds(results[best].values[m], high);
    } else {
        dtx_report_scaled(value, measures[m].unit, low);
        dtx_report_scaled(results[best].values[m], measures[m].unit, high);
    }
    if (size == 1)
        dtx_report_number(report, "measured", measures[m].key, measures[m].label, value, "%s", low);
    else
        dtx_report_number(report, "measured", measures[m].key, measures[m].label, value,
                          "%s at worst (rank %d on %s), %s at best", low, worst, results[worst].host, high);
}

static void report_measures(struct dtx_report *report, const struct rank_result *results, int size)
{
    dtx_report_number(report, "measured", "ranks", "ranks", size, "%d%s", size,
                      size > 1 ? ", all at once; values are per rank" : "");
    dtx_report_number(report, "measured", "threads", "threads", results[0].threads, "%d%s", results[0].threads,
                      size > 1 ? " of rank 0" : "");
    for (int m = 0; m < MEASURES; m++)
        report_measure(report, results, size, m);
    if (size == 1)
        dtx_report_text(report, "measured", "all_reduce", "all-reduce",
                        "one rank only: start under mpirun to measure it");
    for (int r = 0; r < size; r++)
        if (results[r].status != DTX_OK) {
            dtx_report_text(report, "measured", "failure", "FAILED", "rank %d on %s: %s", r, results[r].host,
                            results[r].failure);
            break;
        }
}

static enum dtx_status print_report(struct dtx_ctx *ctx, const struct dtx_opt *opt, const struct dtx_host *host,
                                    int isa, const struct rank_result *results, int size)
{
    void *memory = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_report), &memory));
    struct dtx_report *report = memory;
    dtx_report_text(report, "dtx", "version", "version", "%s", DTX_VERSION);
    dtx_report_text(report, "dtx", "host", "host", "%s", ctx->host);
    dtx_find_processor(report, host, isa);
    dtx_find_memory(report, host);
    dtx_find_libraries(report);
    dtx_find_gpu(report);
    dtx_find_slurm(report);
    report_measures(report, results, size);
    bool good = true;
    if (dtx_opt_bool(opt, "json"))
        good = dtx_report_print_json(report, stdout);
    else
        dtx_report_print_table(report, stdout);
    dtx_mem_free(memory);
    if (fflush(stdout) != 0 || !good)
        return dtx_fail(ctx, DTX_E_IO, "standard output: cannot write the report");
    return DTX_OK;
}

/* How many of the world's ranks run on this machine. */
static enum dtx_status count_local(struct dtx_comm *world, const char *host, struct rank_result *all, int *count)
{
    struct rank_result mine = {.threads = 0};
    snprintf(mine.host, sizeof mine.host, "%.*s", (int)sizeof mine.host - 1, host);
    DTX_TRY(world->ctx, dtx_comm_gather_bytes(world, &mine, sizeof mine, all));
    int n = 0;
    for (int r = 0; r < world->size; r++)
        n += strcmp(all[r].host, mine.host) == 0;
    *count = n;
    return DTX_OK;
}

/* Collective over world. */
static enum dtx_status examine(struct dtx_comm *world, const struct dtx_opt *opt)
{
    struct dtx_ctx *ctx = world->ctx;
    struct dtx_host host;
    struct dtx_backend *backend = NULL;
    void *memory = NULL;
    struct rank_result *all, mine = {.status = DTX_OK};
    int local = 1, isa = dtx_isa_detect(), asked = isa;
    dtx_host_read("", &host);
    enum dtx_status status = dtx_mem_alloc(ctx, world->size, sizeof *all, &memory);
    DTX_TRY(ctx, dtx_comm_agree(world, status));
    all = memory;
    DTX_TRY_GOTO(ctx, status, count_local(world, ctx->host, all, &local), done);
    if (dtx_isa_parse(dtx_opt_text(opt, "cpu.isa"), &asked) && asked < isa)
        isa = asked;
    mine.threads = (int)dtx_opt_int(opt, "cpu.threads");
    mine.threads = mine.threads ? mine.threads : dtx_host_threads(&host, local);
    snprintf(mine.host, sizeof mine.host, "%.*s", (int)sizeof mine.host - 1, ctx->host);
    for (int m = 0; m < MEASURES; m++)
        mine.values[m] = NAN;
    /* Several ranks have no way yet from one GPU to another. */
    const char *device = dtx_opt_text(opt, "device");
    device = world->size > 1 && strcmp(device, "auto") == 0 ? "cpu" : device;
    status = dtx_backend_open(ctx, device, mine.threads, isa, &backend);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(world, status), done);
    measure_all(world, backend, opt, &host, &mine);
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(world, &mine, sizeof mine, all), done);
    if (world->rank == 0)
        status = print_report(ctx, opt, &host, isa, all, world->size);
    if (status == DTX_OK && mine.status != DTX_OK)
        status = dtx_fail(ctx, mine.status, "%s", mine.failure);
done:
    dtx_backend_close(backend);
    dtx_mem_free(memory);
    return status;
}

static enum dtx_status read_options(struct dtx_ctx *ctx, struct dtx_opt *opt, int argc, char **argv)
{
    int n_words;
    DTX_TRY(ctx, dtx_opt_load_env(ctx, opt, environ));
    DTX_TRY(ctx, dtx_opt_load_args(ctx, opt, argc, argv, NULL, 0, &n_words));
    DTX_TRY(ctx, dtx_opt_check(ctx, opt));
    return DTX_OK;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct dtx_opt_row *const tables[] = {options};
    struct dtx_opt *opt = NULL;
    struct dtx_comm *world = NULL;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--ranks") == 0)
            return dtx_preflight(ctx, argc, argv);
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        printf(
            "usage: [mpirun …] dtx doctor [options]\n"
            "       mpirun -n RANKS dtx doctor --ranks [CONFIG.yaml] [--KEY VALUE …]   (dtx doctor --ranks --help)\n\n"
            "What this machine has, and how fast it is. With --ranks: are the nodes of an allocation fit for a "
            "run?\n\n");
        dtx_opt_help(opt, stdout);
        dtx_opt_free(opt);
        return DTX_OK;
    }
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, read_options(ctx, opt, argc, argv), done);
    DTX_TRY_GOTO(ctx, status, dtx_comm_open_world(ctx, &world), done);
    status = dtx_comm_finish(world, examine(world, opt), DTX_COMM_GRACE);
done:
    dtx_opt_free(opt);
    return status;
}

const struct dtx_command dtx_command_doctor = {"doctor", "what this machine has, and how fast it is", run};
