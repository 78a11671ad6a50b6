#include "checkpoints/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { CALL_BYTES = 512 << 20 /* one system call stays under 1 GiB */, LOCK_TRIES = 5 };

static enum dtx_status os_error(struct dtx_ctx *ctx, const char *verb, const char *path)
{
    int code = errno;
    const char *hint = "";
    if (code == ENOSPC || code == EDQUOT)
        hint = "; free space or lower the number of checkpoints kept";
    else if (code == EROFS || code == EACCES || code == EPERM)
        hint = "; is it read-only for this user?";
    return dtx_fail(ctx, DTX_E_IO, "cannot %s %s: %s%s", verb, path, strerror(code), hint);
}

enum dtx_status dtx_disk_join(struct dtx_ctx *ctx, const char *dir, const char *name, char out[DTX_DISK_PATH])
{
    int n = snprintf(out, DTX_DISK_PATH, "%s%s%s", dir, dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/", name);
    if (n < 0 || n >= DTX_DISK_PATH)
        return dtx_fail(ctx, DTX_E_CONFIG, "path too long: %.200s…/%s", dir, name);
    return DTX_OK;
}

bool dtx_disk_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool dtx_disk_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

enum dtx_status dtx_disk_size(struct dtx_ctx *ctx, const char *path, int64_t *bytes)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return os_error(ctx, "look at", path);
    *bytes = s.st_size;
    return DTX_OK;
}

void dtx_disk_parent(const char *path, char out[DTX_DISK_PATH])
{
    snprintf(out, DTX_DISK_PATH, "%s", path);
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        out[--n] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash)
        strcpy(out, ".");
    else if (slash == out)
        out[1] = '\0';
    else
        *slash = '\0';
}

enum dtx_status dtx_disk_sync_name(struct dtx_ctx *ctx, const char *path)
{
    char parent[DTX_DISK_PATH];
    dtx_disk_parent(path, parent);
    return dtx_disk_sync(ctx, parent);
}

enum dtx_status dtx_disk_make_folder(struct dtx_ctx *ctx, const char *path)
{
    if (mkdir(path, 0777) != 0)
        return os_error(ctx, "make folder", path);
    return dtx_disk_sync_name(ctx, path);
}

enum dtx_status dtx_disk_make_folders(struct dtx_ctx *ctx, const char *path)
{
    char part[DTX_DISK_PATH];
    DTX_TRY(ctx, dtx_disk_join(ctx, path, "", part));
    for (char *p = part + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        struct stat s;
        bool there = stat(part, &s) == 0, made = !there && mkdir(part, 0777) == 0;
        if (!there && !made && errno != EEXIST) /* another may have made it just now */
            return os_error(ctx, "make folder", part);
        if (made)
            DTX_TRY(ctx, dtx_disk_sync_name(ctx, part));
        if (there && !S_ISDIR(s.st_mode))
            return dtx_fail(ctx, DTX_E_IO, "cannot make folder %s: %s is a file", path, part);
        *p = '/';
    }
    return DTX_OK;
}

enum dtx_status dtx_disk_empty_folder(struct dtx_ctx *ctx, const char *path)
{
    DIR *folder = opendir(path);
    if (!folder)
        return os_error(ctx, "open folder", path);
    struct dirent *entry;
    enum dtx_status status = DTX_OK;
    while (status == DTX_OK && (entry = readdir(folder))) { /* what a failure leaves here rmdir reports */
        char file[DTX_DISK_PATH];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        status = dtx_disk_join(ctx, path, entry->d_name, file);
        if (status == DTX_OK && unlink(file) != 0)
            status = os_error(ctx, "remove", file);
    }
    closedir(folder);
    return status;
}

enum dtx_status dtx_disk_remove_folder(struct dtx_ctx *ctx, const char *path)
{
    DTX_TRY(ctx, dtx_disk_empty_folder(ctx, path));
    return rmdir(path) == 0 ? DTX_OK : os_error(ctx, "remove folder", path);
}

enum dtx_status dtx_disk_rename(struct dtx_ctx *ctx, const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        char what[2 * DTX_DISK_PATH];
        snprintf(what, sizeof what, "%s to %s", from, to);
        return os_error(ctx, "rename", what);
    }
    return DTX_OK;
}

enum dtx_status dtx_disk_swap(struct dtx_ctx *ctx, const char *from, const char *to, const char *aside)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return DTX_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return os_error(ctx, "replace", to);
    DTX_TRY(ctx, dtx_disk_rename(ctx, to, aside));
    enum dtx_status status = dtx_disk_rename(ctx, from, to);
    if (status != DTX_OK) {
        (void)rename(aside, to); /* the report is made; a reader finds the folder under either name */
        return status;
    }
    return dtx_disk_rename(ctx, aside, from);
}

enum dtx_status dtx_disk_lock(struct dtx_ctx *ctx, const char *key, const char *path, int *out)
{
    char name[DTX_DISK_PATH], holder[128] = "";
    DTX_TRY(ctx, dtx_disk_join(ctx, path, ".lock", name));
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return dtx_fail(ctx, dtx_status_of_path(errno), "%s: cannot make %s: %s", key, name, strerror(errno));
    int tries = 0, locked;
    while ((locked = flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK && ++tries < LOCK_TRIES)
        dtx_clock_sleep(0.02); /* whoever only looks whether it is locked has it for an instant */
    if (locked != 0 && errno == EWOULDBLOCK) {
        ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
        close(fd);
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: another dtx is at work in %s%s%s", key, path, n > 0 ? ": " : "",
                        holder);
    }
    int length = snprintf(holder, sizeof holder, "%s, process %ld", ctx->host, (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)length, 0) != length)
        dtx_log(ctx, DTX_LOG_WARN, "%s: cannot write: %s", name, strerror(errno));
    *out = fd;
    return DTX_OK;
}

enum dtx_status dtx_disk_sync(struct dtx_ctx *ctx, const char *path)
{
    if (DTX_MUTANT(ckpt_no_folder_sync) && dtx_disk_is_folder(path))
        return DTX_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return os_error(ctx, "open", path);
    if (fsync(fd) != 0) {
        enum dtx_status status = os_error(ctx, "sync", path);
        close(fd);
        return status;
    }
    close(fd);
    return DTX_OK;
}

enum dtx_status dtx_disk_open_read(struct dtx_ctx *ctx, const char *path, int *fd)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return os_error(ctx, "open", path);
    *fd = opened;
    return DTX_OK;
}

/* Calls on the open file go past the page cache from now on, or no longer. False: the file system cannot. */
static bool set_direct(int fd, bool direct)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* A direct call was refused for its place or length: a device with greater blocks, or the rest of a short write. The
 * next goes the ordinary way. */
static bool was_refused(int fd, bool *direct)
{
    if (errno != EINVAL || !*direct || DTX_MUTANT(disk_direct_insists))
        return false;
    *direct = false;
    return set_direct(fd, false);
}

/* `room`: bytes of memory; the file may have more than is asked for. */
static enum dtx_status read_all(struct dtx_ctx *ctx, int fd, const char *path, char *data, int64_t bytes, int64_t room,
                                int64_t offset, bool *direct)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, data + done, (size_t)dtx_min64(room - done, CALL_BYTES), offset + done);
        if (n < 0 && (errno == EINTR || was_refused(fd, direct)))
            continue;
        if (n < 0)
            return os_error(ctx, "read", path);
        if (n == 0)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s ends at byte %lld, in the middle of what should be there", path,
                            (long long)(offset + done));
        done += n;
    }
    return DTX_OK;
}

enum dtx_status dtx_disk_read_at(struct dtx_ctx *ctx, int fd, const char *path, void *data, int64_t bytes,
                                 int64_t offset)
{
    return read_all(ctx, fd, path, data, bytes, bytes, offset, &(bool){false});
}

enum dtx_status dtx_disk_read_direct(struct dtx_ctx *ctx, int fd, const char *path, void *data, int64_t bytes,
                                     int64_t offset)
{
    bool direct = set_direct(fd, true);
    enum dtx_status status = read_all(ctx, fd, path, data, bytes, dtx_round_up(bytes, DTX_DISK_PAGE), offset, &direct);
    if (direct)
        set_direct(fd, false);
    return status;
}

enum dtx_status dtx_disk_open_new(struct dtx_ctx *ctx, const char *path, int64_t bytes, int *fd)
{
    int opened = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (opened < 0)
        return os_error(ctx, "create", path);
    enum dtx_status status = dtx_disk_resize(ctx, opened, path, bytes);
    if (status != DTX_OK)
        close(opened);
    else
        *fd = opened;
    return status;
}

enum dtx_status dtx_disk_resize(struct dtx_ctx *ctx, int fd, const char *path, int64_t bytes)
{
    return ftruncate(fd, bytes) == 0 ? DTX_OK : os_error(ctx, "size", path);
}

static enum dtx_status write_all(struct dtx_ctx *ctx, int fd, const char *path, const char *data, int64_t bytes,
                                 int64_t offset, bool *direct)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, data + done, (size_t)dtx_min64(bytes - done, CALL_BYTES), offset + done);
        if (n < 0 && (errno == EINTR || was_refused(fd, direct)))
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return os_error(ctx, "write", path);
        done += DTX_MUTANT(ckpt_short_write_taken) ? bytes : n;
    }
    return DTX_OK;
}

enum dtx_status dtx_disk_write_at(struct dtx_ctx *ctx, int fd, const char *path, const void *data, int64_t bytes,
                                  int64_t offset)
{
    return write_all(ctx, fd, path, data, bytes, offset, &(bool){false});
}

enum dtx_status dtx_disk_write_direct(struct dtx_ctx *ctx, int fd, const char *path, const void *data, int64_t bytes,
                                      int64_t offset)
{
    bool direct = set_direct(fd, true);
    enum dtx_status status = write_all(ctx, fd, path, data, bytes, offset, &direct);
    if (direct && !DTX_MUTANT(disk_direct_stays))
        set_direct(fd, false);
    return status;
}

void dtx_disk_read_in_order(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
}

void dtx_disk_flush_early(int fd, int64_t offset, int64_t bytes)
{
    (void)sync_file_range(fd, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

enum dtx_status dtx_disk_close_synced(struct dtx_ctx *ctx, int fd, const char *path, int error)
{
    if (error != 0) {
        errno = error;
        enum dtx_status status = os_error(ctx, "sync", path);
        close(fd);
        return status;
    }
    if (close(fd) != 0)
        return os_error(ctx, "close", path);
    return DTX_OK;
}

enum dtx_status dtx_disk_close_written(struct dtx_ctx *ctx, int fd, const char *path)
{
    return dtx_disk_close_synced(ctx, fd, path, DTX_MUTANT(ckpt_no_file_sync) || fsync(fd) == 0 ? 0 : errno);
}

enum dtx_status dtx_disk_write_text(struct dtx_ctx *ctx, const char *path, const char *text)
{
    int fd = -1;
    DTX_TRY(ctx, dtx_disk_open_new(ctx, path, 0, &fd));
    enum dtx_status status = dtx_disk_write_at(ctx, fd, path, text, (int64_t)strlen(text), 0);
    if (status != DTX_OK) {
        close(fd);
        return status;
    }
    return dtx_disk_close_written(ctx, fd, path);
}

enum dtx_status dtx_disk_read(struct dtx_ctx *ctx, const char *path, int64_t limit, char **data, int64_t *bytes)
{
    int64_t size;
    int fd = -1;
    void *memory;
    DTX_TRY(ctx, dtx_disk_size(ctx, path, &size));
    if (size > limit)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes; at most %lld make sense", path, (long long)size,
                        (long long)limit);
    DTX_TRY(ctx, dtx_disk_open_read(ctx, path, &fd));
    enum dtx_status status = dtx_mem_alloc(ctx, size + 1, 1, &memory);
    if (status == DTX_OK) {
        status = dtx_disk_read_at(ctx, fd, path, memory, size, 0);
        if (status != DTX_OK)
            dtx_mem_free(memory);
    }
    close(fd);
    if (status == DTX_OK) {
        *data = memory;
        *bytes = size;
    }
    return status;
}
