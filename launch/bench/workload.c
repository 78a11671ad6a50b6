#include "launch/bench/workload.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokenwriter.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"
#include "trainer/attn.h"

enum { DOCUMENT = 1000, EXTRA_WORDS = 8, STEPS_OF_DATA = 4 };
static const char default_preset[] = "bench-124m";

static const struct {
    const char *name, *option;
} short_names[] = {{"--dtype", "--train.dtype"}, {"--threads", "--cpu.threads"},
                   {"--isa", "--cpu.isa"},       {"--length", "--train.length"},
                   {"--batch", "--train.batch"}, {"--micro_batch", "--train.micro_batch"}};

static bool has_flag(int argc, char **argv, const char *flag)
{
    size_t n = strlen(flag);
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], flag, n) == 0 && (argv[i][n] == '\0' || argv[i][n] == '='))
            return true;
    return false;
}

static bool names_model(int argc, char **argv)
{
    if (has_flag(argc, argv, "--preset") || has_flag(argc, argv, "--resume") || getenv("DTX_PRESET"))
        return true;
    for (int i = 0; i < argc; i++) {
        size_t n = strlen(argv[i]);
        if (argv[i][0] != '-' && n > 5 && strcmp(argv[i] + n - 5, ".yaml") == 0)
            return true;
    }
    return false;
}

static enum dtx_status add_word(struct dtx_workload *w, const char *text)
{
    DTX_TRY(w->ctx, dtx_mem_text(w->ctx, text, &w->words[w->n_words]));
    w->n_words++;
    return DTX_OK;
}

/* One word with a short name written out. */
static enum dtx_status add_argument(struct dtx_workload *w, const char *argument)
{
    char text[DTX_PATH];
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++) {
        size_t n = strlen(short_names[i].name);
        if (strncmp(argument, short_names[i].name, n) == 0 && (argument[n] == '\0' || argument[n] == '=')) {
            snprintf(text, sizeof text, "%s%s", short_names[i].option, argument + n);
            return add_word(w, text);
        }
    }
    return add_word(w, argument);
}

static enum dtx_status make_words(struct dtx_workload *w, int argc, char **argv, bool one_micro_batch)
{
    void *memory;
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, argc + EXTRA_WORDS, sizeof *w->words, &memory));
    w->words = memory;
    if (!names_model(argc, argv)) {
        DTX_TRY(w->ctx, add_word(w, "--preset"));
        DTX_TRY(w->ctx, add_word(w, default_preset));
        bool batch = has_flag(argc, argv, "--batch") || has_flag(argc, argv, "--train.batch") ||
                     has_flag(argc, argv, "--micro_batch") || has_flag(argc, argv, "--train.micro_batch");
        if (one_micro_batch && !batch) {
            DTX_TRY(w->ctx, add_word(w, "--train.batch=2"));
            DTX_TRY(w->ctx, add_word(w, "--train.micro_batch=2"));
        }
    }
    for (int i = 0; i < argc; i++)
        DTX_TRY(w->ctx, add_argument(w, argv[i]));
    return DTX_OK;
}

/* Token ids spread like words (log-uniform), cut into documents. */
static enum dtx_status write_tokens(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t count)
{
    struct dtx_tokenwriter *writer;
    uint64_t key = dtx_rng_key(1, "bench.tokens");
    enum dtx_status status = DTX_OK;
    DTX_TRY(ctx, dtx_tokenwriter_create(ctx, prefix, vocab, 0, &writer));
    for (int64_t i = 0; i < count && status == DTX_OK; i++) {
        int64_t id = (int64_t)pow((double)vocab, dtx_rng_uniform(key, (uint64_t)i)) - 1;
        int32_t token = (int32_t)dtx_max64(0, dtx_min64(id, vocab - 1));
        status = dtx_tokenwriter_add(ctx, writer, &token, 1);
        if (status == DTX_OK && ((i + 1) % DOCUMENT == 0 || i + 1 == count))
            status = dtx_tokenwriter_end(ctx, writer);
    }
    if (status != DTX_OK) {
        dtx_tokenwriter_discard(writer);
        return status;
    }
    return dtx_tokenwriter_publish(ctx, writer);
}

static void remove_tokens(const char *folder)
{
    static const char *const suffixes[] = {"bin", "idx"};
    char path[DTX_PATH];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/tokens.%s", folder, suffixes[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* The files are removed as soon as they are open: nothing remains, however the bench ends. */
static enum dtx_status open_made_tokens(struct dtx_workload *w, struct dtx_stream_config *config)
{
    const struct dtx_engine_config *c = &w->session.config;
    const char *base = getenv("TMPDIR");
    char folder[DTX_PATH / 2], prefix[DTX_PATH];
    snprintf(folder, sizeof folder, "%s/dtx-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder))
        return dtx_fail(w->ctx, DTX_E_IO, "%s: cannot make a folder for tokens: %s; set TMPDIR or give --data.train",
                        folder, strerror(errno));
    snprintf(prefix, sizeof prefix, "%s/tokens", folder);
    config->paths = prefix;
    config->heldout = 0;
    enum dtx_status status =
        write_tokens(w->ctx, prefix, c->model.vocab, STEPS_OF_DATA * c->batch.global_batch * c->batch.length + 1);
    if (status == DTX_OK)
        status = dtx_stream_open(w->ctx, config, &w->stream);
    if (!DTX_MUTANT(bench_tokens_left_behind))
        remove_tokens(folder);
    return status;
}

static enum dtx_status open_data(struct dtx_workload *w)
{
    struct dtx_session *s = &w->session;
    const struct dtx_batch_config *b = &s->config.batch;
    const struct dtx_mesh *mesh = dtx_engine_mesh(w->runs[0].engine);
    int64_t depth = dtx_opt_int(s->opt, "data.prefetch");
    struct dtx_stream_config config = {.paths = dtx_opt_text(s->opt, "data.train"),
                                       .length = b->length,
                                       .seed = (uint64_t)s->config.seed,
                                       .heldout = dtx_opt_real(s->opt, "data.heldout"),
                                       .vocab = s->config.model.vocab,
                                       .separator = (int32_t)dtx_opt_int(s->opt, "data.separator"),
                                       .doc_reset = dtx_opt_bool(s->opt, "data.doc_reset")};
    struct dtx_loader_config loader = {.global_batch = b->global_batch,
                                       .dp_rank = mesh->rank[DTX_AXIS_DP],
                                       .dp_size = mesh->size[DTX_AXIS_DP],
                                       .depth = (int)dtx_max64(depth, 1),
                                       .thread = depth > 0};
    if (*config.paths)
        DTX_TRY(w->ctx, dtx_stream_open(w->ctx, &config, &w->stream));
    else
        DTX_TRY(w->ctx, open_made_tokens(w, &config));
    return dtx_loader_open(w->ctx, w->stream, &loader, &w->loader);
}

/* The configuration with attention `to`: as many softmax heads, single or in pairs. */
static enum dtx_status match(struct dtx_ctx *ctx, const struct dtx_engine_config *from,
                             const struct dtx_attn_variant *to, struct dtx_engine_config *out)
{
    int64_t tp = from->mesh[DTX_AXIS_TP];
    *out = *from;
    if (!dtx_attn_match(&from->model, to, &out->model) || out->model.heads % tp || out->model.kv_heads % tp)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "attention: %lld heads (%lld for keys) of %s have no counterpart in %s on %lld tensor ranks; "
                        "choose --attention %s, or an even number of heads",
                        (long long)from->model.heads, (long long)from->model.kv_heads, from->model.attention->name,
                        to->name, (long long)tp, from->model.attention->name);
    return DTX_OK;
}

static enum dtx_status open_runs(struct dtx_workload *w)
{
    static const char *const names[] = {"diff", "softmax"};
    struct dtx_session *s = &w->session;
    const char *wanted = dtx_opt_text(s->opt, "attention");
    bool both = strcmp(wanted, "both") == 0, own_used = false;
    for (int i = 0; i < 2; i++) {
        if (!both && strcmp(wanted, names[i]) != 0)
            continue;
        struct dtx_workload_run *run = &w->runs[w->n_runs];
        const struct dtx_attn_variant *variant = dtx_attn_find(names[i]);
        run->name = names[i];
        if (!variant)
            return dtx_fail(w->ctx, DTX_E_UNSUPPORTED, "attention: '%s' is not in this build", names[i]);
        DTX_TRY(w->ctx, match(w->ctx, &s->config, variant, &run->config));
        if (variant == s->config.model.attention) {
            own_used = true;
            run->engine = s->engine;
        } else {
            DTX_TRY(w->ctx, dtx_engine_create(w->ctx, &run->config, s->between, s->backend, &run->engine));
        }
        w->n_runs++;
    }
    if (!own_used) {
        dtx_engine_free(s->engine);
        s->engine = NULL;
    }
    return DTX_OK;
}

enum dtx_status dtx_workload_open(struct dtx_ctx *ctx, const struct dtx_session_command *command, int argc, char **argv,
                                  bool one_micro_batch, struct dtx_workload *w, bool *done)
{
    *w = (struct dtx_workload){.ctx = ctx};
    *done = false;
    DTX_TRY(ctx, make_words(w, argc, argv, one_micro_batch));
    DTX_TRY(ctx, dtx_session_open(ctx, command, w->n_words, w->words, &w->session, done));
    if (*done)
        return DTX_OK;
    DTX_TRY(ctx, open_runs(w));
    DTX_TRY(ctx, dtx_comm_agree(w->session.world, open_data(w)));
    DTX_TRY(ctx, dtx_bench_clock_choose(w->session.backend, w->session.opt, &w->clock));
    w->lr = dtx_opt_real(w->session.opt, "lr.min");
    return DTX_OK;
}

enum dtx_status dtx_workload_step(struct dtx_workload *w, struct dtx_workload_run *run,
                                  struct dtx_workload_timing *timing)
{
    struct dtx_batch data;
    struct dtx_step_result result;
    const struct dtx_backend *backend = w->session.backend;
    DTX_TRY(w->ctx, dtx_comm_barrier(w->session.world));
    double start = dtx_bench_now(w->clock), wall = dtx_clock_now(), cpu = dtx_bench_cpu_seconds();
    DTX_TRY(w->ctx, dtx_comm_agree(w->session.world, dtx_loader_next(w->ctx, w->loader, &data)));
    bool documents = dtx_opt_bool(w->session.opt, "data.doc_reset");
    struct dtx_engine_batch batch = {data.tokens, data.targets, documents ? data.doc_start : NULL};
    DTX_TRY(w->ctx, dtx_engine_step(run->engine, &batch, ++run->step, w->lr, &result));
    struct dtx_queue *queue = dtx_engine_queue(run->engine);
    DTX_TRY(w->ctx, queue->backend->queues->wait(queue)); /* a device may still be at the update */
    timing->seconds = dtx_bench_now(w->clock) - start;
    timing->wall_seconds = dtx_clock_now() - wall;
    timing->data_wait = data.wait_seconds;
    timing->cpu_share =
        w->clock == DTX_BENCH_DEVICE ? 0 : (dtx_bench_cpu_seconds() - cpu) / (timing->wall_seconds * backend->threads);
    timing->loss = result.loss;
    if (result.skipped)
        return dtx_fail(w->ctx, DTX_E_NUMERIC, "%s: step %lld has loss %g and gradient norm %g: nothing to measure",
                        run->name, (long long)run->step, result.loss, result.grad_norm);
    return DTX_OK;
}

enum dtx_status dtx_workload_close(struct dtx_workload *w, enum dtx_status status)
{
    dtx_loader_close(w->loader);
    dtx_stream_close(w->stream);
    for (int i = 0; i < w->n_runs && status == DTX_OK; i++) /* all ranks come here: communicators may be freed */
        if (w->runs[i].engine != w->session.engine)
            dtx_engine_free(w->runs[i].engine);
    for (int i = 0; i < w->n_words; i++)
        dtx_mem_free(w->words[i]);
    dtx_mem_free(w->words);
    return dtx_session_close(&w->session, status);
}

json_t *dtx_workload_json(const struct dtx_workload *w)
{
    const struct dtx_model_config *m = &w->session.config.model;
    const struct dtx_batch_config *b = &w->session.config.batch;
    const int *mesh = w->session.config.mesh;
    json_t *batch = json_pack("{s:I, s:I, s:I, s:i, s:I}", "length", (json_int_t)b->length, "sequences",
                              (json_int_t)b->global_batch, "micro_batch", (json_int_t)b->micro_batch, "micro_batches",
                              b->micro_batches, "tokens", (json_int_t)dtx_workload_tokens(w));
    json_t *model =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I}", "layers", (json_int_t)m->layers, "width", (json_int_t)m->width,
                  "head_dim", (json_int_t)m->head_dim, "ffn", (json_int_t)m->ffn, "vocab", (json_int_t)m->vocab, "tied",
                  m->tied, "weights", (json_int_t)dtx_params_total(dtx_engine_params(w->runs[0].engine)));
    return json_pack("{s:s, s:o, s:o, s:{s:i, s:i, s:i}, s:s}", "clock", dtx_bench_clock_name(w->clock), "model", model,
                     "batch", batch, "mesh", "tp", mesh[DTX_AXIS_TP], "pp", mesh[DTX_AXIS_PP], "dp", mesh[DTX_AXIS_DP],
                     "dtype", dtx_dtype_name(w->session.config.dtype));
}

int64_t dtx_workload_tokens(const struct dtx_workload *w)
{
    return w->session.config.batch.global_batch * w->session.config.batch.length;
}

void dtx_workload_print(const struct dtx_workload *w, FILE *file)
{
    const struct dtx_model_config *m = &w->session.config.model;
    const struct dtx_batch_config *b = &w->session.config.batch;
    char weights[32], machine[256];
    dtx_report_scaled((double)dtx_params_total(dtx_engine_params(w->runs[0].engine)), "weights", weights);
    dtx_bench_describe(w->session.backend, dtx_dtype_name(w->session.config.dtype), w->session.world->size, machine,
                       sizeof machine);
    fprintf(file, "machine     %s\n", machine);
    fprintf(file, "model       %s: %lld layers of %lld, ffn %lld, vocabulary %lld\n", weights, (long long)m->layers,
            (long long)m->width, (long long)m->ffn, (long long)m->vocab);
    fprintf(file, "step        %lld tokens: %lld sequences of %lld, %d micro-batch%s of %lld on each data rank\n",
            (long long)dtx_workload_tokens(w), (long long)b->global_batch, (long long)b->length, b->micro_batches,
            b->micro_batches == 1 ? "" : "es", (long long)b->micro_batch);
}
