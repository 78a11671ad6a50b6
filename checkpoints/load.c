/*
 * Loading. Every rank lists the stored boxes in which its items have elements; all learn who needs what and choose the
 * same reader for each box, so that a box is read once, by as many ranks at a time as there are. In round k every
 * reader reads its k-th box and sends it to the others that need it; nobody waits for more than the round's messages.
 */
#include "checkpoints/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { STREAM_BYTES = 1 << 20 }; /* hashed and passed on while it is in the cache */

/* One of this rank's items has elements in a stored box. */
struct want {
    int64_t entry;
    int item;
};

/* A box to be read. */
struct task {
    int64_t entry, offset;
    int shard, reader; /* reader: rank */
    int round;
};

struct load {
    struct dtx_ctx *ctx;
    struct dtx_comm *world; /* NULL: this rank alone */
    int rank, size;
    const char *folder;
    const struct dtx_ckpt_index *index;
    struct dtx_ckpt_item *items;
    int n_items;
    struct want *wants; /* ordered by entry */
    int64_t n_wants;
    uint8_t *needs;     /* [rank][mask_bytes]: bit e is set where the rank needs entry e */
    int64_t mask_bytes; /* of one rank; 0 for one rank alone */
    struct task *tasks; /* ordered by round, then reader */
    int64_t n_tasks;
    struct dtx_request *sends; /* [size] */
    void *own, *received;      /* for the longest box that has no place of its own */
    void *piece;               /* a part of one */
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

/* Adds what the item needs to the list; with `count_only` it is counted. */
static enum dtx_status want_item(struct load *l, int i, bool count_only)
{
    const struct dtx_ckpt_index *index = l->index;
    const struct dtx_ckpt_item *item = &l->items[i];
    int64_t first, count = dtx_ckpt_lookup(index->entries, index->n, item->name, &first);
    if (count == 0 && item->otherwise[0])
        count = dtx_ckpt_lookup(index->entries, index->n, item->otherwise, &first);
    if (count == 0)
        return dtx_fail(l->ctx, DTX_E_CONFIG,
                        "checkpoint %s has no array %s; is it of another model or without that state?", l->folder,
                        item->otherwise[0] ? item->otherwise : item->name);
    DTX_TRY(l->ctx, match(l, item, &index->entries[first]));
    for (int64_t e = first; e < first + count; e++) {
        struct dtx_box common;
        bool touched = false;
        for (int b = 0; b < item->n_boxes && !touched; b++)
            touched = intersect(&index->entries[e], &item->boxes[b], &common);
        if (touched && !count_only)
            l->wants[l->n_wants] = (struct want){e, i};
        l->n_wants += touched;
    }
    return DTX_OK;
}

static int compare_wants(const void *a, const void *b)
{
    const struct want *x = a, *y = b;
    return x->entry != y->entry ? (x->entry > y->entry) - (x->entry < y->entry) : x->item - y->item;
}

static bool rank_needs(const struct load *l, int rank, int64_t entry)
{
    return l->size == 1 || l->needs[rank * l->mask_bytes + entry / 8] >> entry % 8 & 1;
}

/* This rank's wants of one entry. */
static int64_t find_wants(const struct load *l, int64_t entry, int64_t *first)
{
    int64_t low = 0, high = l->n_wants, end;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (l->wants[middle].entry < entry)
            low = middle + 1;
        else
            high = middle;
    }
    for (end = low; end < l->n_wants && l->wants[end].entry == entry;)
        end++;
    *first = low;
    return end - low;
}

/* The item that alone needs the box, whole, and has room for it in one piece; *place: where. NULL: there is none. */
static const struct dtx_ckpt_item *only_item(const struct load *l, int64_t entry, struct dtx_box *place)
{
    const struct dtx_ckpt_entry *e = &l->index->entries[entry];
    int64_t first;
    if (find_wants(l, entry, &first) != 1)
        return NULL;
    const struct dtx_ckpt_item *item = &l->items[l->wants[first].item];
    for (int d = 1; d < e->ndim; d++)
        if (e->extent[d] != item->local[d])
            return NULL;
    for (int b = 0; b < item->n_boxes; b++)
        if (intersect(e, &item->boxes[b], place) &&
            memcmp(place->extent, e->extent, (size_t)e->ndim * sizeof *e->extent) == 0)
            return item;
    return NULL;
}

static int64_t row_bytes(const struct dtx_ckpt_item *item)
{
    int64_t bytes = (int64_t)dtx_dtype_bytes(item->dtype);
    for (int d = 1; d < item->ndim; d++)
        bytes *= item->local[d];
    return bytes;
}

/* Memory that takes the whole box at once; NULL: there is none. */
static char *direct_place(const struct load *l, int64_t entry)
{
    struct dtx_box place;
    const struct dtx_ckpt_item *item = only_item(l, entry, &place);
    return item && !item->write ? (char *)item->data + place.local[0] * row_bytes(item) : NULL;
}

/* A box on its way into such an item that has no memory: whole rows as they are read. */
struct stream {
    const struct load *load;
    const struct dtx_ckpt_item *item;
    struct dtx_box place;
    struct dtx_ckpt_sink sink;
};

static enum dtx_status stream_rows(void *self, int64_t at, int64_t bytes, const void *data)
{
    const struct stream *s = self;
    struct dtx_box rows = s->place;
    rows.local[0] += at / row_bytes(s->item);
    rows.extent[0] = bytes / row_bytes(s->item);
    return s->item->write(s->load->ctx, s->item->source, &rows, data);
}

/* Only where no other rank needs the box. */
static bool open_stream(const struct load *l, int64_t entry, struct stream *out)
{
    for (int r = 0; r < l->size; r++)
        if (r != l->rank && rank_needs(l, r, entry))
            return false;
    out->load = l;
    out->item = only_item(l, entry, &out->place);
    if (!out->item || !out->item->write)
        return false;
    int64_t row = row_bytes(out->item);
    out->sink = (struct dtx_ckpt_sink){stream_rows, out, dtx_max64(1, STREAM_BYTES / row) * row};
    return true;
}

/* Before any message: no rank fails between two of them for lack of memory. */
static enum dtx_status make_buffers(struct load *l)
{
    int64_t longest = 0, piece = 0;
    for (int64_t i = 0; i < l->n_wants; i++) {
        int64_t entry = l->wants[i].entry, bytes = l->index->entries[entry].bytes;
        struct stream stream;
        struct dtx_box place;
        if (l->size == 1 && open_stream(l, entry, &stream))
            longest = dtx_max64(longest, stream.sink.piece_bytes);
        else if (!direct_place(l, entry))
            longest = dtx_max64(longest, bytes);
        if (l->items[l->wants[i].item].write && !only_item(l, entry, &place))
            piece = dtx_max64(piece, bytes);
    }
    if (longest > 0)
        DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, longest, 1, &l->own));
    if (piece > 0)
        DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, piece, 1, &l->piece));
    if (l->index->readers) { /* a box for others */
        dtx_mem_free(l->own);
        DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, dtx_ckpt_longest(l->index->entries, l->index->n), 1, &l->own));
    }
    return longest > 0 && l->size > 1 ? dtx_mem_alloc(l->ctx, longest, 1, &l->received) : DTX_OK;
}

static enum dtx_status list_wants(struct load *l)
{
    void *memory;
    for (int i = 0; i < l->n_items; i++)
        DTX_TRY(l->ctx, want_item(l, i, true));
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->n_wants, sizeof *l->wants, &memory));
    l->wants = memory;
    l->n_wants = 0;
    for (int i = 0; i < l->n_items; i++)
        DTX_TRY(l->ctx, want_item(l, i, false));
    qsort(l->wants, (size_t)l->n_wants, sizeof *l->wants, compare_wants);
    l->mask_bytes = l->size > 1 ? dtx_div_up(l->index->n, 8) : 0;
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->mask_bytes, (size_t)l->size, &memory));
    l->needs = memory;
    for (int64_t i = 0; i < l->n_wants && l->size > 1; i++)
        l->needs[l->rank * l->mask_bytes + l->wants[i].entry / 8] |= (uint8_t)(1 << l->wants[i].entry % 8);
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->size, sizeof *l->sends, &memory));
    l->sends = memory;
    return make_buffers(l);
}

static int by_place(const void *a, const void *b)
{
    const struct task *x = a, *y = b;
    return x->shard != y->shard ? x->shard - y->shard : (x->offset > y->offset) - (x->offset < y->offset);
}

static int by_round(const void *a, const void *b)
{
    const struct task *x = a, *y = b;
    return x->round != y->round ? x->round - y->round : x->reader - y->reader;
}

/* What anybody needs, in the order in which it lies in the files: the system reads ahead. */
static enum dtx_status list_tasks(struct load *l)
{
    const struct dtx_ckpt_index *index = l->index;
    void *memory;
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->size > 1 ? index->n : l->n_wants, sizeof *l->tasks, &memory));
    l->tasks = memory;
    for (int64_t i = 0; i < l->n_wants && l->size == 1; i++)
        if (i == 0 || l->wants[i].entry != l->wants[i - 1].entry)
            l->tasks[l->n_tasks++].entry = l->wants[i].entry;
    for (int64_t e = 0; e < index->n && l->size > 1; e++) {
        bool needed = false;
        for (int r = 0; r < l->size && !needed; r++)
            needed = rank_needs(l, r, e);
        if (needed)
            l->tasks[l->n_tasks++].entry = e;
    }
    for (int64_t t = 0; t < l->n_tasks; t++) {
        l->tasks[t].shard = index->entries[l->tasks[t].entry].shard;
        l->tasks[t].offset = index->entries[l->tasks[t].entry].offset;
    }
    qsort(l->tasks, (size_t)l->n_tasks, sizeof *l->tasks, by_place);
    return DTX_OK;
}

/* The ranks that need a box read it or, where its file lies on other nodes' disks, those of these nodes. */
static bool can_read(const struct load *l, int rank, int64_t entry)
{
    const struct dtx_ckpt_index *index = l->index;
    return index->readers ? index->readers[rank * index->n_files + index->entries[entry].shard] != 0
                          : rank_needs(l, rank, entry);
}

/* This rank's boxes, as its rounds come: a thread begins to read them. */
static enum dtx_status plan_reading(struct load *l)
{
    int64_t n = 0;
    void *memory;
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->n_tasks, sizeof(int64_t), &memory));
    int64_t *list = memory;
    for (int64_t t = 0; t < l->n_tasks; t++)
        if (l->tasks[t].reader == l->rank)
            list[n++] = l->tasks[t].entry;
    enum dtx_status status = dtx_ckpt_reader_plan(l->ctx, &l->reader, l->index->entries, list, n);
    dtx_mem_free(memory);
    return status;
}

/* Each box for that of the ranks that can that has least to read so far. */
static enum dtx_status plan(struct load *l)
{
    struct rank {
        int64_t bytes;
        int tasks;
    } * ranks;
    void *memory;
    DTX_TRY(l->ctx, list_tasks(l));
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, l->size, sizeof *ranks, &memory));
    ranks = memory;
    for (int64_t t = 0; t < l->n_tasks; t++) {
        int reader = -1;
        for (int r = 0; r < l->size; r++)
            if (can_read(l, r, l->tasks[t].entry) &&
                (reader < 0 || (ranks[r].bytes < ranks[reader].bytes && !DTX_MUTANT(ckpt_one_reader))))
                reader = r;
        l->tasks[t].reader = reader;
        l->tasks[t].round = ranks[reader].tasks++;
        ranks[reader].bytes += l->index->entries[l->tasks[t].entry].bytes;
    }
    dtx_mem_free(ranks);
    qsort(l->tasks, (size_t)l->n_tasks, sizeof *l->tasks, by_round);
    return plan_reading(l);
}

/* The common part of a stored box and a box of the item, from the stored box's bytes. */
static enum dtx_status take_box(const struct load *l, const struct dtx_ckpt_item *item, const struct dtx_ckpt_entry *e,
                                struct dtx_box *common, const char *bytes)
{
    size_t element = dtx_dtype_bytes(item->dtype);
    bool whole = memcmp(common->extent, e->extent, (size_t)e->ndim * sizeof *e->extent) == 0;
    if (DTX_MUTANT(ckpt_box_offset))
        common->global[0] = 0;
    if (!item->write) {
        copy_box(common, item->ndim, element, e->extent, bytes, item->local, item->data);
        return DTX_OK;
    }
    if (!whole) {
        struct dtx_box dense = *common;
        memset(dense.local, 0, sizeof dense.local);
        copy_box(&dense, item->ndim, element, e->extent, bytes, common->extent, l->piece);
    }
    return item->write(l->ctx, item->source, common, whole ? bytes : l->piece);
}

/* From the buffer into the items. */
static void take(const struct load *l, int64_t entry, const char *bytes, enum dtx_status *fault)
{
    const struct dtx_ckpt_entry *e = &l->index->entries[entry];
    int64_t first, count = find_wants(l, entry, &first);
    for (int64_t w = first; w < first + count; w++) {
        const struct dtx_ckpt_item *item = &l->items[l->wants[w].item];
        for (int b = 0; b < item->n_boxes && *fault == DTX_OK; b++) {
            struct dtx_box common;
            if (intersect(e, &item->boxes[b], &common))
                *fault = take_box(l, item, e, &common, bytes);
        }
    }
}

/* Reads this rank's box and starts to send it. After a failure it sends what is there: all agree on it at the end. */
static enum dtx_status give(struct load *l, int64_t entry, enum dtx_status *fault)
{
    const struct dtx_ckpt_entry *e = &l->index->entries[entry];
    char *place = direct_place(l, entry), *bytes = place ? place : l->own;
    struct stream stream;
    bool streamed = open_stream(l, entry, &stream);
    if (*fault == DTX_OK)
        *fault = dtx_ckpt_reader_box(l->ctx, &l->reader, e, bytes, streamed ? &stream.sink : NULL);
    if (streamed)
        return DTX_OK;
    struct dtx_tensor box = dtx_tensor_1d(bytes, DTX_U8, e->bytes);
    for (int r = 0; r < l->size; r++)
        if (r != l->rank && rank_needs(l, r, entry))
            DTX_TRY(l->ctx, dtx_comm_send_start(l->world, NULL, &box, r, &l->sends[r]));
    if (!place)
        take(l, entry, bytes, fault);
    return DTX_OK;
}

/* The tasks [from, to) are one round. */
static enum dtx_status run_round(struct load *l, int64_t from, int64_t to, enum dtx_status *fault)
{
    int64_t own = -1;
    for (int64_t t = from; t < to; t++)
        if (l->tasks[t].reader == l->rank)
            own = l->tasks[t].entry;
    if (own >= 0)
        DTX_TRY(l->ctx, give(l, own, fault));
    for (int64_t t = from; t < to; t++) {
        int64_t entry = l->tasks[t].entry;
        if (entry == own || !rank_needs(l, l->rank, entry))
            continue;
        struct dtx_request request;
        char *place = direct_place(l, entry), *bytes = place ? place : l->received;
        struct dtx_tensor box = dtx_tensor_1d(bytes, DTX_U8, l->index->entries[entry].bytes);
        DTX_TRY(l->ctx, dtx_comm_recv_start(l->world, NULL, &box, l->tasks[t].reader, &request));
        DTX_TRY(l->ctx, dtx_comm_wait(&request));
        if (!place)
            take(l, entry, bytes, fault);
    }
    for (int r = 0; r < l->size && own >= 0; r++)
        if (r != l->rank && rank_needs(l, r, own))
            DTX_TRY(l->ctx, dtx_comm_wait(&l->sends[r]));
    return DTX_OK;
}

static enum dtx_status run_rounds(struct load *l)
{
    enum dtx_status fault = DTX_OK;
    for (int64_t from = 0, to; from < l->n_tasks; from = to) {
        for (to = from; to < l->n_tasks && l->tasks[to].round == l->tasks[from].round;)
            to++;
        DTX_TRY(l->ctx, run_round(l, from, to, &fault));
    }
    return fault;
}

static enum dtx_status agree(const struct load *l, enum dtx_status status)
{
    return l->world ? dtx_comm_agree(l->world, status) : status;
}

static enum dtx_status load_steps(struct load *l)
{
    DTX_TRY(l->ctx, agree(l, list_wants(l)));
    if (l->size > 1) {
        uint8_t *mine = l->needs + l->rank * l->mask_bytes;
        DTX_TRY(l->ctx, dtx_comm_gather_bytes(l->world, mine, l->mask_bytes, l->needs));
    }
    DTX_TRY(l->ctx, agree(l, plan(l)));
    return agree(l, run_rounds(l));
}

enum dtx_status dtx_ckpt_index_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *folder,
                                    const struct dtx_ckpt_index *index, struct dtx_ckpt_item *items, int n_items)
{
    struct load l = {.ctx = ctx,
                     .world = world,
                     .rank = world ? world->rank : 0,
                     .size = world ? world->size : 1,
                     .folder = folder,
                     .index = index,
                     .items = items,
                     .n_items = n_items};
    dtx_ckpt_reader_open(&l.reader, folder);
    l.reader.local = index->readers != NULL;
    enum dtx_status status = load_steps(&l);
    dtx_ckpt_reader_close(&l.reader);
    dtx_mem_free(l.wants);
    dtx_mem_free(l.needs);
    dtx_mem_free(l.tasks);
    dtx_mem_free(l.sends);
    dtx_mem_free(l.own);
    dtx_mem_free(l.received);
    dtx_mem_free(l.piece);
    return status;
}

enum dtx_status dtx_ckpt_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                              struct dtx_ckpt_item *items, int n_items)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, path, &index));
    enum dtx_status status = dtx_ckpt_index_load(ctx, world, path, &index, items, n_items);
    dtx_ckpt_index_free(&index);
    return status;
}

enum dtx_status dtx_ckpt_load_meta(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                                   struct dtx_ckpt_meta *meta)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, path, &index));
    *meta = index.meta;
    index.meta.config = index.meta.ledger = index.meta.health = NULL; /* the caller's now */
    dtx_ckpt_index_free(&index);
    return DTX_OK;
}

void dtx_ckpt_meta_free(struct dtx_ckpt_meta *meta)
{
    dtx_mem_free(meta->config);
    dtx_mem_free(meta->ledger);
    dtx_mem_free(meta->health);
    meta->config = meta->ledger = meta->health = NULL;
}
