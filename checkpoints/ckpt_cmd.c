/* dtx ckpt: looks into checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"

static const char usage[] =
    "usage: dtx ckpt ls DIR...\n"
    "       dtx ckpt show PATH\n"
    "       dtx ckpt verify PATH...\n"
    "       dtx ckpt diff [--limit X] A B\n"
    "\n"
    "ls lists the checkpoints of a folder, newest first. show prints a checkpoint's scalars, its options, arrays and\n"
    "shards. verify reads every byte and compares every checksum; of a folder of checkpoints, in all of them. diff\n"
    "compares whole arrays, however either side was cut. PATH, A and B: a checkpoint (step-00001000), or a folder of\n"
    "checkpoints, which stands for its newest complete one. Exit code: 0 good or equal, 1 damaged or different.\n"
    "\n"
    "options\n"
    "  --limit X        diff: largest |a - b| that counts as equal [0]\n";

static const struct dtx_opt_row rows[] = {
    {"limit", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "largest |a - b| that counts as equal"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};

struct request {
    struct dtx_opt *opt;
    const char **words; /* the action, then paths */
    int n;
};

/* The newest complete checkpoint of a folder of them, or the path itself. */
static enum dtx_status pick(struct dtx_ctx *ctx, const char *path, char out[DTX_DISK_PATH])
{
    struct dtx_ckpt_place *places;
    int n;
    DTX_TRY(ctx, dtx_ckpt_list(ctx, path, &places, &n));
    enum dtx_status status = DTX_OK;
    if (n > 0)
        status = dtx_disk_join(ctx, path, places[0].name, out);
    else if (snprintf(out, DTX_DISK_PATH, "%s", path) >= DTX_DISK_PATH)
        status = dtx_fail(ctx, DTX_E_CONFIG, "path too long: %.200s…", path);
    dtx_mem_free(places);
    return status;
}

static void print_place(struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_place *place)
{
    char path[DTX_DISK_PATH], heldout[32] = "-", mesh[64];
    struct dtx_ckpt_index index;
    struct dtx_ctx probe;
    dtx_ctx_init_child(&probe, ctx);
    if (place->status != DTX_OK || dtx_disk_join(&probe, dir, place->name, path) != DTX_OK ||
        dtx_ckpt_index_read(&probe, path, &index) != DTX_OK) {
        printf("%-20s damaged: %s\n", place->name, place->why[0] ? place->why : probe.error.text);
        return;
    }
    int64_t bytes = 0;
    for (int i = 0; i < index.manifest.n_files; i++)
        bytes += index.manifest.files[i].bytes;
    if (!isnan(index.meta.best_heldout))
        snprintf(heldout, sizeof heldout, "%.4f", index.meta.best_heldout);
    const int *size = index.meta.mesh;
    int used = snprintf(mesh, sizeof mesh, "tp%d dp%d pp%d", size[0], size[1], size[2]);
    if (size[3] > 1)
        snprintf(mesh + used, sizeof mesh - (size_t)used, " cp%d", size[3]);
    printf("%-20s %10lld %15lld %10s  %-14s %6d %10.1f\n", place->name, (long long)index.meta.step,
           (long long)index.meta.tokens, heldout, mesh, index.manifest.n_files - 1, 1e-6 * (double)bytes);
    dtx_ckpt_index_free(&index);
}

static enum dtx_status list(struct dtx_ctx *ctx, const struct request *request)
{
    for (int i = 1; i < request->n; i++) {
        struct dtx_ckpt_place *places;
        int n;
        DTX_TRY(ctx, dtx_ckpt_list(ctx, request->words[i], &places, &n));
        if (n == 0)
            printf("%s: no checkpoints\n", request->words[i]);
        else
            printf("%-20s %10s %15s %10s  %-14s %6s %10s\n", "name", "step", "tokens", "best loss", "mesh", "shards",
                   "MB");
        for (int p = 0; p < n; p++)
            print_place(ctx, request->words[i], &places[p]);
        dtx_mem_free(places);
    }
    return DTX_OK;
}

static void print_arrays(const struct dtx_ckpt_index *index)
{
    int64_t arrays = 0, elements = 0;
    printf("\narrays%48s  %-5s %-24s %s\n", "", "dtype", "shape", "boxes");
    for (int64_t i = 0, run; i < index->n; i += run, arrays++) {
        const struct dtx_ckpt_entry *e = &index->entries[i];
        char shape[96] = "";
        int64_t count = 1;
        for (int d = 0, at = 0; d < e->ndim; d++) {
            at += snprintf(shape + at, sizeof shape - (size_t)at, d ? " x %lld" : "%lld", (long long)e->whole[d]);
            count *= e->whole[d];
        }
        run = dtx_ckpt_run(index->entries, index->n, i);
        printf("  %-52s  %-5s %-24s %lld\n", e->name, e->dtype, shape, (long long)run);
        elements += count;
    }
    printf("  %lld arrays, %lld elements\n", (long long)arrays, (long long)elements);
}

static enum dtx_status show(struct dtx_ctx *ctx, const struct request *request)
{
    char path[DTX_DISK_PATH];
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, pick(ctx, request->words[1], path));
    DTX_TRY(ctx, dtx_ckpt_index_read(ctx, path, &index));
    const struct dtx_ckpt_meta *m = &index.meta;
    printf("checkpoint    %s\nformat        %d\nprogram       dtx %s\nstep          %lld\ntokens        %lld\n"
           "samples       %lld\nseed          %llu\nmesh          tp %d, dp %d, pp %d, cp %d\ninstructions  %s\n",
           path, DTX_CKPT_FORMAT, m->program, (long long)m->step, (long long)m->tokens, (long long)m->samples,
           (unsigned long long)m->seed, m->mesh[0], m->mesh[1], m->mesh[2], m->mesh[3], m->isa);
    if (isnan(m->best_heldout))
        printf("best loss     none yet\n");
    else
        printf("best loss     %.6f\n", m->best_heldout);
    printf("\noptions\n%s", m->config);
    print_arrays(&index);
    printf("\nfiles\n");
    for (int i = 0; i < index.manifest.n_files; i++)
        printf("  %-20s %15lld bytes  xxh3 %016llx\n", index.manifest.files[i].name,
               (long long)index.manifest.files[i].bytes, (unsigned long long)index.manifest.files[i].hash);
    dtx_ckpt_index_free(&index);
    return DTX_OK;
}

static enum dtx_status verify_shards(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_index *index)
{
    int shards = index->manifest.n_files - 1;
    for (int shard = 0; shard < shards; shard++) {
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\rverify %s: shard %d of %d\033[K", path, shard + 1, shards);
        enum dtx_status status = dtx_ckpt_shard_verify(ctx, path, index, shard);
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r\033[K");
        DTX_TRY(ctx, status);
    }
    return DTX_OK;
}

/* One checkpoint; a fault is printed and counted. */
static void verify_one(struct dtx_ctx *ctx, const char *path, int *damaged)
{
    struct dtx_ckpt_index index;
    struct dtx_ctx probe;
    dtx_ctx_init_child(&probe, ctx);
    enum dtx_status status = dtx_ckpt_index_read(&probe, path, &index);
    if (status == DTX_OK) {
        status = verify_shards(&probe, path, &index);
        if (status == DTX_OK)
            printf("%s: good: %lld boxes in %d shards\n", path, (long long)index.n, index.manifest.n_files - 1);
        dtx_ckpt_index_free(&index);
    }
    if (status != DTX_OK) {
        printf("%s: damaged: %s\n", path, probe.error.text);
        ++*damaged;
    }
}

static enum dtx_status verify(struct dtx_ctx *ctx, const struct request *request)
{
    int damaged = 0;
    for (int i = 1; i < request->n; i++) {
        struct dtx_ckpt_place *places;
        char path[DTX_DISK_PATH];
        int n;
        DTX_TRY(ctx, dtx_ckpt_list(ctx, request->words[i], &places, &n));
        for (int p = 0; p < n; p++)
            if (dtx_disk_join(ctx, request->words[i], places[p].name, path) == DTX_OK)
                verify_one(ctx, path, &damaged);
        if (n == 0)
            verify_one(ctx, request->words[i], &damaged);
        dtx_mem_free(places);
    }
    return damaged ? DTX_E_FORMAT : DTX_OK; /* said already */
}

static double number_at(const void *data, enum dtx_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DTX_F64:
        return ((const double *)data)[i];
    case DTX_F32:
        return (double)((const float *)data)[i];
    case DTX_BF16:
        return (double)dtx_bf16_to_f32(((const uint16_t *)data)[i]);
    case DTX_I32:
        return (double)((const int32_t *)data)[i];
    case DTX_I64:
        return (double)((const int64_t *)data)[i];
    case DTX_U8:
        return (double)((const uint8_t *)data)[i];
    }
    return 0;
}

/* A whole array; free item->data. */
static enum dtx_status load_whole(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                  const struct dtx_ckpt_entry *e, struct dtx_ckpt_item *item, int64_t *count)
{
    memset(item, 0, sizeof *item);
    memcpy(item->name, e->name, sizeof item->name);
    dtx_dtype_parse(e->dtype, &item->dtype);
    item->ndim = e->ndim;
    item->n_boxes = 1;
    *count = 1;
    for (int d = 0; d < e->ndim; d++) {
        item->whole[d] = item->local[d] = item->boxes[0].extent[d] = e->whole[d];
        *count *= e->whole[d];
    }
    DTX_TRY(ctx, dtx_mem_alloc(ctx, *count, dtx_dtype_bytes(item->dtype), &item->data));
    enum dtx_status status = dtx_ckpt_index_load(ctx, folder, index, item, 1);
    if (status != DTX_OK)
        dtx_mem_free(item->data);
    return status;
}

struct side {
    char path[DTX_DISK_PATH];
    struct dtx_ckpt_index index;
};

/* Two arrays of one shape and dtype. NaN equals NaN of the same bits only. */
static bool values_equal(const struct dtx_ckpt_item *a, const struct dtx_ckpt_item *b, int64_t n, double limit)
{
    size_t size = dtx_dtype_bytes(a->dtype);
    int64_t different = 0;
    double greatest = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = number_at(a->data, a->dtype, i), y = number_at(b->data, b->dtype, i), gap = fabs(x - y);
        scale = fabs(x) > scale ? fabs(x) : scale;
        if (memcmp((char *)a->data + (size_t)i * size, (char *)b->data + (size_t)i * size, size) == 0 || gap <= limit)
            continue;
        different++;
        greatest = isnan(gap) || gap > greatest ? gap : greatest;
    }
    if (different)
        printf("%-52s %lld of %lld elements differ, by at most %.6g (%.3g of the greatest)\n", a->name,
               (long long)different, (long long)n, greatest, scale > 0 ? greatest / scale : INFINITY);
    return different == 0;
}

/* The array at entries[i] of a and entries[j] of b. */
static enum dtx_status compare_arrays(struct dtx_ctx *ctx, const struct side *a, int64_t i, const struct side *b,
                                      int64_t j, double limit, bool *equal)
{
    const struct dtx_ckpt_entry *x = &a->index.entries[i], *y = &b->index.entries[j];
    struct dtx_ckpt_item left, right;
    int64_t n, m;
    *equal = false;
    if (x->ndim != y->ndim || memcmp(x->whole, y->whole, sizeof x->whole) != 0 || strcmp(x->dtype, y->dtype) != 0) {
        printf("%-52s has another shape or dtype\n", x->name);
        return DTX_OK;
    }
    DTX_TRY(ctx, load_whole(ctx, a->path, &a->index, x, &left, &n));
    enum dtx_status status = load_whole(ctx, b->path, &b->index, y, &right, &m);
    if (status == DTX_OK) {
        *equal = values_equal(&left, &right, n, limit);
        dtx_mem_free(right.data);
    }
    dtx_mem_free(left.data);
    return status;
}

/* Walks both sorted tables side by side. */
static enum dtx_status compare(struct dtx_ctx *ctx, const struct side *a, const struct side *b, double limit,
                               int64_t *arrays, int64_t *different)
{
    int64_t i = 0, j = 0;
    *arrays = *different = 0;
    while (i < a->index.n || j < b->index.n) {
        const struct dtx_ckpt_entry *x = &a->index.entries[i], *y = &b->index.entries[j];
        int order = i == a->index.n ? 1 : j == b->index.n ? -1 : strcmp(x->name, y->name);
        bool equal = false;
        if (order < 0)
            printf("%-52s is in the first only\n", x->name);
        else if (order > 0)
            printf("%-52s is in the second only\n", y->name);
        else
            DTX_TRY(ctx, compare_arrays(ctx, a, i, b, j, limit, &equal));
        ++*arrays;
        *different += !equal;
        i += order <= 0 ? dtx_ckpt_run(a->index.entries, a->index.n, i) : 0;
        j += order >= 0 ? dtx_ckpt_run(b->index.entries, b->index.n, j) : 0;
    }
    return DTX_OK;
}

static enum dtx_status diff(struct dtx_ctx *ctx, const struct request *request)
{
    struct side a, b;
    int64_t arrays, different;
    DTX_TRY(ctx, pick(ctx, request->words[1], a.path));
    DTX_TRY(ctx, pick(ctx, request->words[2], b.path));
    DTX_TRY(ctx, dtx_ckpt_index_read(ctx, a.path, &a.index));
    enum dtx_status status = dtx_ckpt_index_read(ctx, b.path, &b.index);
    if (status == DTX_OK) {
        status = compare(ctx, &a, &b, dtx_opt_real(request->opt, "limit"), &arrays, &different);
        dtx_ckpt_index_free(&b.index);
    }
    dtx_ckpt_index_free(&a.index);
    DTX_TRY(ctx, status);
    printf("%lld arrays, %lld different\n", (long long)arrays, (long long)different);
    return different ? DTX_E_RANGE : DTX_OK; /* said already; exit code 1, as of diff */
}

static const struct action {
    const char *name;
    int min_paths, max_paths;
    enum dtx_status (*run)(struct dtx_ctx *ctx, const struct request *request);
} actions[] = {{"ls", 1, 1 << 20, list}, {"show", 1, 1, show}, {"verify", 1, 1 << 20, verify}, {"diff", 2, 2, diff}};
enum { ACTIONS = sizeof actions / sizeof *actions };

static enum dtx_status act(struct dtx_ctx *ctx, const struct request *request)
{
    const char *name = request->n ? request->words[0] : "";
    for (int i = 0; i < ACTIONS; i++)
        if (strcmp(name, actions[i].name) == 0) {
            if (request->n - 1 < actions[i].min_paths || request->n - 1 > actions[i].max_paths)
                return dtx_fail(ctx, DTX_E_CONFIG, "dtx ckpt %s needs %d path(s), %d given; `dtx ckpt --help` explains",
                                name, actions[i].min_paths, request->n - 1);
            return actions[i].run(ctx, request);
        }
    return dtx_fail(ctx, DTX_E_CONFIG, "dtx ckpt: '%s' is none of ls, show, verify, diff; `dtx ckpt --help` explains",
                    name);
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    const struct dtx_opt_row *tables[] = {rows};
    struct request request = {0};
    void *words = NULL;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return DTX_OK;
        }
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &request.opt));
    enum dtx_status status = dtx_mem_alloc(ctx, argc, sizeof(char *), &words);
    request.words = words;
    if (status == DTX_OK)
        status = dtx_opt_load_args(ctx, request.opt, argc, argv, request.words, argc, &request.n);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, request.opt);
    if (status == DTX_OK)
        status = act(ctx, &request);
    dtx_mem_free(words);
    dtx_opt_free(request.opt);
    return status;
}

const struct dtx_command dtx_command_ckpt = {"ckpt", "list, show, verify and compare checkpoints", run};
