#include "data/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/file.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { PIECE = 1 << 20 };
static const double LOOK_AGAIN = 0.05; /* seconds, while another process copies */

static enum dtx_status name_copy(struct dtx_ctx *ctx, const char *dir, const char *path, struct stat *st, char **out)
{
    char *whole = realpath(path, NULL), text[64];
    if (!whole || stat(whole, st) != 0) {
        int cause = errno;
        free(whole);
        return dtx_fail(ctx, dtx_status_of_path(cause), "cannot look at %s: %s", path, strerror(cause));
    }
    const char *slash = strrchr(whole, '/');
    int64_t facts[3] = {st->st_size, st->st_mtim.tv_sec, st->st_mtim.tv_nsec};
    snprintf(text, sizeof text, "/%016llx-",
             (unsigned long long)dtx_hash(facts, sizeof facts, dtx_hash_text(whole, 0)));
    char *front;
    enum dtx_status status = dtx_path_join(ctx, dir, text, &front);
    if (status == DTX_OK) {
        status = dtx_path_join(ctx, front, slash ? slash + 1 : whole, out);
        dtx_mem_free(front);
    }
    free(whole);
    return status;
}

static bool is_there(const char *copy, const struct stat *original)
{
    struct stat st;
    return stat(copy, &st) == 0 && (st.st_size == original->st_size || DTX_MUTANT(cache_size_unchecked));
}

static enum dtx_status copy_bytes(struct dtx_ctx *ctx, const char *path, int64_t bytes, struct dtx_outfile *out)
{
    int fd;
    int64_t now;
    void *piece = NULL;
    DTX_TRY(ctx, dtx_file_open(ctx, path, &fd, &now));
    enum dtx_status status = dtx_mem_alloc(ctx, PIECE, 1, &piece);
    for (int64_t at = 0; at < bytes && status == DTX_OK; at += PIECE) {
        size_t part = (size_t)dtx_min64(PIECE, bytes - at);
        status = dtx_file_read_at(ctx, fd, path, piece, part, at);
        if (status == DTX_OK)
            status = dtx_outfile_write(ctx, out, piece, part);
    }
    dtx_mem_free(piece);
    close(fd);
    return status;
}

/* *done: there is a copy, made by this process or another. */
static enum dtx_status try_copy(struct dtx_ctx *ctx, const char *path, const struct stat *st, const char *copy,
                                bool *done)
{
    struct dtx_outfile out = {.fd = -1};
    *done = is_there(copy, st);
    if (*done)
        return DTX_OK;
    enum dtx_status status = dtx_outfile_open(ctx, &out, copy);
    if (status == DTX_E_IO) { /* another process is at it */
        dtx_error_clear(ctx);
        dtx_clock_sleep(LOOK_AGAIN);
        return DTX_OK;
    }
    DTX_TRY(ctx, status);
    status = copy_bytes(ctx, path, st->st_size, &out);
    if (status == DTX_OK)
        status = dtx_outfile_sync(ctx, &out);
    if (status == DTX_OK)
        status = dtx_outfile_rename(ctx, &out);
    dtx_outfile_discard(&out);
    *done = true;
    return status;
}

enum dtx_status dtx_cache_copy(struct dtx_ctx *ctx, const char *dir, const char *path, char **copy)
{
    struct stat st;
    char *name;
    bool done = false;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dtx_fail(ctx, dtx_status_of_path(errno), "cannot make the folder %s: %s", dir, strerror(errno));
    DTX_TRY(ctx, name_copy(ctx, dir, path, &st, &name));
    enum dtx_status status = DTX_OK;
    while (status == DTX_OK && !done)
        status = try_copy(ctx, path, &st, name, &done);
    if (status == DTX_OK)
        *copy = name;
    else
        dtx_mem_free(name);
    return status;
}
