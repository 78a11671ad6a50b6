#include "checkpoints/ckpt.h"

#include <stdio.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct load {
    struct dtx_ctx *ctx;
    const char *folder;
    const struct dtx_ckpt_index *index;
    void *buffer; /* for the longest stored box of the arrays so far */
    int64_t buffer_bytes;
    struct dtx_ckpt_reader reader;
};

static void format_shape(const int64_t *shape, int ndim, char out[96])
{
    int n = 0;
    out[0] = '\0';
    for (int d = 0; d < ndim; d++)
        n += snprintf(out + n, (size_t)(96 - n), d ? ", %lld" : "%lld", (long long)shape[d]);
}

static enum dtx_status match(struct load *l, const struct dtx_ckpt_item *item, const struct dtx_ckpt_entry *e)
{
    char stored[96], wanted[96];
    bool same = e->ndim == item->ndim && memcmp(e->whole, item->whole, (size_t)e->ndim * sizeof *e->whole) == 0;
    if (!same) {
        format_shape(e->whole, e->ndim, stored);
        format_shape(item->whole, item->ndim, wanted);
        return dtx_fail(l->ctx, DTX_E_CONFIG, "checkpoint %s: %s has shape [%s]; this run's model needs [%s]",
                        l->folder, e->name, stored, wanted);
    }
    if (strcmp(e->dtype, dtx_dtype_name(item->dtype)) != 0)
        return dtx_fail(l->ctx, DTX_E_CONFIG, "checkpoint %s: %s is stored as %s; this run needs %s", l->folder,
                        e->name, e->dtype, dtx_dtype_name(item->dtype));
    return DTX_OK;
}

/* The common part of a stored box and a wanted one: its place in the stored box (out->global), in the local array
 * (out->local), its extent. False when there is none. */
static bool intersect(const struct dtx_ckpt_entry *e, const struct dtx_box *want, struct dtx_box *out)
{
    for (int d = 0; d < e->ndim; d++) {
        int64_t from = dtx_max64(e->global[d], want->global[d]);
        int64_t to = dtx_min64(e->global[d] + e->extent[d], want->global[d] + want->extent[d]);
        if (from >= to)
            return false;
        out->global[d] = from - e->global[d];
        out->local[d] = want->local[d] + from - want->global[d];
        out->extent[d] = to - from;
    }
    return true;
}

/* Copies a box from a dense array of shape `from` at box->global to an array of shape `to` at box->local. */
static void copy_box(const struct dtx_box *box, int ndim, size_t element, const int64_t *from, const char *source,
                     const int64_t *to, char *target)
{
    int64_t rows = 1, row = box->extent[ndim - 1];
    for (int d = 0; d < ndim - 1; d++)
        rows *= box->extent[d];
    for (int64_t r = 0; r < rows; r++) {
        int64_t at[DTX_MAX_DIMS] = {0}, rest = r, source_at = 0, target_at = 0;
        for (int d = ndim - 2; d >= 0; d--) {
            at[d] = rest % box->extent[d];
            rest /= box->extent[d];
        }
        for (int d = 0; d < ndim; d++) {
            source_at = source_at * from[d] + box->global[d] + at[d];
            target_at = target_at * to[d] + box->local[d] + at[d];
        }
        memcpy(target + (size_t)target_at * element, source + (size_t)source_at * element, (size_t)row * element);
    }
}

static enum dtx_status make_room(struct load *l, int64_t bytes)
{
    if (bytes <= l->buffer_bytes)
        return DTX_OK;
    dtx_mem_free(l->buffer);
    l->buffer = NULL;
    l->buffer_bytes = 0;
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, bytes, 1, &l->buffer));
    l->buffer_bytes = bytes;
    return DTX_OK;
}

/* Every stored box that touches a wanted one is read once, whole. */
static enum dtx_status load_item(struct load *l, struct dtx_ckpt_item *item)
{
    const struct dtx_ckpt_index *index = l->index;
    int64_t first, count = dtx_ckpt_lookup(index->entries, index->n, item->name, &first);
    if (count == 0 && item->otherwise[0])
        count = dtx_ckpt_lookup(index->entries, index->n, item->otherwise, &first);
    if (count == 0)
        return dtx_fail(l->ctx, DTX_E_CONFIG,
                        "checkpoint %s has no array %s; is it of another model or without that state?", l->folder,
                        item->otherwise[0] ? item->otherwise : item->name);
    DTX_TRY(l->ctx, match(l, item, &index->entries[first]));
    DTX_TRY(l->ctx, make_room(l, dtx_ckpt_longest(&index->entries[first], count)));
    for (int64_t i = first; i < first + count; i++) {
        const struct dtx_ckpt_entry *e = &index->entries[i];
        bool read = false;
        for (int b = 0; b < item->n_boxes; b++) {
            struct dtx_box common;
            if (!intersect(e, &item->boxes[b], &common))
                continue;
            if (!read) {
                DTX_TRY(l->ctx, dtx_ckpt_reader_box(l->ctx, &l->reader, e, l->buffer));
                read = true;
            }
            if (DTX_MUTANT(ckpt_box_offset))
                common.global[0] = 0;
            copy_box(&common, item->ndim, dtx_dtype_bytes(item->dtype), e->extent, l->buffer, item->local, item->data);
        }
    }
    return DTX_OK;
}

enum dtx_status dtx_ckpt_index_load(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                    struct dtx_ckpt_item *items, int n_items)
{
    struct load l = {.ctx = ctx, .folder = folder, .index = index};
    dtx_ckpt_reader_open(&l.reader, folder);
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < n_items && status == DTX_OK; i++)
        status = load_item(&l, &items[i]);
    dtx_ckpt_reader_close(&l.reader);
    dtx_mem_free(l.buffer);
    return status;
}

enum dtx_status dtx_ckpt_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                              struct dtx_ckpt_item *items, int n_items)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, path, &index));
    enum dtx_status status = dtx_comm_agree(world, dtx_ckpt_index_load(ctx, path, &index, items, n_items));
    dtx_ckpt_index_free(&index);
    return status;
}

enum dtx_status dtx_ckpt_load_meta(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                                   struct dtx_ckpt_meta *meta)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, path, &index));
    *meta = index.meta;
    index.meta.config = index.meta.ledger = NULL;
    dtx_ckpt_index_free(&index);
    return DTX_OK;
}
