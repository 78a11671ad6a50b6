/* test: label=unit ranks=1 timeout=120 */
/* What is read of a checkpoint, changed at random in a way that keeps every checksum right, so that the parsers meet
 * it: the manifest's text, the index's table of boxes, and the bytes of the index file (what HDF5 reads). Each is
 * refused with a text, or what was read keeps the promises of the headers and loads; nothing crashes (run it in a
 * sanitize build). Arguments: seconds [3], first case [random]. A case that crashes is named by its number. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tests/harness/ckpt_state.h"

/* HDF5 1.10 itself loses memory where it refuses a file. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}
const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

enum { BATCH = 100, ITEMS = 3, ROOM = 1 << 20 };

struct fuzz {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], folder[300];
    struct dtx_ckpt_index good;
    char *image; /* as it was saved */
    int64_t image_bytes;
    uint64_t key, draw; /* of the case */
};

static uint64_t draw(struct fuzz *f, uint64_t below)
{
    uint32_t words[4];
    dtx_philox(f->key, f->draw++, 0, words);
    return ((uint64_t)words[0] << 32 | words[1]) % below;
}

static int64_t odd_number(struct fuzz *f, int64_t near)
{
    static const int64_t odd[] = {0,         1,         -1,        2,         255,           256,
                                  257,       4096,      INT32_MAX, INT32_MIN, 1LL << 31,     1LL << 32,
                                  1LL << 40, INT64_MAX, INT64_MIN, 1LL << 62, INT64_MAX / 4, -4096};
    return draw(f, 3) ? odd[draw(f, sizeof odd / sizeof *odd)] : near + (int64_t)draw(f, 9) - 4;
}

static bool write_file(struct fuzz *f, const char *name, const char *data, int64_t bytes)
{
    char path[DTX_DISK_PATH];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    bool good = fd >= 0 && write(fd, data, (size_t)bytes) == bytes;
    if (fd >= 0)
        close(fd);
    return good;
}

/* Some bytes of the image change: a bit, a byte, a piece from elsewhere. */
static void mutate(struct fuzz *f, char *data, int64_t n)
{
    for (uint64_t rounds = 1 + draw(f, 4); rounds > 0; rounds--) {
        int64_t at = (int64_t)draw(f, (uint64_t)n), length = dtx_min64(1 + (int64_t)draw(f, 40), n - at);
        uint64_t how = draw(f, 3);
        if (how == 0)
            data[at] = (char)(data[at] ^ (1 << draw(f, 8)));
        else if (how == 1)
            data[at] = (char)draw(f, 256);
        else
            memmove(data + at, data + draw(f, (uint64_t)(n - length) + 1), (size_t)length);
    }
}

/* Reads the folder as a resume does. False when a promise is broken. */
static bool read_all(struct fuzz *f)
{
    char path[DTX_DISK_PATH];
    struct dtx_ckpt_index index;
    dtx_error_clear(&f->ctx);
    enum dtx_status status = dtx_ckpt_index_read(&f->ctx, f->folder, &index);
    if (status != DTX_OK)
        return f->ctx.error.text[0] != '\0';
    bool good = true;
    for (int64_t i = 0; i < index.n; i++) {
        const struct dtx_ckpt_entry *e = &index.entries[i];
        good = good && e->shard < index.manifest.n_files - 1 &&
               e->offset + e->bytes <= index.manifest.files[1 + e->shard].bytes;
    }
    dtx_ckpt_index_free(&index);
    struct ckpt_state state = {0};
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, 1);
    (void)dtx_ckpt_load(&f->ctx, f->self, f->folder, state.items, ITEMS);
    dtx_error_clear(&f->ctx);
    (void)ckpt_find_whole(&f->ctx, f->self, f->dir, "latest", path, sizeof path);
    ckpt_state_free(&state);
    return good;
}

/* The manifest, with the checksum of this image. */
static bool seal(struct fuzz *f, const char *image)
{
    struct dtx_ckpt_manifest manifest = f->good.manifest;
    manifest.files[0].hash = dtx_hash(image, (size_t)f->image_bytes, 0);
    return dtx_ckpt_manifest_write(&f->ctx, f->folder, &manifest) == DTX_OK;
}

static bool case_image(struct fuzz *f)
{
    char *image = malloc((size_t)f->image_bytes);
    memcpy(image, f->image, (size_t)f->image_bytes);
    mutate(f, image, f->image_bytes);
    bool good = write_file(f, DTX_CKPT_INDEX, image, f->image_bytes) && seal(f, image) && read_all(f);
    free(image);
    return good;
}

static void change_entry(struct fuzz *f, struct dtx_ckpt_entry *e)
{
    int64_t *const numbers[] = {&e->whole[draw(f, 4)], &e->global[draw(f, 4)], &e->extent[draw(f, 4)], &e->offset,
                                &e->bytes};
    uint64_t which = draw(f, 9);
    if (which < 5)
        *numbers[which] = odd_number(f, *numbers[which]);
    else if (which == 5)
        e->shard = (int32_t)odd_number(f, e->shard);
    else if (which == 6)
        e->ndim = (int32_t)odd_number(f, e->ndim);
    else if (which == 7)
        e->dtype[draw(f, 8)] = (char)draw(f, 256);
    else
        e->name[draw(f, DTX_CKPT_NAME)] = (char)draw(f, 256);
}

/* A row of the table in the file is the struct without what is known while saving only. */
enum { ROW = offsetof(struct dtx_ckpt_entry, writer) };

/* Some rows are wrong, in an index that is right: HDF5 keeps no checksum of a dataset's bytes. */
static bool case_table(struct fuzz *f)
{
    char *image = malloc((size_t)f->image_bytes), *table;
    memcpy(image, f->image, (size_t)f->image_bytes);
    table = memmem(image, (size_t)f->image_bytes, f->good.entries, ROW);
    for (uint64_t rounds = 1 + draw(f, 3); rounds > 0 && table; rounds--) {
        uint64_t row = draw(f, (uint64_t)f->good.n);
        struct dtx_ckpt_entry e;
        memcpy(&e, table + row * ROW, ROW);
        change_entry(f, &e);
        memcpy(table + row * ROW, &e, ROW);
    }
    bool good = table && write_file(f, DTX_CKPT_INDEX, image, f->image_bytes) && seal(f, image) && read_all(f);
    free(image);
    return good;
}

static bool try_case(struct fuzz *f, uint64_t number)
{
    f->key = dtx_rng_key(number, "ckpt_fuzz");
    f->draw = 0;
    dtx_error_clear(&f->ctx);
    bool (*const cases[])(struct fuzz *) = {case_table, case_image};
    bool good = cases[number % 2](f);
    if (!good)
        printf("case %llu: %s\n", (unsigned long long)number, f->ctx.error.text);
    return good;
}

/* In a process of its own, of bounded memory: cases [from, from + n). The exit code, or 128 + signal. */
static int in_child(struct fuzz *f, uint64_t from, uint64_t n)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CPU, &(struct rlimit){60, 60});
        for (uint64_t i = from; i < from + n; i++)
            if (!try_case(f, i))
                exit(1);
        dtx_ckpt_index_free(&f->good);
        exit(0);
    }
    int result;
    if (waitpid(pid, &result, 0) != pid)
        return 1;
    return WIFSIGNALED(result) ? 128 + WTERMSIG(result) : WEXITSTATUS(result);
}

static bool set_up(struct fuzz *f)
{
    struct ckpt_state state = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(1, (struct ckpt_mesh){1, 1, 1});
    char path[DTX_DISK_PATH];
    dtx_ctx_init(&f->ctx);
    f->ctx.log_level = DTX_LOG_ERROR + 1;
    ckpt_temp_make(f->dir);
    snprintf(f->folder, sizeof f->folder, "%s/step-00000001", f->dir);
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, 1);
    bool good = dtx_comm_self(&f->ctx, &f->self) == DTX_OK &&
                dtx_ckpt_save(&f->ctx, f->self, f->dir, state.items, ITEMS, &meta, NULL) == DTX_OK &&
                dtx_ckpt_index_read(&f->ctx, f->folder, &f->good) == DTX_OK;
    ckpt_state_free(&state);
    snprintf(path, sizeof path, "%s/" DTX_CKPT_INDEX, f->folder);
    return good && dtx_disk_read(&f->ctx, path, ROOM, &f->image, &f->image_bytes) == DTX_OK;
}

int main(int argc, char **argv)
{
    struct fuzz f = {.draw = 0};
    double seconds = argc > 1 ? atof(argv[1]) : 3, start = dtx_clock_now();
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)getpid() * 1000000, at = first;
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    if (!set_up(&f)) {
        dtx_error_print(&f.ctx);
        return 1;
    }
    int code = 0;
    do {
        code = in_child(&f, at, BATCH);
        at += BATCH;
    } while (code == 0 && dtx_clock_now() - start < seconds);
    for (uint64_t i = at - BATCH; code != 0 && i < at; i++)
        if (in_child(&f, i, 1) != 0) {
            printf("case %llu ends with %d; again: ckpt_fuzz 0 %llu\n", (unsigned long long)i, code,
                   (unsigned long long)i);
            break;
        }
    if (code != 0)
        printf("a batch ends with %d\n", code);
    printf("%llu cases from %llu on\n", (unsigned long long)(at - first), (unsigned long long)first);
    dtx_comm_free(f.self);
    dtx_ckpt_index_free(&f.good);
    dtx_mem_free(f.image);
    ckpt_temp_remove(f.dir);
    return code != 0;
}
