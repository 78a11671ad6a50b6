/* test: label=unit ranks=1 timeout=120 */
/* Every system call of a save (HDF5's included) fails in turn, or is the last one before the process dies: afterwards
 * the earlier checkpoint or the new one loads, `latest` names a checkpoint, and the process that met a mere failure can
 * save again. And the order of a save without faults: nothing becomes visible before it is synced.
 * The calls are replaced by this program's own functions of the same names. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "tests/harness/ckpt_state.h"

enum mode { WATCH, FAIL_EIO, FAIL_ENOSPC, SHORT_WRITE, DIE, MODES, FLIP };
enum { PATHS = 256, ITEMS = 3 };

static struct {
    bool armed;
    bool no_exchange; /* a file system that cannot exchange two names */
    enum mode mode;
    int calls, at; /* call number `at` meets the fault */
    int n_dirty, violations;
    char dirty[PATHS][512]; /* what was changed since its last sync */
    char first[1024];       /* the first violation */
} os;

static int index_of_dirty(const char *path)
{
    for (int i = 0; i < os.n_dirty; i++)
        if (strcmp(os.dirty[i], path) == 0)
            return i;
    return -1;
}

static void mark(const char *path)
{
    if (os.armed && index_of_dirty(path) < 0 && os.n_dirty < PATHS)
        snprintf(os.dirty[os.n_dirty++], sizeof os.dirty[0], "%.511s", path);
}

static void mark_parent(const char *path)
{
    char parent[512];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        *slash = '\0';
    mark(parent);
}

static void path_of(int fd, char out[512])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, 511);
    out[n > 0 ? n : 0] = '\0';
}

static void require_clean(const char *below, const char *moment)
{
    for (int i = 0; i < os.n_dirty; i++)
        if (strncmp(os.dirty[i], below, strlen(below)) == 0 && os.violations++ == 0)
            snprintf(os.first, sizeof os.first, "%s is not synced when %.200s", os.dirty[i], moment);
}

/* True when this call must fail; errno is set. A full disk fails what grows, and stays full. */
static bool meets_fault(bool grows)
{
    if (!os.armed || os.mode == FLIP || (!grows && (os.mode == FAIL_ENOSPC || os.mode == SHORT_WRITE)))
        return false;
    bool now = ++os.calls == os.at;
    if (!now && !(os.mode == FAIL_ENOSPC && os.calls > os.at))
        return false;
    if (os.mode == DIE)
        _exit(9);
    errno = os.mode == FAIL_ENOSPC ? ENOSPC : EIO;
    return os.mode != WATCH && os.mode != SHORT_WRITE;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    if (meets_fault(flags & O_CREAT))
        return -1;
    if (os.armed && (flags & O_CREAT)) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s", path);
        char *name = strrchr(folder, '/');
        if (name && strcmp(name, "/COMPLETE") == 0) {
            name[1] = '\0'; /* the files in the folder, not yet its entries */
            require_clean(folder, "COMPLETE is written");
        }
        mark_parent(path);
        mark(path);
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    char path[512];
    if (meets_fault(true))
        return -1;
    path_of(fd, path);
    mark(path);
    if (os.armed && os.mode == SHORT_WRITE && os.calls == os.at && bytes > 1)
        bytes /= 2;
    if (os.armed && os.mode == FLIP && strstr(path, "/shard-") && ++os.calls == os.at) {
        unsigned char byte = *(const unsigned char *)data ^ 1;
        syscall(SYS_pwrite64, fd, data, bytes, offset);
        syscall(SYS_pwrite64, fd, &byte, 1, offset);
        return (ssize_t)bytes;
    }
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    return meets_fault(false) ? -1 : syscall(SYS_pread64, fd, data, bytes, offset);
}

int ftruncate(int fd, off_t length)
{
    char path[512];
    if (meets_fault(true))
        return -1;
    path_of(fd, path);
    mark(path);
    return (int)syscall(SYS_ftruncate, fd, length);
}

/* Takes the mark away; the disk is spared. */
int fsync(int fd)
{
    char path[512];
    if (meets_fault(false))
        return -1;
    path_of(fd, path);
    int i = index_of_dirty(path);
    if (i >= 0)
        memmove(os.dirty[i], os.dirty[--os.n_dirty], sizeof os.dirty[0]);
    return 0;
}

static void renamed(const char *from, const char *to)
{
    char moment[512];
    snprintf(moment, sizeof moment, "%.200s is renamed to %.200s", from, to);
    if (strstr(to, "/.gone-"))
        return;
    require_clean(from, moment);
    if (strcmp(strrchr(to, '/'), "/latest") == 0) {
        char folder[512], list[600];
        snprintf(folder, sizeof folder, "%s", to);
        *strrchr(folder, '/') = '\0';
        snprintf(list, sizeof list, "%s/step-", folder);
        require_clean(list, moment);
    }
    mark_parent(to);
}

int rename(const char *from, const char *to)
{
    if (meets_fault(false))
        return -1;
    if (os.armed)
        renamed(from, to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (meets_fault(false))
        return -1;
    if (os.no_exchange && flags) {
        errno = EINVAL;
        return -1;
    }
    if (os.armed)
        renamed(from, to);
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    if (meets_fault(true))
        return -1;
    mark_parent(path);
    mark(path);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return meets_fault(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return meets_fault(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int close(int fd)
{
    bool fails = meets_fault(false);
    int result = (int)syscall(SYS_close, fd);
    if (fails)
        errno = EIO;
    return fails ? -1 : result;
}

struct run {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256];
};

static void start(struct run *run)
{
    dtx_ctx_init(&run->ctx);
    run->ctx.log_level = DTX_LOG_ERROR + 1;
    assert_int_equal(dtx_comm_self(&run->ctx, &run->self), DTX_OK);
    ckpt_temp_make(run->dir);
}

static void finish(struct run *run)
{
    dtx_comm_free(run->self);
    ckpt_temp_remove(run->dir);
}

/* The values depend on the step, so that a mixture of two checkpoints shows. */
static enum dtx_status save(struct run *run, int64_t step)
{
    struct ckpt_state state = {0};
    struct ckpt_mesh mesh = {1, 1, 1};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    struct dtx_ckpt_save_options options = {.keep = 2};
    ckpt_state_add(&state, mesh, 0, (uint64_t)step);
    enum dtx_status status = dtx_ckpt_save(&run->ctx, run->self, run->dir, state.items, ITEMS, &meta, &options);
    ckpt_state_free(&state);
    return status;
}

/* The step that loads, or −1 with the reason printed. */
static int64_t loadable(struct run *run)
{
    struct ckpt_state state = {0};
    char path[DTX_DISK_PATH];
    int64_t step = -1;
    if (ckpt_find_whole(&run->ctx, run->self, run->dir, "latest", path, sizeof path) == DTX_OK) {
        step = atoll(strrchr(path, '-') + 1);
        ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
        ckpt_state_clear(&state);
        int all = state.n;
        if (dtx_ckpt_load(&run->ctx, run->self, path, state.items, ITEMS) != DTX_OK)
            step = -1;
        state.n = ITEMS;
        if (step >= 0 && ckpt_state_differences(&state, (uint64_t)step) != 0)
            step = -1;
        state.n = all;
        ckpt_state_free(&state);
    }
    if (step < 0)
        fprintf(stderr, "nothing loads: %s\n", run->ctx.error.text);
    dtx_error_clear(&run->ctx);
    return step;
}

static bool latest_dangles(const char *dir)
{
    char path[600], name[64] = "", index[800];
    snprintf(path, sizeof path, "%s/latest", dir);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%63s", name) != 1)
        name[0] = '\0';
    if (file)
        fclose(file);
    snprintf(index, sizeof index, "%s/%s/COMPLETE", dir, name);
    if (os.no_exchange && !dtx_disk_exists(index)) /* between two renames: the next save mends it */
        snprintf(index, sizeof index, "%s/.old-%s/COMPLETE", dir, name);
    return !name[0] || !dtx_disk_exists(index);
}

/* Was the new step reported as saved? Clears the report. */
static bool was_reported(struct run *run)
{
    char path[300], text[2000];
    snprintf(path, sizeof path, "%s/said", run->dir);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    remove(path);
    return strstr(text, "saved ") != NULL;
}

/* In a process of its own: step 1, then `step` with the fault, then step 3. Exit code: 9 died as told, 0 fault met, 1
 * the save had fewer calls, 2 or more: wrong. */
static int child(struct run *run, int64_t step)
{
    char said[300];
    snprintf(said, sizeof said, "%s/said", run->dir);
    if (os.mode == DIE) {
        run->ctx.log_level = DTX_LOG_INFO;
        if (!freopen(said, "w", stderr) || setvbuf(stderr, NULL, _IONBF, 0) != 0)
            return 7;
    }
    os.calls = 0;
    os.armed = true;
    enum dtx_status status = save(run, step);
    os.armed = false;
    bool met = os.calls >= os.at;
    if (!met)
        return status == DTX_OK ? 1 : 2;
    if (status != DTX_OK && !run->ctx.error.text[0])
        return 3; /* an error without a word */
    dtx_error_clear(&run->ctx);
    int64_t found = loadable(run);
    if (found != step && (status == DTX_OK || found != 1))
        return 4; /* "saved" must be true */
    if (save(run, 3) != DTX_OK) {
        dtx_error_print(&run->ctx);
        return 5;
    }
    return loadable(run) == 3 ? 0 : 6;
}

/* All faults of one mode while saving `step` upon step 1; returns the number of faults met. */
static int enumerate(enum mode mode, int64_t step)
{
    int met = 0;
    for (int at = 1;; at++) {
        struct run run;
        start(&run);
        assert_int_equal(save(&run, 1), DTX_OK);
        os.mode = mode;
        os.at = at;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            exit(child(&run, step)); /* with HDF5's own end */
        int result;
        assert_true(waitpid(pid, &result, 0) == pid);
        if (!WIFEXITED(result))
            fail_msg("mode %d, call %d: ended by signal %d", mode, at, WTERMSIG(result));
        int code = WEXITSTATUS(result);
        if (code > 1 && code != 9)
            fail_msg("mode %d, call %d: outcome %d", mode, at, code);
        int64_t found = loadable(&run);
        if (mode == DIE && was_reported(&run) && found != step)
            fail_msg("mode %d, call %d: step %lld was reported as saved", mode, at, (long long)step);
        if (found < 1 || latest_dangles(run.dir))
            fail_msg("mode %d, call %d: %lld loads, latest %s", mode, at, (long long)found,
                     latest_dangles(run.dir) ? "dangles" : "is right");
        if (code == 9) { /* the next run goes on from there */
            assert_int_equal(save(&run, 4), DTX_OK);
            assert_int_equal(loadable(&run), 4);
        }
        finish(&run);
        if (code == 1)
            return met;
        met++;
    }
}

static void test_faults(void **unused)
{
    (void)unused;
    static const struct {
        enum mode mode;
        int64_t step; /* 2: a new one; 1: the same again */
        bool no_exchange;
    } cases[] = {{FAIL_EIO, 2, false}, {FAIL_EIO, 1, true}, {FAIL_ENOSPC, 2, false}, {SHORT_WRITE, 2, false},
                 {DIE, 2, false},      {DIE, 1, false},     {DIE, 1, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        os.no_exchange = cases[i].no_exchange;
        int met = enumerate(cases[i].mode, cases[i].step);
        print_message("mode %d, step %lld: %d faults\n", cases[i].mode, (long long)cases[i].step, met);
        assert_true(met > 10);
    }
    os.no_exchange = false;
}

static void test_order(void **unused)
{
    (void)unused;
    struct run run;
    start(&run);
    for (int64_t step = 1; step <= 5; step++) {
        os.mode = WATCH;
        os.armed = true;
        os.n_dirty = os.violations = 0;
        assert_int_equal(save(&run, step < 5 ? step : 4), DTX_OK); /* at last the same step again */
        os.armed = false;
        require_clean(run.dir, "the save is reported");
        if (os.violations)
            fail_msg("%s", os.first);
    }
    finish(&run);
}

/* A disk that keeps another bit than it was given: found by reading back, before anything is published. */
static void test_flips(void **unused)
{
    (void)unused;
    struct run run;
    start(&run);
    assert_int_equal(save(&run, 1), DTX_OK);
    for (int at = 1; at <= ITEMS; at++) {
        os.mode = FLIP;
        os.at = at;
        os.calls = 0;
        os.armed = true;
        assert_int_equal(save(&run, 2), DTX_E_FORMAT);
        os.armed = false;
        assert_non_null(strstr(run.ctx.error.text, "is damaged: the checksum of /"));
        dtx_error_clear(&run.ctx);
        assert_int_equal(loadable(&run), 1);
    }
    finish(&run);
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0); /* hundreds of folders: in memory where that is possible */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_flips),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
