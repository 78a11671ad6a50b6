/* `dtx bench kernels`: the calls of a training step, each kind repeated with the step's own arguments. */
#include <string.h>

#include "kernels/base/mem.h"
#include "launch/bench/profile.h"
#include "launch/bench/workload.h"

static const struct dtx_opt_row rows[] = {
    DTX_WORKLOAD_OPTIONS,
    {"repeats", DTX_OPT_INT, "5", "1..500", DTX_OPT_FREE, "measured calls of each operation and shape"},
    {"peak_seconds", DTX_OPT_REAL, "0.5", "0.001..60", DTX_OPT_FREE, "length of a peak measurement"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "bench kernels",
    .usage =
        "usage: dtx bench kernels [CONFIG.yaml] [--preset NAME] [--attention diff|softmax|both]\n"
        "                         [--dtype f32|bf16] [--threads N] [--repeats N] [--json FILE] [--KEY VALUE …]\n\n"
        "Runs one training step and repeats the first call of every operation and shape in it, its data out of\n"
        "the caches. Products and attention are compared with the peak of square products, the rest with a\n"
        "memory triad, counting each tensor once. Default model: bench-124m, one micro-batch.\n" DTX_WORKLOAD_SHORT,
    .options = rows,
    .one_rank = true};

struct bench {
    struct dtx_workload workload;
    struct dtx_yardstick *yardstick;
    struct dtx_bench_out out;
    struct dtx_tap *tap;
};

static enum dtx_status measure_peaks(struct bench *b)
{
    struct dtx_session *s = &b->workload.session;
    DTX_TRY(s->ctx, dtx_yardstick_products(b->yardstick, dtx_opt_real(s->opt, "peak_seconds")));
    return dtx_yardstick_triad(b->yardstick, dtx_opt_real(s->opt, "peak_seconds") / 2);
}

static enum dtx_status measure(struct bench *b)
{
    struct dtx_session *s = &b->workload.session;
    DTX_TRY(s->ctx, dtx_yardstick_open(s->backend, s->config.dtype, b->workload.clock, &b->yardstick));
    DTX_TRY(s->ctx, measure_peaks(b));
    DTX_TRY(s->ctx,
            dtx_tap_open(s->backend, b->workload.clock, (int)dtx_opt_int(s->opt, "repeats"), b->yardstick, &b->tap));
    for (int i = 0; i < b->workload.n_runs; i++) {
        struct dtx_workload_timing t;
        dtx_log(s->ctx, DTX_LOG_INFO, "%s: a step with repeated calls", b->workload.runs[i].name);
        dtx_engine_plain(b->workload.runs[i].engine, true);
        DTX_TRY(s->ctx, dtx_workload_step(&b->workload, &b->workload.runs[i], &t));
        dtx_tap_pause(b->tap, true);
        DTX_TRY(s->ctx, measure_peaks(b));
        dtx_tap_pause(b->tap, false);
    }
    return DTX_OK;
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    struct dtx_session *s = &b->workload.session;
    struct dtx_profile p = {0};
    DTX_TRY(s->ctx, dtx_bench_out_open(s->ctx, dtx_opt_text(s->opt, "json"), &b->out));
    DTX_TRY(s->ctx, measure(b));
    p.rows = dtx_tap_rows(b->tap, &p.n);
    p.flops = dtx_yardstick_flops(b->yardstick);
    p.bytes = dtx_yardstick_bytes(b->yardstick);
    FILE *file = dtx_bench_table(&b->out);
    dtx_workload_print(&b->workload, file);
    dtx_yardstick_print(b->yardstick, p.flops, p.bytes, file);
    fprintf(file, "\n");
    dtx_profile_print_each(&p, file);
    json_t *root = dtx_bench_json(s->backend, 1, "kernels", argc, argv);
    json_object_update_new(root, dtx_workload_json(&b->workload));
    json_object_set_new(root, "peak", dtx_yardstick_json(b->yardstick, p.flops, p.bytes));
    json_object_set_new(root, "operations", dtx_profile_json_each(&p));
    return dtx_bench_out_write(s->ctx, &b->out, root);
}

enum dtx_status dtx_bench_kernels(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    enum dtx_status status = dtx_workload_open(ctx, &command, argc, argv, true, &b->workload, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    dtx_tap_close(b->tap);
    dtx_yardstick_close(b->yardstick);
    status = dtx_workload_close(&b->workload, status);
    dtx_mem_free(b);
    return status;
}
