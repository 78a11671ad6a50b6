/*
 * Bytes of files, read by a thread of their own before they are asked for: the disk, the copy out of the page cache and
 * whoever uses the bytes work at the same time. Where the system gives no thread they are read when asked for.
 * For one thread; not collective.
 */
#ifndef DTX_CHECKPOINTS_AHEAD_H
#define DTX_CHECKPOINTS_AHEAD_H

#include "checkpoints/disk.h"

struct dtx_ahead;

/* `bytes` of a file from `offset` on; file: a number that `open` knows. */
struct dtx_ahead_range {
    int file;
    int64_t offset, bytes;
};

/* The ranges, in the order in which they will be asked for; copied. direct: past the page cache, from the disk itself;
 * then all ranges begin and all but the last end at multiples of DTX_DISK_PAGE. `open` is called in the thread, one
 * file open at a time, and gives the path for messages; `self` must last until the end. */
enum dtx_status dtx_ahead_begin(struct dtx_ctx *ctx, const struct dtx_ahead_range *ranges, int64_t n, bool direct,
                                enum dtx_status (*open)(struct dtx_ctx *ctx, const void *self, int file,
                                                        char path[DTX_DISK_PATH], int *fd),
                                const void *self, struct dtx_ahead **out);
/* The next bytes of the sequence; the thread's failure comes at the byte where it happened. */
enum dtx_status dtx_ahead_take(struct dtx_ahead *ahead, struct dtx_ctx *ctx, void *to, int64_t bytes);
/* The same without a copy: the next bytes where they lie, 1 to `most` of them, until dtx_ahead_skip. */
enum dtx_status dtx_ahead_peek(struct dtx_ahead *ahead, struct dtx_ctx *ctx, int64_t most, const void **bytes,
                               int64_t *n);
void dtx_ahead_skip(struct dtx_ahead *ahead, int64_t n);
/* At any time; NULL is allowed. */
void dtx_ahead_end(struct dtx_ahead *ahead);

#endif
