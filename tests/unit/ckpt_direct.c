/* test: label=unit ranks=1 timeout=60 */
/* A save beside something that computes: the whole pages of its boxes go past the page cache, both ways, and the files
 * are those of an ordinary save, to the last bit; so they are where the file system cannot, where a device wants
 * greater blocks, and after a write that was cut short. The system's calls are this test's own: it keeps the flag
 * O_DIRECT for itself, so that every file system does. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/ahead.h"
#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

/* Of the file system: does all; the real one; knows no O_DIRECT; wants 64 KiB; writes once a part of a page only. */
enum system { WILLING, REAL, UNABLE, GREATER, CUT, SYSTEMS };
enum { ITEMS = 4, DESCRIPTORS = 1024, GREAT = 64 << 10 };

static struct {
    enum system kind;
    bool direct[DESCRIPTORS], cut;
    int64_t written, read, unfit; /* bytes of direct calls that were taken; calls that a disk would refuse */
} os;

int fcntl(int fd, int command, ...)
{
    va_list ap;
    va_start(ap, command);
    void *argument = va_arg(ap, void *);
    va_end(ap);
    bool ours = fd >= 0 && fd < DESCRIPTORS && os.kind != REAL;
    int flags = (int)(intptr_t)argument;
    if (ours && command == F_SETFL) {
        if (os.kind == UNABLE && (flags & O_DIRECT)) {
            errno = EINVAL;
            return -1;
        }
        os.direct[fd] = flags & O_DIRECT;
        argument = (void *)(intptr_t)(flags & ~O_DIRECT);
    }
    int result = (int)syscall(SYS_fcntl, fd, command, argument);
    return ours && command == F_GETFL && os.direct[fd] ? result | O_DIRECT : result;
}

static bool refused(int fd, const void *data, size_t bytes, off_t offset)
{
    size_t unit = os.kind == GREATER ? GREAT : DTX_DISK_PAGE;
    if (fd >= DESCRIPTORS || !os.direct[fd])
        return false;
    bool fit = (uintptr_t)data % DTX_DISK_PAGE == 0 && bytes % unit == 0 && (size_t)offset % unit == 0;
    os.unfit += !fit;
    errno = EINVAL;
    return !fit;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    bool direct = fd < DESCRIPTORS && os.direct[fd];
    if (refused(fd, data, bytes, offset))
        return -1;
    if (direct && os.kind == CUT && !os.cut && bytes > DTX_DISK_PAGE) {
        os.cut = true;
        bytes = DTX_DISK_PAGE + 100;
    }
    ssize_t n = syscall(SYS_pwrite64, fd, data, bytes, offset);
    os.written += direct && n > 0 ? n : 0;
    return n;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    bool direct = fd < DESCRIPTORS && os.direct[fd];
    if (refused(fd, data, bytes, offset))
        return -1;
    ssize_t n = syscall(SYS_pread64, fd, data, bytes, offset);
    if (direct && n > 0 && (size_t)n < bytes) /* as disks that give whole blocks */
        memset((char *)data + n, 0xEE, bytes - (size_t)n);
    os.read += direct && n > 0 ? n : 0;
    return n;
}

int close(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS)
        os.direct[fd] = false;
    return (int)syscall(SYS_close, fd);
}

/* Boxes of pages and a rest, of less than a page, of pages alone, and of more than one piece. */
static const int64_t lengths[ITEMS] = {30001, 777, 8192, (3 << 20) + 12345};

static int64_t whole_pages(void)
{
    int64_t bytes = 0;
    for (int i = 0; i < ITEMS; i++)
        bytes += lengths[i] - lengths[i] % DTX_DISK_PAGE;
    return bytes;
}

static void make_items(struct dtx_ctx *ctx, struct dtx_ckpt_item items[ITEMS])
{
    memset(items, 0, ITEMS * sizeof *items);
    for (int i = 0; i < ITEMS; i++) {
        snprintf(items[i].name, sizeof items[i].name, "/model/w%d", i);
        items[i].dtype = DTX_U8;
        items[i].ndim = items[i].n_boxes = 1;
        items[i].whole[0] = items[i].local[0] = items[i].boxes[0].extent[0] = lengths[i];
        items[i].writer = true;
        assert_int_equal(dtx_mem_alloc(ctx, lengths[i], 1, &items[i].data), DTX_OK);
        for (int64_t k = 0; k < lengths[i]; k++)
            ((uint8_t *)items[i].data)[k] = (uint8_t)((uint64_t)(k + 1) * 2654435761u >> (11 + i));
    }
}

static char *shard_of(struct dtx_ctx *ctx, const char *dir, int step, int64_t *bytes)
{
    char path[512], *data;
    snprintf(path, sizeof path, "%s/step-%08d/shard-00000.h5", dir, step);
    assert_int_equal(dtx_disk_read(ctx, path, INT64_MAX - 1, &data, bytes), DTX_OK);
    return data;
}

static void files_are_those_of_an_ordinary_save(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_ckpt_item items[ITEMS];
    char dir[256];
    int64_t bytes, again;
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_ERROR;
    assert_int_equal(dtx_comm_self(&ctx, &self), DTX_OK);
    ckpt_temp_make(dir);
    make_items(&ctx, items);
    struct dtx_ckpt_meta meta = ckpt_state_meta(1, (struct ckpt_mesh){1, 1, 1});
    assert_int_equal(dtx_ckpt_save(&ctx, self, dir, items, ITEMS, &meta, NULL), DTX_OK);
    char *ordinary = shard_of(&ctx, dir, 1, &bytes);
    assert_int_equal(os.written + os.read, 0);
    for (int kind = 0; kind < SYSTEMS; kind++) {
        struct dtx_ckpt_save_options options = {.beside = true};
        memset(&os, 0, sizeof os);
        os.kind = (enum system)kind;
        meta.step = 2 + kind;
        enum dtx_status status = dtx_ckpt_save(&ctx, self, dir, items, ITEMS, &meta, &options);
        if (status != DTX_OK)
            fail_msg("file system %d: %s", kind, ctx.error.text);
        if (kind == WILLING) {
            assert_int_equal(os.written, whole_pages());
            assert_true(os.read >= bytes);
            assert_int_equal(os.unfit, 0);
        }
        if (kind == UNABLE)
            assert_int_equal(os.written + os.read, 0);
        if (kind == GREATER)
            assert_true(os.unfit > 0);
        if (kind == CUT)
            assert_true(os.cut && os.unfit > 0);
        os.kind = REAL;
        char *shard = shard_of(&ctx, dir, 2 + kind, &again);
        assert_int_equal(again, bytes);
        assert_memory_equal(shard, ordinary, (size_t)bytes);
        dtx_mem_free(shard);
    }
    dtx_mem_free(ordinary);
    for (int i = 0; i < ITEMS; i++)
        dtx_mem_free(items[i].data);
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
}

static enum dtx_status open_path(struct dtx_ctx *ctx, const void *self, int file, char path[DTX_DISK_PATH], int *fd)
{
    (void)file;
    snprintf(path, DTX_DISK_PATH, "%s", (const char *)self);
    return dtx_disk_open_read(ctx, path, fd);
}

/* A file's last page is read whole, though it is not there: what comes with it falls on no byte that is still to be
 * taken, not even where the ring has room for the bytes alone. */
static void bytes_read_ahead_are_the_files(void **state)
{
    (void)state;
    enum { BYTES = (9 << 20) + 4321, ROOM = (5 << 20) + 6000 };
    struct dtx_ctx ctx;
    struct dtx_ahead *ahead;
    char dir[256], path[300];
    void *memory;
    int fd;
    dtx_ctx_init(&ctx);
    ckpt_temp_make(dir);
    snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(dtx_mem_alloc(&ctx, 2, BYTES, &memory), DTX_OK);
    uint8_t *data = memory, *taken = data + BYTES;
    for (int64_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((uint64_t)i * 2654435761u >> 13);
    assert_int_equal(dtx_disk_open_new(&ctx, path, 0, &fd), DTX_OK);
    assert_int_equal(dtx_disk_write_at(&ctx, fd, path, data, BYTES, 0), DTX_OK);
    assert_int_equal(dtx_disk_close_written(&ctx, fd, path), DTX_OK);
    for (int kind = 0; kind < SYSTEMS; kind++) {
        static const struct dtx_ahead_range ranges[] = {{0, 5 << 20, 4 << 20}, {0, 0, BYTES}};
        memset(&os, 0, sizeof os);
        os.kind = (enum system)kind;
        assert_int_equal(dtx_ahead_begin(&ctx, ranges, 2, true, open_path, path, &ahead), DTX_OK);
        for (int r = 0; r < 2; r++) {
            memset(taken, 0, BYTES);
            for (int64_t at = 0, n = ROOM; at < ranges[r].bytes; at += n, n = n * 7 % 3000017) {
                n = dtx_min64(n, ranges[r].bytes - at);
                assert_int_equal(dtx_ahead_take(ahead, &ctx, taken + at, n), DTX_OK);
                if (n == ROOM)
                    dtx_clock_sleep(0.02); /* the thread gets as far as it may: the last page does not fit */
            }
            assert_memory_equal(taken, data + ranges[r].offset, (size_t)ranges[r].bytes);
        }
        dtx_ahead_end(ahead);
        assert_true(kind != WILLING || (os.read == (4 << 20) + BYTES && os.unfit == 0));
    }
    os.kind = REAL;
    dtx_mem_free(memory);
    ckpt_temp_remove(dir);
}

int main(void)
{
    os.kind = REAL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_those_of_an_ordinary_save),
                                       cmocka_unit_test(bytes_read_ahead_are_the_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
