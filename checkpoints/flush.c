#include "checkpoints/flush.h"

#include <errno.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static int sync_file(int fd)
{
    return DTX_MUTANT(ckpt_no_shard_sync) || fsync(fd) == 0 || DTX_MUTANT(flush_sync_error_lost) ? 0 : errno;
}

static void *run_thread(void *argument)
{
    struct dtx_flush *f = argument;
    int64_t flushed = 0;
    pthread_mutex_lock(&f->mutex);
    for (;;) {
        while (f->written - flushed < (DTX_MUTANT(flush_sends_each_piece) ? 1 : f->least) && !f->sync && !f->quit)
            pthread_cond_wait(&f->changed, &f->mutex);
        if (f->sync || f->quit)
            break;
        int64_t to = f->written;
        pthread_mutex_unlock(&f->mutex);
        dtx_disk_flush_early(f->fd, flushed, to - flushed);
        flushed = to;
        pthread_mutex_lock(&f->mutex);
    }
    bool sync = f->sync;
    pthread_mutex_unlock(&f->mutex);
    if (sync)
        f->error = sync_file(f->fd); /* read after the thread's end */
    return NULL;
}

void dtx_flush_begin(struct dtx_flush *f, int fd, int64_t least)
{
    *f = (struct dtx_flush){.fd = fd, .least = least};
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

static void tell(struct dtx_flush *f, bool *what)
{
    pthread_mutex_lock(&f->mutex);
    *what = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

void dtx_flush_sync(struct dtx_flush *f)
{
    if (f->threaded)
        tell(f, &f->sync);
    else
        f->error = sync_file(f->fd);
}

int dtx_flush_end(struct dtx_flush *f)
{
    if (f->threaded) {
        tell(f, &f->quit);
        pthread_join(f->thread, NULL);
    }
    pthread_mutex_destroy(&f->mutex);
    pthread_cond_destroy(&f->changed);
    return f->error;
}
