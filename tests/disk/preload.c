/* See disk.h. The real calls are made as system calls, so that nothing here calls itself. */
#include "tests/disk/disk.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* What a call does: what it can meet. */
enum { READS = 1, CHANGES = 2, GROWS = 4, WRITES = 8, CLOSES = 16 };

enum { FILES = 4096 };

static struct {
    pthread_mutex_t lock;
    struct disk_control control;
    int rank;
    bool watched[FILES]; /* descriptors of files below the folder */
    char count[512];
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .control = {.log = -1}};

EXPORT struct disk_control *disk_control(void);
EXPORT void disk_mark(const char *text);

struct disk_control *disk_control(void)
{
    return &disk.control;
}

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoll(text) : 0;
}

static void absolute(const char *path, char out[PATH_MAX])
{
    char here[PATH_MAX / 2] = "";
    if (path[0] != '/' && syscall(SYS_getcwd, here, sizeof here) < 0)
        here[0] = '\0';
    snprintf(out, PATH_MAX, "%s%s%.2000s", here, here[0] ? "/" : "", path);
    char *to = out;
    for (const char *from = out; *from;) { /* without // and /./ and a slash at the end */
        if (from[0] == '/' && (from[1] == '/' || from[1] == '\0'))
            from++;
        else if (from[0] == '/' && from[1] == '.' && (from[2] == '/' || from[2] == '\0'))
            from += 2;
        else
            *to++ = *from++;
    }
    *to = '\0';
}

__attribute__((constructor)) static void start(void)
{
    static const char *const kinds[] = {"", "eio", "enospc", "short", "die", "unreadable", "mixed"};
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *only = getenv("DISK_RANK"), *text;
    disk.rank = rank ? atoi(rank) : 0;
    struct disk_control *c = &disk.control;
    char path[PATH_MAX];
    if ((text = getenv("DISK_FOLDER"))) {
        absolute(text, path);
        snprintf(c->folder, sizeof c->folder, "%.511s", path);
    }
    if ((text = getenv("DISK_KIND")) && (!only || atoi(only) == disk.rank))
        for (int i = 1; i < DISK_KINDS; i++)
            if (strcmp(text, kinds[i]) == 0)
                c->kind = (enum disk_kind)i;
    if (!only || atoi(only) == disk.rank)
        c->pause = number("DISK_PAUSE");
    c->read_pause = number("DISK_READ_PAUSE");
    c->at = number("DISK_AT");
    c->every = number("DISK_EVERY");
    c->until = number("DISK_UNTIL");
    if ((text = getenv("DISK_LOG")))
        c->log = (int)syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if ((text = getenv("DISK_COUNT")))
        snprintf(disk.count, sizeof disk.count, "%s", text);
}

__attribute__((destructor)) static void finish(void)
{
    char line[96];
    if (!disk.count[0] || disk.control.calls == 0)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, disk.count, O_WRONLY | O_CREAT | O_APPEND, 0666);
    int n = snprintf(line, sizeof line, "%d %lld %lld\n", disk.rank, (long long)disk.control.calls,
                     (long long)disk.control.faults);
    syscall(SYS_write, fd, line, (size_t)n);
    syscall(SYS_close, fd);
}

static bool below(const char *path)
{
    size_t n = strlen(disk.control.folder);
    return n && strncmp(path, disk.control.folder, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool is_watched(int fd)
{
    return fd >= 0 && fd < FILES && disk.watched[fd];
}

/* One after another over all threads and, while a record is kept, all processes. */
static void enter(void)
{
    pthread_mutex_lock(&disk.lock);
    if (disk.control.log >= 0)
        syscall(SYS_flock, disk.control.log, LOCK_EX);
}

static long leave(long result)
{
    int code = errno;
    if (disk.control.log >= 0)
        syscall(SYS_flock, disk.control.log, LOCK_UN);
    pthread_mutex_unlock(&disk.lock);
    errno = code;
    return result;
}

static bool can_meet(enum disk_kind kind, unsigned what)
{
    switch (kind) {
    case DISK_EIO:
        return true;
    case DISK_MIXED:
        return (what & READS) == 0;
    case DISK_ENOSPC:
        return (what & GROWS) != 0;
    case DISK_SHORT:
        return (what & WRITES) != 0;
    case DISK_DIE:
        return (what & (READS | CLOSES)) == 0;
    case DISK_UNREADABLE:
        return (what & READS) != 0;
    default:
        return false;
    }
}

/* The fault that this call meets: DISK_NONE, or EIO, ENOSPC (errno is set), SHORT, DIE (of a write alone: others are
 * dead already). */
static enum disk_kind meet(unsigned what)
{
    struct disk_control *c = &disk.control;
    if (c->pause && !(what & (READS | CLOSES)))
        usleep((useconds_t)c->pause * 1000);
    if (!can_meet(c->kind, what))
        return DISK_NONE;
    c->calls++;
    bool stays = c->kind == DISK_ENOSPC || c->kind == DISK_UNREADABLE;
    bool now = c->at && (c->calls == c->at || (stays && c->calls > c->at) ||
                         (c->every && c->calls > c->at && (c->calls - c->at) % c->every == 0));
    if (!now || (c->until && c->calls > c->until))
        return DISK_NONE;
    enum disk_kind kind = c->kind == DISK_UNREADABLE ? DISK_EIO : c->kind;
    if (kind == DISK_MIXED) {
        static const enum disk_kind turns[] = {DISK_EIO, DISK_ENOSPC, DISK_SHORT};
        kind = turns[c->faults % 3];
        if ((kind == DISK_ENOSPC && !(what & GROWS)) || (kind == DISK_SHORT && !(what & WRITES)))
            kind = DISK_EIO;
    }
    c->faults++;
    if (kind == DISK_DIE && !(what & WRITES))
        syscall(SYS_kill, getpid(), SIGKILL);
    errno = kind == DISK_ENOSPC ? ENOSPC : EIO;
    return kind;
}

static uint64_t inode_of(int fd)
{
    struct stat s;
    return syscall(SYS_fstat, fd, &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static uint64_t inode_at(const char *path)
{
    struct stat s;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &s, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)s.st_ino : 0;
}

static void record(enum disk_call call, uint64_t inode, int64_t offset, const char *path, const char *other,
                   const void *data, size_t bytes)
{
    if (disk.control.log < 0)
        return;
    struct disk_record r = {.call = call,
                            .process = disk.rank,
                            .inode = inode,
                            .offset = offset,
                            .data_bytes = (int64_t)bytes,
                            .path_bytes = (int32_t)strlen(path),
                            .other_bytes = (int32_t)strlen(other)};
    struct iovec parts[] = {{&r, sizeof r},
                            {(char *)path, (size_t)r.path_bytes},
                            {(char *)other, (size_t)r.other_bytes},
                            {(void *)data, bytes}};
    if (syscall(SYS_writev, disk.control.log, parts, 4) < 0)
        syscall(SYS_kill, getpid(), SIGABRT); /* half a record proves nothing */
}

void disk_mark(const char *text)
{
    enter();
    record(CALL_MARK, 0, 0, text, "", NULL, 0);
    leave(0);
}

static int open_it(int folder, const char *path, int flags, mode_t mode)
{
    char whole[PATH_MAX];
    absolute(path, whole);
    if (!below(whole) || (folder != AT_FDCWD && path[0] != '/'))
        return (int)syscall(SYS_openat, folder, path, flags, mode);
    enter();
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (meet(writes ? CHANGES | (flags & O_CREAT ? GROWS : 0) : READS) != DISK_NONE)
        return (int)leave(-1);
    uint64_t old = inode_at(whole);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, whole, flags, mode);
    if (fd >= 0 && fd < FILES)
        disk.watched[fd] = true;
    if (fd >= 0 && (flags & O_CREAT) && !old)
        record(CALL_OPEN, inode_of(fd), 0, whole, "", NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC))
        record(CALL_TRUNCATE, old, 0, "", "", NULL, 0);
    return (int)leave(fd);
}

static mode_t mode_of(int flags, va_list ap)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(ap, mode_t) : 0;
}

EXPORT int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return open_it(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int folder, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return open_it(folder, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode)
{
    return open_it(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

EXPORT int close(int fd)
{
    if (!is_watched(fd))
        return (int)syscall(SYS_close, fd);
    enter();
    disk.watched[fd] = false;
    enum disk_kind kind = meet(CLOSES);
    int result = (int)syscall(SYS_close, fd); /* it is closed in any case */
    if (kind != DISK_NONE)
        errno = EIO;
    return (int)leave(kind == DISK_NONE ? result : -1);
}

/* offset < 0: where the file stands */
static ssize_t write_it(int fd, const void *data, size_t bytes, off_t offset)
{
    enter();
    enum disk_kind kind = meet(CHANGES | GROWS | WRITES);
    if (kind == DISK_EIO || kind == DISK_ENOSPC)
        return leave(-1);
    if (kind != DISK_NONE && bytes > 1)
        bytes /= 2;
    off_t at = offset < 0 ? (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) : offset;
    long n = offset < 0 ? syscall(SYS_write, fd, data, bytes) : syscall(SYS_pwrite64, fd, data, bytes, offset);
    if (offset < 0 && n > 0) /* of files opened to append, too */
        at = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - n;
    if (kind == DISK_DIE)
        syscall(SYS_kill, getpid(), SIGKILL);
    if (n > 0)
        record(CALL_WRITE, inode_of(fd), at, "", "", data, (size_t)n);
    return leave(n);
}

EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
    return is_watched(fd) ? write_it(fd, data, bytes, -1) : syscall(SYS_write, fd, data, bytes);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return is_watched(fd) ? write_it(fd, data, bytes, offset) : syscall(SYS_pwrite64, fd, data, bytes, offset);
}

/* The first part is written: a short write is allowed at any time. */
static ssize_t write_parts(int fd, const struct iovec *parts, int n, off_t offset)
{
    while (n > 1 && parts->iov_len == 0)
        parts++, n--;
    return write_it(fd, n ? parts->iov_base : "", n ? parts->iov_len : 0, offset);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int n)
{
    return is_watched(fd) ? write_parts(fd, parts, n, -1) : syscall(SYS_writev, fd, parts, n);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t offset)
{
    return is_watched(fd) ? write_parts(fd, parts, n, offset) : syscall(SYS_pwritev, fd, parts, n, offset, 0);
}

EXPORT ssize_t read(int fd, void *data, size_t bytes)
{
    if (!is_watched(fd))
        return syscall(SYS_read, fd, data, bytes);
    usleep((useconds_t)disk.control.read_pause * 1000);
    enter();
    return leave(meet(READS) != DISK_NONE ? -1 : syscall(SYS_read, fd, data, bytes));
}

EXPORT ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    if (!is_watched(fd))
        return syscall(SYS_pread64, fd, data, bytes, offset);
    usleep((useconds_t)disk.control.read_pause * 1000);
    enter();
    return leave(meet(READS) != DISK_NONE ? -1 : syscall(SYS_pread64, fd, data, bytes, offset));
}

EXPORT int ftruncate(int fd, off_t length)
{
    if (!is_watched(fd))
        return (int)syscall(SYS_ftruncate, fd, length);
    enter();
    if (meet(CHANGES | GROWS) != DISK_NONE)
        return (int)leave(-1);
    int result = (int)syscall(SYS_ftruncate, fd, length);
    if (result == 0)
        record(CALL_TRUNCATE, inode_of(fd), length, "", "", NULL, 0);
    return (int)leave(result);
}

/* Room without contents: the size may grow. */
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
    if (!is_watched(fd))
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    enter();
    if (meet(CHANGES | GROWS) != DISK_NONE)
        return (int)leave(-1);
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, length);
    struct stat s;
    if (result == 0 && syscall(SYS_fstat, fd, &s) == 0)
        record(CALL_TRUNCATE, (uint64_t)s.st_ino, s.st_size, "", "", NULL, 0);
    return (int)leave(result);
}

EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
    return fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
}

/* The disk itself is spared: what counts is that it was asked. */
static int sync_it(int fd)
{
    enter();
    if (meet(CHANGES) != DISK_NONE)
        return (int)leave(-1);
    record(CALL_SYNC, inode_of(fd), 0, "", "", NULL, 0);
    return (int)leave(0);
}

EXPORT int fsync(int fd)
{
    return is_watched(fd) ? sync_it(fd) : (int)syscall(SYS_fsync, fd);
}

EXPORT int fdatasync(int fd)
{
    return is_watched(fd) ? sync_it(fd) : (int)syscall(SYS_fdatasync, fd);
}

static int rename_it(const char *from, const char *to, unsigned flags)
{
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    absolute(from, whole_from);
    absolute(to, whole_to);
    if (!below(whole_from) && !below(whole_to))
        return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
    enter();
    if (meet(CHANGES) != DISK_NONE)
        return (int)leave(-1);
    if (flags && disk.control.no_exchange) {
        errno = EINVAL;
        return (int)leave(-1);
    }
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
    if (result == 0)
        record(flags ? CALL_EXCHANGE : CALL_RENAME, 0, 0, whole_from, whole_to, NULL, 0);
    return (int)leave(result);
}

EXPORT int rename(const char *from, const char *to)
{
    return rename_it(from, to, 0);
}

EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    if (from_folder != AT_FDCWD || to_folder != AT_FDCWD)
        return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
    return rename_it(from, to, 0);
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (from_folder != AT_FDCWD || to_folder != AT_FDCWD)
        return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    return rename_it(from, to, flags);
}

EXPORT int link(const char *from, const char *to)
{
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    absolute(from, whole_from);
    absolute(to, whole_to);
    if (!below(whole_to))
        return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    enter();
    if (meet(CHANGES | GROWS) != DISK_NONE)
        return (int)leave(-1);
    int result = (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0)
        record(CALL_LINK, inode_at(whole_to), 0, whole_from, whole_to, NULL, 0);
    return (int)leave(result);
}

static int unlink_it(const char *path, int flags)
{
    char whole[PATH_MAX];
    absolute(path, whole);
    if (!below(whole))
        return (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
    enter();
    if (meet(CHANGES) != DISK_NONE)
        return (int)leave(-1);
    int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, flags);
    if (result == 0)
        record(CALL_UNLINK, 0, 0, whole, "", NULL, 0);
    return (int)leave(result);
}

EXPORT int unlink(const char *path)
{
    return unlink_it(path, 0);
}

EXPORT int unlinkat(int folder, const char *path, int flags)
{
    return folder == AT_FDCWD || path[0] == '/' ? unlink_it(path, flags)
                                                : (int)syscall(SYS_unlinkat, folder, path, flags);
}

EXPORT int rmdir(const char *path)
{
    return unlink_it(path, AT_REMOVEDIR);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    char whole[PATH_MAX];
    absolute(path, whole);
    if (!below(whole))
        return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    enter();
    if (meet(CHANGES | GROWS) != DISK_NONE)
        return (int)leave(-1);
    int result = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (result == 0)
        record(CALL_MKDIR, inode_at(whole), 0, whole, "", NULL, 0);
    return (int)leave(result);
}

EXPORT int mkdirat(int folder, const char *path, mode_t mode)
{
    return folder == AT_FDCWD || path[0] == '/' ? mkdir(path, mode) : (int)syscall(SYS_mkdirat, folder, path, mode);
}

EXPORT int stat(const char *restrict path, struct stat *restrict s)
{
    char whole[PATH_MAX];
    absolute(path, whole);
    if (!below(whole))
        return (int)syscall(SYS_newfstatat, AT_FDCWD, path, s, 0);
    enter();
    return (int)leave(meet(READS) != DISK_NONE ? -1 : syscall(SYS_newfstatat, AT_FDCWD, path, s, 0));
}

/* Folders are read by libc's own functions: fewer than this many at a time are watched. */
enum { FOLDERS = 16 };
static DIR *folders[FOLDERS];

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static DIR **place_of(DIR *folder)
{
    for (int i = 0; i < FOLDERS; i++)
        if (folders[i] == folder)
            return &folders[i];
    return NULL;
}

EXPORT DIR *opendir(const char *path)
{
    DIR *(*real)(const char *) = (DIR * (*)(const char *))(intptr_t)next("opendir");
    char whole[PATH_MAX];
    absolute(path, whole);
    if (!below(whole))
        return real(path);
    enter();
    DIR *folder = meet(READS) != DISK_NONE ? NULL : real(path), **place = folder ? place_of(NULL) : NULL;
    if (place)
        *place = folder;
    leave(0);
    return folder;
}

EXPORT struct dirent *readdir(DIR *folder)
{
    struct dirent *(*real)(DIR *) = (struct dirent * (*)(DIR *))(intptr_t)next("readdir");
    enter();
    struct dirent *entry = place_of(folder) && meet(READS) != DISK_NONE ? NULL : real(folder);
    leave(0);
    return entry;
}

EXPORT int closedir(DIR *folder)
{
    int (*real)(DIR *) = (int (*)(DIR *))(intptr_t)next("closedir");
    enter();
    DIR **place = place_of(folder);
    if (place)
        *place = NULL;
    leave(0);
    return real(folder);
}

/* The names with which programs built with 64-bit offsets, as HDF5, know them. */
EXPORT int open64(const char *path, int flags, ...) __attribute__((alias("open")));
EXPORT int openat64(int folder, const char *path, int flags, ...) __attribute__((alias("openat")));
EXPORT int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));
EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) __attribute__((alias("pwrite")));
EXPORT ssize_t pread64(int fd, void *data, size_t bytes, off_t offset) __attribute__((alias("pread")));
EXPORT int ftruncate64(int fd, off_t length) __attribute__((alias("ftruncate")));
EXPORT int fallocate64(int fd, int mode, off_t offset, off_t length) __attribute__((alias("fallocate")));
EXPORT struct dirent64 *readdir64(DIR *folder) __attribute__((alias("readdir")));
