#include "data/filepool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "data/cache.h"
#include "data/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Linux allows 65,530 mappings of a process by default. */
enum { MOST_MAPPINGS = 16384, MOST_DESCRIPTORS = 4096 };

struct dtx_filepool {
    pthread_mutex_t lock;
    bool map;
    int limit, open;
    struct dtx_poolfile *newest, *oldest;
};

static int default_limit(bool map)
{
    struct rlimit r;
    if (map)
        return MOST_MAPPINGS;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return 64;
    int64_t quarter = (int64_t)(r.rlim_cur / 4);
    return (int)dtx_max64(4, dtx_min64(quarter, MOST_DESCRIPTORS));
}

enum dtx_status dtx_filepool_create(struct dtx_ctx *ctx, bool map, int limit, struct dtx_filepool **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_filepool), &p));
    struct dtx_filepool *pool = p;
    pool->map = map;
    pool->limit = limit > 0 ? limit : default_limit(map);
    pthread_mutex_init(&pool->lock, NULL);
    *out = pool;
    return DTX_OK;
}

void dtx_filepool_free(struct dtx_filepool *pool)
{
    if (!pool)
        return;
    pthread_mutex_destroy(&pool->lock);
    dtx_mem_free(pool);
}

int dtx_filepool_open_files(struct dtx_filepool *pool)
{
    pthread_mutex_lock(&pool->lock);
    int open = pool->open;
    pthread_mutex_unlock(&pool->lock);
    return open;
}

/* All functions from here to `release` are called under the lock. */
static void unlink_file(struct dtx_poolfile *f)
{
    struct dtx_filepool *pool = f->pool;
    *(f->newer ? &f->newer->older : &pool->newest) = f->older;
    *(f->older ? &f->older->newer : &pool->oldest) = f->newer;
    f->newer = f->older = NULL;
}

static void link_newest(struct dtx_poolfile *f)
{
    struct dtx_filepool *pool = f->pool;
    f->older = pool->newest;
    f->newer = NULL;
    *(pool->newest ? &pool->newest->newer : &pool->oldest) = f;
    pool->newest = f;
}

static bool is_open(const struct dtx_poolfile *f)
{
    return f->fd >= 0 || f->map;
}

static void shut(struct dtx_poolfile *f)
{
    unlink_file(f);
    if (f->map)
        munmap((void *)(uintptr_t)f->map, (size_t)f->bytes);
    if (f->fd >= 0)
        close(f->fd);
    f->map = NULL;
    f->fd = -1;
    f->pool->open--;
}

/* Closes the file that was read least recently and is not being read; false when there is none. */
static bool shut_oldest(struct dtx_filepool *pool)
{
    struct dtx_poolfile *f = pool->oldest;
    while (f && f->users > 0)
        f = f->newer;
    if (f)
        shut(f);
    return f != NULL;
}

static enum dtx_status map_file(struct dtx_ctx *ctx, struct dtx_poolfile *f)
{
    void *p = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    int cause = errno;
    if (p == MAP_FAILED)
        return dtx_fail(ctx, DTX_E_IO, "cannot map the %lld bytes of %s: %s; set data.mmap to false",
                        (long long)f->bytes, f->path, strerror(cause));
    close(f->fd);
    f->fd = -1;
    f->map = p;
    return DTX_OK;
}

static enum dtx_status open_file(struct dtx_ctx *ctx, struct dtx_poolfile *f)
{
    struct dtx_filepool *pool = f->pool;
    int64_t bytes;
    while (pool->open >= pool->limit && !DTX_MUTANT(filepool_unbounded) && shut_oldest(pool))
        continue;
    DTX_TRY(ctx, dtx_file_open(ctx, f->local ? f->local : f->path, &f->fd, &bytes));
    pool->open++;
    link_newest(f);
    if (f->bytes < 0)
        f->bytes = bytes;
    enum dtx_status status = DTX_OK;
    if (bytes != f->bytes)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s had %lld bytes when it was opened first and has %lld: it was replaced",
                          f->path, (long long)f->bytes, (long long)bytes);
    else if (pool->map && bytes > 0)
        status = map_file(ctx, f);
    if (status != DTX_OK)
        shut(f);
    return status;
}

/* The file is open and stays so until `release`. */
static enum dtx_status hold(struct dtx_ctx *ctx, struct dtx_poolfile *f)
{
    struct dtx_filepool *pool = f->pool;
    enum dtx_status status = DTX_OK;
    pthread_mutex_lock(&pool->lock);
    if (!is_open(f)) {
        status = open_file(ctx, f);
    } else if (pool->newest != f) {
        unlink_file(f);
        link_newest(f);
    }
    if (status == DTX_OK)
        f->users++;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static void release(struct dtx_poolfile *f)
{
    pthread_mutex_lock(&f->pool->lock);
    f->users--;
    pthread_mutex_unlock(&f->pool->lock);
}

enum dtx_status dtx_poolfile_add(struct dtx_ctx *ctx, struct dtx_filepool *pool, const char *path,
                                 struct dtx_poolfile *f)
{
    *f = (struct dtx_poolfile){.pool = pool, .bytes = -1, .fd = -1};
    DTX_TRY(ctx, dtx_mem_text(ctx, path, &f->path));
    enum dtx_status status = hold(ctx, f);
    if (status == DTX_OK)
        release(f);
    else
        dtx_poolfile_close(f);
    return status;
}

void dtx_poolfile_close(struct dtx_poolfile *f)
{
    if (!f->path)
        return;
    pthread_mutex_lock(&f->pool->lock);
    if (is_open(f))
        shut(f);
    pthread_mutex_unlock(&f->pool->lock);
    dtx_mem_free(f->path);
    dtx_mem_free(f->local);
    *f = (struct dtx_poolfile){.fd = -1};
}

void dtx_poolfile_cache(struct dtx_ctx *ctx, struct dtx_poolfile *f, const char *dir)
{
    char *local;
    pthread_mutex_lock(&f->pool->lock);
    bool first = !f->asked;
    f->asked = true;
    pthread_mutex_unlock(&f->pool->lock);
    if (!first)
        return;
    if (dtx_cache_copy(ctx, dir, f->path, &local) != DTX_OK) {
        dtx_log(ctx, DTX_LOG_WARN, "no copy of %s on this node, it is read where it lies: %s", f->path,
                ctx->error.text);
        dtx_error_clear(ctx);
        return;
    }
    pthread_mutex_lock(&f->pool->lock);
    f->local = local;
    if (is_open(f) && f->users == 0) /* else once it is closed to make room */
        shut(f);
    pthread_mutex_unlock(&f->pool->lock);
}

void dtx_poolfile_advise(struct dtx_poolfile *f, size_t bytes, int64_t offset)
{
    pthread_mutex_lock(&f->pool->lock);
    int64_t page = offset & ~(int64_t)4095;
    if (f->map && offset >= 0 && (int64_t)bytes <= f->bytes - offset)
        posix_madvise((void *)(uintptr_t)(f->map + page), bytes + (size_t)(offset - page), POSIX_MADV_WILLNEED);
    else if (f->fd >= 0)
        posix_fadvise(f->fd, offset, (off_t)bytes, POSIX_FADV_WILLNEED);
    pthread_mutex_unlock(&f->pool->lock);
}

enum dtx_status dtx_poolfile_read(struct dtx_ctx *ctx, struct dtx_poolfile *f, void *out, size_t bytes, int64_t offset)
{
    DTX_TRY(ctx, hold(ctx, f));
    enum dtx_status status = DTX_OK;
    if (!f->map)
        status = dtx_file_read_at(ctx, f->fd, f->path, out, bytes, offset);
    else if (offset < 0 || (int64_t)bytes > f->bytes - offset)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s ends at byte %lld; %zu bytes at offset %lld were wanted", f->path,
                          (long long)f->bytes, bytes, (long long)offset);
    else
        memcpy(out, f->map + offset, bytes);
    release(f);
    return status;
}
