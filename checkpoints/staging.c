#include "checkpoints/staging.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/trace.h"
#include "parallel/comm_queue.h"
#include "parallel/watch.h"

struct job {
    const char *dir;
    struct dtx_ckpt_local *local;
    const struct dtx_ckpt_item *items;
    int n_items;
    struct dtx_ckpt_meta meta;
    struct dtx_ckpt_save_options options;
};

struct dtx_ckpt_staging {
    struct dtx_ctx *ctx;         /* the owner's */
    struct dtx_ctx helper;       /* the thread's */
    struct dtx_comm *comm;       /* the thread's, once it was lent */
    struct dtx_backend *backend; /* whose host memory the buffer is, or NULL */
    char *buffer;                /* [bytes] */
    size_t bytes;
    pthread_t thread;
    bool threaded;
    bool busy; /* the owner's: started and not collected */

    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    bool work, quit; /* a job waits or is being done; the thread is to end */
    struct job job;
    struct dtx_ckpt_saved saved;
    enum dtx_status status; /* of the last job */
};

size_t dtx_ckpt_staging_bytes(const struct dtx_ckpt_item *items, int n_items)
{
    size_t bytes = 0;
    for (int i = 0; i < n_items; i++) {
        int64_t count = 1;
        for (int d = 0; d < items[i].ndim; d++)
            count *= items[i].local[d];
        bytes += (size_t)dtx_round_up(count * (int64_t)dtx_dtype_bytes(items[i].dtype), 64);
    }
    return bytes;
}

enum dtx_status dtx_ckpt_staging_place(struct dtx_ckpt_staging *s, struct dtx_ckpt_item *items, int n_items)
{
    if (s->busy)
        return dtx_fail(s->ctx, DTX_E_INTERNAL, "checkpoint: the buffer is still being written");
    if (dtx_ckpt_staging_bytes(items, n_items) > s->bytes)
        return dtx_fail(s->ctx, DTX_E_INTERNAL, "checkpoint: %zu bytes do not fit the buffer of %zu",
                        dtx_ckpt_staging_bytes(items, n_items), s->bytes);
    char *at = s->buffer;
    for (int i = 0; i < n_items; i++) {
        items[i].data = at;
        at += dtx_ckpt_staging_bytes(&items[i], 1);
    }
    return DTX_OK;
}

static enum dtx_status perform(struct dtx_ckpt_staging *s, const struct job *job, struct dtx_ckpt_saved *saved)
{
    const char *what = job->local ? "write to the node" : job->options.beside ? "write directly" : "write";
    double begin = dtx_trace_begin(s->comm->ctx, what);
    struct dtx_ckpt_save_options options = job->options;
    options.saved = saved;
    struct dtx_ctx *ctx = s->comm->ctx;
    enum dtx_status status =
        job->local ? dtx_ckpt_local_save(ctx, s->comm, job->local, job->items, job->n_items, &job->meta, saved)
                   : dtx_ckpt_save(ctx, s->comm, job->dir, job->items, job->n_items, &job->meta, &options);
    dtx_trace_end(ctx, begin, DTX_SPAN_STARTED, "checkpoint", what, job->meta.step, saved->bytes);
    return status;
}

static void *run_thread(void *argument)
{
    struct dtx_ckpt_staging *s = argument;
    struct dtx_ckpt_saved saved;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->work && !s->quit)
            pthread_cond_wait(&s->changed, &s->mutex);
        if (!s->work)
            break;
        struct job job = s->job;
        s->helper.trace = s->ctx->trace;
        pthread_mutex_unlock(&s->mutex);
        saved.bytes = 0;
        enum dtx_status status = perform(s, &job, &saved);
        pthread_mutex_lock(&s->mutex);
        s->status = status;
        s->saved = saved;
        s->work = false;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static enum dtx_status start_thread(struct dtx_ckpt_staging *s)
{
    DTX_TRY(s->ctx, dtx_comm_lend(s->comm, &s->helper));
    int code = pthread_create(&s->thread, NULL, run_thread, s);
    if (code != 0)
        return dtx_fail(s->ctx, DTX_E_IO,
                        "the system gives no thread for checkpoints (%s); raise the limit of processes, or set "
                        "checkpoint.async false",
                        strerror(code));
    s->threaded = true;
    return DTX_OK;
}

/* It ends what it is at. */
static void end_thread(struct dtx_ckpt_staging *s)
{
    if (!s->threaded)
        return;
    pthread_mutex_lock(&s->mutex);
    s->quit = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
}

static void free_buffer(struct dtx_backend *backend, void *buffer)
{
    if (backend && buffer)
        backend->memory->host_free(backend, buffer);
    else
        dtx_mem_free(buffer);
}

static void release(struct dtx_ckpt_staging *s)
{
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free_buffer(s->backend, s->buffer);
    dtx_mem_free(s);
}

enum dtx_status dtx_ckpt_staging_open(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_backend *backend,
                                      size_t bytes, bool thread, double timeout, struct dtx_ckpt_staging **out)
{
    void *p = NULL, *buffer = NULL;
    enum dtx_status status = dtx_mem_alloc(ctx, 1, sizeof(struct dtx_ckpt_staging), &p);
    if (status == DTX_OK)
        status = backend ? backend->memory->host_alloc(backend, bytes, &buffer)
                         : dtx_mem_alloc(ctx, (int64_t)bytes, 1, &buffer);
    status = dtx_comm_agree(world, status);
    if (status != DTX_OK) {
        dtx_mem_free(p);
        free_buffer(backend, buffer);
        return status;
    }
    struct dtx_ckpt_staging *s = p;
    s->backend = backend;
    s->ctx = ctx;
    s->buffer = buffer;
    s->bytes = bytes;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    dtx_ctx_init_child(&s->helper, ctx);
    status = dtx_comm_split(world, 0, world->rank, "checkpoint", &s->comm);
    if (status == DTX_OK)
        dtx_watch_patience(s->comm, timeout);
    if (status == DTX_OK && thread)
        status = start_thread(s);
    status = dtx_comm_agree(world, status);
    if (status != DTX_OK) {
        dtx_ckpt_staging_halt(s, 0);
        return status;
    }
    *out = s;
    return DTX_OK;
}

void dtx_ckpt_staging_start(struct dtx_ckpt_staging *s, const char *dir, struct dtx_ckpt_local *local,
                            const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                            const struct dtx_ckpt_save_options *options)
{
    struct job job = {.dir = dir, .local = local, .items = items, .n_items = n_items, .meta = *meta};
    if (options)
        job.options = *options;
    s->busy = true;
    if (!s->threaded) {
        s->status = perform(s, &job, &s->saved);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->job = job;
    s->work = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

bool dtx_ckpt_staging_busy(const struct dtx_ckpt_staging *s)
{
    return s->busy;
}

bool dtx_ckpt_staging_done(struct dtx_ckpt_staging *s)
{
    pthread_mutex_lock(&s->mutex);
    bool done = !s->work;
    pthread_mutex_unlock(&s->mutex);
    return done;
}

enum dtx_status dtx_ckpt_staging_finish(struct dtx_ckpt_staging *s, struct dtx_ckpt_saved *saved)
{
    pthread_mutex_lock(&s->mutex);
    while (s->work)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    s->busy = false;
    if (s->status == DTX_OK)
        *saved = s->saved;
    else if (s->threaded) /* inline the report is the owner's already */
        (void)dtx_error_take_from(s->ctx, &s->helper);
    return s->status;
}

void dtx_ckpt_staging_close(struct dtx_ckpt_staging *s)
{
    if (!s)
        return;
    end_thread(s);
    dtx_comm_free(s->comm);
    release(s);
}

bool dtx_ckpt_staging_halt(struct dtx_ckpt_staging *s, double seconds)
{
    if (!s)
        return true;
    bool alone = !s->comm || s->comm->size == 1;
    double end = dtx_clock_now() + seconds;
    while (!alone && !dtx_ckpt_staging_done(s) && dtx_clock_now() < end)
        dtx_clock_sleep(1e-3);
    if (alone) {
        dtx_ckpt_staging_close(s);
        return true;
    }
    bool done = dtx_ckpt_staging_done(s);
    if (!done)
        dtx_comm_halt(s->comm);
    else
        end_thread(s); /* the communicator stays: the other ranks may not come to free it */
    return done;
}
