#include "checkpoints/ahead.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* A ring's length at most, and that of one call. Past the page cache there is no copy to make up for, and small pieces
 * stay in the processor's caches: less is taken from what is computed meanwhile. */
enum { RING_BYTES = 16 << 20, CALL_BYTES = 4 << 20, DIRECT_RING = 4 << 20, DIRECT_CALL = 1 << 20 };

struct dtx_ahead {
    struct dtx_ctx helper; /* the thread's */
    struct dtx_ahead_range *ranges;
    int64_t n;
    bool direct;
    enum dtx_status (*open)(struct dtx_ctx *ctx, const void *self, int file, char path[DTX_DISK_PATH], int *fd);
    const void *self;
    int64_t range, at; /* the reader's place: a range, bytes of it that are read */
    int file, fd;      /* open; fd -1: none */
    char path[DTX_DISK_PATH];
    pthread_t thread;
    bool threaded;
    void *memory; /* of the ring */
    char *ring;   /* [room], at a page: byte i of the sequence at i % room */
    int64_t room; /* a multiple of DTX_DISK_PAGE */

    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t changed;
    int64_t filled, taken; /* bytes of the sequence */
    bool quit;
    enum dtx_status status; /* of what comes after `filled` */
};

/* How many bytes the next call on the disk reads: of one range, in one piece of the ring. 0: there are no more. */
static int64_t next_bytes(struct dtx_ahead *a)
{
    while (a->range < a->n && a->at == a->ranges[a->range].bytes) {
        a->range++;
        a->at = 0;
    }
    if (a->range == a->n)
        return 0;
    int64_t piece = a->room - a->filled % a->room;
    return dtx_min64(a->direct ? DIRECT_CALL : CALL_BYTES, dtx_min64(piece, a->ranges[a->range].bytes - a->at));
}

static enum dtx_status read_next(struct dtx_ahead *a, int64_t bytes)
{
    const struct dtx_ahead_range *range = &a->ranges[a->range];
    if (bytes == 0)
        return dtx_fail(&a->helper, DTX_E_INTERNAL, "more was asked for than there is to read");
    if (a->fd < 0 || a->file != range->file) {
        if (a->fd >= 0)
            close(a->fd);
        a->fd = -1;
        DTX_TRY(&a->helper, a->open(&a->helper, a->self, range->file, a->path, &a->fd));
        a->file = range->file;
        dtx_disk_read_in_order(a->fd);
    }
    DTX_TRY(&a->helper, (a->direct ? dtx_disk_read_direct : dtx_disk_read_at)(
                            &a->helper, a->fd, a->path, a->ring + a->filled % a->room, bytes, range->offset + a->at));
    a->at += bytes;
    return DTX_OK;
}

static void *run_thread(void *argument)
{
    struct dtx_ahead *a = argument;
    pthread_mutex_lock(&a->mutex);
    while (a->status == DTX_OK) {
        int64_t bytes = next_bytes(a);
        int64_t pages =
            DTX_MUTANT(ahead_last_page_cut) ? bytes : dtx_round_up(bytes, DTX_DISK_PAGE); /* a direct read's */
        while (!a->quit && a->filled + pages - a->taken > a->room && !DTX_MUTANT(ahead_overruns))
            pthread_cond_wait(&a->changed, &a->mutex);
        if (a->quit)
            break;
        pthread_mutex_unlock(&a->mutex);
        enum dtx_status status = read_next(a, bytes);
        pthread_mutex_lock(&a->mutex);
        if (status == DTX_OK)
            a->filled += bytes;
        a->status = status;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* No more than there is to read: most loads of small models and checks of small shards are a few kilobytes. */
static int64_t ring_bytes(const struct dtx_ahead_range *ranges, int64_t n, int64_t most)
{
    int64_t bytes = 1;
    for (int64_t i = 0; i < n && bytes < most; i++)
        bytes += dtx_min64(ranges[i].bytes, most);
    return dtx_round_up(dtx_min64(bytes, most), DTX_DISK_PAGE);
}

enum dtx_status dtx_ahead_begin(struct dtx_ctx *ctx, const struct dtx_ahead_range *ranges, int64_t n, bool direct,
                                enum dtx_status (*open)(struct dtx_ctx *ctx, const void *self, int file,
                                                        char path[DTX_DISK_PATH], int *fd),
                                const void *self, struct dtx_ahead **out)
{
    void *p = NULL, *list = NULL, *ring = NULL;
    int64_t room = ring_bytes(ranges, n, direct ? DIRECT_RING : RING_BYTES);
    enum dtx_status status = dtx_mem_alloc(ctx, 1, sizeof **out, &p);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, n, sizeof *ranges, &list);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, room + DTX_DISK_PAGE, 1, &ring);
    if (status != DTX_OK) {
        dtx_mem_free(p);
        dtx_mem_free(list);
        return status;
    }
    struct dtx_ahead *a = p;
    *a = (struct dtx_ahead){.ranges = list,
                            .n = n,
                            .direct = direct,
                            .open = open,
                            .self = self,
                            .fd = -1,
                            .memory = ring,
                            .ring = dtx_disk_page_of(ring),
                            .room = room};
    if (n > 0)
        memcpy(list, ranges, (size_t)n * sizeof *ranges);
    dtx_ctx_init_child(&a->helper, ctx);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->changed, NULL);
    a->threaded = pthread_create(&a->thread, NULL, run_thread, a) == 0;
    *out = a;
    return DTX_OK;
}

/* Until a byte is there that was not taken, or none will come. */
static void wait_for_bytes(struct dtx_ahead *a)
{
    while (a->filled == a->taken && a->status == DTX_OK) {
        if (a->threaded) {
            pthread_cond_wait(&a->changed, &a->mutex);
            continue;
        }
        int64_t bytes = next_bytes(a);
        a->status = read_next(a, bytes);
        if (a->status == DTX_OK)
            a->filled += bytes;
    }
}

enum dtx_status dtx_ahead_peek(struct dtx_ahead *a, struct dtx_ctx *ctx, int64_t most, const void **bytes, int64_t *n)
{
    pthread_mutex_lock(&a->mutex);
    wait_for_bytes(a);
    int64_t from = a->taken % a->room;
    *bytes = a->ring + from;
    *n = dtx_min64(dtx_min64(a->filled - a->taken, a->room - from), most);
    enum dtx_status status = *n > 0 ? DTX_OK : a->status;
    pthread_mutex_unlock(&a->mutex);
    if (status != DTX_OK)
        (void)dtx_error_take_from(ctx, &a->helper);
    return status;
}

void dtx_ahead_skip(struct dtx_ahead *a, int64_t n)
{
    pthread_mutex_lock(&a->mutex);
    a->taken += n;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

enum dtx_status dtx_ahead_take(struct dtx_ahead *a, struct dtx_ctx *ctx, void *to, int64_t bytes)
{
    const void *from;
    for (int64_t done = 0, n; done < bytes; done += n) {
        DTX_TRY(ctx, dtx_ahead_peek(a, ctx, bytes - done, &from, &n));
        memcpy((char *)to + done, from, (size_t)n);
        dtx_ahead_skip(a, n);
    }
    return DTX_OK;
}

void dtx_ahead_end(struct dtx_ahead *a)
{
    if (!a)
        return;
    if (a->threaded) {
        pthread_mutex_lock(&a->mutex);
        a->quit = true;
        pthread_cond_signal(&a->changed);
        pthread_mutex_unlock(&a->mutex);
        pthread_join(a->thread, NULL);
    }
    if (a->fd >= 0)
        close(a->fd);
    pthread_mutex_destroy(&a->mutex);
    pthread_cond_destroy(&a->changed);
    dtx_mem_free(a->memory);
    dtx_mem_free(a->ranges);
    dtx_mem_free(a);
}
