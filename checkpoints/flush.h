/* A file being written from its beginning to its end, which a thread sends to the disk meanwhile: the sync at the end
 * has little left to wait for. Where the system gives no thread the writer does it. Not collective. */
#ifndef DTX_CHECKPOINTS_FLUSH_H
#define DTX_CHECKPOINTS_FLUSH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct dtx_flush {
    int fd;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    int64_t written; /* how far the file goes by now, in bytes */
    bool quit;
};

/* The file stays the caller's, open until dtx_flush_end. */
void dtx_flush_begin(struct dtx_flush *flush, int fd);
/* `bytes` from `offset` on are written, as is most of what lies before them. */
void dtx_flush_reach(struct dtx_flush *flush, int64_t offset, int64_t bytes);
/* Nothing is promised to be on the disk: a sync comes next. */
void dtx_flush_end(struct dtx_flush *flush);

#endif
