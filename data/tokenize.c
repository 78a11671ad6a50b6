#include "data/tokenize.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenize_pool.h"
#include "data/utf8.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { NAMED_LINES = 10 }; /* bad lines that are named one by one; all are counted */

struct run {
    const struct dtx_tokenize_config *config;
    struct dtx_tokenize_state state;
    struct dtx_tokenize_pool *pool;
    struct dtx_outfile lock; /* PREFIX.tokenize.partial: held while this call works on PREFIX */
    char *progress, *manifest;
    bool regular; /* all inputs are files: the work can be continued */
    bool saved;   /* there is something to continue */
    /* reading */
    struct dtx_textfile *file;
    int reading;     /* the input that is open, or is next */
    bool json, skip; /* skip: the next one to be opened was begun by an earlier call */
    /* writing */
    struct dtx_tokenwriter *writer; /* of shard n_shards; NULL: not begun */
    bool inside;                    /* a document has begun and not ended */
    int64_t document_tokens;
    int named;
    int64_t consumed, text_bytes; /* of the input being written; of this call */
    double last_save;
    struct dtx_meter meter;
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
    DTX_TRY(ctx, dtx_mem_alloc(ctx, c->n_paths, sizeof *r->state.inputs, &p));
    r->state.inputs = p;
    r->state.n_inputs = c->n_paths;
    r->regular = true;
    for (int i = 0; i < c->n_paths; i++) {
        struct dtx_tokenize_input *in = &r->state.inputs[i];
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
        r->regular &= !pipe;
        if (pipe)
            continue;
        in->size = st.st_size;
        in->modified = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    r->state.inputs_hash = dtx_tokenize_inputs_hash(&r->state);
    return DTX_OK;
}

static enum dtx_status open_writer(struct dtx_ctx *ctx, struct run *r)
{
    const struct dtx_tokenize_state *s = &r->state;
    char *prefix;
    DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, s, r->config->out, s->n_shards, &prefix));
    enum dtx_status status = dtx_tokenwriter_continue(ctx, prefix, s->vocab, 0, &s->mark, &r->writer);
    dtx_mem_free(prefix);
    return status;
}

/* Everything up to the last document is on disk, and the state says so. */
static enum dtx_status save(struct dtx_ctx *ctx, struct run *r)
{
    r->last_save = dtx_clock_now();
    if (!r->regular)
        return DTX_OK;
    if (r->writer)
        DTX_TRY(ctx, dtx_tokenwriter_save(ctx, r->writer, &r->state.mark));
    DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &r->state, r->progress, false));
    r->saved = true;
    return DTX_OK;
}

/* The renames of the last shard: all of them, or those that a killed call had not come to. */
static enum dtx_status rename_shard(struct dtx_ctx *ctx, struct run *r)
{
    char *prefix;
    DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &r->state, r->config->out, r->state.n_shards - 1, &prefix));
    enum dtx_status status = dtx_tokenwriter_rename(ctx, prefix);
    dtx_mem_free(prefix);
    r->state.renaming = false;
    return status;
}

/* Ends the shard that is being written. Its sums are in the state before its files get their names, so that a kill
 * between the two is mended by renaming. */
static enum dtx_status end_shard(struct dtx_ctx *ctx, struct run *r)
{
    struct dtx_tokenize_shard shard = {.counts = dtx_tokenwriter_written(r->writer)};
    DTX_TRY(ctx, dtx_tokenwriter_seal(ctx, r->writer, &shard.sums));
    DTX_TRY(ctx, dtx_tokenize_add_shard(ctx, &r->state, &shard));
    r->state.mark = (struct dtx_tokenwriter_mark){0};
    r->state.renaming = true;
    if (r->regular) {
        DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &r->state, r->progress, false));
        r->saved = true;
    }
    enum dtx_status status = rename_shard(ctx, r);
    dtx_tokenwriter_keep(r->writer);
    r->writer = NULL;
    return status;
}

/* All of the input up to here is in the state. */
static void pass(struct run *r, const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &r->state.inputs[r->state.input];
    r->text_bytes += piece->position - in->text_bytes;
    in->text_bytes = piece->position;
    r->state.lines = piece->lines;
}

static enum dtx_status end_document(struct dtx_ctx *ctx, struct run *r, const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &r->state.inputs[r->state.input];
    r->inside = false;
    pass(r, piece);
    if (r->config->separator >= 0)
        DTX_TRY(ctx, dtx_tokenwriter_add(ctx, r->writer, &r->config->separator, 1));
    DTX_TRY(ctx, dtx_tokenwriter_end(ctx, r->writer));
    in->documents++;
    in->tokens += r->document_tokens + (r->config->separator >= 0);
    r->document_tokens = 0;
    int64_t bytes = dtx_tokenwriter_written(r->writer).tokens * dtx_tokenwriter_token_bytes(r->writer);
    bool full = r->state.shard_bytes > 0 && bytes >= r->state.shard_bytes;
    return full ? end_shard(ctx, r) : DTX_OK;
}

/* What is wrong with a line of JSON or with a document's UTF-8 is counted, named, and with strict an error. */
static enum dtx_status note_faults(struct dtx_ctx *ctx, struct run *r, const struct dtx_text_batch *b,
                                   const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &r->state.inputs[r->state.input];
    in->invalid += piece->invalid;
    in->bad_lines += piece->why >= 0;
    if (piece->invalid > 0 && r->config->strict)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: invalid UTF-8 in document %lld, in the text before byte %lld", in->path,
                        (long long)in->documents, (long long)piece->position);
    if (piece->why < 0)
        return DTX_OK;
    if (r->config->strict)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %lld: %s", in->path, (long long)piece->line,
                        b->notes.data + piece->why);
    dtx_meter_clear(&r->meter);
    if (r->named < NAMED_LINES)
        dtx_log(ctx, DTX_LOG_WARN, "%s: line %lld is left out: %s", in->path, (long long)piece->line,
                b->notes.data + piece->why);
    if (++r->named == NAMED_LINES)
        dtx_log(ctx, DTX_LOG_WARN, "more bad lines are counted, not named; --strict stops at the first");
    return DTX_OK;
}

static enum dtx_status write_piece(struct dtx_ctx *ctx, struct run *r, const struct dtx_text_batch *b, int64_t i)
{
    const struct dtx_batch_piece *piece = &b->pieces[i];
    int64_t first = i > 0 ? b->pieces[i - 1].ids_end : 0, n = piece->ids_end - first;
    DTX_TRY(ctx, note_faults(ctx, r, b, piece));
    if (b->json && n == 0) { /* a bad line, or one with an empty text: no document */
        r->state.inputs[r->state.input].empty += piece->why < 0;
        pass(r, piece);
        return DTX_OK;
    }
    if (!r->writer)
        DTX_TRY(ctx, open_writer(ctx, r));
    r->inside = true;
    DTX_TRY(ctx, dtx_tokenwriter_add(ctx, r->writer, b->ids.data + first, n));
    r->document_tokens += n;
    return piece->ends ? end_document(ctx, r, piece) : DTX_OK;
}

static enum dtx_status write_batch(struct dtx_ctx *ctx, struct run *r, struct dtx_text_batch *b)
{
    if (b->status != DTX_OK) {
        dtx_error_take_from(ctx, &b->ctx);
        return b->status;
    }
    struct dtx_tokenize_state *s = &r->state;
    for (int64_t i = 0; i < b->n; i++)
        DTX_TRY(ctx, write_piece(ctx, r, b, i));
    dtx_meter_add(&r->meter, b->consumed - r->consumed);
    r->consumed = b->consumed;
    if (b->file_ends) {
        s->input++;
        s->lines = r->consumed = 0;
    }
    bool due = dtx_clock_now() - r->last_save >= r->config->save_seconds;
    return due && !r->inside ? save(ctx, r) : DTX_OK;
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
            DTX_TRY(ctx, dtx_textfile_skip(ctx, r->file, r->state.inputs[r->reading].text_bytes, r->state.lines));
        r->consumed = r->skip ? dtx_textfile_consumed(r->file) : r->consumed;
        r->meter.total -= r->skip ? r->consumed : 0;
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
    *there = r->state.n_shards > 0;
    for (int64_t k = 0; k < r->state.n_shards && *there; k++) {
        const struct dtx_tokenwriter_sums *sums = &r->state.shards[k].sums;
        char *prefix;
        DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &r->state, r->config->out, k, &prefix));
        *there = same_size(prefix, ".bin", sums->data_bytes) && same_size(prefix, ".idx", sums->index_bytes);
        dtx_mem_free(prefix);
    }
    return DTX_OK;
}

static void forget(struct run *r)
{
    struct dtx_tokenize_state *s = &r->state;
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
    if (!r->regular || r->config->restart)
        return DTX_OK;
    if (access(r->progress, F_OK) == 0) {
        DTX_TRY(ctx, dtx_tokenize_state_read(ctx, &r->state, r->progress, false, &same, why));
        if (!same)
            return dtx_fail(
                ctx, DTX_E_CONFIG,
                "%s is of unfinished work, begun %s: repeat that call to end it, or give --restart to begin "
                "anew",
                r->progress, why);
        r->saved = r->skip = true;
        return r->state.renaming ? rename_shard(ctx, r) : DTX_OK;
    }
    if (access(r->manifest, F_OK) != 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_tokenize_state_read(ctx, &r->state, r->manifest, true, &same, why));
    if (same)
        DTX_TRY(ctx, find_shards(ctx, r, complete));
    if (!*complete)
        forget(r);
    return DTX_OK;
}

/* SIGTERM, SIGINT and SIGUSR1 wait until they are asked for, here and in the threads that are started. */
static void block_signals(sigset_t *set, sigset_t *before)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, set, before);
}

/* One that came when all was done has nothing to stop. */
static void unblock_signals(const sigset_t *set, const sigset_t *before)
{
    const struct timespec at_once = {0, 0};
    while (sigtimedwait(set, NULL, &at_once) > 0)
        continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static enum dtx_status check_stop(struct dtx_ctx *ctx, struct run *r, const sigset_t *set)
{
    const struct timespec at_once = {0, 0};
    int number = r->regular ? sigtimedwait(set, NULL, &at_once) : 0;
    if (number <= 0)
        return DTX_OK;
    if (!r->inside)
        DTX_TRY(ctx, save(ctx, r));
    dtx_meter_clear(&r->meter);
    dtx_log(ctx, DTX_LOG_INFO, "stopped by signal %d after %d of %d inputs%s", number, r->state.input,
            r->state.n_inputs, r->saved ? "; the same command goes on from here" : "; nothing was saved yet");
    return DTX_E_REQUEUE;
}

static enum dtx_status work(struct dtx_ctx *ctx, struct run *r, const sigset_t *set)
{
    struct dtx_text_batch *b;
    r->reading = r->state.input;
    for (;;) {
        while (r->reading < r->state.n_inputs && (b = dtx_tokenize_pool_empty(r->pool))) {
            DTX_TRY(ctx, read_batch(ctx, r, b));
            dtx_tokenize_pool_filled(r->pool);
        }
        b = dtx_tokenize_pool_encoded(r->pool);
        if (!b)
            break;
        DTX_TRY(ctx, write_batch(ctx, r, b));
        dtx_tokenize_pool_emptied(r->pool);
        DTX_TRY(ctx, check_stop(ctx, r, set));
    }
    if (!r->writer && (r->state.mark.documents > 0 || r->state.n_shards == 0))
        DTX_TRY(ctx, open_writer(ctx, r));
    return r->writer ? end_shard(ctx, r) : DTX_OK;
}

/* Shards of an earlier, longer run under the same name. */
static enum dtx_status remove_old_shards(struct dtx_ctx *ctx, const struct run *r)
{
    for (int64_t k = r->state.n_shards; r->state.shard_bytes > 0; k++) {
        char *prefix, path[4096];
        DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &r->state, r->config->out, k, &prefix));
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
    DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &r->state, r->manifest, true));
    if (unlink(r->progress) == 0)
        DTX_TRY(ctx, dtx_file_sync_folder(ctx, r->progress));
    return DTX_OK;
}

static void start_meter(struct run *r)
{
    int64_t total = 0;
    for (int i = r->state.input; i < r->state.n_inputs && r->regular; i++)
        total += r->state.inputs[i].size;
    dtx_meter_start(&r->meter, stderr, "tokenize", total);
    r->last_save = dtx_clock_now();
}

static enum dtx_status begin(struct dtx_ctx *ctx, struct run *r, bool *complete)
{
    char *lock;
    DTX_TRY(ctx, look_at_inputs(ctx, r));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".progress.json", &r->progress));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".manifest.json", &r->manifest));
    DTX_TRY(ctx, dtx_path_join(ctx, r->config->out, ".tokenize", &lock));
    enum dtx_status status = dtx_outfile_open(ctx, &r->lock, lock);
    dtx_mem_free(lock);
    DTX_TRY(ctx, status);
    DTX_TRY(ctx, take_over(ctx, r, complete));
    if (r->saved)
        dtx_log(ctx, DTX_LOG_INFO, "going on after %d of %d inputs", r->state.input, r->state.n_inputs);
    return DTX_OK;
}

static void report(const struct run *r, struct dtx_tokenize_result *out)
{
    for (int i = 0; i < r->state.n_inputs; i++) {
        const struct dtx_tokenize_input *in = &r->state.inputs[i];
        out->total.text_bytes += in->text_bytes;
        out->total.documents += in->documents;
        out->total.tokens += in->tokens;
        out->total.invalid += in->invalid;
        out->total.bad_lines += in->bad_lines;
        out->total.empty += in->empty;
    }
    out->shards = r->state.n_shards;
    out->text_bytes = r->text_bytes;
}

static void release(struct dtx_ctx *ctx, struct run *r, enum dtx_status status)
{
    dtx_meter_clear(&r->meter);
    dtx_tokenize_pool_free(r->pool);
    dtx_textfile_close(r->file);
    if (r->saved) {
        dtx_tokenwriter_keep(r->writer);
        if (status != DTX_OK && status != DTX_E_REQUEUE)
            dtx_log(ctx, DTX_LOG_WARN, "what was done is kept in %s.*: the same command goes on there", r->config->out);
    } else {
        dtx_tokenwriter_discard(r->writer);
    }
    dtx_outfile_discard(&r->lock);
    dtx_mem_free(r->progress);
    dtx_mem_free(r->manifest);
    dtx_mem_free(r->state.inputs);
    dtx_tokenize_state_free(&r->state);
}

enum dtx_status dtx_tokenize_run(struct dtx_ctx *ctx, const struct dtx_tokenize_config *config,
                                 struct dtx_tokenize_result *out)
{
    struct run r = {.config = config,
                    .state = {.tokenizer = dtx_tokenizer_hash(config->tokenizer),
                              .vocab = dtx_tokenizer_vocab(config->tokenizer),
                              .separator = config->separator,
                              .shard_bytes = config->shard_bytes,
                              .split = config->split_name,
                              .field = config->field}};
    sigset_t set, before;
    bool complete = false;
    enum dtx_status status;
    *out = (struct dtx_tokenize_result){0};
    DTX_TRY_GOTO(ctx, status, begin(ctx, &r, &complete), done);
    if (!complete) {
        if (r.regular)
            block_signals(&set, &before);
        start_meter(&r);
        status = dtx_tokenize_pool_create(ctx, config->tokenizer, config->threads, &r.pool);
        if (status == DTX_OK)
            status = work(ctx, &r, &set);
        if (status == DTX_OK)
            status = finish(ctx, &r);
        if (r.regular)
            unblock_signals(&set, &before);
    }
    out->complete_before = complete;
    if (status == DTX_OK)
        report(&r, out);
done:
    release(ctx, &r, status);
    return status;
}
