#include "data/bpe_train.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/bpe_count.h"
#include "data/bpe_merge.h"
#include "data/tokenizer_build.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { MOST_THREADS = 64, FIRST_MERGE = 257 };

struct worker {
    struct dtx_ctx ctx;
    struct dtx_counter counter;
    struct dtx_splitter *splitter;
    const char *text; /* this call's share */
    int64_t n;
    enum dtx_status status;
};

struct dtx_bpe_trainer {
    struct dtx_pattern *pattern;
    int threads;
    struct worker *workers; /* [threads] */
};

enum dtx_status dtx_bpe_trainer_create(struct dtx_ctx *ctx, int threads, struct dtx_bpe_trainer **out)
{
    if (threads < 1 || threads > MOST_THREADS)
        return dtx_fail(ctx, DTX_E_RANGE, "%d threads: 1 … %d are possible", threads, MOST_THREADS);
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_bpe_trainer), &p));
    struct dtx_bpe_trainer *t = p;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_pattern_create(ctx, &t->pattern), fail);
    DTX_TRY_GOTO(ctx, status, dtx_pattern_add_scan(ctx, t->pattern, DTX_SCAN_GPT2), fail);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, threads, sizeof *t->workers, &p), fail);
    t->workers = p;
    for (; t->threads < threads; t->threads++) {
        struct worker *w = &t->workers[t->threads];
        dtx_ctx_init_child(&w->ctx, ctx);
        DTX_TRY_GOTO(ctx, status, dtx_splitter_create(ctx, t->pattern, &w->splitter), fail);
    }
    *out = t;
    return DTX_OK;
fail:
    dtx_bpe_trainer_free(t);
    return status;
}

void dtx_bpe_trainer_free(struct dtx_bpe_trainer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->threads; i++) {
        dtx_counter_free(&t->workers[i].counter);
        dtx_splitter_free(t->workers[i].splitter);
    }
    dtx_mem_free(t->workers);
    dtx_pattern_free(t->pattern);
    dtx_mem_free(t);
}

static void *count(void *argument)
{
    struct worker *w = argument;
    w->status = dtx_counter_text(&w->ctx, &w->counter, w->splitter, w->text, w->n);
    return NULL;
}

/* Cuts the text into one share for each worker where no piece is cut; a share may be empty. */
static void share_out(struct dtx_bpe_trainer *t, const char *text, int64_t n)
{
    int64_t start = 0;
    for (int i = 0; i < t->threads; i++) {
        int64_t want = n / t->threads * (i + 1) - start;
        int64_t part = i + 1 == t->threads ? n - start : want > 0 ? dtx_split_point(text + start, want) : 0;
        if (DTX_MUTANT(bpe_shares_cut_pieces) && i + 1 < t->threads)
            part = want;
        t->workers[i].text = text + start;
        t->workers[i].n = part;
        start += part;
    }
}

enum dtx_status dtx_bpe_trainer_feed(struct dtx_ctx *ctx, struct dtx_bpe_trainer *t, const char *text, int64_t n)
{
    pthread_t threads[MOST_THREADS];
    int started = 1; /* worker 0 is the caller */
    enum dtx_status status = DTX_OK;
    share_out(t, text, n);
    for (; started < t->threads && status == DTX_OK; started++) {
        int rc = pthread_create(&threads[started], NULL, count, &t->workers[started]);
        if (rc != 0) {
            status = dtx_fail(ctx, DTX_E_LIBRARY, "cannot start a thread: %s", strerror(rc));
            break;
        }
    }
    count(&t->workers[0]);
    for (int i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < t->threads && status == DTX_OK; i++)
        if (t->workers[i].status != DTX_OK)
            status = dtx_error_take_from(ctx, &t->workers[i].ctx);
    return status;
}

static int by_bytes(const void *a, const void *b, void *text)
{
    const struct dtx_piece *x = a, *y = b;
    int order = memcmp((char *)text + x->first, (char *)text + y->first, (size_t)(x->n < y->n ? x->n : y->n));
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static enum dtx_status build(struct dtx_ctx *ctx, const struct dtx_bpe_result *r, struct dtx_tokenizer **out)
{
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, "the learned vocabulary", FIRST_MERGE + r->n_tokens, r->n_merges, &t));
    enum dtx_status status;
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_token(ctx, t, b, &c, 1), fail);
    }
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_special(ctx, t, 256, DTX_END_OF_TEXT), fail);
    for (int64_t i = 0; i < r->n_tokens; i++)
        DTX_TRY_GOTO(
            ctx, status,
            dtx_tokenizer_add_token(ctx, t, FIRST_MERGE + i, r->text.data + r->tokens[i].first, r->tokens[i].n), fail);
    for (int64_t i = 0; i < r->n_merges; i++) {
        int64_t n_left, n_right;
        const char *left = dtx_tokenizer_token(t, r->merges[i].left, &n_left);
        const char *right = dtx_tokenizer_token(t, r->merges[i].right, &n_right);
        DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_merge(ctx, t, left, n_left, right, n_right), fail);
    }
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}

enum dtx_status dtx_bpe_trainer_finish(struct dtx_ctx *ctx, struct dtx_bpe_trainer *t, int64_t vocab,
                                       struct dtx_tokenizer **out)
{
    if (vocab < FIRST_MERGE || vocab > INT32_MAX / 4)
        return dtx_fail(ctx, DTX_E_CONFIG, "a vocabulary of %lld ids is not possible: at least %d", (long long)vocab,
                        FIRST_MERGE);
    struct dtx_counter *all = &t->workers[0].counter;
    for (int i = 1; i < t->threads; i++) {
        DTX_TRY(ctx, dtx_counter_merge(ctx, all, &t->workers[i].counter));
        dtx_counter_free(&t->workers[i].counter);
    }
    if (all->n > 0)
        qsort_r(all->pieces, (size_t)all->n, sizeof *all->pieces, by_bytes, all->text.data);
    struct dtx_bpe_result result = {0};
    enum dtx_status status = dtx_bpe_merge(ctx, all, FIRST_MERGE, vocab - FIRST_MERGE, &result);
    dtx_counter_free(all);
    if (status == DTX_OK)
        status = build(ctx, &result, out);
    dtx_bpe_result_free(&result);
    return status;
}
