/* `dtx bench attention`: the differential kernel against the softmax kernel of the heads it replaces. */
#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "kernels/cuda/collectives.h"
#include "launch/bench/peer.h"

static const char usage[] =
    "usage: dtx bench attention [--length N] [--heads N] [--kv_heads N] [--head_dim N] [--batch N]\n"
    "                           [--dtype f32|bf16] [--threads N] [--repeats N] [--peer cudnn] [--json FILE]\n\n"
    "Causal attention of `heads` differential heads (two maps of width head_dim over values of 2 head_dim) and of\n"
    "2 heads softmax heads of head_dim, in turns with each other and with the peak. FLOPs a (query, key) pair and\n"
    "differential head, d = head_dim: forward 12d against 8d, backward 20d against 20d; what a kernel computes\n"
    "again does not count. --peer cudnn, on a GPU and in bf16: the same by cuDNN where it is installed, and that the\n"
    "results agree. cuDNN's differential attention is two calls, or one call over 2 heads heads: forward 12d, "
    "backward\n"
    "28d; its times leave out what the caller still has to do (o1 - lambda o2, the sum of both dv).\n";

static const struct dtx_opt_row rows[] = {
    {"length", DTX_OPT_INT, "4096", "1..16777216", DTX_OPT_FREE, "positions"},
    {"heads", DTX_OPT_INT, "6", "1..100000", DTX_OPT_FREE, "differential heads; softmax has twice as many"},
    {"kv_heads", DTX_OPT_INT, "0", "0..100000", DTX_OPT_FREE, "key/value heads of diff; 0: as many as heads"},
    {"head_dim", DTX_OPT_INT, "64", "2..1024", DTX_OPT_FREE, "width of one map's head"},
    {"batch", DTX_OPT_INT, "1", "1..100000", DTX_OPT_FREE, "sequences"},
    {"dtype", DTX_OPT_CHOICE, "f32", "f32|bf16|f64", DTX_OPT_FREE, "activations"},
    {"repeats", DTX_OPT_INT, "5", "1..500", DTX_OPT_FREE, "measured passes of each, after one that warms up"},
    {"peer", DTX_OPT_CHOICE, "none", "none|cudnn", DTX_OPT_FREE, "whose kernels are measured beside ours"},
    {"peak_seconds", DTX_OPT_REAL, "0.3", "0.001..60", DTX_OPT_FREE, "length of a peak measurement between passes"},
    DTX_BENCH_CLOCK_OPTION,
    DTX_BENCH_COMMON_OPTIONS,
    {NULL, 0, NULL, NULL, 0, NULL}};

/* One kernel with its tensors. */
struct kernel {
    const char *name;
    struct dtx_peer *peer; /* whose calls it is; NULL: ours */
    struct dtx_attn_fwd_args forward;
    struct dtx_attn_dots_args dots;
    struct dtx_attn_bwd_args backward;
    double forward_flops, backward_flops;
    struct dtx_samples forward_seconds, backward_seconds, seconds;
};

enum { OURS = 2, PEERS = 3, KERNELS = OURS + PEERS, TENSORS = 16 };

struct bench {
    struct dtx_ctx *ctx;
    struct dtx_opt *opt;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_yardstick *yardstick;
    struct dtx_bench_out out;
    struct dtx_tensor tensors[OURS * TENSORS]; /* everything that is allocated */
    int n_tensors;
    struct kernel kernels[KERNELS]; /* diff, softmax, and of cuDNN what it can do */
    int n_kernels;
    struct dtx_cudnn cudnn;
    struct dtx_peer peers[PEERS]; /* diff in two calls, in one, softmax */
    char why[512];                /* there is no cuDNN */
    enum dtx_bench_clock clock;
    struct dtx_samples cpu_share;
};

static enum dtx_status allocate(struct bench *b, struct dtx_tensor *t)
{
    if (dtx_tensor_count(t) == 0)
        return DTX_OK;
    DTX_TRY(b->ctx, dtx_tensor_alloc(b->backend, t));
    b->tensors[b->n_tensors++] = *t;
    return DTX_OK;
}

/* Standard normal values times `factor`, so that softmax weights are spread like a young model's. */
static enum dtx_status make_input(struct bench *b, struct dtx_tensor *t, const char *name, double factor)
{
    int64_t n = dtx_tensor_count(t);
    uint64_t key = dtx_rng_key(1, name);
    void *host;
    DTX_TRY(b->ctx, allocate(b, t));
    DTX_TRY(b->ctx, dtx_mem_alloc(b->ctx, n, dtx_dtype_bytes(t->dtype), &host));
    for (int64_t i = 0; i < n; i++) {
        double value = factor * dtx_rng_normal(key, (uint64_t)i);
        if (t->dtype == DTX_F64)
            ((double *)host)[i] = value;
        else if (t->dtype == DTX_F32)
            ((float *)host)[i] = (float)value;
        else
            ((uint16_t *)host)[i] = dtx_f32_to_bf16((float)value);
    }
    enum dtx_status status = dtx_tensor_set(b->queue, t, host);
    dtx_mem_free(host);
    return status;
}

/* maps 2: h differential heads; maps 1: h plain heads. Shapes: kernels/ops.h. */
static enum dtx_status make_kernel(struct bench *b, struct kernel *k, int maps, int64_t h, int64_t hkv)
{
    enum dtx_dtype act, master;
    int64_t n = dtx_opt_int(b->opt, "batch"), t = dtx_opt_int(b->opt, "length"), d = dtx_opt_int(b->opt, "head_dim");
    dtx_dtype_parse(dtx_opt_text(b->opt, "dtype"), &act);
    master = dtx_dtype_master(act);
    double scale = 1 / sqrt((double)d), pairs = (double)n * (double)h * dtx_attention_pairs(0, t, 0, t);
    struct dtx_tensor q = dtx_tensor_4d(NULL, act, n, t, maps * h, d),
                      key = dtx_tensor_4d(NULL, act, n, t, maps * hkv, d);
    struct dtx_tensor v = dtx_tensor_4d(NULL, act, n, t, hkv, maps * d),
                      o = dtx_tensor_4d(NULL, act, n, t, h, maps * d);
    struct dtx_tensor lse = dtx_tensor_3d(NULL, master, n, maps * h, t), dsum = lse, dq = q, dk = key, dv = v, o2 = o;
    struct dtx_tensor do_ = o, lambda = dtx_tensor_1d(NULL, master, 1), dlambda = dtx_tensor_1d(NULL, master, h);
    DTX_TRY(b->ctx, make_input(b, &q, "bench.q", 1));
    DTX_TRY(b->ctx, make_input(b, &key, "bench.k", 1));
    DTX_TRY(b->ctx, make_input(b, &v, "bench.v", 1));
    DTX_TRY(b->ctx, make_input(b, &do_, "bench.do", 1));
    DTX_TRY(b->ctx, make_input(b, &lambda, "bench.lambda", 0.3));
    struct dtx_tensor *results[] = {&o, &o2, &lse, &dsum, &dq, &dk, &dv, &dlambda};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        DTX_TRY(b->ctx, allocate(b, results[i]));
    if (maps == 1)
        o2 = lambda = dlambda = (struct dtx_tensor){0};
    k->forward = (struct dtx_attn_fwd_args){
        .q = q, .k = key, .v = v, .lambda = lambda, .maps = maps, .scale = scale, .o = o, .o2 = o2, .lse = lse};
    k->dots = (struct dtx_attn_dots_args){
        .do_ = do_, .o = o, .o2 = o2, .lambda = lambda, .dsum = dsum, .dlambda = dlambda, .maps = maps};
    k->backward = (struct dtx_attn_bwd_args){.q = q,
                                             .k = key,
                                             .v = v,
                                             .lambda = lambda,
                                             .maps = maps,
                                             .scale = scale,
                                             .do_ = do_,
                                             .lse = lse,
                                             .dsum = dsum,
                                             .dq = dq,
                                             .dk = dk,
                                             .dv = dv};
    k->forward_flops = pairs * dtx_attention_forward_flops(maps, (double)d, (double)(maps * d));
    k->backward_flops = pairs * dtx_attention_backward_flops(maps, (double)d, (double)(maps * d));
    size_t f = dtx_attn_fwd_work_bytes(b->queue, &k->forward), w = dtx_attn_bwd_work_bytes(b->queue, &k->backward);
    struct dtx_tensor work = dtx_tensor_1d(NULL, DTX_U8, (int64_t)(f > w ? f : w));
    DTX_TRY(b->ctx, allocate(b, &work));
    k->forward.work = k->backward.work = work;
    return DTX_OK;
}

static enum dtx_status run_forward(struct bench *b, struct kernel *k)
{
    return k->peer ? dtx_peer_forward(b->queue, k->peer) : dtx_attn_fwd(b->queue, &k->forward);
}

static enum dtx_status run_backward(struct bench *b, struct kernel *k)
{
    if (k->peer)
        return dtx_peer_backward(b->queue, k->peer);
    DTX_TRY(b->ctx, dtx_attn_dots(b->queue, &k->dots));
    return dtx_attn_bwd(b->queue, &k->backward);
}

static enum dtx_status pass(struct bench *b, struct kernel *k, bool count)
{
    double cpu = dtx_bench_cpu_seconds(), wall = dtx_clock_now(), start, forward, backward;
    DTX_TRY(b->ctx, dtx_bench_begin(b->queue, b->clock, &start));
    DTX_TRY(b->ctx, run_forward(b, k));
    DTX_TRY(b->ctx, dtx_bench_end(b->queue, b->clock, start, &forward));
    DTX_TRY(b->ctx, dtx_bench_begin(b->queue, b->clock, &start));
    DTX_TRY(b->ctx, run_backward(b, k));
    DTX_TRY(b->ctx, dtx_bench_end(b->queue, b->clock, start, &backward));
    if (!count)
        return DTX_OK;
    dtx_samples_add(&k->forward_seconds, forward);
    dtx_samples_add(&k->backward_seconds, backward);
    dtx_samples_add(&k->seconds, forward + backward);
    if (b->clock != DTX_BENCH_DEVICE)
        dtx_samples_add(&b->cpu_share,
                        (dtx_bench_cpu_seconds() - cpu) / ((dtx_clock_now() - wall) * b->backend->threads));
    return DTX_OK;
}

static struct dtx_peer_ours ours(const struct bench *b, int peer)
{
    const struct kernel *k = &b->kernels[peer < 2 ? 0 : 1];
    return (struct dtx_peer_ours){&k->forward, &k->backward};
}

/* The kernels of cuDNN behind ours. Without it, or where it refuses, a line says so and there are fewer. */
static enum dtx_status add_peers(struct bench *b)
{
    static const char *const names[] = {"cudnn_two_calls", "cudnn_one_call", "cudnn_softmax"};
    static const int calls[] = {2, 1, 1};
    const struct dtx_collectives *device = dtx_backend_collectives(b->backend);
    if (!device)
        snprintf(b->why, sizeof b->why, "it needs a GPU, and this is device %s", b->backend->name);
    if (!device || !dtx_cudnn_open(&b->cudnn, device->stream(b->queue), NULL, b->why, sizeof b->why)) {
        dtx_log(b->ctx, DTX_LOG_WARN, "cuDNN: not compared: %s", b->why);
        return DTX_OK;
    }
    for (int i = 0; i < PEERS; i++) {
        struct dtx_peer *peer = &b->peers[i];
        struct dtx_peer_ours compared = ours(b, i);
        const struct dtx_attn_fwd_args *f = compared.forward;
        peer->name = names[i];
        DTX_TRY(b->ctx, dtx_peer_make(b->queue, &b->cudnn, &compared, calls[i], peer));
        if (!peer->ready) {
            dtx_log(b->ctx, DTX_LOG_WARN, "%s: not compared: %s", peer->name, peer->why);
            continue;
        }
        double d = (double)f->q.dim[3], dv = (double)f->v.dim[3], calls_pairs = (double)(f->q.dim[0] * f->q.dim[2]);
        calls_pairs *= dtx_attention_pairs(0, f->q.dim[1], 0, f->q.dim[1]);
        struct kernel *k = &b->kernels[b->n_kernels++];
        k->name = peer->name;
        k->peer = peer;
        k->forward_flops = calls_pairs * dtx_attention_forward_flops(1, d, dv);
        k->backward_flops = calls_pairs * dtx_attention_backward_flops(1, d, dv);
    }
    return DTX_OK;
}

static enum dtx_status compare_peers(struct bench *b)
{
    for (int i = 0; i < PEERS; i++) {
        struct dtx_peer_ours compared = ours(b, i);
        if (b->peers[i].ready)
            DTX_TRY(b->ctx, dtx_peer_compare(b->queue, &compared, &b->peers[i]));
    }
    return DTX_OK;
}

/* A kernel of cuDNN that fails when it first runs: ours are measured without it. */
static void drop_peer(struct bench *b, int k)
{
    struct dtx_peer *peer = b->kernels[k].peer;
    snprintf(peer->why, sizeof peer->why, "%.500s", b->ctx->error.text);
    peer->ready = false;
    dtx_error_clear(b->ctx);
    dtx_log(b->ctx, DTX_LOG_WARN, "%s: not compared: %s", peer->name, peer->why);
    for (b->n_kernels--; k < b->n_kernels; k++)
        b->kernels[k] = b->kernels[k + 1];
}

static enum dtx_status judge_peers(struct bench *b)
{
    for (int i = 0; i < PEERS; i++)
        if (b->peers[i].ready)
            DTX_TRY(b->ctx, dtx_peer_judge(b->ctx, &b->peers[i]));
    return DTX_OK;
}

static enum dtx_status measure(struct bench *b)
{
    enum dtx_dtype act;
    int repeats = (int)dtx_opt_int(b->opt, "repeats");
    int64_t h = dtx_opt_int(b->opt, "heads"), hkv = dtx_opt_int(b->opt, "kv_heads");
    hkv = hkv ? hkv : h;
    dtx_dtype_parse(dtx_opt_text(b->opt, "dtype"), &act);
    DTX_TRY(b->ctx, b->backend->queues->create(b->backend, &b->queue));
    DTX_TRY(b->ctx, dtx_yardstick_open(b->backend, act, b->clock, &b->yardstick));
    b->kernels[0].name = "diff";
    b->kernels[1].name = "softmax";
    DTX_TRY(b->ctx, make_kernel(b, &b->kernels[0], 2, h, hkv));
    DTX_TRY(b->ctx, make_kernel(b, &b->kernels[1], 1, 2 * h, 2 * hkv));
    b->n_kernels = OURS;
    if (strcmp(dtx_opt_text(b->opt, "peer"), "cudnn") == 0)
        DTX_TRY(b->ctx, add_peers(b));
    for (int i = -1; i < repeats; i++) {
        for (int k = 0; k < b->n_kernels; k++) {
            DTX_TRY(b->ctx, dtx_yardstick_products(b->yardstick, dtx_opt_real(b->opt, "peak_seconds")));
            enum dtx_status status = pass(b, &b->kernels[k], i >= 0);
            if (status != DTX_OK && i < 0 && b->kernels[k].peer) {
                drop_peer(b, k--);
                continue;
            }
            DTX_TRY(b->ctx, status);
            if (i >= 0)
                dtx_log(b->ctx, DTX_LOG_INFO, "%s: pass %d of %d: forward %.4g s, backward %.4g s", b->kernels[k].name,
                        i + 1, repeats, b->kernels[k].forward_seconds.value[i],
                        b->kernels[k].backward_seconds.value[i]);
        }
        if (i < 0)
            DTX_TRY(b->ctx, compare_peers(b));
    }
    return DTX_OK;
}

static json_t *part_json(const struct dtx_samples *seconds, double flops, double peak)
{
    double speed = flops / dtx_samples_median(seconds);
    return json_pack("{s:o, s:f, s:f, s:f}", "seconds", dtx_samples_json(seconds), "flops", flops, "flops_per_second",
                     speed, "share_of_peak", speed / peak);
}

static json_t *kernel_json(const struct kernel *k, double peak)
{
    return json_pack("{s:o, s:o, s:o}", "forward", part_json(&k->forward_seconds, k->forward_flops, peak), "backward",
                     part_json(&k->backward_seconds, k->backward_flops, peak), "both",
                     part_json(&k->seconds, k->forward_flops + k->backward_flops, peak));
}

static double ratio(const struct dtx_samples *over, const struct dtx_samples *under)
{
    return dtx_samples_median(over) / dtx_samples_median(under);
}

static json_t *ratio_json(const struct kernel *over, const struct kernel *under)
{
    return json_pack("{s:f, s:f, s:f}", "forward", ratio(&over->forward_seconds, &under->forward_seconds), "backward",
                     ratio(&over->backward_seconds, &under->backward_seconds), "both",
                     ratio(&over->seconds, &under->seconds));
}

/* {"name", "state", "why" or "version" and "kernels"}; "ours": our time over cuDNN's. */
static json_t *peer_json(const struct bench *b, double peak)
{
    json_t *kernels = json_object();
    if (!b->cudnn.library)
        return json_pack("{s:s, s:s, s:s, s:o}", "name", "cudnn", "state", "not compared", "why", b->why, "kernels",
                         kernels);
    for (int i = 0; i < PEERS; i++)
        if (!b->peers[i].ready)
            json_object_set_new(kernels, b->peers[i].name,
                                json_pack("{s:s, s:s}", "state", "not compared", "why", b->peers[i].why));
    for (int i = OURS; i < b->n_kernels; i++) {
        const struct kernel *k = &b->kernels[i];
        const struct dtx_peer *p = k->peer;
        json_t *object = kernel_json(k, peak);
        json_object_update_new(object, json_pack("{s:s, s:i, s:I, s:I, s:{s:f, s:f}, s:o}", "state", "compared",
                                                 "calls", p->calls, "forward_engine", (json_int_t)p->forward[0].engine,
                                                 "backward_engine", (json_int_t)p->backward[0].engine, "difference",
                                                 "output", p->output, "gradient", p->gradient, "ours",
                                                 ratio_json(&b->kernels[p == &b->peers[2]], k)));
        json_object_set_new(kernels, k->name, object);
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "name", "cudnn", "state", "compared", "version", b->cudnn.version,
                     "kernels", kernels);
}

static void print_part(FILE *file, const char *name, const char *part, const struct dtx_samples *seconds, double flops,
                       double peak)
{
    char median[32], low[32], high[32], text[32];
    double speed = flops / dtx_samples_median(seconds);
    dtx_report_seconds(dtx_samples_median(seconds), median);
    dtx_report_seconds(dtx_samples_min(seconds), low);
    dtx_report_seconds(dtx_samples_max(seconds), high);
    dtx_report_scaled(speed, "FLOP/s", text);
    fprintf(file, "%-15s %-9s %10s %10s %10s %14s %7.1f %%\n", name, part, median, low, high, text, 100 * speed / peak);
}

static enum dtx_status report(struct bench *b, int argc, char **argv)
{
    const struct kernel *diff = &b->kernels[0], *softmax = &b->kernels[1];
    double peak = dtx_yardstick_flops(b->yardstick);
    char machine[256];
    FILE *file = dtx_bench_table(&b->out);
    dtx_bench_describe(b->backend, dtx_opt_text(b->opt, "dtype"), 1, machine, sizeof machine);
    fprintf(file, "machine     %s\n", machine);
    dtx_yardstick_print(b->yardstick, peak, 0, file);
    fprintf(file, "\n%-15s %-9s %10s %10s %10s %14s %9s\n", "kernel", "pass", "median", "least", "most", "speed",
            "of peak");
    for (int k = 0; k < b->n_kernels; k++) {
        const struct kernel *x = &b->kernels[k];
        print_part(file, x->name, "forward", &x->forward_seconds, x->forward_flops, peak);
        print_part(file, "", "backward", &x->backward_seconds, x->backward_flops, peak);
        print_part(file, "", "both", &x->seconds, x->forward_flops + x->backward_flops, peak);
    }
    fprintf(file, "\ndiff takes %.3f of the time of softmax (forward %.3f, backward %.3f)\n",
            ratio(&diff->seconds, &softmax->seconds), ratio(&diff->forward_seconds, &softmax->forward_seconds),
            ratio(&diff->backward_seconds, &softmax->backward_seconds));
    for (int k = OURS; k < b->n_kernels; k++) {
        const struct kernel *x = &b->kernels[k], *mine = x->peer == &b->peers[2] ? softmax : diff;
        fprintf(file, "%s takes %.3f of the time of %s (forward %.3f, backward %.3f; results differ by %.2g, %.2g)\n",
                mine->name, ratio(&mine->seconds, &x->seconds), x->name,
                ratio(&mine->forward_seconds, &x->forward_seconds),
                ratio(&mine->backward_seconds, &x->backward_seconds), x->peer->output, x->peer->gradient);
    }
    dtx_bench_warn_busy(b->ctx, dtx_samples_median(&b->cpu_share));
    json_t *root = dtx_bench_json(b->backend, 1, "attention", argc, argv);
    json_t *fields = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:{s:o, s:o}, s:o}", "clock", dtx_bench_clock_name(b->clock), "dtype",
        dtx_opt_text(b->opt, "dtype"), "length", (json_int_t)dtx_opt_int(b->opt, "length"), "heads",
        (json_int_t)dtx_opt_int(b->opt, "heads"), "head_dim", (json_int_t)dtx_opt_int(b->opt, "head_dim"), "batch",
        (json_int_t)dtx_opt_int(b->opt, "batch"), "cpu_share", dtx_samples_json(&b->cpu_share), "peak",
        dtx_yardstick_json(b->yardstick, peak, 0), "kernels", "diff", kernel_json(diff, peak), "softmax",
        kernel_json(softmax, peak), "diff_to_softmax_time", ratio_json(diff, softmax));
    if (strcmp(dtx_opt_text(b->opt, "peer"), "cudnn") == 0)
        json_object_set_new(fields, "peer", peer_json(b, peak));
    json_object_update_new(root, fields);
    return dtx_bench_out_write(b->ctx, &b->out, root);
}

static enum dtx_status check_options(struct bench *b)
{
    int64_t h = dtx_opt_int(b->opt, "heads"), hkv = dtx_opt_int(b->opt, "kv_heads");
    if (hkv && h % hkv)
        dtx_opt_fault(b->opt, "heads %lld is not a multiple of kv_heads %lld", (long long)h, (long long)hkv);
    return dtx_opt_check(b->ctx, b->opt);
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    DTX_TRY(b->ctx, check_options(b));
    DTX_TRY(b->ctx, dtx_bench_out_open(b->ctx, dtx_opt_text(b->opt, "json"), &b->out));
    DTX_TRY(b->ctx, dtx_bench_backend(b->ctx, b->opt, 1, &b->backend));
    DTX_TRY(b->ctx, dtx_bench_clock_choose(b->backend, b->opt, &b->clock));
    DTX_TRY(b->ctx, measure(b));
    DTX_TRY(b->ctx, report(b, argc, argv));
    return judge_peers(b);
}

enum dtx_status dtx_bench_attention(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done = false;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    b->ctx = ctx;
    enum dtx_status status = dtx_bench_options(ctx, rows, usage, argc, argv, &b->opt, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    for (int i = 0; i < PEERS; i++)
        dtx_peer_free(b->backend, &b->peers[i]);
    dtx_cudnn_close(&b->cudnn);
    for (int i = 0; i < b->n_tensors; i++)
        dtx_tensor_free(b->backend, &b->tensors[i]);
    dtx_yardstick_close(b->yardstick);
    if (b->queue)
        b->backend->queues->free(b->queue);
    dtx_backend_close(b->backend);
    dtx_opt_free(b->opt);
    dtx_mem_free(b);
    return status;
}
