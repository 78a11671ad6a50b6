/* Weights that come from elsewhere as a checkpoint of weights alone: imported, or the mean of several checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/convert.h"
#include "checkpoints/disk.h"
#include "checkpoints/retain.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* The folder must be one of its own: `--resume latest` of a run would find weights in it and nothing else. */
static enum dtx_status check_target(struct dtx_ctx *ctx, const char *out, bool force)
{
    struct dtx_ckpt_place *places;
    int n;
    if (!*out)
        return dtx_fail(ctx, DTX_E_CONFIG, "--out DIR is missing: the folder of checkpoints to write into");
    if (!dtx_disk_exists(out))
        return DTX_OK;
    if (!dtx_disk_is_folder(out))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s is a file", out);
    DTX_TRY(ctx, dtx_ckpt_list(ctx, out, &places, &n));
    char name[48] = "";
    if (n > 0)
        snprintf(name, sizeof name, "%s", places[0].name);
    dtx_mem_free(places);
    if (n > 0 && !force)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s holds a checkpoint already, %s; --force adds to it or replaces it", out,
                        name);
    return DTX_OK;
}

/* `meta` has step, tokens and origin. No run saves into the folder meanwhile: each would tidy what the other writes. */
static enum dtx_status save(struct dtx_ctx *ctx, const struct dtx_ckpt_weights *weights, struct dtx_ckpt_meta *meta,
                            struct dtx_meter *meter, const char *out)
{
    struct dtx_comm *self;
    int lock = -1;
    meta->best_heldout = meta->heldout = NAN;
    meta->mesh[0] = meta->mesh[1] = meta->mesh[2] = meta->mesh[3] = 1;
    snprintf(meta->isa, sizeof meta->isa, "none");
    snprintf(meta->program, sizeof meta->program, "dtx %s", DTX_VERSION);
    DTX_TRY(ctx, dtx_disk_make_folders(ctx, out));
    if (!DTX_MUTANT(import_takes_no_lock))
        DTX_TRY(ctx, dtx_disk_lock(ctx, "--out", out, &lock));
    enum dtx_status status = dtx_comm_self(ctx, &self);
    if (status == DTX_OK) {
        status = dtx_ckpt_save(ctx, self, out, weights->items, weights->n, meta, NULL);
        self->table->free(self);
    }
    dtx_meter_clear(meter);
    if (lock >= 0)
        close(lock);
    return status;
}

enum dtx_status dtx_ckpt_import(struct dtx_ctx *ctx, const struct dtx_ckpt_format *format, const char *folder,
                                const char *out, bool force)
{
    struct dtx_ckpt_weights weights;
    struct dtx_ckpt_meta meta = {0};
    struct dtx_meter meter;
    DTX_TRY(ctx, check_target(ctx, out, force));
    dtx_meter_start(&meter, stderr, "import", 0);
    DTX_TRY(ctx, format->open(ctx, folder, &meter, &weights));
    snprintf(meta.origin, sizeof meta.origin, "imported from %.200s (%s)", folder, format->name);
    enum dtx_status status = dtx_ckpt_model_write(ctx, &weights.model, &meta.config);
    if (status == DTX_OK)
        status = save(ctx, &weights, &meta, &meter, out);
    dtx_mem_free(meta.config);
    weights.close(&weights);
    return status;
}

struct side {
    const char *path;
    struct dtx_ckpt_index index;
};

struct average {
    struct side *sides;
    int n;
    struct dtx_meter *meter;
    double *sum;  /* of one box */
    void *values; /* one checkpoint's box */
    int64_t room; /* elements of both */
    struct mean {
        struct average *average;
        const char *weight; /* "layers.07.attn.q" */
        int ndim;
        int64_t whole[DTX_MAX_DIMS];
        enum dtx_dtype dtype;
    } * means; /* [items] */
};

static void add_values(const void *values, enum dtx_dtype dtype, int64_t n, double *sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += dtype == DTX_F64   ? ((const double *)values)[i]
                  : dtype == DTX_F32 ? (double)((const float *)values)[i]
                                     : (double)dtx_bf16_to_f32(((const uint16_t *)values)[i]);
}

/* One box of one checkpoint, added to the sum. */
static enum dtx_status add_side(struct dtx_ctx *ctx, const struct mean *m, const struct side *side,
                                const struct dtx_box *box, int64_t n)
{
    struct average *a = m->average;
    struct dtx_ckpt_item item = {.ndim = m->ndim, .n_boxes = 1, .data = a->values};
    int64_t first;
    dtx_ckpt_index_weight(&side->index, m->weight, &first); /* there: checked when opened */
    const struct dtx_ckpt_entry *e = &side->index.entries[first];
    memcpy(item.name, e->name, sizeof item.name);
    dtx_dtype_parse(e->dtype, &item.dtype);
    for (int d = 0; d < m->ndim; d++) {
        item.whole[d] = m->whole[d];
        item.local[d] = item.boxes[0].extent[d] = box->extent[d];
        item.boxes[0].global[d] = box->global[d];
    }
    DTX_TRY(ctx, dtx_ckpt_index_load(ctx, NULL, side->path, &side->index, &item, 1));
    add_values(a->values, item.dtype, n, a->sum);
    dtx_meter_add(a->meter, n * (int64_t)dtx_dtype_bytes(item.dtype));
    return DTX_OK;
}

static enum dtx_status read_mean(struct dtx_ctx *ctx, void *source, const struct dtx_box *box, void *dense)
{
    const struct mean *m = source;
    struct average *a = m->average;
    int64_t n = dtx_ckpt_box_count(box, m->ndim);
    memset(a->sum, 0, (size_t)n * sizeof *a->sum);
    for (int s = 0; s < a->n; s++)
        DTX_TRY(ctx, add_side(ctx, m, &a->sides[s], box, n));
    double share = 1.0 / (a->n + DTX_MUTANT(average_counts_one_more));
    for (int64_t i = 0; i < n; i++)
        if (m->dtype == DTX_F64)
            ((double *)dense)[i] = a->sum[i] * share;
        else
            ((float *)dense)[i] = (float)(a->sum[i] * share);
    return DTX_OK;
}

/* A weight of the first checkpoint: in all others too, with that shape. */
static enum dtx_status check_weight(struct dtx_ctx *ctx, const struct average *a, const struct mean *m)
{
    for (int s = 0; s < a->n; s++) {
        int64_t first;
        if (dtx_ckpt_index_weight(&a->sides[s].index, m->weight, &first) == 0)
            return dtx_fail(ctx, DTX_E_CONFIG, "checkpoint %s has no weight %s, which %s has", a->sides[s].path,
                            m->weight, a->sides[0].path);
        const struct dtx_ckpt_entry *e = &a->sides[s].index.entries[first];
        enum dtx_dtype dtype;
        if (e->ndim != m->ndim || memcmp(e->whole, m->whole, (size_t)m->ndim * sizeof *m->whole) != 0)
            return dtx_fail(ctx, DTX_E_CONFIG, "%s has other shapes in checkpoints %s and %s", m->weight,
                            a->sides[0].path, a->sides[s].path);
        if (!dtx_dtype_parse(e->dtype, &dtype) || (dtype != DTX_F64 && dtype != DTX_F32 && dtype != DTX_BF16))
            return dtx_fail(ctx, DTX_E_CONFIG, "checkpoint %s: %s is stored as %s: there is no mean of it",
                            a->sides[s].path, e->name, e->dtype);
    }
    return DTX_OK;
}

static void free_average(struct dtx_ckpt_weights *weights)
{
    struct average *a = weights->impl;
    for (int s = 0; s < a->n; s++)
        dtx_ckpt_index_free(&a->sides[s].index);
    dtx_mem_free(a->sides);
    dtx_mem_free(a->sum);
    dtx_mem_free(a->values);
    dtx_mem_free(a->means);
    dtx_mem_free(weights->items);
}

/* Everything below /model of the first checkpoint; fp64 where it is, else fp32. */
static enum dtx_status list_means(struct dtx_ctx *ctx, struct average *a, struct dtx_ckpt_weights *out)
{
    static const char group[] = "/model/";
    const struct dtx_ckpt_index *index = &a->sides[0].index;
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, index->n, sizeof *a->means, &memory));
    a->means = memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, index->n, sizeof *out->items, &memory));
    out->items = memory;
    for (int64_t i = 0; i < index->n; i += dtx_ckpt_run(index->entries, index->n, i)) {
        const struct dtx_ckpt_entry *e = &index->entries[i];
        struct dtx_ckpt_item *item = &out->items[out->n];
        struct mean *m = &a->means[out->n];
        if (strncmp(e->name, group, sizeof group - 1) != 0)
            continue;
        *m = (struct mean){.average = a,
                           .weight = e->name + sizeof group - 1,
                           .ndim = e->ndim,
                           .dtype = strcmp(e->dtype, "f64") == 0 ? DTX_F64 : DTX_F32};
        *item = (struct dtx_ckpt_item){
            .dtype = m->dtype, .ndim = e->ndim, .n_boxes = 1, .writer = true, .read = read_mean, .source = m};
        memcpy(item->name, e->name, sizeof item->name);
        int64_t count = 1;
        for (int d = 0; d < e->ndim; d++) {
            m->whole[d] = item->whole[d] = item->local[d] = item->boxes[0].extent[d] = e->whole[d];
            count *= e->whole[d];
        }
        DTX_TRY(ctx, check_weight(ctx, a, m));
        int64_t room = DTX_CKPT_BOX_BYTES / (int64_t)dtx_dtype_bytes(m->dtype);
        a->room = dtx_max64(a->room, dtx_min64(count, room));
        a->meter->total += count * a->n * (int64_t)dtx_dtype_bytes(m->dtype);
        out->n++;
    }
    DTX_TRY(ctx, dtx_mem_alloc(ctx, a->room, sizeof *a->sum, &memory));
    a->sum = memory;
    return dtx_mem_alloc(ctx, a->room, sizeof(double), &a->values);
}

static enum dtx_status open_average(struct dtx_ctx *ctx, const char *const *checkpoints, int n, struct dtx_meter *meter,
                                    struct average *a, struct dtx_ckpt_weights *out)
{
    void *memory;
    *a = (struct average){.meter = meter};
    *out = (struct dtx_ckpt_weights){.impl = a, .close = free_average};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *a->sides, &memory));
    a->sides = memory;
    for (int s = 0; s < n; s++) {
        a->sides[s].path = checkpoints[s];
        DTX_TRY(ctx, dtx_ckpt_index_read(ctx, checkpoints[s], &a->sides[s].index));
        a->n++;
        if (s > 0)
            DTX_TRY(ctx, dtx_ckpt_model_compare(ctx, a->sides[0].index.meta.config, checkpoints[0],
                                                a->sides[s].index.meta.config, checkpoints[s]));
    }
    return list_means(ctx, a, out);
}

enum dtx_status dtx_ckpt_average(struct dtx_ctx *ctx, const char *const *checkpoints, int n, const char *out,
                                 bool force)
{
    struct average a;
    struct dtx_ckpt_weights weights;
    struct dtx_ckpt_meta meta = {0};
    struct dtx_meter meter;
    DTX_TRY(ctx, check_target(ctx, out, force));
    dtx_meter_start(&meter, stderr, "average", 0);
    enum dtx_status status = open_average(ctx, checkpoints, n, &meter, &a, &weights);
    if (status == DTX_OK) {
        snprintf(meta.origin, sizeof meta.origin, "mean of %d checkpoints: %.80s … %.80s", n, checkpoints[0],
                 checkpoints[n - 1]);
        meta.config = a.sides[0].index.meta.config;
        for (int s = 0; s < n; s++) {
            meta.step = dtx_max64(meta.step, a.sides[s].index.meta.step);
            meta.tokens = dtx_max64(meta.tokens, a.sides[s].index.meta.tokens);
        }
        status = save(ctx, &weights, &meta, &meter, out);
    }
    weights.close(&weights);
    return status;
}
