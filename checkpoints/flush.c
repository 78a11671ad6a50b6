#include "checkpoints/flush.h"

#include "checkpoints/disk.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static void *run_thread(void *argument)
{
    struct dtx_flush *f = argument;
    int64_t flushed = 0;
    pthread_mutex_lock(&f->mutex);
    for (;;) {
        while (f->written == flushed && !f->quit)
            pthread_cond_wait(&f->changed, &f->mutex);
        if (f->quit)
            break;
        int64_t to = f->written;
        pthread_mutex_unlock(&f->mutex);
        dtx_disk_flush_early(f->fd, flushed, to - flushed);
        flushed = to;
        pthread_mutex_lock(&f->mutex);
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

void dtx_flush_begin(struct dtx_flush *f, int fd)
{
    *f = (struct dtx_flush){.fd = fd};
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->threaded = pthread_create(&f->thread, NULL, run_thread, f) == 0;
}

void dtx_flush_reach(struct dtx_flush *f, int64_t offset, int64_t bytes)
{
    if (!f->threaded) {
        dtx_disk_flush_early(f->fd, offset, bytes);
        return;
    }
    pthread_mutex_lock(&f->mutex);
    /* HDF5 puts small boxes into gaps further back. */
    f->written = DTX_MUTANT(flush_goes_back) ? offset + bytes : dtx_max64(f->written, offset + bytes);
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

void dtx_flush_end(struct dtx_flush *f)
{
    if (f->threaded) {
        pthread_mutex_lock(&f->mutex);
        f->quit = true;
        pthread_cond_signal(&f->changed);
        pthread_mutex_unlock(&f->mutex);
        pthread_join(f->thread, NULL);
    }
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->changed);
}
