/* dtx ckpt: looks into checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoints/convert.h"
#include "checkpoints/diff.h"
#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"

static const char usage[] =
    "usage: dtx ckpt ls DIR...\n"
    "       dtx ckpt show PATH\n"
    "       dtx ckpt verify PATH...\n"
    "       dtx ckpt diff [--limit X] A B\n"
    "       dtx ckpt export --out DIR [--tokenizer tokenizer.json] [--dtype f32|bf16] [--force] PATH\n"
    "       dtx ckpt import --out DIR [--force] FOLDER\n"
    "       dtx ckpt average --out DIR [--force] PATH PATH...\n"
    "\n"
    "ls lists the checkpoints of a folder, newest first. show prints a checkpoint's scalars, its options, arrays and\n"
    "shards. verify reads every byte and compares every checksum; of a folder of checkpoints, in all of them. diff\n"
    "compares whole arrays, however either side was cut. PATH, A and B: a checkpoint (step-00001000), or a folder of\n"
    "checkpoints, which stands for its newest complete one. Exit code: 0 good or equal, 1 different, 78 damaged.\n"
    "\n"
    "export writes a Hugging Face folder: DiffLlama, or Llama for softmax attention. import reads one of either as a\n"
    "checkpoint of weights alone; average makes one of the mean of several. Both write a folder of checkpoints; begin "
    "a\n"
    "run with `dtx train --init DIR`. A target appears when it is complete, or not at all.\n"
    "\n"
    "options\n";

static const struct dtx_opt_row rows[] = {
    {"limit", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "diff: largest |a - b| that counts as equal"},
    {"out", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "export, import, average: folder to write"},
    {"force", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "export, import, average: replace what is there"},
    {"format", DTX_OPT_TEXT, "safetensors", NULL, DTX_OPT_FREE, "export, import: the other format"},
    {"dtype", DTX_OPT_CHOICE, "auto", "auto|f32|bf16", DTX_OPT_FREE,
     "export: of matrices, from the masters; vectors stay f32; auto: as trained"},
    {"tokenizer", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "export: tokenizer.json to go with it"},
    {"end_token", DTX_OPT_TEXT, "<|endoftext|>", NULL, DTX_OPT_FREE,
     "export: special token that begins and ends documents"},
    {"shard_bytes", DTX_OPT_INT, "5000000000", "1..", DTX_OPT_FREE, "export: most bytes of a file of weights"},
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
    printf("checkpoint    %s\nformat        %d\nprogram       %s\nstep          %lld\ntokens        %lld\n"
           "samples       %lld\nseed          %llu\nmesh          tp %d, dp %d, pp %d, cp %d\ninstructions  %s\n",
           path, DTX_CKPT_FORMAT, m->program, (long long)m->step, (long long)m->tokens, (long long)m->samples,
           (unsigned long long)m->seed, m->mesh[0], m->mesh[1], m->mesh[2], m->mesh[3], m->isa);
    if (isnan(m->best_heldout))
        printf("best loss     none yet\n");
    else
        printf("best loss     %.6f\n", m->best_heldout);
    if (!isnan(m->heldout))
        printf("loss          %.6f\n", m->heldout);
    if (m->origin[0])
        printf("weights alone %s\n", m->origin);
    printf("\noptions\n%s", m->config);
    print_arrays(&index);
    printf("\nfiles\n");
    for (int i = 0; i < index.manifest.n_files; i++)
        printf("  %-20s %15lld bytes  xxh3 %016llx\n", index.manifest.files[i].name,
               (long long)index.manifest.files[i].bytes, (unsigned long long)index.manifest.files[i].hash);
    dtx_ckpt_index_free(&index);
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
        struct dtx_meter meter;
        dtx_meter_start(&meter, stderr, "verify", dtx_ckpt_index_bytes(&index));
        status = dtx_ckpt_index_verify(&probe, path, &index, &meter);
        dtx_meter_clear(&meter);
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

static enum dtx_status diff(struct dtx_ctx *ctx, const struct request *request)
{
    char a[DTX_DISK_PATH], b[DTX_DISK_PATH];
    bool equal;
    DTX_TRY(ctx, pick(ctx, request->words[1], a));
    DTX_TRY(ctx, pick(ctx, request->words[2], b));
    DTX_TRY(ctx, dtx_ckpt_diff(ctx, a, b, dtx_opt_real(request->opt, "limit"), &equal));
    return equal ? DTX_OK : DTX_E_RANGE; /* said already; exit code 1, as of diff */
}

static enum dtx_status pick_format(struct dtx_ctx *ctx, const struct request *request,
                                   const struct dtx_ckpt_format **format)
{
    const char *name = dtx_opt_text(request->opt, "format");
    *format = dtx_ckpt_format_find(name);
    return *format ? DTX_OK
                   : dtx_fail(ctx, DTX_E_CONFIG, "--format '%s' is none of: %s", name, dtx_ckpt_format_names());
}

static enum dtx_status export_one(struct dtx_ctx *ctx, const struct request *request)
{
    char path[DTX_DISK_PATH];
    const struct dtx_ckpt_format *format;
    struct dtx_ckpt_export job = {.checkpoint = path,
                                  .shard_bytes = dtx_opt_int(request->opt, "shard_bytes"),
                                  .tokenizer = dtx_opt_text(request->opt, "tokenizer"),
                                  .end_token = dtx_opt_text(request->opt, "end_token")};
    DTX_TRY(ctx, pick_format(ctx, request, &format));
    DTX_TRY(ctx, pick(ctx, request->words[1], path));
    job.as_trained = !dtx_dtype_parse(dtx_opt_text(request->opt, "dtype"), &job.dtype);
    return dtx_ckpt_export(ctx, format, &job, dtx_opt_text(request->opt, "out"), dtx_opt_bool(request->opt, "force"));
}

static enum dtx_status import_one(struct dtx_ctx *ctx, const struct request *request)
{
    const struct dtx_ckpt_format *format;
    DTX_TRY(ctx, pick_format(ctx, request, &format));
    return dtx_ckpt_import(ctx, format, request->words[1], dtx_opt_text(request->opt, "out"),
                           dtx_opt_bool(request->opt, "force"));
}

static enum dtx_status average(struct dtx_ctx *ctx, const struct request *request)
{
    int n = request->n - 1;
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, DTX_DISK_PATH + sizeof(char *), &memory));
    const char **paths = memory;
    char *text = (char *)(paths + n);
    enum dtx_status status = DTX_OK;
    for (int i = 0; status == DTX_OK && i < n; i++) {
        paths[i] = text + (size_t)i * DTX_DISK_PATH;
        status = pick(ctx, request->words[1 + i], text + (size_t)i * DTX_DISK_PATH);
    }
    if (status == DTX_OK)
        status =
            dtx_ckpt_average(ctx, paths, n, dtx_opt_text(request->opt, "out"), dtx_opt_bool(request->opt, "force"));
    dtx_mem_free(memory);
    return status;
}

static const struct action {
    const char *name;
    int min_paths, max_paths;
    enum dtx_status (*run)(struct dtx_ctx *ctx, const struct request *request);
} actions[] = {{"ls", 1, 1 << 20, list},     {"show", 1, 1, show},         {"verify", 1, 1 << 20, verify},
               {"diff", 2, 2, diff},         {"export", 1, 1, export_one}, {"import", 1, 1, import_one},
               {"average", 2, 1000, average}};
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
    return dtx_fail(
        ctx, DTX_E_CONFIG,
        "dtx ckpt: '%s' is none of ls, show, verify, diff, export, import, average; `dtx ckpt --help` explains", name);
}

static void print_help(void)
{
    fputs(usage, stdout);
    for (const struct dtx_opt_row *r = rows; r->key; r++)
        printf("  --%-14s %s [%s]\n", r->key, r->help, r->initial);
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    const struct dtx_opt_row *tables[] = {rows};
    struct request request = {0};
    void *words = NULL;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help();
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

const struct dtx_command dtx_command_ckpt = {"ckpt", "list, show, verify, compare, convert and average checkpoints",
                                             run};
