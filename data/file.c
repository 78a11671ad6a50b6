#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"

enum { OUT_BUFFER_BYTES = 1 << 20 };

enum dtx_status dtx_path_join(struct dtx_ctx *ctx, const char *prefix, const char *suffix, char **out)
{
    size_t bytes = strlen(prefix) + strlen(suffix) + 1;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)bytes, 1, &p));
    snprintf(p, bytes, "%s%s", prefix, suffix);
    *out = p;
    return DTX_OK;
}

enum dtx_status dtx_file_open(struct dtx_ctx *ctx, const char *path, int *fd, int64_t *bytes)
{
    int got = open(path, O_RDONLY | O_CLOEXEC);
    if (got < 0)
        return dtx_fail(ctx, dtx_status_of_path(errno), "cannot open %s on %s: %s", path, ctx->host, strerror(errno));
    struct stat st;
    if (fstat(got, &st) != 0 || S_ISDIR(st.st_mode)) {
        int cause = S_ISDIR(st.st_mode) ? EISDIR : errno;
        close(got);
        return dtx_fail(ctx, dtx_status_of_path(cause), "cannot read %s on %s: %s", path, ctx->host, strerror(cause));
    }
    *fd = got;
    *bytes = st.st_size;
    return DTX_OK;
}

enum dtx_status dtx_file_read_at(struct dtx_ctx *ctx, int fd, const char *path, void *out, size_t bytes, int64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return dtx_fail(ctx, DTX_E_IO, "cannot read %zu bytes at offset %lld of %s: %s", bytes, (long long)offset,
                            path, strerror(errno));
        if (got == 0)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s ends at byte %lld; %zu bytes at offset %lld were wanted", path,
                            (long long)offset + (long long)done, bytes, (long long)offset);
        done += (size_t)got;
    }
    return DTX_OK;
}

enum dtx_status dtx_file_read_some(struct dtx_ctx *ctx, int fd, const char *path, void *out, size_t bytes, int64_t *got)
{
    ssize_t n;
    do
        n = read(fd, out, bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot read %s: %s", path, strerror(errno));
    *got = n;
    return DTX_OK;
}

/* Takes the lock and makes sure that the name still means the locked file: the former holder may have renamed it. */
static enum dtx_status lock_partial(struct dtx_ctx *ctx, struct dtx_outfile *f, int64_t bytes)
{
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return dtx_fail(ctx, DTX_E_IO, "%s is being written by another process; wait for it or choose another name",
                        f->partial);
    struct stat mine, named;
    if (fstat(f->fd, &mine) != 0 || stat(f->partial, &named) != 0 || mine.st_ino != named.st_ino)
        return dtx_fail(ctx, DTX_E_IO, "another process has just finished writing %s", f->path);
    if (mine.st_size < bytes)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes, %lld were written: it cannot be continued", f->partial,
                        (long long)mine.st_size, (long long)bytes);
    if (ftruncate(f->fd, bytes) != 0 || lseek(f->fd, bytes, SEEK_SET) != bytes)
        return dtx_fail(ctx, DTX_E_IO, "cannot truncate %s: %s", f->partial, strerror(errno));
    f->written = bytes;
    return DTX_OK;
}

enum dtx_status dtx_outfile_reopen(struct dtx_ctx *ctx, struct dtx_outfile *f, const char *path, int64_t bytes)
{
    *f = (struct dtx_outfile){.fd = -1};
    enum dtx_status status;
    void *buffer = NULL;
    DTX_TRY_GOTO(ctx, status, dtx_mem_text(ctx, path, &f->path), fail);
    DTX_TRY_GOTO(ctx, status, dtx_path_join(ctx, path, ".partial", &f->partial), fail);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, OUT_BUFFER_BYTES, 1, &buffer), fail);
    f->buffer = buffer;
    f->fd = open(f->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        status = dtx_fail(ctx, dtx_status_of_path(errno), "cannot create %s: %s", f->partial, strerror(errno));
        goto fail;
    }
    status = lock_partial(ctx, f, bytes);
    if (status == DTX_OK)
        return DTX_OK;
    close(f->fd); /* not ours: it stays where it is */
    f->fd = -1;
fail:
    dtx_outfile_discard(f);
    return status;
}

enum dtx_status dtx_outfile_open(struct dtx_ctx *ctx, struct dtx_outfile *f, const char *path)
{
    return dtx_outfile_reopen(ctx, f, path, 0);
}

static enum dtx_status write_all(struct dtx_ctx *ctx, struct dtx_outfile *f, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(f->fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dtx_fail(ctx, DTX_E_IO, "cannot write %zu bytes to %s after %lld: %s", bytes, f->partial,
                            (long long)f->written, strerror(errno));
        data += n;
        bytes -= (size_t)n;
    }
    return DTX_OK;
}

enum dtx_status dtx_outfile_flush(struct dtx_ctx *ctx, struct dtx_outfile *f)
{
    DTX_TRY(ctx, write_all(ctx, f, f->buffer, f->used));
    f->used = 0;
    return DTX_OK;
}

enum dtx_status dtx_outfile_write(struct dtx_ctx *ctx, struct dtx_outfile *f, const void *data, size_t bytes)
{
    if (bytes > OUT_BUFFER_BYTES - f->used)
        DTX_TRY(ctx, dtx_outfile_flush(ctx, f));
    if (bytes > OUT_BUFFER_BYTES) {
        DTX_TRY(ctx, write_all(ctx, f, data, bytes));
    } else if (bytes > 0) {
        memcpy(f->buffer + f->used, data, bytes);
        f->used += bytes;
    }
    f->written += (int64_t)bytes;
    return DTX_OK;
}

enum dtx_status dtx_outfile_sync(struct dtx_ctx *ctx, struct dtx_outfile *f)
{
    DTX_TRY(ctx, dtx_outfile_flush(ctx, f));
    if (fsync(f->fd) != 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot bring %s to disk: %s", f->partial, strerror(errno));
    return DTX_OK;
}

static void release(struct dtx_outfile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    dtx_mem_free(f->path);
    dtx_mem_free(f->partial);
    dtx_mem_free(f->buffer);
    *f = (struct dtx_outfile){.fd = -1};
}

enum dtx_status dtx_outfile_rename(struct dtx_ctx *ctx, struct dtx_outfile *f)
{
    if (rename(f->partial, f->path) != 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot rename %s to %s: %s", f->partial, f->path, strerror(errno));
    release(f);
    return DTX_OK;
}

void dtx_outfile_keep(struct dtx_outfile *f)
{
    if (f->path)
        release(f);
}

void dtx_outfile_discard(struct dtx_outfile *f)
{
    if (!f->path) /* zeroed or already renamed */
        return;
    if (f->fd >= 0)
        unlink(f->partial);
    release(f);
}

enum dtx_status dtx_file_sync_folder(struct dtx_ctx *ctx, const char *path)
{
    char *folder;
    DTX_TRY(ctx, dtx_mem_text(ctx, path, &folder));
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    const char *name = slash ? folder : ".";
    enum dtx_status status = DTX_OK;
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder and say EINVAL: there the rename is as durable as it gets. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = dtx_fail(ctx, DTX_E_IO, "cannot bring the folder %s to disk: %s", name, strerror(errno));
    if (fd >= 0)
        close(fd);
    dtx_mem_free(folder);
    return status;
}
