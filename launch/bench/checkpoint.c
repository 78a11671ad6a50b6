/* `dtx bench checkpoint`: a training run's state to the disk and back, beside the plain writing and reading of as many
 * bytes in turns with it, and what a save beside training costs the steps. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/manifest.h"
#include "checkpoints/retain.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "launch/bench/workload.h"
#include "trainer/state.h"

enum { PIECE = 4 << 20, WORDS = 16, WORD = 40, MOST_STEPS = 64, VOCAB = 512 };

static const struct dtx_opt_row rows[] = {
    DTX_WORKLOAD_OPTIONS,
    {"bytes", DTX_OPT_INT, "1073741824", "1..", DTX_OPT_FREE, "bytes of state, about: decides the number of layers"},
    {"dir", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "file system to measure; empty: TMPDIR, else /tmp"},
    {"rounds", DTX_OPT_INT, "3", "1..100", DTX_OPT_FREE, "how often everything is measured, in turns"},
    {"steps", DTX_OPT_INT, "3", "0..60", DTX_OPT_FREE, "steps of a round without a save; 0: none, nor beside one"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "bench checkpoint",
    .usage =
        "usage: dtx bench checkpoint [--bytes N] [--dir DIR] [--rounds N] [--steps N] [--json FILE] [--KEY VALUE …]\n"
        "       mpirun -n RANKS dtx bench checkpoint …\n\n"
        "Of a small model with that much state (weights, optimizer), in turns: saving it durably, read back and\n"
        "published, against writing and syncing as many bytes; resuming from it against reading as many bytes, both\n"
        "dropped from the cache first; copying the state for a save beside training against memcpy; a training step\n"
        "while such a save is written against one without. Ratios are medians over the rounds.\n" DTX_WORKLOAD_SHORT,
    .options = rows};

struct bench {
    struct dtx_workload workload;
    struct dtx_bench_out out;
    struct dtx_state state;
    struct dtx_ckpt_staging *staging;
    char *scratch;       /* as many bytes as this rank's state, PIECE at least */
    int64_t mine, total; /* bytes of this rank's items, of all ranks' */
    char dir[DTX_PATH / 2], checkpoints[DTX_PATH], plain[DTX_PATH], pages[DTX_PATH];
    int64_t step; /* number of the next checkpoint */
    struct dtx_samples plain_write, save, save_beside, plain_read, load, copy, stall, alone, beside;
    struct dtx_samples durable, loading, stalling, slowing; /* ratios, round by round */
    double cpu_share;
};

static struct dtx_ctx *ctx_of(const struct bench *b)
{
    return b->workload.session.ctx;
}

static struct dtx_comm *world_of(const struct bench *b)
{
    return b->workload.session.world;
}

/* All ranks begin together. */
static enum dtx_status begin(const struct bench *b, double *start)
{
    DTX_TRY(ctx_of(b), dtx_comm_barrier(world_of(b)));
    *start = dtx_clock_now();
    return DTX_OK;
}

/* Seconds since then of the slowest rank; one rank's failure is everybody's. */
static enum dtx_status end(const struct bench *b, enum dtx_status status, double start, double *seconds)
{
    *seconds = dtx_clock_now() - start;
    DTX_TRY(ctx_of(b), dtx_comm_agree(world_of(b), status));
    struct dtx_tensor slowest = dtx_tensor_1d(seconds, DTX_F64, 1);
    return dtx_comm_all_reduce_max(world_of(b), NULL, &slowest);
}

/* As many bytes as this rank saves; sync: until they are on the disk. */
static enum dtx_status write_file(const struct bench *b, const char *path, bool sync)
{
    struct dtx_ctx *ctx = ctx_of(b);
    enum dtx_status status = DTX_OK;
    int fd;
    DTX_TRY(ctx, dtx_disk_open_new(ctx, path, 0, &fd));
    for (int64_t at = 0; at < b->mine && status == DTX_OK; at += PIECE)
        status = dtx_disk_write_at(ctx, fd, path, b->scratch + at, dtx_min64(PIECE, b->mine - at), at);
    if (status == DTX_OK && sync)
        return dtx_disk_close_written(ctx, fd, path);
    close(fd);
    return status;
}

/* Pages for a file, in use just now and free again: those that the system must find first cost a virtual machine more
 * than all writing or reading, and whichever of two files comes first, or when the host has taken free pages back,
 * would pay. */
static enum dtx_status warm_pages(const struct bench *b)
{
    enum dtx_status status = write_file(b, b->pages, false);
    unlink(b->pages);
    return status;
}

/* Out of the page cache; what was synced goes. */
static enum dtx_status drop(const struct bench *b, const char *path)
{
    int fd;
    DTX_TRY(ctx_of(b), dtx_disk_open_read(ctx_of(b), path, &fd));
    int code = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (code != 0)
        return dtx_fail(ctx_of(b), DTX_E_IO, "cannot drop %s from the cache: %s", path, strerror(code));
    return DTX_OK;
}

static enum dtx_status read_file(const struct bench *b, const char *path)
{
    struct dtx_ctx *ctx = ctx_of(b);
    enum dtx_status status = DTX_OK;
    int64_t bytes;
    int fd;
    DTX_TRY(ctx, dtx_disk_size(ctx, path, &bytes));
    DTX_TRY(ctx, dtx_disk_open_read(ctx, path, &fd));
    for (int64_t at = 0; at < bytes && status == DTX_OK; at += PIECE)
        status = dtx_disk_read_at(ctx, fd, path, b->scratch, dtx_min64(PIECE, bytes - at), at);
    close(fd);
    return status;
}

/* Does it with the newest checkpoint's files from the rank-th on, every `stride`-th. */
static enum dtx_status for_files(const struct bench *b, int from, int stride,
                                 enum dtx_status (*act)(const struct bench *b, const char *path))
{
    struct dtx_ctx *ctx = ctx_of(b);
    char name[48], folder[DTX_DISK_PATH], path[DTX_DISK_PATH];
    struct dtx_ckpt_manifest *list;
    void *memory;
    dtx_ckpt_folder_name("", b->step - 1, name);
    DTX_TRY(ctx, dtx_disk_join(ctx, b->checkpoints, name, folder));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof *list, &memory));
    list = memory;
    enum dtx_status status = dtx_ckpt_manifest_read(ctx, folder, list);
    for (int i = from; i < list->n_files && status == DTX_OK; i += stride) {
        status = dtx_disk_join(ctx, folder, list->files[i].name, path);
        if (status == DTX_OK)
            status = act(b, path);
    }
    dtx_mem_free(memory);
    return status;
}

/* Root does it for all. */
static enum dtx_status drop_checkpoint(const struct bench *b)
{
    return dtx_comm_agree(world_of(b), world_of(b)->rank == 0 ? for_files(b, 0, 1, drop) : DTX_OK);
}

/* Each rank its share of the files; the index comes first. */
static enum dtx_status read_checkpoint(const struct bench *b)
{
    int size = world_of(b)->size;
    return for_files(b, 1 + (world_of(b)->rank + size - 1) % size, size, read_file);
}

/* What was saved goes. */
static enum dtx_status clear(const struct bench *b)
{
    struct dtx_ctx *ctx = ctx_of(b);
    char name[48], path[DTX_DISK_PATH];
    enum dtx_status status = DTX_OK;
    for (int64_t step = 0; step < b->step && world_of(b)->rank == 0 && status == DTX_OK; step++) {
        dtx_ckpt_folder_name("", step, name);
        status = dtx_disk_join(ctx, b->checkpoints, name, path);
        if (status == DTX_OK && dtx_disk_exists(path))
            status = dtx_disk_remove_folder(ctx, path);
    }
    return dtx_comm_agree(world_of(b), status);
}

static enum dtx_status measure_plain_write(struct bench *b, double *seconds)
{
    double start;
    DTX_TRY(ctx_of(b), dtx_comm_agree(world_of(b), warm_pages(b)));
    DTX_TRY(ctx_of(b), begin(b, &start));
    DTX_TRY(ctx_of(b), end(b, write_file(b, b->plain, true), start, seconds));
    dtx_samples_add(&b->plain_write, *seconds);
    return DTX_OK;
}

/* As the training loop does: a copy of the state, and from there the file. beside: steps go on. */
static enum dtx_status start_save(struct bench *b, bool beside, double *stall)
{
    struct dtx_ckpt_save_options options = {.beside = beside};
    struct dtx_ctx *ctx = ctx_of(b);
    struct dtx_ckpt_meta meta = {
        .step = b->step++, .isa = "bench", .program = "dtx bench", .config = b->workload.session.text};
    double start;
    for (int axis = 0; axis < DTX_AXES; axis++)
        meta.mesh[axis] = dtx_engine_mesh(b->workload.runs[0].engine)->size[axis];
    DTX_TRY(ctx, begin(b, &start));
    DTX_TRY(ctx, end(b, dtx_state_snapshot(&b->state, b->staging), start, stall));
    dtx_ckpt_staging_start(b->staging, b->checkpoints, NULL, b->state.items, b->state.n, &meta, &options);
    return DTX_OK;
}

static enum dtx_status measure_save(struct bench *b, bool beside, double *seconds, double *stall)
{
    struct dtx_ckpt_saved saved;
    double start;
    DTX_TRY(ctx_of(b), dtx_comm_agree(world_of(b), warm_pages(b)));
    DTX_TRY(ctx_of(b), start_save(b, beside, stall));
    start = dtx_clock_now();
    DTX_TRY(ctx_of(b), end(b, dtx_ckpt_staging_finish(b->staging, &saved), start, seconds));
    dtx_samples_add(beside ? &b->save_beside : &b->save, *seconds);
    dtx_samples_add(&b->stall, *stall);
    return DTX_OK;
}

static enum dtx_status measure_copy(struct bench *b, double *seconds)
{
    double start;
    DTX_TRY(ctx_of(b), begin(b, &start));
    if (b->state.n > 0)
        memcpy(b->scratch, b->state.items[0].data, (size_t)b->mine);
    DTX_TRY(ctx_of(b), end(b, DTX_OK, start, seconds));
    dtx_samples_add(&b->copy, *seconds);
    return DTX_OK;
}

/* The files that a load reads, from the first byte to the last. */
static enum dtx_status measure_plain_read(struct bench *b, double *seconds)
{
    double start;
    DTX_TRY(ctx_of(b), drop_checkpoint(b));
    DTX_TRY(ctx_of(b), dtx_comm_agree(world_of(b), warm_pages(b)));
    DTX_TRY(ctx_of(b), begin(b, &start));
    return end(b, read_checkpoint(b), start, seconds);
}

/* As a resume does: found, read, verified, in the model. */
static enum dtx_status measure_load(struct bench *b, double *seconds)
{
    struct dtx_ctx *ctx = ctx_of(b);
    struct dtx_ckpt_search search = {0};
    char path[DTX_DISK_PATH];
    double start;
    DTX_TRY(ctx, drop_checkpoint(b));
    DTX_TRY(ctx, dtx_comm_agree(world_of(b), warm_pages(b)));
    DTX_TRY(ctx, begin(b, &start));
    DTX_TRY(ctx, dtx_ckpt_find(ctx, world_of(b), b->checkpoints, "latest", &search, path, sizeof path));
    return end(b, dtx_state_load(b->workload.runs[0].engine, path, NULL, false), start, seconds);
}

static enum dtx_status steps_alone(struct bench *b, int n, struct dtx_samples *round)
{
    struct dtx_workload_timing t;
    for (int i = 0; i < n; i++) {
        DTX_TRY(ctx_of(b), dtx_workload_step(&b->workload, &b->workload.runs[0], &t));
        dtx_samples_add(round, t.wall_seconds);
        dtx_samples_add(&b->alone, t.wall_seconds);
        b->cpu_share = t.cpu_share;
    }
    return DTX_OK;
}

/* Steps that a save was under way from beginning to end; half of those with nothing beside them before, half after. */
static enum dtx_status measure_steps(struct bench *b)
{
    struct dtx_ctx *ctx = ctx_of(b);
    struct dtx_workload_timing t;
    struct dtx_ckpt_saved saved;
    struct dtx_samples alone = {0}, beside = {0};
    int steps = (int)dtx_opt_int(b->workload.session.opt, "steps");
    double stall;
    if (steps == 0)
        return DTX_OK;
    DTX_TRY(ctx, steps_alone(b, (steps + 1) / 2, &alone));
    DTX_TRY(ctx, start_save(b, true, &stall));
    dtx_samples_add(&b->stall, stall);
    for (int i = 0; i < MOST_STEPS; i++) {
        DTX_TRY(ctx, dtx_workload_step(&b->workload, &b->workload.runs[0], &t));
        double busy = dtx_ckpt_staging_done(b->staging) ? 0 : 1;
        struct dtx_tensor any = dtx_tensor_1d(&busy, DTX_F64, 1);
        DTX_TRY(ctx, dtx_comm_all_reduce_max(world_of(b), NULL, &any));
        if (busy == 0)
            break;
        dtx_samples_add(&beside, t.wall_seconds);
        dtx_samples_add(&b->beside, t.wall_seconds);
    }
    DTX_TRY(ctx, dtx_comm_agree(world_of(b), dtx_ckpt_staging_finish(b->staging, &saved)));
    DTX_TRY(ctx, steps_alone(b, steps - (steps + 1) / 2, &alone));
    if (beside.n > 0)
        dtx_samples_add(&b->slowing, dtx_samples_median(&beside) / dtx_samples_median(&alone));
    return DTX_OK;
}

/* What was just written is read once before anything is measured: a virtual machine's disk gives it faster from then
 * on. */
static enum dtx_status measure_reading(struct bench *b, bool ours_first, double *ratio)
{
    struct dtx_ctx *ctx = ctx_of(b);
    double plain, load;
    DTX_TRY(ctx, measure_plain_read(b, &plain));
    if (ours_first)
        DTX_TRY(ctx, measure_load(b, &load));
    DTX_TRY(ctx, measure_plain_read(b, &plain));
    if (!ours_first)
        DTX_TRY(ctx, measure_load(b, &load));
    dtx_samples_add(&b->plain_read, plain);
    dtx_samples_add(&b->load, load);
    *ratio = plain / load;
    dtx_samples_add(&b->loading, *ratio);
    return DTX_OK;
}

static enum dtx_status measure_round(struct bench *b, int round)
{
    struct dtx_ctx *ctx = ctx_of(b);
    double plain_write, save, beside, stall, copy, loading;
    bool ours_first = round % 2;
    DTX_TRY(ctx, clear(b));
    unlink(b->plain);
    if (!ours_first)
        DTX_TRY(ctx, measure_plain_write(b, &plain_write));
    DTX_TRY(ctx, measure_save(b, false, &save, &stall));
    DTX_TRY(ctx, measure_copy(b, &copy));
    if (ours_first)
        DTX_TRY(ctx, measure_plain_write(b, &plain_write));
    dtx_samples_add(&b->durable, plain_write / save);
    dtx_samples_add(&b->stalling, stall / copy);
    DTX_TRY(ctx, measure_reading(b, ours_first, &loading));
    DTX_TRY(ctx, clear(b));
    DTX_TRY(ctx, measure_save(b, true, &beside, &stall));
    DTX_TRY(ctx, measure_steps(b));
    if (world_of(b)->rank == 0)
        dtx_log(ctx, DTX_LOG_INFO, "round %d: saving at %.2f of plain writing, loading at %.2f of plain reading",
                round + 1, plain_write / save, loading);
    return DTX_OK;
}

/* "1.07 GB/s" */
static void print_row(FILE *file, const char *what, const struct dtx_samples *seconds, int64_t bytes)
{
    char time[32], low[32], high[32], speed[32] = "";
    dtx_report_seconds(dtx_samples_median(seconds), time);
    dtx_report_seconds(dtx_samples_min(seconds), low);
    dtx_report_seconds(dtx_samples_max(seconds), high);
    if (bytes && dtx_samples_median(seconds) > 0)
        dtx_report_scaled((double)bytes / dtx_samples_median(seconds), "B/s", speed);
    fprintf(file, "%-28s %10s %10s %10s %12s\n", what, time, low, high, speed);
}

static void print_table(const struct bench *b)
{
    FILE *file = dtx_bench_table(&b->out);
    fprintf(file, "%.3f GB of state, %d ranks, in %s\n\n%-28s %10s %10s %10s\n", 1e-9 * (double)b->total,
            world_of(b)->size, b->dir, "", "median", "least", "most");
    print_row(file, "plain write and sync", &b->plain_write, b->total);
    print_row(file, "save until published", &b->save, b->total);
    print_row(file, "save bypassing page cache", &b->save_beside, b->total);
    print_row(file, "plain read, cold", &b->plain_read, b->total);
    print_row(file, "resume, cold", &b->load, b->total);
    print_row(file, "memcpy", &b->copy, b->total);
    print_row(file, "stall of a save", &b->stall, b->total);
    print_row(file, "step", &b->alone, 0);
    print_row(file, "step beside a save", &b->beside, 0);
    fprintf(file,
            "\nsaving   %5.1f %% of plain writing (at least 85 wanted)\nloading  %5.1f %% of plain reading (85)\n",
            100 * dtx_samples_median(&b->durable), 100 * dtx_samples_median(&b->loading));
    fprintf(file, "stall    %5.2f × memcpy (at most 1.5)\n", dtx_samples_median(&b->stalling));
    if (b->slowing.n > 0)
        fprintf(file, "step     %5.2f × one without a save (at most 1.10 with a spare core; %d steps in %d rounds)\n",
                dtx_samples_median(&b->slowing), b->beside.n, b->slowing.n);
    else if (b->alone.n > 0)
        fprintf(file, "step     no save lasted as long as a step: more --bytes or a smaller --length\n");
}

static enum dtx_status write_json(struct bench *b, int argc, char **argv)
{
    const struct dtx_session *s = &b->workload.session;
    json_t *root = dtx_bench_json(s->backend, s->world->size, "checkpoint", argc, argv);
    json_object_update_new(root, dtx_workload_json(&b->workload));
    json_object_update_new(
        root, json_pack("{s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "state_bytes",
                        (json_int_t)b->total, "dir", b->dir, "plain_write_seconds", dtx_samples_json(&b->plain_write),
                        "save_seconds", dtx_samples_json(&b->save), "save_bypassing_page_cache_seconds",
                        dtx_samples_json(&b->save_beside), "plain_read_seconds", dtx_samples_json(&b->plain_read),
                        "load_seconds", dtx_samples_json(&b->load), "memcpy_seconds", dtx_samples_json(&b->copy),
                        "stall_seconds", dtx_samples_json(&b->stall), "step_seconds", dtx_samples_json(&b->alone),
                        "step_beside_save_seconds", dtx_samples_json(&b->beside), "save_share_of_plain_write",
                        dtx_samples_json(&b->durable), "load_share_of_plain_read", dtx_samples_json(&b->loading),
                        "stall_to_memcpy", dtx_samples_json(&b->stalling), "step_beside_save_to_step",
                        dtx_samples_json(&b->slowing)));
    return dtx_bench_out_write(s->ctx, &b->out, root);
}

/* The folder, the same on all ranks; this rank's plain file; the staging buffer and as much memory again. */
static enum dtx_status prepare(struct bench *b)
{
    struct dtx_session *s = &b->workload.session;
    struct dtx_ctx *ctx = s->ctx;
    const char *base = dtx_opt_text(s->opt, "dir"), *temporary = getenv("TMPDIR");
    enum dtx_status status =
        s->world->rank == 0 ? dtx_bench_out_open(ctx, dtx_opt_text(s->opt, "json"), &b->out) : DTX_OK;
    DTX_TRY(ctx, dtx_comm_agree(s->world, status));
    if (s->world->rank == 0) {
        snprintf(b->dir, sizeof b->dir, "%s/dtx-bench-XXXXXX",
                 *base                     ? base
                 : temporary && *temporary ? temporary
                                           : "/tmp");
        if (!mkdtemp(b->dir)) {
            status = dtx_fail(ctx, DTX_E_IO, "%s: cannot make a folder: %s; give --dir", b->dir, strerror(errno));
            b->dir[0] = '\0';
        }
    }
    DTX_TRY(ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(ctx, dtx_comm_broadcast_bytes(s->world, b->dir, sizeof b->dir, 0));
    snprintf(b->checkpoints, sizeof b->checkpoints, "%s/checkpoints", b->dir);
    snprintf(b->plain, sizeof b->plain, "%s/plain-%05d", b->dir, s->world->rank);
    snprintf(b->pages, sizeof b->pages, "%s/pages-%05d", b->dir, s->world->rank);
    status = dtx_state_open(b->workload.runs[0].engine, &b->state);
    b->mine = (int64_t)dtx_ckpt_staging_bytes(b->state.items, b->state.n);
    void *memory = NULL;
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, dtx_max64(b->mine, PIECE), 1, &memory);
    b->scratch = memory;
    DTX_TRY(ctx, dtx_comm_agree(s->world, status));
    b->total = b->mine;
    struct dtx_tensor sum = dtx_tensor_1d(&b->total, DTX_I64, 1);
    DTX_TRY(ctx, dtx_comm_all_reduce_sum(s->world, NULL, &sum));
    return dtx_ckpt_staging_open(ctx, s->world, s->backend, (size_t)b->mine, true, 0, &b->staging);
}

static enum dtx_status run(struct bench *b, int argc, char **argv)
{
    struct dtx_ctx *ctx = ctx_of(b);
    struct dtx_workload_timing t;
    bool root = world_of(b)->rank == 0;
    DTX_TRY(ctx, prepare(b));
    DTX_TRY(ctx, dtx_workload_step(&b->workload, &b->workload.runs[0], &t)); /* no state is zero */
    for (int round = 0; round < dtx_opt_int(b->workload.session.opt, "rounds"); round++)
        DTX_TRY(ctx, measure_round(b, round));
    DTX_TRY(ctx, clear(b));
    if (root)
        print_table(b);
    enum dtx_status status = root ? write_json(b, argc, argv) : DTX_OK;
    if (root)
        dtx_bench_warn_busy(ctx, b->cpu_share);
    return dtx_comm_agree(world_of(b), status);
}

/* Root removes what all made. After a failure checkpoints stay, to look at. */
static void remove_files(const struct bench *b)
{
    const struct dtx_comm *world = b->workload.session.world;
    char path[DTX_PATH + 16];
    if (!b->dir[0] || world->rank != 0)
        return;
    for (int r = 0; r < world->size; r++) {
        snprintf(path, sizeof path, "%s/plain-%05d", b->dir, r);
        unlink(path);
        snprintf(path, sizeof path, "%s/pages-%05d", b->dir, r);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/latest", b->checkpoints);
    unlink(path);
    rmdir(b->checkpoints);
    rmdir(b->dir);
}

/* Where no model is named: one with about that much state. A layer has 4·D² + 3·D·ffn weights, with their moments 12
 * bytes each. */
static int model_words(int argc, char **argv, char words[WORDS][WORD])
{
    int64_t bytes = 1 << 30;
    int n = 0;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--model.", 8) == 0 || strncmp(argv[i], "--preset", 8) == 0)
            return 0;
        if (strcmp(argv[i], "--bytes") == 0 && i + 1 < argc)
            bytes = atoll(argv[i + 1]);
        else if (strncmp(argv[i], "--bytes=", 8) == 0)
            bytes = atoll(argv[i] + 8);
    }
    bool small = bytes < 256 << 20;
    int64_t width = small ? 64 : 768, ffn = small ? 192 : 2048;
    int64_t layer = 12 * width * (4 * width + 3 * ffn), rest = bytes - 12 * VOCAB * width;
    int64_t layers = dtx_max64(1, (rest + layer / 2) / layer);
    snprintf(words[n++], WORD, "--model.layers=%lld", (long long)dtx_min64(layers, 4096));
    snprintf(words[n++], WORD, "--model.width=%lld", (long long)width);
    snprintf(words[n++], WORD, "--model.heads=%d", small ? 2 : 6);
    snprintf(words[n++], WORD, "--model.ffn=%lld", (long long)ffn);
    snprintf(words[n++], WORD, "--model.vocab=%d", VOCAB);
    snprintf(words[n++], WORD, "--length=128");
    snprintf(words[n++], WORD, "--batch=2");
    snprintf(words[n++], WORD, "--micro_batch=1");
    snprintf(words[n++], WORD, "--attention=diff");
    return n;
}

static enum dtx_status open_workload(struct dtx_ctx *ctx, struct bench *b, int argc, char **argv, bool *done)
{
    char words[WORDS][WORD];
    void *memory;
    int n = model_words(argc, argv, words);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, argc + n, sizeof(char *), &memory));
    char **all = memory;
    for (int i = 0; i < n; i++)
        all[i] = words[i];
    for (int i = 0; i < argc; i++)
        all[n + i] = argv[i];
    enum dtx_status status = dtx_workload_open(ctx, &command, n + argc, all, false, &b->workload, done);
    dtx_mem_free(memory);
    return status;
}

enum dtx_status dtx_bench_checkpoint(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    bool done = false;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct bench), &memory));
    struct bench *b = memory;
    enum dtx_status status = open_workload(ctx, b, argc, argv, &done);
    if (status == DTX_OK && !done)
        status = run(b, argc, argv);
    dtx_bench_out_discard(&b->out);
    if (status == DTX_OK)
        dtx_ckpt_staging_close(b->staging);
    else
        (void)dtx_ckpt_staging_halt(b->staging, 3);
    remove_files(b);
    dtx_state_close(&b->state);
    dtx_mem_free(b->scratch);
    status = dtx_workload_close(&b->workload, status);
    dtx_mem_free(b);
    return status;
}
