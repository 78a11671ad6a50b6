#include "data/loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct slot {
    struct dtx_rows rows;
    int64_t first, end; /* the rank's first sample; where the run stands after the batch */
};

/* A ring of depth + 1 slots: the caller holds one while the thread fills the others. Batch k lies in slot k mod
 * n_slots. */
struct dtx_loader {
    const struct dtx_stream *stream;
    struct dtx_loader_config config;
    int64_t part_first, part_n; /* this rank's samples of a global batch */
    int64_t length;
    int n_slots;
    struct slot *slots;
    struct dtx_data_ledger skipped; /* its skips alone */
    struct dtx_walk *walk;          /* of whoever reads */
    struct dtx_walk *behind;        /* of the owner, for the ledger */
    int64_t next;                   /* where the next batch to be read begins (the reader's) */
    int64_t position;               /* of the run (the owner's) */

    pthread_t thread;
    bool started, dead; /* the thread runs; an error was handed out */
    atomic_bool stop;
    struct dtx_ctx helper; /* the thread's context; the owner's after the join */

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t produced;  /* batches filled (mutex) */
    int64_t requested; /* batches asked for; all but the last are free again (mutex) */
    bool failed;       /* the thread has ended with an error (mutex) */
};

/* The k-th sample of the batch that begins at `first`. */
static int64_t sample_of(const struct dtx_loader *l, int64_t first, int64_t k)
{
    return dtx_skips_pass(l->skipped.skips, l->skipped.n_skips, first, k + 1) - 1 +
           DTX_MUTANT(loader_resume_off_by_one);
}

/* Reads the next batch into slot k, sample by sample, so that closing waits for one sample at most. */
static enum dtx_status fill(struct dtx_ctx *ctx, struct dtx_loader *l, int64_t k)
{
    struct slot *slot = &l->slots[k % l->n_slots];
    for (int64_t i = 0; i < l->part_n && l->config.advise; i++)
        dtx_stream_advise(l->stream, l->walk, sample_of(l, l->next, l->part_first + i));
    slot->first = sample_of(l, l->next, l->part_first);
    slot->rows.packed = false;
    for (int64_t i = 0; i < l->part_n; i++) {
        if (atomic_load_explicit(&l->stop, memory_order_relaxed))
            return DTX_OK;
        struct dtx_rows row = {.tokens = slot->rows.tokens + i * l->length,
                               .targets = slot->rows.targets + i * l->length,
                               .doc_start = slot->rows.doc_start + i * l->length};
        DTX_TRY(ctx, dtx_stream_read(ctx, l->stream, l->walk, sample_of(l, l->next, l->part_first + i), 1, &row));
        slot->rows.packed |= row.packed;
    }
    slot->end = dtx_skips_pass(l->skipped.skips, l->skipped.n_skips, l->next, l->config.global_batch);
    l->next = slot->end;
    return DTX_OK;
}

static void *run_thread(void *argument)
{
    struct dtx_loader *l = argument;
    pthread_mutex_lock(&l->mutex);
    for (;;) {
        /* Batch `produced` may overwrite slot (produced − n_slots): the caller must have let go of that batch. */
        while (!atomic_load(&l->stop) && l->produced - l->n_slots >= l->requested - 1 + DTX_MUTANT(loader_slot_reused))
            pthread_cond_wait(&l->changed, &l->mutex);
        if (atomic_load(&l->stop))
            break;
        int64_t k = l->produced;
        pthread_mutex_unlock(&l->mutex);
        enum dtx_status status = fill(&l->helper, l, k);
        pthread_mutex_lock(&l->mutex);
        if (status != DTX_OK) {
            l->failed = true;
            pthread_cond_signal(&l->changed);
            break;
        }
        l->produced++;
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static enum dtx_status check_config(struct dtx_ctx *ctx, const struct dtx_loader_config *c)
{
    if (c->first_sample < -1 || c->dp_size < 1 || c->dp_rank < 0 || c->dp_rank >= c->dp_size)
        return dtx_fail(ctx, DTX_E_RANGE, "data rank %d of %d at sample %lld is not possible", c->dp_rank, c->dp_size,
                        (long long)c->first_sample);
    if (c->global_batch < c->dp_size)
        return dtx_fail(ctx, DTX_E_CONFIG, "a global batch of %lld samples leaves some of %d data ranks without one",
                        (long long)c->global_batch, c->dp_size);
    if (c->thread && c->depth < 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "the number of batches read ahead must be at least 1, not %d", c->depth);
    return DTX_OK;
}

static enum dtx_status allocate(struct dtx_ctx *ctx, struct dtx_loader *l)
{
    void *p;
    const struct dtx_data_ledger *start = dtx_stream_start(l->stream);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, l->n_slots, sizeof *l->slots, &p));
    l->slots = p;
    for (int i = 0; i < l->n_slots; i++) {
        struct dtx_rows *rows = &l->slots[i].rows;
        DTX_TRY(ctx, dtx_mem_alloc(ctx, 3 * l->part_n * l->length, sizeof(int32_t), &p));
        rows->tokens = p;
        rows->targets = rows->tokens + l->part_n * l->length;
        rows->doc_start = rows->targets + l->part_n * l->length;
    }
    for (int i = 0; i < start->n_skips; i++)
        DTX_TRY(ctx, dtx_data_ledger_skip(ctx, &l->skipped, start->skips[i].first, start->skips[i].end));
    DTX_TRY(ctx, dtx_walk_open(ctx, l->stream, &l->walk));
    return dtx_walk_open(ctx, l->stream, &l->behind);
}

static enum dtx_status start_thread(struct dtx_ctx *ctx, struct dtx_loader *l)
{
    if (!l->config.thread)
        return DTX_OK;
    atomic_store(&l->stop, false);
    int rc = pthread_create(&l->thread, NULL, run_thread, l);
    if (rc != 0)
        return dtx_fail(ctx, DTX_E_LIBRARY, "cannot start the data thread: %s", strerror(rc));
    l->started = true;
    return DTX_OK;
}

static void stop_thread(struct dtx_loader *l)
{
    if (!l->started)
        return;
    pthread_mutex_lock(&l->mutex);
    atomic_store(&l->stop, true);
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    l->started = false;
}

enum dtx_status dtx_loader_open(struct dtx_ctx *ctx, const struct dtx_stream *stream,
                                const struct dtx_loader_config *config, struct dtx_loader **out)
{
    DTX_TRY(ctx, check_config(ctx, config));
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_loader), &p));
    struct dtx_loader *l = p;
    l->stream = stream;
    l->config = *config;
    l->length = dtx_stream_length(stream);
    l->position = l->next = config->first_sample < 0 ? dtx_stream_first(stream) : config->first_sample;
    l->part_first = config->global_batch * config->dp_rank / config->dp_size;
    l->part_n = config->global_batch * (config->dp_rank + 1) / config->dp_size - l->part_first;
    if (DTX_MUTANT(loader_ranks_share_samples))
        l->part_first = 0;
    l->n_slots = config->thread ? config->depth + 1 : 1;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->changed, NULL);
    dtx_ctx_init_child(&l->helper, ctx);
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, allocate(ctx, l), fail);
    DTX_TRY_GOTO(ctx, status, start_thread(ctx, l), fail);
    *out = l;
    return DTX_OK;
fail:
    dtx_loader_close(l);
    return status;
}

/* Waits until batch k is there or the thread has ended with an error. */
static enum dtx_status await(struct dtx_ctx *ctx, struct dtx_loader *l, int64_t k)
{
    pthread_mutex_lock(&l->mutex);
    l->requested = k + 1;
    pthread_cond_signal(&l->changed);
    while (l->produced <= k && !l->failed)
        pthread_cond_wait(&l->changed, &l->mutex);
    bool there = l->produced > k;
    pthread_mutex_unlock(&l->mutex);
    if (there)
        return DTX_OK;
    pthread_join(l->thread, NULL);
    l->started = false;
    return dtx_error_take_from(ctx, &l->helper);
}

enum dtx_status dtx_loader_next(struct dtx_ctx *ctx, struct dtx_loader *l, struct dtx_batch *out)
{
    if (l->dead)
        return dtx_fail(ctx, DTX_E_IO, "the data loader has stopped at sample %lld after an error",
                        (long long)l->position);
    int64_t k = l->requested;
    double start = dtx_clock_now();
    enum dtx_status status;
    if (l->config.thread) {
        status = await(ctx, l, k);
    } else {
        status = fill(ctx, l, k);
        l->requested = k + 1;
    }
    if (status != DTX_OK) {
        l->dead = true;
        dtx_error_frame(ctx, __FILE__, __LINE__, __func__);
        return status;
    }
    const struct slot *slot = &l->slots[k % l->n_slots];
    l->position = slot->end;
    *out = (struct dtx_batch){.n = l->part_n,
                              .length = l->length,
                              .tokens = slot->rows.tokens,
                              .targets = slot->rows.targets,
                              .doc_start = slot->rows.doc_start,
                              .packed = slot->rows.packed,
                              .first_sample = slot->first,
                              .wait_seconds = dtx_clock_now() - start};
    return DTX_OK;
}

int64_t dtx_loader_position(const struct dtx_loader *l)
{
    return l->position;
}

enum dtx_status dtx_loader_ledger(struct dtx_ctx *ctx, struct dtx_loader *l, char **text)
{
    int64_t position = l->position + DTX_MUTANT(resume_position_off_by_one);
    return dtx_stream_ledger(ctx, l->stream, l->behind, position, l->skipped.skips, l->skipped.n_skips, text);
}

enum dtx_status dtx_loader_skip(struct dtx_ctx *ctx, struct dtx_loader *l, int64_t first, int64_t end, int64_t back)
{
    if (back >= 0 && (back > l->position || back < dtx_stream_first(l->stream)))
        return dtx_fail(ctx, DTX_E_RANGE, "the loader stands at sample %lld and cannot go back to %lld",
                        (long long)l->position, (long long)back);
    stop_thread(l);
    DTX_TRY(ctx, dtx_data_ledger_skip(ctx, &l->skipped, first, end));
    if (back >= 0)
        l->position = back;
    l->next = l->position;
    l->produced = l->requested;
    l->failed = l->dead = false;
    return start_thread(ctx, l);
}

void dtx_loader_close(struct dtx_loader *l)
{
    if (!l)
        return;
    stop_thread(l);
    for (int i = 0; l->slots && i < l->n_slots; i++)
        dtx_mem_free(l->slots[i].rows.tokens);
    dtx_mem_free(l->slots);
    dtx_data_ledger_free(&l->skipped);
    dtx_walk_close(l->walk);
    dtx_walk_close(l->behind);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    dtx_mem_free(l);
}
