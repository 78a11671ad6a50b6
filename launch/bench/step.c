/* `dtx bench step`: training steps in turns with the yardstick, and where their time goes. */
#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "launch/bench/profile.h"
#include "launch/bench/workload.h"

enum { FEW_TOKENS = 2048 };

static const struct dtx_opt_row rows[] = {
    DTX_WORKLOAD_OPTIONS,
    {"repeats", DTX_OPT_INT, "5", "1..500", DTX_OPT_FREE,
     "measured steps of each variant, after one that warms up (with cuda.graphs two)"},
    {"peak_seconds", DTX_OPT_REAL, "0.5", "0.001..60", DTX_OPT_FREE, "length of a peak measurement between steps"},
    {"profile", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "run one step more: its time by operation and communicator"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "bench step",
    .usage =
        "usage: dtx bench step [CONFIG.yaml] [--preset NAME] [--attention diff|softmax|both] [--dtype f32|bf16]\n"
        "                      [--threads N] [--repeats N] [--profile] [--json FILE] [--KEY VALUE …]\n"
        "       mpirun -n RANKS dtx bench step …\n\n"
        "Whole training steps (batch from the data pipeline, forward, backward, clipping, optimizer) in turns\n"
        "with measurements of the peak on the same threads; both variants in turns too. Default model:\n"
        "bench-124m. Model FLOPs count causal attention once: K = (length + 1)/2 keys a token.\n" DTX_WORKLOAD_SHORT,
    .options = rows};

/* What was measured of one variant. */
struct variant {
    struct dtx_workload_run *run;
    struct dtx_samples seconds, data_wait, cpu_share;
    double first_loss, loss;
    json_t *profile;
};

struct bench {
    struct dtx_workload workload;
    struct dtx_yardstick *yardstick;
    struct dtx_bench_out out;
    struct variant variants[2];
    double peak, memory; /* of all ranks: FLOP/s, bytes/s */
};

static bool root(const struct bench *b)
{
    return b->workload.session.world->rank == 0;
}

static enum dtx_status measure_peak(struct bench *b)
{
    struct dtx_session *s = &b->workload.session;
    DTX_TRY(s->ctx, dtx_comm_barrier(s->world));
    return dtx_comm_agree(s->world, dtx_yardstick_products(b->yardstick, dtx_opt_real(s->opt, "peak_seconds")));
}

static double speed(const struct variant *v)
{
    double seconds = dtx_samples_median(&v->seconds);
    return seconds > 0 ? dtx_engine_step_flops(&v->run->config) / seconds : 0;
}

static double tokens_per_second(const struct bench *b, const struct variant *v)
{
    double seconds = dtx_samples_median(&v->seconds);
    return seconds > 0 ? (double)dtx_workload_tokens(&b->workload) / seconds : 0;
}

/* The number of the first step: below 0 for those that warm up, with graphs one more, which records them. */
static int first_step(const struct bench *b)
{
    return b->workload.session.config.graphs ? -2 : -1;
}

/* i < 0: warm-up. */
static void tell(const struct bench *b, const struct variant *v, int i, const struct dtx_workload_timing *t)
{
    const struct dtx_session *s = &b->workload.session;
    int left = (int)(dtx_opt_int(s->opt, "repeats") - i) * b->workload.n_runs - (int)(v - b->variants) - 1;
    char time[32], rest[32];
    dtx_report_seconds(t->seconds, time);
    left += dtx_opt_bool(s->opt, "profile") ? b->workload.n_runs : 0;
    if (left > 0)
        dtx_report_seconds(left * t->wall_seconds, rest);
    else
        snprintf(rest, sizeof rest, "0 s");
    if (s->world->rank != 0)
        return;
    if (i < 0)
        dtx_log(s->ctx, DTX_LOG_INFO, "%s: warmed up in %s; about %s to go", v->run->name, time, rest);
    else
        dtx_log(s->ctx, DTX_LOG_INFO, "%s: step %d in %s, %.1f %% of the peak so far; about %s to go", v->run->name,
                i + 1, time, 100 * speed(v) / (dtx_yardstick_flops(b->yardstick) * s->world->size), rest);
}

static enum dtx_status measure_step(struct bench *b, struct variant *v, int i)
{
    struct dtx_workload_timing t;
    DTX_TRY(b->workload.ctx, measure_peak(b));
    DTX_TRY(b->workload.ctx, dtx_workload_step(&b->workload, v->run, &t));
    if (i == first_step(b))
        v->first_loss = t.loss;
    if (i >= 0) {
        dtx_samples_add(&v->seconds, t.seconds);
        dtx_samples_add(&v->data_wait, t.data_wait);
        dtx_samples_add(&v->cpu_share, t.cpu_share);
        v->loss = t.loss;
    }
    tell(b, v, i, &t);
    return DTX_OK;
}

static enum dtx_status measure(struct bench *b)
{
    struct dtx_session *s = &b->workload.session;
    int n = b->workload.n_runs, repeats = (int)dtx_opt_int(s->opt, "repeats");
    for (int v = 0; v < n; v++)
        b->variants[v].run = &b->workload.runs[v];
    for (int i = first_step(b); i < repeats; i++)
        for (int v = 0; v < n; v++)
            DTX_TRY(s->ctx, measure_step(b, &b->variants[v], i));
    DTX_TRY(s->ctx, measure_peak(b));
    if (dtx_opt_bool(s->opt, "profile"))
        DTX_TRY(s->ctx, dtx_comm_agree(s->world, dtx_yardstick_triad(b->yardstick, 0.2)));
    return dtx_yardstick_gather(b->yardstick, s->world, &b->peak, &b->memory);
}

static void print_row(FILE *file, const struct bench *b, const struct variant *v)
{
    char median[32], low[32], high[32], flops[32];
    dtx_report_seconds(dtx_samples_median(&v->seconds), median);
    dtx_report_seconds(dtx_samples_min(&v->seconds), low);
    dtx_report_seconds(dtx_samples_max(&v->seconds), high);
    dtx_report_scaled(speed(v), "FLOP/s", flops);
    fprintf(file, "%-10s %10s %10s %10s %10.4g %14s %7.1f %%\n", v->run->name, median, low, high,
            tokens_per_second(b, v), flops, 100 * speed(v) / b->peak);
}

static void print_table(const struct bench *b)
{
    FILE *file = dtx_bench_table(&b->out);
    dtx_workload_print(&b->workload, file);
    dtx_yardstick_print(b->yardstick, b->peak, 0, file);
    fprintf(file, "\n%-10s %10s %10s %10s %10s %14s %9s\n", "attention", "step", "least", "most", "tokens/s",
            "model FLOP/s", "of peak");
    for (int v = 0; v < b->workload.n_runs; v++)
        print_row(file, b, &b->variants[v]);
    if (b->workload.n_runs == 2)
        fprintf(file, "\ndiff makes %.3f of the tokens/s of softmax\n",
                tokens_per_second(b, &b->variants[0]) / tokens_per_second(b, &b->variants[1]));
}

static json_t *variant_json(const struct bench *b, const struct variant *v)
{
    const struct dtx_session *s = &b->workload.session;
    json_t *object = json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "heads", (json_int_t)v->run->config.model.heads,
        "kv_heads", (json_int_t)v->run->config.model.kv_heads, "step_seconds", dtx_samples_json(&v->seconds),
        "data_wait_seconds", dtx_samples_json(&v->data_wait), "cpu_share", dtx_samples_json(&v->cpu_share),
        "tokens_per_second", tokens_per_second(b, v), "step_flops", dtx_engine_step_flops(&v->run->config),
        "flops_per_second", speed(v), "share_of_peak", speed(v) / b->peak, "first_loss", v->first_loss, "last_loss",
        v->loss, "peak_memory_bytes", (json_int_t)s->backend->peak_bytes);
    if (s->config.graphs) {
        int64_t made, launched;
        dtx_engine_graphs(v->run->engine, &made, &launched);
        json_object_set_new(object, "graphs",
                            json_pack("{s:I, s:I}", "made", (json_int_t)made, "launched", (json_int_t)launched));
    }
    if (v->profile)
        json_object_set(object, "profile", v->profile);
    return object;
}

static enum dtx_status write_json(struct bench *b, int argc, char **argv)
{
    const struct dtx_session *s = &b->workload.session;
    json_t *root = dtx_bench_json(s->backend, s->world->size, "step", argc, argv), *variants = json_object();
    json_object_update_new(root, dtx_workload_json(&b->workload));
    json_object_set_new(root, "peak", dtx_yardstick_json(b->yardstick, b->peak, b->memory));
    for (int v = 0; v < b->workload.n_runs; v++)
        json_object_set_new(variants, b->variants[v].run->name, variant_json(b, &b->variants[v]));
    json_object_set_new(root, "variants", variants);
    if (b->workload.n_runs == 2)
        json_object_set_new(root, "diff_to_softmax_tokens",
                            json_real(tokens_per_second(b, &b->variants[0]) / tokens_per_second(b, &b->variants[1])));
    return dtx_bench_out_write(s->ctx, &b->out, root);
}

/* The mean over the ranks of the step's share in communicators. */
static enum dtx_status share_communication(const struct bench *b, struct dtx_comm_tap *comms, double seconds,
                                           double *share)
{
    struct dtx_comm *world = b->workload.session.world;
    *share = dtx_comm_tap_seconds(comms) / seconds / world->size;
    struct dtx_tensor sum = dtx_tensor_1d(share, DTX_F64, 1); /* host memory: no queue */
    return dtx_comm_all_reduce_sum(world, NULL, &sum);
}

/* One step more with taps on this rank's operations and communicators; peaks are per rank here. */
static enum dtx_status profile(struct bench *b, struct variant *v)
{
    struct dtx_session *s = &b->workload.session;
    struct dtx_tap *tap;
    struct dtx_comm_tap *comms;
    struct dtx_workload_timing t;
    DTX_TRY(s->ctx, dtx_comm_tap_open(s->ctx, dtx_engine_mesh(v->run->engine), &comms));
    enum dtx_status status = dtx_tap_open(s->backend, b->workload.clock, 0, NULL, &tap);
    if (status != DTX_OK) {
        dtx_comm_tap_close(comms);
        return status;
    }
    dtx_engine_plain(v->run->engine, true); /* taps see operations, not what a graph launches */
    status = dtx_workload_step(&b->workload, v->run, &t);
    dtx_engine_plain(v->run->engine, false);
    struct dtx_profile p = {.flops = dtx_yardstick_flops(b->yardstick), .bytes = dtx_yardstick_bytes(b->yardstick)};
    if (status == DTX_OK)
        status = share_communication(b, comms, t.seconds, &p.comm_share);
    if (status == DTX_OK) {
        p.seconds = t.seconds;
        p.rows = dtx_tap_rows(tap, &p.n);
        p.comms = dtx_comm_tap_rows(comms, &p.n_comms);
        if (root(b)) {
            fprintf(dtx_bench_table(&b->out), "\n%s: one step of %.3g s by operation%s\n", v->run->name, t.seconds,
                    s->world->size > 1 ? ", rank 0" : "");
            dtx_profile_print(&p, dtx_bench_table(&b->out));
            v->profile = dtx_profile_json(&p);
        }
    }
    dtx_tap_close(tap);
    dtx_comm_tap_close(comms);
    return status;
}

/* The lowest of the variants. */
static double cpu_share(const struct bench *b)
{
    double least = dtx_samples_median(&b->variants[0].cpu_share);
    for (int v = 1; v < b->workload.n_runs; v++)
        least = fmin(least, dtx_samples_median(&b->variants[v].cpu_share));
    return least;
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    struct dtx_session *s = &b->workload.session;
    enum dtx_status status = root(b) ? dtx_bench_out_open(s->ctx, dtx_opt_text(s->opt, "json"), &b->out) : DTX_OK;
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    if (dtx_workload_tokens(&b->workload) < FEW_TOKENS && root(b))
        dtx_log(s->ctx, DTX_LOG_WARN, "%lld tokens a step: under %d the optimizer's share is far from a real run's",
                (long long)dtx_workload_tokens(&b->workload), FEW_TOKENS);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world,
                                   dtx_yardstick_open(s->backend, s->config.dtype, b->workload.clock, &b->yardstick)));
    DTX_TRY(s->ctx, measure(b));
    if (root(b))
        print_table(b);
    for (int v = 0; v < b->workload.n_runs && dtx_opt_bool(s->opt, "profile"); v++)
        DTX_TRY(s->ctx, dtx_comm_agree(s->world, profile(b, &b->variants[v])));
    status = root(b) ? write_json(b, argc, argv) : DTX_OK;
    if (root(b))
        dtx_bench_warn_busy(s->ctx, cpu_share(b));
    return dtx_comm_agree(s->world, status);
}

enum dtx_status dtx_bench_step(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    enum dtx_status status = dtx_workload_open(ctx, &command, argc, argv, false, &b->workload, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    for (int v = 0; v < 2; v++)
        json_decref(b->variants[v].profile);
    dtx_yardstick_close(b->yardstick);
    status = dtx_workload_close(&b->workload, status);
    dtx_mem_free(b);
    return status;
}
