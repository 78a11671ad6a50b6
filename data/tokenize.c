#include "data/tokenize.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenize_output.h"
#include "data/tokenize_pool.h"
#include "data/utf8.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct run {
    const struct dtx_tokenize_config *config;
    struct dtx_tokenize_output out;
    struct dtx_tokenize_pool *pool;
    struct dtx_outfile lock; /* PREFIX.tokenize.partial: held while this call works on PREFIX */
    char *manifest;
    struct dtx_textfile *file;
    int reading;     /* the input that is open, or is next */
    bool json, skip; /* skip: the next one to be opened was begun by an earlier call */
};

static bool is_json(const struct dtx_tokenize_config *c, const char *path)
{
    static const char *const packed[] = {".gz", ".zst"}, *const names[] = {".jsonl", ".ndjson", ".json"};
    size_t n = strlen(path);
    if (c->format != DTX_TEXT_BY_NAME)
        return c->format == DTX_TEXT_JSONL;
    for (int i = 0; i < 2; i++)
        if (n > strlen(packed[i]) && strcmp(path + n - strlen(packed[i]), packed[i]) == 0) {
            n -= strlen(packed[i]);
            break;
        }
    for (int i = 0; i < 3; i++)
        if (n > strlen(names[i]) && strncmp(path + n - strlen(names[i]), names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Sizes and times of the inputs; what is missing is said before anything is written. */
static enum dtx_status look_at_inputs(struct dtx_ctx *ctx, struct run *r)
{
    const struct dtx_tokenize_config *c = r->config;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, c->n_paths, sizeof *r->out.state.inputs, &p));
    r->out.state.inputs = p;
    r->out.state.n_inputs = c->n_paths;
    r->out.regular = true;
    for (int i = 0; i < c->n_paths; i++) {
        struct dtx_tokenize_input *in = &r->out.state.inputs[i];
        struct stat st;
        in->path = c->paths[i];
        if (dtx_utf8_valid(in->path, (int64_t)strlen(in->path)) != (int64_t)strlen(in->path))
            return dtx_fail(ctx, DTX_E_CONFIG, "the path %s is not UTF-8 and cannot stand in a manifest: rename it",
                            in->path);
        bool pipe = strcmp(in->path, "-") == 0;
        int fd;
        if (!pipe && (stat(in->path, &st) != 0 || S_ISDIR(st.st_mode))) {
            DTX_TRY(ctx, dtx_file_open(ctx, in->path, &fd, &in->size)); /* which says what is wrong */
            close(fd);
        }
        pipe = pipe || !S_ISREG(st.st_mode);
        r->out.regular &= !pipe;
        if (pipe)
            continue;
        in->size = st.st_size;
        in->modified = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    r->out.state.inputs_hash = dtx_tokenize_inputs_hash(&r->out.state);
    return DTX_OK;
}

/* The next megabyte of the inputs into a batch. */
static enum dtx_status read_batch(struct dtx_ctx *ctx, struct run *r, struct dtx_text_batch *b)
{
    const struct dtx_tokenize_config *c = r->config;
    if (!r->file) {
        const char *path = c->paths[r->reading];
        r->json = is_json(c, path);
        bool whole = r->json || !dtx_tokenizer_may_cut(c->tokenizer);
        DTX_TRY(ctx, dtx_textfile_open(ctx, path, r->json ? DTX_SPLIT_LINE : c->split, whole ? -1 : 1 << 20, &r->file));
        if (r->skip && !DTX_MUTANT(tokenize_done_again))
            DTX_TRY(ctx,
                    dtx_textfile_skip(ctx, r->file, r->out.state.inputs[r->reading].text_bytes, r->out.state.lines));
        r->out.consumed = r->skip ? dtx_textfile_consumed(r->file) : r->out.consumed;
        r->out.meter.total -= r->skip ? r->out.consumed : 0;
        r->skip = false;
    }
    b->input = r->reading;
    b->json = r->json;
    b->field = c->field;
    dtx_ctx_init_child(&b->ctx, ctx);
    DTX_TRY(ctx, dtx_text_batch_fill(ctx, b, r->file));
    if (b->file_ends) {
        dtx_textfile_close(r->file);
        r->file = NULL;
        r->reading++;
    }
    return DTX_OK;
}

static bool same_size(const char *prefix, const char *suffix, int64_t bytes)
{
    char path[4096];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s%s", prefix, suffix);
    return n < (int)sizeof path && stat(path, &st) == 0 && st.st_size == bytes;
}

/* Are the shards that the manifest names all there? */
static enum dtx_status find_shards(struct dtx_ctx *ctx, const struct run *r, bool *there)
{
    *there = r->out.state.n_shards > 0;
    for (int64_t k = 0; k < r->out.state.n_shards && *there; k++) {
        const struct dtx_tokenwriter_sums *sums = &r->out.state.shards[k].sums;
        char *prefix;
        DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &r->out.state, r->config->out, k, &prefix));
        *there = same_size(prefix, ".bin", sums->data_bytes) && same_size(prefix, ".idx", sums->index_bytes);
        dtx_mem_free(prefix);
    }
    return DTX_OK;
}

static void forget(struct run *r)
{
    struct dtx_tokenize_state *s = &r->out.state;
    for (int i = 0; i < s->n_inputs; i++)
        s->inputs[i] = (struct dtx_tokenize_input){
            .path = s->inputs[i].path, .size = s->inputs[i].size, .modified = s->inputs[i].modified};
    s->n_shards = 0;
}

/* Takes over what an earlier call has done. */
static enum dtx_status take_over(struct dtx_ctx *ctx, struct run *r, bool *complete)
{
    char why[200];
    bool same;
    *complete = false;
    if (!r->out.regular || r->config->restart)
        return DTX_OK;
    if (access(r->out.progress, F_OK) == 0) {
        DTX_TRY(ctx, dtx_tokenize_state_read(ctx, &r->out.state, r->out.progress, false, &same, why));
        if (!same)
            return dtx_fail(
                ctx, DTX_E_CONFIG,
                "%s is of unfinished work, begun %s: repeat that call to end it, or give --restart to begin "
                "anew",
                r->out.progress, why);
        r->out.saved = r->skip = true;
        return r->out.state.renaming ? dtx_tokenize_output_rename(ctx, &r->out) : DTX_OK;
    }
    if (access(r->manifest, F_OK) != 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_tokenize_state_read(ctx, &r->out.state, r->manifest, true, &same, why));
    if (same)
        DTX_TRY(ctx, find_shards(ctx, r, complete));
    if (!*complete)
        forget(r);
    return DTX_OK;
}

/* SIGTERM, SIGINT and SIGUSR1 wait until they are asked for, here and in the threads that are started; to the end of
 * the process: one that comes when all is done has nothing to stop. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

static enum dtx_status check_stop(struct dtx_ctx *ctx, struct run *r, const sigset_t *set)
{
    const struct timespec at_once = {0, 0};
    int number = r->out.regular ? sigtimedwait(set, NULL, &at_once) : 0;
    if (number <= 0)
        return DTX_OK;
    if (!r->out.inside)
        DTX_TRY(ctx, dtx_tokenize_output_save(ctx, &r->out));
    dtx_meter_clear(&r->out.meter);
    dtx_log(ctx, DTX_LOG_INFO, "stopped by signal %d after %d of %d inputs%s", number, r->out.state.input,
            r->out.state.n_inputs, r->out.saved ? "; the same command goes on from here" : "; nothing was saved yet");
    return DTX_E_REQUEUE;
}

static enum dtx_status work(struct dtx_ctx *ctx, struct run *r, const sigset_t *set)
{
    struct dtx_text_batch *b;
    r->reading = r->out.state.input;
    for (;;) {
        while (r->reading < r->out.state.n_inputs && (b = dtx_tokenize_pool_empty(r->pool))) {
            DTX_TRY(ctx, read_batch(ctx, r, b));
            dtx_tokenize_pool_filled(r->pool);
        }
        b = dtx_tokenize_pool_encoded(r->pool);
        if (!b)
            break;
        DTX_TRY(ctx, dtx_tokenize_output_write(ctx, &r->out, b));
        dtx_tokenize_pool_emptied(r->pool);
        DTX_TRY(ctx, check_stop(ctx, r, set));
    }
    return dtx_tokenize_output_end(ctx, &r->out);
}

/* Shards of an earlier, longer run under the same name. */
static enum dtx_status remove_old_shards(struct dtx_ctx *ctx, const struct run *r)
{
    for (int64_t k = r->out.state.n_shards; r->out.state.shard_bytes > 0; k++) {
        char *prefix, path[4096];
        DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &r->out.state, r->config->out, k, &prefix));
        snprintf(path, sizeof path, "%s.idx", prefix);
        bool more = unlink(path) == 0;
        snprintf(path, sizeof path, "%s.bin", prefix);
        dtx_mem_free(prefix);
        if (!more)
            break;
        unlink(path);
    }
    return DTX_OK;
}

static enum dtx_status finish(struct dtx_ctx *ctx, struct run *r)
{
    DTX_TRY(ctx, remove_old_shards(ctx, r));
    DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &r->out.state, r->manifest, true));
    if (unlink(r->out.progress) == 0)
        DTX_TRY(ctx, dtx_file_sync_folder(ctx, r->out.progress));
    return DTX_OK;
}

static void start_meter(struct run *r)
{
    int64_t total = 0;
    for (int i = r->out.state.input; i < r->out.state.n_inputs && r->out.regular; i++)
        total += r->out.state.inputs[i].size;
    dtx_meter_start(&r->out.meter, stderr, "tokenize", total);
    r->out.last_save = dtx_clock_now();
}

static enum dtx_status begin(struct dtx_ctx *ctx, struct run *r, bool *complete)
{
    char *lock;
    DTX_TRY(ctx, look_at_inputs(ctx, r));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".progress.json", &r->out.progress));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".manifest.json", &r->manifest));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".tokenize", &lock));
    enum dtx_status status = dtx_outfile_open(ctx, &r->lock, lock);
    dtx_mem_free(lock);
    DTX_TRY(ctx, status);
    DTX_TRY(ctx, take_over(ctx, r, complete));
    if (r->out.saved)
        dtx_log(ctx, DTX_LOG_INFO, "going on after %d of %d inputs", r->out.state.input, r->out.state.n_inputs);
    return DTX_OK;
}

static void report(const struct run *r, struct dtx_tokenize_result *out)
{
    for (int i = 0; i < r->out.state.n_inputs; i++) {
        const struct dtx_tokenize_input *in = &r->out.state.inputs[i];
        out->total.text_bytes += in->text_bytes;
        out->total.documents += in->documents;
        out->total.tokens += in->tokens;
        out->total.invalid += in->invalid;
        out->total.bad_lines += in->bad_lines;
        out->total.empty += in->empty;
    }
    out->shards = r->out.state.n_shards;
    out->text_bytes = r->out.text_bytes;
}

static void release(struct dtx_ctx *ctx, struct run *r, enum dtx_status status)
{
    dtx_meter_clear(&r->out.meter);
    dtx_tokenize_pool_free(r->pool);
    dtx_textfile_close(r->file);
    if (r->out.saved && status != DTX_OK && status != DTX_E_REQUEUE)
        dtx_log(ctx, DTX_LOG_WARN, "what was done is kept in %s.*: the same command goes on there", r->config->out);
    dtx_tokenize_output_close(&r->out);
    dtx_outfile_discard(&r->lock);
    dtx_mem_free(r->manifest);
}

enum dtx_status dtx_tokenize_run(struct dtx_ctx *ctx, const struct dtx_tokenize_config *config,
                                 struct dtx_tokenize_result *out)
{
    struct run r = {.config = config,
                    .out = {.config = config,
                            .state = {.tokenizer = dtx_tokenizer_hash(config->tokenizer),
                                      .vocab = dtx_tokenizer_vocab(config->tokenizer),
                                      .separator = config->separator,
                                      .shard_bytes = config->shard_bytes,
                                      .split = config->split_name,
                                      .field = config->field}}};
    sigset_t set;
    bool complete = false;
    enum dtx_status status;
    *out = (struct dtx_tokenize_result){0};
    DTX_TRY_GOTO(ctx, status, begin(ctx, &r, &complete), done);
    if (!complete) {
        if (r.out.regular)
            block_signals(&set);
        start_meter(&r);
        status = dtx_tokenize_pool_create(ctx, config->tokenizer, config->threads, &r.pool);
        if (status == DTX_OK)
            status = work(ctx, &r, &set);
        if (status == DTX_OK)
            status = finish(ctx, &r);
        if (DTX_MUTANT(tokenize_frees_signals))
            pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    out->complete_before = complete;
    if (status == DTX_OK)
        report(&r, out);
done:
    release(ctx, &r, status);
    return status;
}
