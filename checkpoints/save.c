/*
 * Saving, in steps that all ranks agree on before the next: the table of boxes is gathered and distributed over shards;
 * the leader of each shard lays it out, gets the boxes of its neighbours, writes and syncs; the shards are read back;
 * root writes the index and the manifest and publishes the folder by one rename.
 */
#include "checkpoints/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/flush.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Of one call: what is hashed is still in the cache. Of what is sent to the disk while writing goes on. */
enum { WRITE_BYTES = 1 << 20, FLUSH_BYTES = 128 << 20 };

/* A box of this rank, at most box_bytes long. */
struct part {
    const struct dtx_ckpt_item *item;
    struct dtx_box box;
};

/* A box that this rank has or writes: the k-th of every shard goes its way in round k. */
struct task {
    int64_t entry;
    int round;
};

struct save {
    struct dtx_ctx *ctx;
    struct dtx_comm *world;
    const struct dtx_ckpt_meta *meta;
    int64_t box_bytes;
    struct dtx_ckpt_save_options options;
    int max_shards;
    char dir[DTX_DISK_PATH], folder[DTX_DISK_PATH], final[DTX_DISK_PATH]; /* folder: where it is written */
    struct part *parts;                                                   /* of this rank */
    int64_t n_parts;
    struct dtx_ckpt_entry *entries; /* of all ranks: sorted */
    int64_t n;
    int n_shards, shard;          /* shard: the one this rank leads, or -1 */
    int leaders[DTX_CKPT_SHARDS]; /* world ranks */
    struct task *tasks;           /* by round */
    int64_t n_tasks;
    int slots;                 /* most boxes that this rank has under way in a round */
    char *buffers;             /* [slots]: boxes that do not lie in one piece, of `longest` bytes each */
    void *received;            /* the longest box of others that this rank writes */
    int64_t longest;           /* a multiple of 64 */
    struct dtx_request *sends; /* [slots] */
    uint64_t *checksums;       /* [n_parts] */
    struct dtx_h5_out layout;  /* of the leader's shard */
    int fd;                    /* that file */
    struct dtx_flush flush;    /* its way to the disk, while it is open */
    void *memory;              /* of pages */
    char *pages;               /* [WRITE_BYTES]: what goes past the page cache, where something computes; else NULL */
    struct dtx_ckpt_manifest manifest;
};

/* Where the bytes of a part lie in one piece; NULL: nowhere. */
static const char *dense_bytes(const struct part *part)
{
    const struct dtx_ckpt_item *item = part->item;
    int64_t row = 1;
    if (item->read)
        return NULL;
    for (int d = 1; d < item->ndim; d++) {
        row *= item->local[d];
        if (part->box.extent[d] != item->local[d])
            return NULL;
    }
    return (const char *)item->data + (size_t)(part->box.local[0] * row) * dtx_dtype_bytes(item->dtype);
}

/* The bytes of a part in one piece, into a buffer. */
static enum dtx_status collect_bytes(const struct save *s, const struct part *part, void *buffer)
{
    const struct dtx_ckpt_item *item = part->item;
    if (item->read)
        return item->read(s->ctx, item->source, &part->box, buffer);
    dtx_box_gather(&part->box, item->ndim, item->local, dtx_dtype_bytes(item->dtype), item->data, buffer);
    return DTX_OK;
}

static enum dtx_status check_item(struct dtx_ctx *ctx, const struct dtx_ckpt_item *item)
{
    if (item->ndim < 1 || item->ndim > DTX_MAX_DIMS || item->n_boxes < 0 || item->n_boxes > DTX_MAX_BOXES)
        return dtx_fail(ctx, DTX_E_RANGE, "checkpoint: %.127s has %d dimensions and %d boxes", item->name, item->ndim,
                        item->n_boxes);
    for (int b = 0; b < item->n_boxes; b++)
        for (int d = 0; d < item->ndim; d++)
            if (item->boxes[b].extent[d] < 0 || item->boxes[b].local[d] < 0 ||
                item->boxes[b].local[d] + item->boxes[b].extent[d] > item->local[d])
                return dtx_fail(ctx, DTX_E_RANGE, "checkpoint: a box of %.127s lies outside its local array",
                                item->name);
    return DTX_OK;
}

/* How long boxes may be, from the bytes of all ranks. */
static enum dtx_status choose_cut(struct save *s, const struct dtx_ckpt_item *items, int n_items)
{
    int64_t mine = 0, total = 0, writers = 0;
    void *all;
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < n_items && status == DTX_OK; i++) {
        status = check_item(s->ctx, &items[i]);
        for (int b = 0; status == DTX_OK && b < items[i].n_boxes && items[i].writer; b++)
            mine += dtx_ckpt_box_count(&items[i].boxes[b], items[i].ndim) * (int64_t)dtx_dtype_bytes(items[i].dtype);
    }
    if (status == DTX_OK)
        status = dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &all);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    status = dtx_comm_gather_bytes(s->world, &mine, sizeof mine, all);
    for (int r = 0; r < s->world->size; r++) {
        total += ((int64_t *)all)[r];
        writers += ((int64_t *)all)[r] > 0;
    }
    dtx_mem_free(all);
    s->box_bytes = dtx_ckpt_cut(total, (int)dtx_max64(1, dtx_min64(writers, s->max_shards)), s->box_bytes);
    return status;
}

/* This rank's parts. */
static enum dtx_status list_parts(struct save *s, const struct dtx_ckpt_item *items, int n_items)
{
    int64_t n = 0;
    void *memory;
    for (int i = 0; i < n_items; i++)
        for (int b = 0; b < items[i].n_boxes && items[i].writer; b++)
            n += dtx_ckpt_pieces(&items[i].boxes[b], items[i].ndim, dtx_dtype_bytes(items[i].dtype), s->box_bytes);
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, n, sizeof *s->parts, &memory));
    s->parts = memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, n, sizeof *s->checksums, &memory));
    s->checksums = memory;
    for (int i = 0; i < n_items; i++) {
        const struct dtx_ckpt_item *item = &items[i];
        size_t element = dtx_dtype_bytes(item->dtype);
        for (int b = 0; b < item->n_boxes && item->writer; b++) {
            int64_t pieces = dtx_ckpt_pieces(&item->boxes[b], item->ndim, element, s->box_bytes);
            for (int64_t p = 0; p < pieces; p++) {
                struct part *part = &s->parts[s->n_parts++];
                part->item = item;
                dtx_ckpt_piece(&item->boxes[b], item->ndim, element, s->box_bytes, p, &part->box);
            }
        }
    }
    return DTX_OK;
}

static void fill_entry(const struct save *s, int64_t i, struct dtx_ckpt_entry *e)
{
    const struct part *part = &s->parts[i];
    const struct dtx_ckpt_item *item = part->item;
    memset(e, 0, sizeof *e);
    snprintf(e->name, sizeof e->name, "%.*s", DTX_CKPT_NAME - 1, item->name);
    snprintf(e->dtype, sizeof e->dtype, "%s", dtx_dtype_name(item->dtype));
    e->ndim = item->ndim;
    for (int d = 0; d < item->ndim; d++) {
        e->whole[d] = item->whole[d];
        e->global[d] = part->box.global[d];
        e->extent[d] = part->box.extent[d];
    }
    e->bytes = dtx_ckpt_box_count(&part->box, item->ndim) * (int64_t)dtx_dtype_bytes(item->dtype);
    e->writer = s->world->rank;
    e->part = (int32_t)i;
}

/* Every rank's entries on every rank, sorted. */
static enum dtx_status gather_table(struct save *s)
{
    void *mine = NULL, *all;
    enum dtx_status status = dtx_mem_alloc(s->ctx, s->n_parts, sizeof(struct dtx_ckpt_entry), &mine);
    for (int64_t i = 0; i < s->n_parts && status == DTX_OK; i++)
        fill_entry(s, i, (struct dtx_ckpt_entry *)mine + i);
    status = dtx_comm_agree(s->world, status);
    if (status == DTX_OK)
        status = dtx_comm_gather_lists(s->world, mine, s->n_parts, sizeof(struct dtx_ckpt_entry), &all, &s->n);
    dtx_mem_free(mine);
    DTX_TRY(s->ctx, status);
    s->entries = all;
    dtx_ckpt_sort(s->entries, s->n);
    return DTX_OK;
}

static int compare_tasks(const void *a, const void *b)
{
    const struct task *x = a, *y = b;
    return x->round != y->round ? x->round - y->round : (x->entry > y->entry) - (x->entry < y->entry);
}

static bool task_is_sent(const struct save *s, const struct task *t)
{
    const struct dtx_ckpt_entry *e = &s->entries[t->entry];
    return e->writer == s->world->rank && e->shard != s->shard;
}

/* What this rank sends, receives and writes, and the memory for it. */
static enum dtx_status list_tasks(struct save *s)
{
    int rounds[DTX_CKPT_SHARDS] = {0};
    int64_t received = 0;
    void *memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->n, sizeof *s->tasks, &memory));
    s->tasks = memory;
    for (int64_t i = 0; i < s->n; i++) {
        const struct dtx_ckpt_entry *e = &s->entries[i];
        bool mine = e->writer == s->world->rank;
        int round = rounds[e->shard]++;
        if (mine || e->shard == s->shard)
            s->tasks[s->n_tasks++] = (struct task){i, round};
        if (mine && !dense_bytes(&s->parts[e->part]))
            s->longest = dtx_max64(s->longest, dtx_round_up(e->bytes, 64));
        if (!mine && e->shard == s->shard)
            received = dtx_max64(received, e->bytes);
    }
    qsort(s->tasks, (size_t)s->n_tasks, sizeof *s->tasks, compare_tasks);
    for (int64_t t = 0, under_way = 0; t < s->n_tasks; t++) {
        if (t == 0 || s->tasks[t].round != s->tasks[t - 1].round)
            under_way = 1; /* the box that it has and writes itself */
        under_way += task_is_sent(s, &s->tasks[t]);
        s->slots = (int)dtx_max64(s->slots, under_way);
    }
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->slots, sizeof *s->sends, &memory));
    s->sends = memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->longest, (size_t)s->slots, &memory));
    s->buffers = memory;
    return dtx_mem_alloc(s->ctx, received, 1, &s->received);
}

/* Checks the table (the same on every rank) and distributes it over shards. */
static enum dtx_status plan_shards(struct save *s)
{
    DTX_TRY(s->ctx, dtx_ckpt_check_table(s->ctx, "checkpoint", s->entries, s->n, 1));
    DTX_TRY(s->ctx,
            dtx_ckpt_assign_shards(s->ctx, s->entries, s->n, s->world->size, s->max_shards, s->leaders, &s->n_shards));
    for (int shard = 0; shard < s->n_shards; shard++)
        if (s->leaders[shard] == s->world->rank)
            s->shard = shard;
    return list_tasks(s);
}

static enum dtx_status shard_path(const struct save *s, char path[DTX_DISK_PATH])
{
    char name[32];
    dtx_ckpt_shard_name(s->shard, name);
    return dtx_disk_join(s->ctx, s->folder, name, path);
}

/* The leaders lay out their shards, then every rank learns all offsets. */
static enum dtx_status lay_out_shards(struct save *s)
{
    struct dtx_ctx *ctx = s->ctx;
    char path[DTX_DISK_PATH];
    int64_t most = 0, per_shard[DTX_CKPT_SHARDS] = {0};
    void *mine = NULL, *all = NULL;
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0; i < s->n; i++)
        most = dtx_max64(most, ++per_shard[s->entries[i].shard]);
    status = dtx_mem_alloc(ctx, most + 1, sizeof(int64_t), &mine);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, (most + 1) * s->world->size, sizeof(int64_t), &all);
    if (status == DTX_OK && s->shard >= 0)
        status = shard_path(s, path);
    if (status == DTX_OK && s->shard >= 0)
        status = dtx_ckpt_shard_begin(ctx, path, s->entries, s->n, s->shard, &s->layout);
    if (status == DTX_OK && s->shard >= 0)
        status = dtx_disk_open_new(ctx, path, 0, &s->fd);
    if (s->fd >= 0)
        dtx_flush_begin(&s->flush, s->fd, FLUSH_BYTES);
    if (s->fd >= 0 && s->options.beside)
        status = dtx_mem_alloc(ctx, WRITE_BYTES + DTX_DISK_PAGE, 1, &s->memory);
    if (s->memory)
        s->pages = dtx_disk_page_of(s->memory);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(s->world, status), done);
    int64_t *list = mine, *lists = all, used = 1;
    list[0] = s->shard;
    for (int64_t i = 0; i < s->n && s->shard >= 0; i++)
        if (s->entries[i].shard == s->shard)
            list[used++] = s->entries[i].offset;
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(s->world, mine, (most + 1) * (int64_t)sizeof(int64_t), all), done);
    for (int r = 0; r < s->world->size; r++, lists += most + 1) {
        used = 1;
        for (int64_t i = 0; i < s->n && lists[0] >= 0; i++)
            if (s->entries[i].shard == lists[0])
                s->entries[i].offset = lists[used++];
    }
done:
    dtx_mem_free(mine);
    dtx_mem_free(all);
    return status;
}

/* Past the page cache go whole pages, of which neither another box nor HDF5 has a part; the rest takes the ordinary
 * way. */
static enum dtx_status write_piece(struct save *s, const char *path, const char *bytes, int64_t n, int64_t offset)
{
    int64_t direct = 0; /* bytes of it */
    if (s->pages && offset % DTX_DISK_PAGE == 0 && !DTX_MUTANT(ckpt_beside_through_cache))
        direct = n - (DTX_MUTANT(ckpt_direct_part_page) ? 0 : n % DTX_DISK_PAGE);
    if (direct > 0) {
        memcpy(s->pages, bytes, (size_t)direct);
        DTX_TRY(s->ctx, dtx_disk_write_direct(s->ctx, s->fd, path, s->pages, direct, offset));
    }
    if (direct == n)
        return DTX_OK;
    DTX_TRY(s->ctx, dtx_disk_write_at(s->ctx, s->fd, path, bytes + direct, n - direct, offset + direct));
    dtx_flush_reach(&s->flush, offset, n);
    return DTX_OK;
}

/* A box into this rank's shard, hashed on its way. */
static enum dtx_status write_box(struct save *s, const struct dtx_ckpt_entry *e, const void *bytes, uint64_t *checksum)
{
    char path[DTX_DISK_PATH];
    struct dtx_hasher *hasher = dtx_hasher_begin(0);
    enum dtx_status status = hasher ? shard_path(s, path) : dtx_fail(s->ctx, DTX_E_MEMORY, "out of memory hashing");
    for (int64_t at = 0; at < e->bytes && status == DTX_OK; at += WRITE_BYTES) {
        int64_t n = dtx_min64(WRITE_BYTES, e->bytes - at);
        dtx_hasher_add(hasher, (const char *)bytes + at, (size_t)n);
        status = write_piece(s, path, (const char *)bytes + at, n, e->offset + at);
    }
    *checksum = dtx_hasher_end(hasher);
    return status;
}

/* The tasks [from, to) are one round. After a failure it goes on with what is there, so that nobody waits. */
static enum dtx_status run_round(struct save *s, int64_t from, int64_t to, enum dtx_status *fault)
{
    int rank = s->world->rank, slot = 0;
    uint64_t unused;
    for (int64_t t = from; t < to; t++) {
        const struct dtx_ckpt_entry *e = &s->entries[s->tasks[t].entry];
        if (e->writer != rank)
            continue;
        bool sent = task_is_sent(s, &s->tasks[t]);
        char *buffer = s->buffers + (sent ? slot : s->slots - 1) * s->longest;
        const char *dense = dense_bytes(&s->parts[e->part]), *bytes = dense ? dense : buffer;
        if (*fault == DTX_OK && !dense)
            *fault = collect_bytes(s, &s->parts[e->part], buffer);
        if (!sent) {
            if (*fault == DTX_OK)
                *fault = write_box(s, e, bytes, &s->checksums[e->part]);
            continue;
        }
        s->checksums[e->part] = dtx_hash(bytes, (size_t)e->bytes, 0);
        struct dtx_tensor box = dtx_tensor_1d((void *)bytes, DTX_U8, e->bytes);
        DTX_TRY(s->ctx, dtx_comm_send_start(s->world, NULL, &box, s->leaders[e->shard], &s->sends[slot++]));
    }
    for (int64_t t = from; t < to; t++) {
        const struct dtx_ckpt_entry *e = &s->entries[s->tasks[t].entry];
        struct dtx_request request;
        if (e->writer == rank)
            continue;
        struct dtx_tensor box = dtx_tensor_1d(s->received, DTX_U8, e->bytes);
        DTX_TRY(s->ctx, dtx_comm_recv_start(s->world, NULL, &box, e->writer, &request));
        DTX_TRY(s->ctx, dtx_comm_wait(&request));
        if (*fault == DTX_OK)
            *fault = write_box(s, e, s->received, &unused);
    }
    for (int i = 0; i < slot; i++)
        DTX_TRY(s->ctx, dtx_comm_wait(&s->sends[i]));
    return DTX_OK;
}

/* Every rank's checksums in everybody's table. */
static enum dtx_status gather_checksums(struct save *s)
{
    int64_t most = 0;
    void *mine = NULL, *all = NULL;
    for (int64_t i = 0; i < s->n; i++)
        most = dtx_max64(most, s->entries[i].part + 1);
    enum dtx_status status = dtx_mem_alloc(s->ctx, most, sizeof(uint64_t), &mine);
    if (status == DTX_OK)
        status = dtx_mem_alloc(s->ctx, most * s->world->size, sizeof(uint64_t), &all);
    DTX_TRY_GOTO(s->ctx, status, dtx_comm_agree(s->world, status), done);
    memcpy(mine, s->checksums, (size_t)s->n_parts * sizeof(uint64_t));
    status = dtx_comm_gather_bytes(s->world, mine, most * (int64_t)sizeof(uint64_t), all);
    for (int64_t i = 0; i < s->n && status == DTX_OK; i++)
        s->entries[i].checksum = ((uint64_t *)all)[s->entries[i].writer * most + s->entries[i].part];
done:
    dtx_mem_free(mine);
    dtx_mem_free(all);
    return status;
}

static enum dtx_status write_boxes(struct save *s)
{
    enum dtx_status fault = DTX_OK;
    for (int64_t from = 0, to; from < s->n_tasks; from = to) {
        for (to = from; to < s->n_tasks && s->tasks[to].round == s->tasks[from].round;)
            to++;
        DTX_TRY(s->ctx, run_round(s, from, to, &fault));
    }
    return fault;
}

/* The leader's shard is complete, and on its way to the disk. */
static enum dtx_status finish_shard(struct save *s)
{
    char path[DTX_DISK_PATH];
    if (s->shard < 0)
        return DTX_OK;
    DTX_TRY(s->ctx, shard_path(s, path));
    DTX_TRY(s->ctx, dtx_ckpt_shard_end(s->ctx, path, s->fd, s->entries, s->n, s->shard, &s->layout));
    if (!DTX_MUTANT(ckpt_marker_first))
        dtx_flush_sync(&s->flush);
    return DTX_OK;
}

/* It is there, and its entry in the folder. */
static enum dtx_status close_shard(struct save *s, const char *path)
{
    int fd = s->fd;
    s->fd = -1;
    DTX_TRY(s->ctx, dtx_disk_close_synced(s->ctx, fd, path, dtx_flush_end(&s->flush)));
    return DTX_MUTANT(ckpt_no_shard_sync) || DTX_MUTANT(ckpt_marker_first) ? DTX_OK : dtx_disk_sync(s->ctx, s->folder);
}

/* The leaders read their shards back, from memory or (beside training) from the disk, while the sync waits for the
 * disk; root gets all sizes and checksums. */
static enum dtx_status check_shards(struct save *s)
{
    struct dtx_ckpt_file mine, *files;
    char path[DTX_DISK_PATH];
    void *all = NULL;
    memset(&mine, 0, sizeof mine);
    enum dtx_status status = dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &all);
    if (status == DTX_OK && s->shard >= 0) {
        dtx_ckpt_shard_name(s->shard, mine.name);
        status = shard_path(s, path);
        if (status == DTX_OK)
            status = dtx_ckpt_shard_check(s->ctx, path, s->entries, DTX_MUTANT(ckpt_readback_unchecked) ? 0 : s->n,
                                          s->shard, s->options.beside, NULL, &mine.bytes, &mine.hash);
        if (status == DTX_OK)
            status = close_shard(s, path);
    }
    DTX_TRY_GOTO(s->ctx, status, dtx_comm_agree(s->world, status), done);
    DTX_TRY_GOTO(s->ctx, status, dtx_comm_gather_bytes(s->world, &mine, sizeof mine, all), done);
    files = all;
    s->manifest.n_files = 1 + s->n_shards; /* the index comes first */
    for (int shard = 0; shard < s->n_shards; shard++)
        s->manifest.files[1 + shard] = files[s->leaders[shard]];
done:
    dtx_mem_free(all);
    return status;
}

/* Root, before anything is written: the folders, what an earlier kill left, the place in the sequence. */
static enum dtx_status prepare_folder(struct save *s)
{
    struct dtx_ckpt_place *places;
    char name[48];
    int n;
    dtx_ckpt_folder_name("", s->meta->step, name);
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->dir, name, s->final));
    dtx_ckpt_folder_name(".new-", s->meta->step, name);
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->dir, name, s->folder));
    if (s->world->rank != 0)
        return DTX_OK;
    DTX_TRY(s->ctx, dtx_disk_make_folders(s->ctx, s->dir));
    DTX_TRY(s->ctx, dtx_ckpt_tidy(s->ctx, s->dir));
    DTX_TRY(s->ctx, dtx_ckpt_list(s->ctx, s->dir, &places, &n));
    s->manifest.sequence = dtx_ckpt_next_sequence(places, n);
    s->manifest.step = s->meta->step;
    dtx_mem_free(places);
    return dtx_disk_make_folder(s->ctx, s->folder);
}

/* Root: the index, then the manifest, each durable before the next. */
static enum dtx_status finish_folder(struct save *s)
{
    char path[DTX_DISK_PATH], *data;
    struct dtx_ckpt_file *file = &s->manifest.files[0];
    struct dtx_ckpt_index again;
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->folder, DTX_CKPT_INDEX, path));
    DTX_TRY(s->ctx, dtx_ckpt_index_write(s->ctx, s->folder, s->meta, s->entries, s->n));
    DTX_TRY(s->ctx, dtx_disk_read(s->ctx, path, INT64_MAX - 1, &data, &file->bytes));
    snprintf(file->name, sizeof file->name, "%s", DTX_CKPT_INDEX);
    file->hash = dtx_hash(data, (size_t)file->bytes, 0);
    dtx_mem_free(data);
    DTX_TRY(s->ctx, dtx_ckpt_manifest_write(s->ctx, s->folder, &s->manifest));
    DTX_TRY(s->ctx, dtx_disk_sync(s->ctx, s->folder));
    DTX_TRY(s->ctx, dtx_ckpt_index_read(s->ctx, s->folder, &again));
    dtx_ckpt_index_free(&again);
    return DTX_OK;
}

static enum dtx_status update_latest(struct save *s)
{
    char path[DTX_DISK_PATH], fresh[DTX_DISK_PATH], name[48], line[64];
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->dir, "latest", path));
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->dir, ".latest", fresh));
    dtx_ckpt_folder_name("", s->meta->step, name);
    snprintf(line, sizeof line, "%s\n", name);
    DTX_TRY(s->ctx, dtx_disk_write_text(s->ctx, DTX_MUTANT(ckpt_latest_in_place) ? path : fresh, line));
    if (!DTX_MUTANT(ckpt_latest_in_place))
        DTX_TRY(s->ctx, dtx_disk_rename(s->ctx, fresh, path));
    return dtx_disk_sync(s->ctx, s->dir);
}

/* Root: the one step that makes it visible; then `latest`. */
static enum dtx_status publish(struct save *s)
{
    char old[DTX_DISK_PATH], name[48];
    if (DTX_MUTANT(ckpt_latest_first))
        DTX_TRY(s->ctx, update_latest(s));
    if (DTX_MUTANT(ckpt_rename_first))
        return update_latest(s);
    if (dtx_disk_exists(s->final)) {
        dtx_ckpt_folder_name(".old-", s->meta->step, name);
        DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->dir, name, old));
        DTX_TRY(s->ctx, dtx_disk_swap(s->ctx, s->folder, s->final, old));
        DTX_TRY(s->ctx, dtx_disk_sync(s->ctx, s->dir));
        DTX_TRY(s->ctx, dtx_disk_remove_folder(s->ctx, s->folder));
    } else {
        DTX_TRY(s->ctx, dtx_disk_rename(s->ctx, s->folder, s->final));
        DTX_TRY(s->ctx, dtx_disk_sync(s->ctx, s->dir));
    }
    return DTX_MUTANT(ckpt_latest_first) ? DTX_OK : update_latest(s);
}

void dtx_ckpt_saved_log(const struct dtx_ctx *ctx, const struct dtx_ckpt_saved *saved)
{
    dtx_log(ctx, DTX_LOG_INFO, "saved %s: %.1f MB in %d shards, %.2f s", saved->folder, 1e-6 * (double)saved->bytes,
            saved->shards, saved->seconds);
    if (saved->warning[0])
        dtx_log(ctx, DTX_LOG_WARN, "old checkpoints stay: %s", saved->warning);
}

/* What is told of it: to the caller, or (root) to people. `old`: the context in which older ones were removed. */
static void report(const struct save *s, double seconds, const struct dtx_ctx *old)
{
    struct dtx_ckpt_saved saved = {
        .step = s->meta->step, .sequence = s->manifest.sequence, .shards = s->n_shards, .seconds = seconds};
    memcpy(saved.folder, s->final, sizeof saved.folder);
    snprintf(saved.warning, sizeof saved.warning, "%.500s", old ? old->error.text : "");
    for (int64_t i = 0; i < s->n; i++)
        saved.bytes += s->entries[i].bytes;
    if (s->options.saved)
        *s->options.saved = saved;
    else if (s->world->rank == 0)
        dtx_ckpt_saved_log(s->ctx, &saved);
}

static enum dtx_status save_steps(struct save *s, const struct dtx_ckpt_item *items, int n_items)
{
    struct dtx_ctx *ctx = s->ctx;
    bool root = s->world->rank == 0;
    DTX_TRY(ctx, dtx_comm_agree(s->world, prepare_folder(s)));
    if (DTX_MUTANT(ckpt_rename_first)) {
        DTX_TRY(ctx, dtx_comm_agree(s->world, root ? dtx_disk_rename(ctx, s->folder, s->final) : DTX_OK));
        memcpy(s->folder, s->final, sizeof s->folder);
    }
    DTX_TRY(ctx, choose_cut(s, items, n_items));
    DTX_TRY(ctx, dtx_comm_agree(s->world, list_parts(s, items, n_items)));
    DTX_TRY(ctx, gather_table(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, plan_shards(s)));
    DTX_TRY(ctx, lay_out_shards(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, write_boxes(s)));
    DTX_TRY(ctx, gather_checksums(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, finish_shard(s)));
    DTX_TRY(ctx, check_shards(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, root ? finish_folder(s) : DTX_OK));
    if (DTX_MUTANT(ckpt_saved_too_early) && root)
        report(s, 0, NULL);
    DTX_TRY(ctx, dtx_comm_agree(s->world, root ? publish(s) : DTX_OK));
    if (DTX_MUTANT(ckpt_marker_first)) { /* marker, name, and only then the data */
        char path[DTX_DISK_PATH];
        memcpy(s->folder, s->final, sizeof s->folder);
        return dtx_comm_agree(s->world,
                              s->shard < 0 || shard_path(s, path) != DTX_OK ? DTX_OK : dtx_disk_sync(ctx, path));
    }
    return DTX_OK;
}

/* After a failure: what was begun goes away, as far as it can; the next save tidies the rest. */
static void discard(struct save *s)
{
    struct dtx_ctx quiet;
    dtx_h5_discard(&s->layout);
    if (s->fd >= 0) {
        (void)dtx_flush_end(&s->flush);
        close(s->fd);
    }
    dtx_ctx_init_child(&quiet, s->ctx);
    if (s->world->rank == 0 && s->folder[0] && dtx_disk_exists(s->folder))
        (void)dtx_disk_remove_folder(&quiet, s->folder);
}

enum dtx_status dtx_ckpt_save(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir,
                              const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                              const struct dtx_ckpt_save_options *options)
{
    void *memory;
    double start = dtx_clock_now();
    enum dtx_status status = dtx_mem_alloc(ctx, 1, sizeof(struct save), &memory);
    DTX_TRY(ctx, dtx_comm_agree(world, status));
    struct save *s = memory;
    s->ctx = ctx;
    s->world = world;
    s->meta = meta;
    s->shard = s->fd = -1;
    s->layout.file = s->layout.driver = -1;
    s->options = options ? *options : (struct dtx_ckpt_save_options){0};
    s->max_shards = s->options.max_shards ? s->options.max_shards : DTX_CKPT_SHARDS;
    s->box_bytes = s->options.box_bytes ? s->options.box_bytes : DTX_CKPT_BOX_BYTES;
    status = snprintf(s->dir, sizeof s->dir, "%s", dir) < (int)sizeof s->dir
                 ? DTX_OK
                 : dtx_fail(ctx, DTX_E_CONFIG, "checkpoint folder: its path is too long");
    if (status == DTX_OK && (s->max_shards < 1 || s->max_shards > DTX_CKPT_SHARDS || s->box_bytes < 1))
        status =
            dtx_fail(ctx, DTX_E_CONFIG, "checkpoint.max_shards = %d is not in 1..%d", s->max_shards, DTX_CKPT_SHARDS);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(world, status), done);
    status = save_steps(s, items, n_items);
    if (status != DTX_OK) {
        discard(s);
    } else {
        struct dtx_ctx quiet;
        dtx_ctx_init_child(&quiet, ctx);
        start = dtx_clock_now() - start;
        if (world->rank == 0)
            (void)dtx_ckpt_retain(&quiet, s->dir, &s->options);
        report(s, start, &quiet);
    }
done:
    dtx_mem_free(s->parts);
    dtx_mem_free(s->entries);
    dtx_mem_free(s->tasks);
    dtx_mem_free(s->buffers);
    dtx_mem_free(s->received);
    dtx_mem_free(s->memory);
    dtx_mem_free(s->sends);
    dtx_mem_free(s->checksums);
    dtx_mem_free(s);
    return status;
}
