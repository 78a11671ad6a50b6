#include "data/tokenize_pool.h"

#include <pthread.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct worker {
    struct dtx_tokenize_pool *pool;
    struct dtx_encoder *encoder;
    pthread_t thread;
};

/* Batches are counted from the beginning; batch i lies in place i mod n. emptied ≤ taken ≤ filled ≤ emptied + n. */
struct dtx_tokenize_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* a batch was filled; one was encoded */
    int n, n_workers, n_threads;
    int64_t filled, taken, emptied;
    bool stop;
    struct dtx_text_batch *batches;
    bool *encoded; /* [n] */
    struct worker *workers;
};

static void *encode_batches(void *argument)
{
    struct worker *w = argument;
    struct dtx_tokenize_pool *p = w->pool;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->taken == p->filled)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        int64_t i = p->taken++ % p->n;
        pthread_mutex_unlock(&p->lock);
        dtx_text_batch_encode(&p->batches[i], w->encoder);
        pthread_mutex_lock(&p->lock);
        p->encoded[i] = true;
        pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static enum dtx_status start(struct dtx_ctx *ctx, struct dtx_tokenize_pool *p, const struct dtx_tokenizer *tokenizer,
                             int threads)
{
    void *m;
    int workers = threads > 1 ? threads : 1;
    p->n = threads > 1 ? 2 * threads + 2 : 1;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, p->n, sizeof *p->batches, &m));
    p->batches = m;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, p->n, sizeof *p->encoded, &m));
    p->encoded = m;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, workers, sizeof *p->workers, &m));
    p->workers = m;
    for (; p->n_workers < workers; p->n_workers++) {
        p->workers[p->n_workers].pool = p;
        DTX_TRY(ctx, dtx_encoder_create(ctx, tokenizer, &p->workers[p->n_workers].encoder));
    }
    for (; threads > 1 && p->n_threads < threads; p->n_threads++) {
        struct worker *w = &p->workers[p->n_threads];
        int rc = pthread_create(&w->thread, NULL, encode_batches, w);
        if (rc != 0)
            return dtx_fail(ctx, DTX_E_MEMORY, "cannot start thread %d of %d: %s", p->n_threads + 1, threads,
                            strerror(rc));
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenize_pool_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *tokenizer, int threads,
                                         struct dtx_tokenize_pool **out)
{
    void *m;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tokenize_pool), &m));
    struct dtx_tokenize_pool *p = m;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    enum dtx_status status = start(ctx, p, tokenizer, threads);
    if (status == DTX_OK)
        *out = p;
    else
        dtx_tokenize_pool_free(p);
    return status;
}

void dtx_tokenize_pool_free(struct dtx_tokenize_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    for (int i = 0; i < p->n_workers; i++)
        dtx_encoder_free(p->workers[i].encoder);
    for (int i = 0; i < p->n && p->batches; i++)
        dtx_text_batch_free(&p->batches[i]);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    dtx_mem_free(p->workers);
    dtx_mem_free(p->encoded);
    dtx_mem_free(p->batches);
    dtx_mem_free(p);
}

struct dtx_text_batch *dtx_tokenize_pool_empty(struct dtx_tokenize_pool *p)
{
    return p->filled - p->emptied < p->n ? &p->batches[p->filled % p->n] : NULL;
}

void dtx_tokenize_pool_filled(struct dtx_tokenize_pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->encoded[p->filled % p->n] = false;
    p->filled++;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

struct dtx_text_batch *dtx_tokenize_pool_encoded(struct dtx_tokenize_pool *p)
{
    if (p->emptied == p->filled)
        return NULL;
    int64_t i = p->emptied % p->n;
    if (p->n_threads == 0) {
        dtx_text_batch_encode(&p->batches[i], p->workers[0].encoder);
        return &p->batches[i];
    }
    pthread_mutex_lock(&p->lock);
    while (!p->encoded[i] && !DTX_MUTANT(tokenize_pool_not_waited))
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return &p->batches[i];
}

void dtx_tokenize_pool_emptied(struct dtx_tokenize_pool *p)
{
    p->emptied++;
}
