/* A file being written from its beginning to its end, which a thread sends to the disk meanwhile: the sync at the end
 * has little left to wait for. Where the system gives no thread the writer does it. Not collective. */
#ifndef DTX_CHECKPOINTS_FLUSH_H
#define DTX_CHECKPOINTS_FLUSH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct dtx_flush {
    int fd;
    int64_t least;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    int64_t written; /* how far the file goes by now, in bytes */
    bool sync, quit;
    int error; /* of the sync, as errno */
};

/* The file stays the caller's, open until dtx_flush_end. least: bytes that are sent at a time, 1 or more; while the
 * file system finds them a place on the disk, writing into the file is slower. */
void dtx_flush_begin(struct dtx_flush *flush, int fd, int64_t least);
/* `bytes` from `offset` on are written, as is most of what lies before them. */
void dtx_flush_reach(struct dtx_flush *flush, int64_t offset, int64_t bytes);
/* All is written: the thread syncs the file, while the caller does something else. */
void dtx_flush_sync(struct dtx_flush *flush);
/* Waits for the sync and gives its errno, 0: all is on the disk; without one nothing is promised (0). */
int dtx_flush_end(struct dtx_flush *flush);

#endif
