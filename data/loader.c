#include "data/loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct slot {
    int32_t *tokens, *doc_start;
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

static int64_t batch_first(const struct dtx_loader *l, int64_t k)
{
    return l->config.first_sample + k * l->config.global_batch + l->part_first + DTX_MUTANT(loader_resume_off_by_one);
}

/* Sample by sample, so that closing waits for one sample at most. */
static enum dtx_status fill(struct dtx_ctx *ctx, struct dtx_loader *l, int64_t k)
{
    struct slot *slot = &l->slots[k % l->n_slots];
    int64_t first = batch_first(l, k);
    for (int64_t i = 0; i < l->part_n; i++) {
        if (atomic_load_explicit(&l->stop, memory_order_relaxed))
            return DTX_OK;
        DTX_TRY(ctx, dtx_stream_read(ctx, l->stream, first + i, 1, slot->tokens + i * (l->length + 1),
                                     slot->doc_start + i * l->length));
    }
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
    if (c->first_sample < 0 || c->dp_size < 1 || c->dp_rank < 0 || c->dp_rank >= c->dp_size)
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
    DTX_TRY(ctx, dtx_mem_alloc(ctx, l->n_slots, sizeof *l->slots, &p));
    l->slots = p;
    for (int i = 0; i < l->n_slots; i++) {
        DTX_TRY(ctx, dtx_mem_alloc(ctx, l->part_n, sizeof(int32_t) * ((size_t)l->length + 1), &p));
        l->slots[i].tokens = p;
        DTX_TRY(ctx, dtx_mem_alloc(ctx, l->part_n, sizeof(int32_t) * (size_t)l->length, &p));
        l->slots[i].doc_start = p;
    }
    return DTX_OK;
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
    if (config->thread) {
        int rc = pthread_create(&l->thread, NULL, run_thread, l);
        if (rc != 0) {
            status = dtx_fail(ctx, DTX_E_LIBRARY, "cannot start the data thread: %s", strerror(rc));
            goto fail;
        }
        l->started = true;
    }
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
                        (long long)batch_first(l, l->requested - 1));
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
    *out = (struct dtx_batch){.n = l->part_n,
                              .length = l->length,
                              .tokens = slot->tokens,
                              .doc_start = slot->doc_start,
                              .first_sample = batch_first(l, k),
                              .wait_seconds = dtx_clock_now() - start};
    return DTX_OK;
}

int64_t dtx_loader_position(const struct dtx_loader *l)
{
    return l->config.first_sample + (l->requested - l->dead) * l->config.global_batch;
}

void dtx_loader_close(struct dtx_loader *l)
{
    if (!l)
        return;
    if (l->started) {
        pthread_mutex_lock(&l->mutex);
        atomic_store(&l->stop, true);
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; l->slots && i < l->n_slots; i++) {
        dtx_mem_free(l->slots[i].tokens);
        dtx_mem_free(l->slots[i].doc_start);
    }
    dtx_mem_free(l->slots);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    dtx_mem_free(l);
}
