/*
 * Saving, in steps that all ranks agree on before the next: the table of boxes with their checksums is gathered; the
 * first writer of each shard lays the shard out; every writer puts its bytes in place and syncs; the shards are read
 * back; root writes the index and the manifest and publishes the folder by one rename.
 */
#include "checkpoints/ckpt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* A box of this rank, at most box_bytes long. */
struct part {
    const struct dtx_ckpt_item *item;
    struct dtx_box box;
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
    int n_shards, shard; /* shard: the one this rank writes to, or -1 */
    bool leader;         /* lays out and checks that shard */
    void *buffer;        /* box_bytes or the longest box */
    struct dtx_ckpt_manifest manifest;
};

/* The bytes of a part, dense: in place where they are, else gathered or read into the buffer. */
static enum dtx_status part_bytes(const struct save *s, const struct part *part, const void **out)
{
    const struct dtx_ckpt_item *item = part->item;
    size_t element = dtx_dtype_bytes(item->dtype);
    int64_t row = 1;
    bool dense = true;
    *out = s->buffer;
    if (item->read)
        return item->read(s->ctx, item->source, &part->box, s->buffer);
    for (int d = 1; d < item->ndim; d++) {
        row *= item->local[d];
        dense = dense && part->box.extent[d] == item->local[d];
    }
    if (dense)
        *out = (const char *)item->data + (size_t)(part->box.local[0] * row) * element;
    else
        dtx_box_gather(&part->box, item->ndim, item->local, element, item->data, s->buffer);
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

/* This rank's parts, and the buffer for the longest. */
static enum dtx_status list_parts(struct save *s, const struct dtx_ckpt_item *items, int n_items)
{
    int64_t n = 0, longest = 1;
    void *memory;
    for (int i = 0; i < n_items; i++) {
        DTX_TRY(s->ctx, check_item(s->ctx, &items[i]));
        for (int b = 0; b < items[i].n_boxes && items[i].writer; b++)
            n += dtx_ckpt_pieces(&items[i].boxes[b], items[i].ndim, dtx_dtype_bytes(items[i].dtype), s->box_bytes);
    }
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, n, sizeof *s->parts, &memory));
    s->parts = memory;
    for (int i = 0; i < n_items; i++) {
        const struct dtx_ckpt_item *item = &items[i];
        size_t element = dtx_dtype_bytes(item->dtype);
        for (int b = 0; b < item->n_boxes && item->writer; b++) {
            int64_t pieces = dtx_ckpt_pieces(&item->boxes[b], item->ndim, element, s->box_bytes);
            for (int64_t p = 0; p < pieces; p++) {
                struct part *part = &s->parts[s->n_parts++];
                part->item = item;
                dtx_ckpt_piece(&item->boxes[b], item->ndim, element, s->box_bytes, p, &part->box);
                longest = dtx_max64(longest, dtx_ckpt_box_count(&part->box, item->ndim) * (int64_t)element);
            }
        }
    }
    return dtx_mem_alloc(s->ctx, longest, 1, &s->buffer);
}

static enum dtx_status fill_entry(const struct save *s, int64_t i, struct dtx_ckpt_entry *e)
{
    const struct part *part = &s->parts[i];
    const struct dtx_ckpt_item *item = part->item;
    const void *bytes;
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
    DTX_TRY(s->ctx, part_bytes(s, part, &bytes));
    e->checksum = dtx_hash(bytes, (size_t)e->bytes, 0);
    e->writer = s->world->rank;
    e->part = (int32_t)i;
    return DTX_OK;
}

/* Every rank's entries on every rank, sorted. */
static enum dtx_status gather_table(struct save *s)
{
    struct dtx_ctx *ctx = s->ctx;
    int world_size = s->world->size;
    int64_t most = 0;
    void *counts = NULL, *mine = NULL, *all = NULL;
    enum dtx_status status = dtx_mem_alloc(ctx, world_size, sizeof(int64_t), &counts);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(s->world, status), done);
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(s->world, &s->n_parts, sizeof s->n_parts, counts), done);
    for (int r = 0; r < world_size; r++)
        most = dtx_max64(most, ((int64_t *)counts)[r]);
    status = dtx_mem_alloc(ctx, most, sizeof(struct dtx_ckpt_entry), &mine);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, most * world_size, sizeof(struct dtx_ckpt_entry), &all);
    for (int64_t i = 0; status == DTX_OK && i < s->n_parts; i++)
        status = fill_entry(s, i, (struct dtx_ckpt_entry *)mine + i);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(s->world, status), done);
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(s->world, mine, most * (int64_t)sizeof(struct dtx_ckpt_entry), all),
                 done);
    s->entries = all;
    for (int r = 0; r < world_size; r++) {
        int64_t count = ((int64_t *)counts)[r];
        memmove(s->entries + s->n, (struct dtx_ckpt_entry *)all + r * most, (size_t)count * sizeof *s->entries);
        s->n += count;
    }
    all = NULL;
    dtx_ckpt_sort(s->entries, s->n);
done:
    dtx_mem_free(counts);
    dtx_mem_free(mine);
    dtx_mem_free(all);
    return status;
}

/* Checks the table (the same on every rank) and distributes the writers over shards. */
static enum dtx_status plan_shards(struct save *s)
{
    void *memory;
    DTX_TRY(s->ctx, dtx_ckpt_check_table(s->ctx, "checkpoint", s->entries, s->n, 1));
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->world->size, sizeof(int), &memory));
    int *shard_of_rank = memory;
    s->n_shards = dtx_ckpt_assign_shards(s->entries, s->n, s->world->size, s->max_shards, shard_of_rank);
    s->shard = shard_of_rank[s->world->rank];
    s->leader = s->shard >= 0;
    for (int r = 0; r < s->world->rank; r++)
        s->leader = s->leader && shard_of_rank[r] != s->shard;
    dtx_mem_free(shard_of_rank);
    return DTX_OK;
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
    if (status == DTX_OK && s->leader)
        status = shard_path(s, path);
    if (status == DTX_OK && s->leader)
        status = dtx_ckpt_shard_create(ctx, path, s->entries, s->n, s->shard);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(s->world, status), done);
    int64_t *list = mine, *lists = all, used = 1;
    list[0] = s->leader ? s->shard : -1;
    for (int64_t i = 0; i < s->n && s->leader; i++)
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

static enum dtx_status write_parts(struct save *s)
{
    char path[DTX_DISK_PATH];
    int fd;
    if (s->shard < 0)
        return DTX_OK;
    DTX_TRY(s->ctx, shard_path(s, path));
    DTX_TRY(s->ctx, dtx_disk_open_write(s->ctx, path, &fd));
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0; i < s->n && status == DTX_OK; i++) {
        const struct dtx_ckpt_entry *e = &s->entries[i];
        const void *bytes;
        if (e->writer != s->world->rank)
            continue;
        status = part_bytes(s, &s->parts[e->part], &bytes);
        if (status == DTX_OK)
            status = dtx_disk_write_at(s->ctx, fd, path, bytes, e->bytes, e->offset);
    }
    if (status != DTX_OK || DTX_MUTANT(ckpt_no_shard_sync) || DTX_MUTANT(ckpt_marker_first)) {
        close(fd);
        return status;
    }
    DTX_TRY(s->ctx, dtx_disk_close_written(s->ctx, fd, path));
    return s->leader ? dtx_disk_sync(s->ctx, s->folder) : DTX_OK;
}

/* The leaders read their shards back; root gets all sizes and checksums. */
static enum dtx_status check_shards(struct save *s)
{
    struct dtx_ckpt_file mine, *files;
    char path[DTX_DISK_PATH];
    void *all = NULL;
    memset(&mine, 0, sizeof mine);
    enum dtx_status status = dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &all);
    if (status == DTX_OK && s->leader) {
        dtx_ckpt_shard_name(s->shard, mine.name);
        status = shard_path(s, path);
        if (status == DTX_OK)
            status = dtx_ckpt_shard_check(s->ctx, path, s->entries, DTX_MUTANT(ckpt_readback_unchecked) ? 0 : s->n,
                                          s->shard, NULL, &mine.bytes, &mine.hash);
    }
    DTX_TRY_GOTO(s->ctx, status, dtx_comm_agree(s->world, status), done);
    DTX_TRY_GOTO(s->ctx, status, dtx_comm_gather_bytes(s->world, &mine, sizeof mine, all), done);
    files = all;
    s->manifest.n_files = 1; /* the index comes first; leaders follow in the order of their shards */
    for (int r = 0; r < s->world->size; r++)
        if (files[r].name[0])
            s->manifest.files[s->manifest.n_files++] = files[r];
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
    DTX_TRY(ctx, dtx_comm_agree(s->world, list_parts(s, items, n_items)));
    DTX_TRY(ctx, gather_table(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, plan_shards(s)));
    DTX_TRY(ctx, lay_out_shards(s));
    DTX_TRY(ctx, dtx_comm_agree(s->world, write_parts(s)));
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
static void discard(const struct save *s)
{
    struct dtx_ctx quiet;
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
    s->shard = -1;
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
    dtx_mem_free(s->buffer);
    dtx_mem_free(s);
    return status;
}
