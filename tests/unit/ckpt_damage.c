/* test: label=unit ranks=1 timeout=120 */
/* Damaged, incomplete, foreign and newer checkpoints: found before use, named with file and cause, the one before is
 * taken; retention and order of the folder of checkpoints. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

struct run {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], path[DTX_DISK_PATH];
};

static void start(struct run *run)
{
    dtx_ctx_init(&run->ctx);
    run->ctx.log_level = DTX_LOG_ERROR;
    assert_int_equal(dtx_comm_self(&run->ctx, &run->self), DTX_OK);
    ckpt_temp_make(run->dir);
}

static void finish(struct run *run)
{
    dtx_comm_free(run->self);
    ckpt_temp_remove(run->dir);
}

static enum dtx_status save(struct run *run, int64_t step, int keep)
{
    struct ckpt_state state = {0};
    struct ckpt_mesh mesh = {1, 1, 1};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    struct dtx_ckpt_save_options options = {.keep = keep};
    ckpt_state_add(&state, mesh, 0, (uint64_t)step);
    enum dtx_status status = dtx_ckpt_save(&run->ctx, run->self, run->dir, state.items, 5, &meta, &options);
    ckpt_state_free(&state);
    return status;
}

/* Looks for `what`; the step found, or minus the status, with the text left in the context. */
static int64_t find(struct run *run, const char *what)
{
    dtx_error_clear(&run->ctx);
    enum dtx_status status = ckpt_find_whole(&run->ctx, run->self, run->dir, what, run->path, sizeof run->path);
    return status == DTX_OK ? atoll(strrchr(run->path, '-') + 1) : -(int64_t)status;
}

static void expect_text(struct run *run, const char *text)
{
    if (!strstr(run->ctx.error.text, text))
        fail_msg("'%s' is not in '%s'", text, run->ctx.error.text);
    dtx_error_clear(&run->ctx);
}

static void file_of(struct run *run, int64_t step, const char *file, char out[512])
{
    snprintf(out, 512, "%s/step-%08lld/%s", run->dir, (long long)step, file);
}

static void flip(const char *path, int64_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1u << (at % 8);
    assert_true(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void overwrite(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Flips one bit at many places of each file: never taken, the earlier one is; turned back, it is good again. */
static void test_bits(void **unused)
{
    (void)unused;
    struct run run;
    static const char *const files[] = {"checkpoint.h5", "shard-00000.h5", "COMPLETE"};
    start(&run);
    assert_int_equal(save(&run, 1, 0), DTX_OK);
    assert_int_equal(save(&run, 2, 0), DTX_OK);
    for (int f = 0; f < 3; f++) {
        char path[512];
        struct stat s;
        file_of(&run, 2, files[f], path);
        assert_int_equal(stat(path, &s), 0);
        for (int64_t at = 0; at < s.st_size; at += s.st_size < 1000 ? 1 : s.st_size / 61) {
            flip(path, at);
            int64_t found = find(&run, "latest");
            /* a flipped format number may look newer, which is refused aloud instead of passed over */
            if (found != 1 && found != -DTX_E_UNSUPPORTED)
                fail_msg("%s, byte %lld: %lld is found", files[f], (long long)at, (long long)found);
            flip(path, at);
        }
        assert_int_equal(find(&run, "latest"), 2);
    }
    finish(&run);
}

static void test_files(void **unused)
{
    (void)unused;
    struct run run;
    char path[512], other[512];
    start(&run);
    assert_int_equal(find(&run, "latest"), -DTX_E_CONFIG);
    expect_text(&run, "there is no checkpoint in");
    for (int64_t step = 1; step <= 8; step++)
        assert_int_equal(save(&run, step, 0), DTX_OK);
    file_of(&run, 8, "shard-00000.h5", path);
    assert_int_equal(truncate(path, 3000), 0);
    file_of(&run, 7, "shard-00000.h5", path);
    assert_int_equal(unlink(path), 0);
    file_of(&run, 6, "COMPLETE", path);
    assert_int_equal(unlink(path), 0);
    file_of(&run, 5, "checkpoint.h5", path); /* another checkpoint's, good in itself */
    file_of(&run, 4, "checkpoint.h5", other);
    assert_int_equal(rename(path, other), 0);
    file_of(&run, 3, "checkpoint.h5", path);
    overwrite(path, "no HDF5 at all");
    assert_int_equal(find(&run, "latest"), 2);
    static const char *const texts[] = {"step-00000003/checkpoint.h5 has 14 bytes instead of",
                                        "",
                                        "step-00000005/checkpoint.h5 is missing",
                                        "it has no file COMPLETE",
                                        "step-00000007/shard-00000.h5 is missing",
                                        "step-00000008/shard-00000.h5 has 3000 bytes instead of"};
    for (int64_t step = 3; step <= 8; step++) { /* named by itself each is refused with its cause */
        char name[32];
        snprintf(name, sizeof name, "step-%08lld", (long long)step);
        assert_int_equal(find(&run, name), -DTX_E_FORMAT);
        expect_text(&run, texts[step - 3]);
    }
    assert_int_equal(find(&run, "step-00000001"), 1);
    assert_int_equal(find(&run, "step-00000001/checkpoint.h5"), 1);
    assert_int_equal(find(&run, run.dir), 2);
    assert_int_equal(find(&run, "latest"), 2);
    assert_int_equal(find(&run, "nothing/here"), -DTX_E_CONFIG);
    expect_text(&run, "nothing/here does not exist");
    assert_int_equal(find(&run, "step-00000001/shard-00000.h5"), -DTX_E_CONFIG);
    expect_text(&run, "is a file");
    finish(&run);
}

/* Loading alone, without a search before it, sees a damaged box; one that it does not need it does not read. */
static void test_load(void **unused)
{
    (void)unused;
    struct run run;
    struct ckpt_state state = {0};
    struct dtx_ckpt_index index;
    char path[512], folder[300];
    start(&run);
    assert_int_equal(save(&run, 1, 0), DTX_OK);
    snprintf(folder, sizeof folder, "%s/step-00000001", run.dir);
    assert_int_equal(dtx_ckpt_index_read(&run.ctx, folder, &index), DTX_OK);
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, 1);
    int64_t first;
    assert_int_equal(dtx_ckpt_lookup(index.entries, index.n, state.items[1].name, &first), 1);
    file_of(&run, 1, "shard-00000.h5", path);
    flip(path, index.entries[first].offset + index.entries[first].bytes - 1);
    assert_int_equal(dtx_ckpt_load(&run.ctx, run.self, folder, state.items, 1), DTX_OK);
    assert_int_equal(dtx_ckpt_load(&run.ctx, run.self, folder, state.items, 5), DTX_E_FORMAT);
    expect_text(&run, "shard-00000.h5 is damaged: the checksum of /model/layers.00.attn.q differs");
    dtx_ckpt_index_free(&index);
    ckpt_state_free(&state);
    finish(&run);
}

/* As a run's start does it: the step that loads at last, or minus the status. Reads no byte twice. */
static int64_t load_latest(struct run *run, const char *what)
{
    struct dtx_ckpt_search search = {0};
    enum dtx_status status;
    int64_t step = 0;
    dtx_error_clear(&run->ctx);
    do {
        struct ckpt_state state = {0};
        status = dtx_ckpt_find(&run->ctx, run->self, run->dir, what, &search, run->path, sizeof run->path);
        if (status != DTX_OK)
            return -(int64_t)status;
        step = atoll(strrchr(run->path, '-') + 1);
        ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
        ckpt_state_clear(&state);
        int all = state.n;
        state.n = 5;
        status = dtx_ckpt_load(&run->ctx, run->self, run->path, state.items, state.n);
        if (status == DTX_OK)
            assert_int_equal(ckpt_state_differences(&state, (uint64_t)step), 0);
        state.n = all;
        ckpt_state_free(&state);
    } while (status != DTX_OK && dtx_ckpt_pass_over(&run->ctx, run->self, &search, run->path, status));
    return status == DTX_OK ? step : -(int64_t)status;
}

/* A bit of any box of the newest two checkpoints: seen when the box is read, and the one before is loaded. What lies
 * between the boxes loading does not read, and verifying does. */
static void test_passed_over_while_loading(void **unused)
{
    (void)unused;
    struct run run;
    struct dtx_ckpt_index index;
    char path[512], folder[300];
    start(&run);
    for (int64_t step = 1; step <= 3; step++)
        assert_int_equal(save(&run, step, 0), DTX_OK);
    snprintf(folder, sizeof folder, "%s/step-00000003", run.dir);
    assert_int_equal(dtx_ckpt_index_read(&run.ctx, folder, &index), DTX_OK);
    for (int64_t i = 0; i < index.n; i++) {
        file_of(&run, 3, "shard-00000.h5", path);
        flip(path, index.entries[i].offset + i % index.entries[i].bytes);
        assert_int_equal(load_latest(&run, "latest"), 2);
        assert_int_equal(load_latest(&run, "step-00000003"), -DTX_E_FORMAT); /* named: refused */
        expect_text(&run, "shard-00000.h5 is damaged: the checksum of");
        file_of(&run, 2, "shard-00000.h5", path);
        flip(path, index.entries[i].offset);
        assert_int_equal(load_latest(&run, "latest"), 1);
        flip(path, index.entries[i].offset);
        file_of(&run, 3, "shard-00000.h5", path);
        flip(path, index.entries[i].offset + i % index.entries[i].bytes);
    }
    for (int64_t step = 1; step <= 3; step++) {
        file_of(&run, step, "shard-00000.h5", path);
        flip(path, index.entries[0].offset);
    }
    assert_int_equal(load_latest(&run, "latest"), -DTX_E_FORMAT);
    expect_text(&run, "none of the 3 checkpoints in");
    flip(path, index.entries[0].offset);
    flip(path, 9); /* HDF5's own structure */
    assert_int_equal(load_latest(&run, "latest"), 3);
    assert_int_equal(find(&run, "step-00000003"), -DTX_E_FORMAT);
    dtx_ckpt_index_free(&index);
    finish(&run);
}

/* A checkpoint of a later format is refused by its number, not passed over. */
static void test_newer(void **unused)
{
    (void)unused;
    struct run run;
    char path[512];
    start(&run);
    assert_int_equal(save(&run, 1, 0), DTX_OK);
    assert_int_equal(save(&run, 2, 0), DTX_OK);
    file_of(&run, 2, "COMPLETE", path);
    overwrite(path, "dtx checkpoint 2\nunknown things\n");
    assert_int_equal(find(&run, "step-00000002"), -DTX_E_UNSUPPORTED);
    expect_text(&run, "step-00000002/COMPLETE: the checkpoint has format 2");
    assert_int_equal(find(&run, "latest"), -DTX_E_UNSUPPORTED);
    finish(&run);
}

static void expect_folders(struct run *run, int n, const int64_t *steps)
{
    struct dtx_ckpt_place *places;
    int got;
    assert_int_equal(dtx_ckpt_list(&run->ctx, run->dir, &places, &got), DTX_OK);
    assert_int_equal(got, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(places[i].step, steps[i]);
    dtx_mem_free(places);
}

static void test_order(void **unused)
{
    (void)unused;
    struct run run;
    char path[512], latest[600], line[64];
    start(&run);
    for (int64_t step = 1; step <= 4; step++)
        assert_int_equal(save(&run, 1000 * step, 3), DTX_OK);
    expect_folders(&run, 3, (int64_t[]){4000, 3000, 2000});
    /* gone back to step 2000 and saved there: that is the newest now, though its step is lower */
    assert_int_equal(save(&run, 2500, 3), DTX_OK);
    assert_int_equal(find(&run, "latest"), 2500);
    expect_folders(&run, 3, (int64_t[]){2500, 4000, 3000});
    file_of(&run, 2500, "shard-00000.h5", path);
    flip(path, 2000);
    assert_int_equal(find(&run, "latest"), 4000);
    /* an incomplete folder is never counted nor removed; keep 1 leaves the one just written */
    file_of(&run, 4000, "COMPLETE", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(save(&run, 3500, 1), DTX_OK);
    expect_folders(&run, 2, (int64_t[]){3500, 4000});
    assert_int_equal(find(&run, "latest"), 3500);
    snprintf(latest, sizeof latest, "%s/latest", run.dir);
    FILE *file = fopen(latest, "r");
    assert_true(file && fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "step-00003500\n");
    /* what killed saves leave: tidied by the next save; a folder set aside counts while its successor is not there */
    snprintf(path, sizeof path, "%s/.new-step-00009000", run.dir);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/.old-step-00003500", run.dir);
    snprintf(latest, sizeof latest, "%s/step-00003500", run.dir);
    assert_int_equal(rename(latest, path), 0);
    assert_int_equal(find(&run, "latest"), 3500);
    assert_non_null(strstr(run.path, ".old-step-00003500"));
    assert_int_equal(save(&run, 3600, 0), DTX_OK);
    expect_folders(&run, 3, (int64_t[]){3600, 3500, 4000});
    assert_int_equal(access(latest, F_OK), 0);
    snprintf(path, sizeof path, "%s/.new-step-00009000", run.dir);
    assert_int_not_equal(access(path, F_OK), 0);
    finish(&run);
}

/* Looks for the latest; what was said on the way. */
static int64_t find_aloud(struct run *run, char said[2000])
{
    char path[300];
    snprintf(path, sizeof path, "%s/said", run->dir);
    fflush(stderr);
    int before = dup(2), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_true(before >= 0 && file >= 0 && dup2(file, 2) == 2);
    run->ctx.log_level = DTX_LOG_WARN;
    int64_t found = find(run, "latest");
    run->ctx.log_level = DTX_LOG_ERROR;
    fflush(stderr);
    assert_int_equal(dup2(before, 2), 2);
    ssize_t n = pread(file, said, 1999, 0);
    said[n > 0 ? n : 0] = '\0';
    close(before);
    close(file);
    return found;
}

/* Whatever is wrong with the newest, it is passed over aloud, with the cause; an older one's damage is not mentioned.
 */
static void test_said(void **unused)
{
    (void)unused;
    struct run run;
    char path[512], said[2000];
    start(&run);
    for (int64_t step = 1; step <= 6; step++)
        assert_int_equal(save(&run, step, 0), DTX_OK);
    file_of(&run, 1, "COMPLETE", path);
    assert_int_equal(unlink(path), 0);
    static const char *const files[] = {"shard-00000.h5", "COMPLETE", "shard-00000.h5", "checkpoint.h5"};
    static const char *const causes[] = {"shard-00000.h5 is missing", "it has no file COMPLETE", "instead of",
                                         "checkpoint.h5 is damaged"};
    for (int64_t step = 6; step >= 3; step--) {
        char name[64];
        file_of(&run, step, files[6 - step], path);
        if (step == 6 || step == 5)
            assert_int_equal(unlink(path), 0);
        else if (step == 4)
            assert_int_equal(truncate(path, 2000), 0);
        else
            flip(path, 3000);
        assert_int_equal(find_aloud(&run, said), step - 1);
        snprintf(name, sizeof name, "step-%08lld is passed over", (long long)step);
        if (!strstr(said, name) || !strstr(said, causes[6 - step]) || strstr(said, "step-00000001"))
            fail_msg("step %lld: '%s'", (long long)step, said);
    }
    finish(&run);
}

/* A manifest that cannot be read just now: what is saved meanwhile stays the newest when it can be read again. */
static void test_unreadable(void **unused)
{
    (void)unused;
    struct run run;
    char path[512], aside[512];
    start(&run);
    for (int64_t step = 1; step <= 5; step++)
        assert_int_equal(save(&run, 10 * step, 2), DTX_OK);
    file_of(&run, 50, "COMPLETE", path);
    file_of(&run, 50, "aside", aside);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0777), 0); /* reading a folder is an error of the system */
    file_of(&run, 40, "COMPLETE", aside);
    assert_int_equal(unlink(aside), 0); /* so that nothing tells how far saves were counted */
    assert_int_equal(save(&run, 30, 2), DTX_OK);
    assert_int_equal(rmdir(path), 0);
    file_of(&run, 50, "aside", aside);
    assert_int_equal(rename(aside, path), 0);
    assert_int_equal(find(&run, "step-00000050"), 50);
    assert_int_equal(find(&run, "latest"), 30);
    finish(&run);
}

/* The folder to save into is not what it should be; the earlier checkpoint stays. */
static void test_bad_folder(void **unused)
{
    (void)unused;
    struct run run;
    char file[300], good[256];
    start(&run);
    assert_int_equal(save(&run, 1, 0), DTX_OK);
    snprintf(file, sizeof file, "%s/file", run.dir);
    overwrite(file, "x");
    strcpy(good, run.dir);
    snprintf(run.dir, sizeof run.dir, "%.200s/file/deeper", good);
    assert_int_equal(save(&run, 2, 0), DTX_E_IO);
    expect_text(&run, "/file is a file");
    snprintf(run.dir, sizeof run.dir, "%.200s/a/b/c", good); /* missing folders are made */
    assert_int_equal(save(&run, 2, 0), DTX_OK);
    assert_int_equal(find(&run, "latest"), 2);
    strcpy(run.dir, good);
    assert_int_equal(find(&run, "latest"), 1);
    finish(&run);
}

/* The table of boxes as it may come from a file with right checksums and wrong contents. */
static void test_tables(void **unused)
{
    (void)unused;
    struct run run;
    start(&run);
    struct dtx_ckpt_entry good[2] = {
        {.name = "/a/b", .dtype = "f32", .ndim = 1, .whole = {5}, .global = {0}, .extent = {3}, .bytes = 12},
        {.name = "/a/b",
         .dtype = "f32",
         .ndim = 1,
         .whole = {5},
         .global = {3},
         .extent = {2},
         .bytes = 8,
         .offset = 12}};
    assert_int_equal(dtx_ckpt_check_table(&run.ctx, "x", good, 2, 1), DTX_OK);
    for (int fault = 0; fault < 14; fault++) {
        struct dtx_ckpt_entry bad[2];
        memcpy(bad, good, sizeof bad);
        switch (fault) {
        case 0:
            bad[1].ndim = 0;
            break;
        case 1:
            bad[1].ndim = 5;
            break;
        case 2:
            bad[1].shard = 1;
            break;
        case 3:
            bad[1].shard = -1;
            break;
        case 4:
            bad[1].global[0] = 4;
            break;
        case 5:
            bad[1].global[0] = -1;
            break;
        case 6:
            bad[1].extent[0] = 0;
            break;
        case 7:
            bad[1].extent[0] = INT64_MAX;
            break;
        case 8:
            bad[1].bytes = 9;
            break;
        case 9:
            bad[1].offset = -1;
            break;
        case 10:
            memset(bad[1].dtype, 'f', 8);
            break;
        case 11:
            strcpy(bad[1].name, "/a/../b");
            break;
        case 12:
            bad[1].whole[0] = 6;
            break;
        case 13:
            bad[0].whole[0] = bad[1].whole[0] = INT64_MAX;
            break;
        }
        if (dtx_ckpt_check_table(&run.ctx, "x", bad, 2, 1) != DTX_E_FORMAT)
            fail_msg("fault %d is not seen", fault);
        dtx_error_clear(&run.ctx);
    }
    finish(&run);
}

/* Boxes of `writers` ranks, of very different bytes, cut as a save cuts them. */
static struct dtx_ckpt_entry *make_boxes(struct run *run, int writers, int max_shards, int64_t *n, int64_t *total)
{
    enum { MOST = 100000 };
    void *memory;
    int64_t bytes[1000];
    assert_int_equal(dtx_mem_alloc(&run->ctx, MOST, sizeof(struct dtx_ckpt_entry), &memory), DTX_OK);
    struct dtx_ckpt_entry *boxes = memory;
    *n = *total = 0;
    for (int w = 0; w < writers; w++) {
        bytes[w] = (64 << 20) * (1 + w % 3 + 20 * (w == 0)) + 4096 * (w % 17);
        *total += bytes[w];
    }
    int shards = writers < max_shards ? writers : max_shards;
    int64_t cut = dtx_ckpt_cut(*total, shards, DTX_CKPT_BOX_BYTES);
    for (int w = 0; w < writers; w++)
        for (int64_t at = 0; at < bytes[w]; at += cut) {
            assert_true(*n < MOST);
            boxes[*n].writer = 3 * w; /* not every rank has boxes */
            boxes[*n].part = (int32_t)(at / cut);
            boxes[(*n)++].bytes = dtx_min64(cut, bytes[w] - at);
        }
    for (int64_t i = 0; i < *n; i++) { /* the table comes in another order */
        int64_t other = i * 7919 % *n;
        struct dtx_ckpt_entry kept = boxes[i];
        boxes[i] = boxes[other];
        boxes[other] = kept;
    }
    return boxes;
}

/* At most max_shards shards whatever the number of ranks, neighbours together, equal to 5 %, each written by another
 * rank. */
static void test_shards(void **unused)
{
    (void)unused;
    static const int writers[] = {1, 2, 3, 7, 13, 97, 256, 257, 1000}, most[] = {1, 2, 3, 5, 16, 256};
    struct run run;
    start(&run);
    for (size_t k = 0; k < 9 * 6; k++) {
        int w = writers[k / 6], limit = most[k % 6], leaders[DTX_CKPT_SHARDS], shards = 0;
        int64_t n, total, bytes[DTX_CKPT_SHARDS] = {0};
        int first[DTX_CKPT_SHARDS], last[DTX_CKPT_SHARDS];
        struct dtx_ckpt_entry *boxes = make_boxes(&run, w, limit, &n, &total);
        assert_int_equal(dtx_ckpt_assign_shards(&run.ctx, boxes, n, 3 * w, limit, leaders, &shards), DTX_OK);
        assert_int_equal(shards, w < limit ? w : limit);
        for (int s = 0; s < shards; s++) {
            first[s] = 3 * w;
            last[s] = -1;
        }
        for (int64_t i = 0; i < n; i++) {
            int s = boxes[i].shard;
            bytes[s] += boxes[i].bytes;
            first[s] = boxes[i].writer < first[s] ? boxes[i].writer : first[s];
            last[s] = boxes[i].writer > last[s] ? boxes[i].writer : last[s];
        }
        for (int s = 0; s < shards; s++) {
            double share = (double)bytes[s] * shards / (double)total;
            if (share < 0.95 || share > 1.05)
                fail_msg("%d writers, %d shards: shard %d has %.3f of its share", w, shards, s, share);
            assert_true(s == 0 || (leaders[s] > leaders[s - 1] && first[s] >= last[s - 1]));
            assert_true(leaders[s] % 3 == 0 && leaders[s] < 3 * w);
        }
        dtx_mem_free(boxes);
    }
    finish(&run);
}

/* Every element once, no piece longer than the limit unless it is one element. */
static void test_pieces(void **unused)
{
    (void)unused;
    struct dtx_box box = {.global = {10, 20, 30}, .local = {1, 2, 3}, .extent = {3, 4, 5}}, piece;
    for (int64_t limit = 1; limit < 300; limit++) {
        int64_t covered = 0, n = dtx_ckpt_pieces(&box, 3, 4, limit);
        for (int64_t i = 0; i < n; i++) {
            dtx_ckpt_piece(&box, 3, 4, limit, i, &piece);
            int64_t count = dtx_ckpt_box_count(&piece, 3);
            assert_true(count > 0 && (count * 4 <= limit || count == 1));
            covered += count;
            for (int d = 0; d < 3; d++) {
                assert_true(piece.global[d] - box.global[d] == piece.local[d] - box.local[d]);
                assert_true(piece.global[d] >= box.global[d] &&
                            piece.global[d] + piece.extent[d] <= box.global[d] + box.extent[d]);
            }
        }
        assert_int_equal(covered, 60);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits),
                                       cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_newer),
                                       cmocka_unit_test(test_load),
                                       cmocka_unit_test(test_passed_over_while_loading),
                                       cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_tables),
                                       cmocka_unit_test(test_shards),
                                       cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_bad_folder),
                                       cmocka_unit_test(test_said),
                                       cmocka_unit_test(test_unreadable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
