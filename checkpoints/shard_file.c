#include "checkpoints/shard_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "checkpoints/h5.h"
#include "checkpoints/local_file.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { READ_BYTES = 1 << 20 }; /* at a time: what is hashed is still in the cache */

/* Where the bytes of boxes come from. */
struct input {
    int fd;
    struct dtx_ahead *ahead; /* NULL: the file; else from here, which gives them in order */
    const char *path;
};

void dtx_ckpt_box_name(const struct dtx_ckpt_entry *entries, int64_t i, char out[DTX_CKPT_NAME + 24])
{
    int64_t first = i;
    while (first > 0 && strcmp(entries[first - 1].name, entries[i].name) == 0)
        first--;
    snprintf(out, DTX_CKPT_NAME + 24, "%s/%lld", entries[i].name, (long long)(i - first));
}

/* Allocated at once and not filled: the bytes come past HDF5. */
static hid_t box_creation_list(void)
{
    hid_t list = dtx_h5_creation_list(H5P_DATASET_CREATE);
    if (list >= 0 &&
        (H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) < 0 || H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) < 0)) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

static enum dtx_status create_box(struct dtx_ctx *ctx, const char *path, hid_t file, hid_t creation, const char *name,
                                  struct dtx_ckpt_entry *e)
{
    enum dtx_status status = DTX_OK;
    enum dtx_dtype dtype;
    hsize_t shape[DTX_MAX_DIMS];
    hid_t type = -1, space = -1, set = -1;
    dtx_dtype_parse(e->dtype, &dtype);
    for (int d = 0; d < e->ndim; d++)
        shape[d] = (hsize_t)e->extent[d];
    DTX_H5_GOTO(ctx, status, type, dtx_h5_type(dtype), path, "make a type", done);
    DTX_H5_GOTO(ctx, status, space, H5Screate_simple(e->ndim, shape, NULL), path, "make a space", done);
    DTX_TRY_GOTO(ctx, status, dtx_h5_create_set(ctx, file, path, name, type, space, creation, &set), done);
    DTX_TRY_GOTO(ctx, status, dtx_h5_write_attribute(ctx, set, path, "whole", H5T_STD_I64LE, e->ndim, e->whole), done);
    DTX_TRY_GOTO(ctx, status, dtx_h5_write_attribute(ctx, set, path, "global", H5T_STD_I64LE, e->ndim, e->global),
                 done);
    haddr_t offset = H5Dget_offset(set);
    if (offset == HADDR_UNDEF)
        status = dtx_h5_fail(ctx, path, "tell where a box lies");
    else
        e->offset = (int64_t)offset;
done:
    if (set >= 0)
        H5Dclose(set);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

static enum dtx_status create_boxes(struct dtx_ctx *ctx, const char *path, hid_t file, struct dtx_ckpt_entry *entries,
                                    int64_t n, int shard)
{
    enum dtx_status status = DTX_OK;
    int32_t format = DTX_CKPT_FORMAT;
    hid_t creation = box_creation_list();
    if (creation < 0)
        status = dtx_h5_fail(ctx, path, "make a property list");
    if (status == DTX_OK)
        status = dtx_h5_write_attribute(ctx, file, path, "format", H5T_STD_I32LE, 0, &format);
    for (int64_t i = 0; status == DTX_OK && i < n; i++) {
        char name[DTX_CKPT_NAME + 24];
        if (entries[i].shard != shard)
            continue;
        dtx_ckpt_box_name(entries, i, name);
        status = create_box(ctx, path, file, creation, name, &entries[i]);
    }
    if (creation >= 0)
        H5Pclose(creation);
    return status;
}

enum dtx_status dtx_ckpt_shard_begin(struct dtx_ctx *ctx, const char *path, struct dtx_ckpt_entry *entries, int64_t n,
                                     int shard, struct dtx_h5_out *out)
{
    DTX_TRY(ctx, dtx_h5_create(ctx, path, out));
    enum dtx_status status = create_boxes(ctx, path, out->file, entries, n, shard);
    if (status != DTX_OK)
        dtx_h5_discard(out);
    return status;
}

static enum dtx_status add_checksum(struct dtx_ctx *ctx, const char *path, hid_t file, const char *name,
                                    const uint64_t *checksum)
{
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    if (set < 0)
        return dtx_h5_fail(ctx, path, "find the dataset of a box");
    enum dtx_status status = dtx_h5_write_attribute(ctx, set, path, "checksum", H5T_STD_U64LE, 0, checksum);
    H5Dclose(set);
    return status;
}

enum dtx_status dtx_ckpt_shard_end(struct dtx_ctx *ctx, const char *path, int fd, const struct dtx_ckpt_entry *entries,
                                   int64_t n, int shard, struct dtx_h5_out *out)
{
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0; i < n && status == DTX_OK; i++) {
        char name[DTX_CKPT_NAME + 24];
        if (entries[i].shard != shard)
            continue;
        dtx_ckpt_box_name(entries, i, name);
        status = add_checksum(ctx, path, out->file, name, &entries[i].checksum);
    }
    if (status == DTX_OK)
        return dtx_h5_finish_into(ctx, path, fd, out);
    dtx_h5_discard(out);
    return status;
}

static enum dtx_status compare_checksum(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_entry *entry,
                                        uint64_t hash)
{
    if (hash == entry->checksum || DTX_MUTANT(ckpt_checksum_unchecked))
        return DTX_OK;
    return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged: the checksum of %s differs (bytes %lld to %lld)", path,
                    entry->name, (long long)entry->offset, (long long)(entry->offset + entry->bytes - 1));
}

static enum dtx_status read_box(struct dtx_ctx *ctx, const struct input *in, const struct dtx_ckpt_entry *entry,
                                void *data, const struct dtx_ckpt_sink *sink)
{
    enum dtx_status status = DTX_OK;
    int64_t piece = sink ? sink->piece_bytes : READ_BYTES;
    struct dtx_hasher *hasher = dtx_hasher_begin(0);
    if (!hasher)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory hashing %s", in->path);
    for (int64_t at = 0; at < entry->bytes && status == DTX_OK; at += piece) {
        int64_t n = dtx_min64(piece, entry->bytes - at);
        char *to = sink ? data : (char *)data + at;
        status = in->ahead ? dtx_ahead_take(in->ahead, ctx, to, n)
                           : dtx_disk_read_at(ctx, in->fd, in->path, to, n, entry->offset + at);
        if (status == DTX_OK)
            dtx_hasher_add(hasher, to, (size_t)n);
        if (status == DTX_OK && sink)
            status = sink->take(sink->self, at, n, to);
    }
    uint64_t hash = dtx_hasher_end(hasher);
    return status == DTX_OK ? compare_checksum(ctx, in->path, entry, hash) : status;
}

enum dtx_status dtx_ckpt_box_read(struct dtx_ctx *ctx, int fd, const char *path, const struct dtx_ckpt_entry *entry,
                                  void *data, const struct dtx_ckpt_sink *sink)
{
    return read_box(ctx, &(struct input){fd, NULL, path}, entry, data, sink);
}

void dtx_ckpt_reader_open(struct dtx_ckpt_reader *reader, const char *folder)
{
    *reader = (struct dtx_ckpt_reader){.folder = folder, .shard = -1, .fd = -1};
}

void dtx_ckpt_reader_close(struct dtx_ckpt_reader *reader)
{
    dtx_ahead_end(reader->ahead);
    reader->ahead = NULL;
    if (reader->fd >= 0)
        close(reader->fd);
    reader->fd = reader->shard = -1;
}

static enum dtx_status shard_path(struct dtx_ctx *ctx, const struct dtx_ckpt_reader *reader, int shard,
                                  char path[DTX_DISK_PATH])
{
    char name[32];
    if (reader->local)
        dtx_local_name(shard, name);
    else
        dtx_ckpt_shard_name(shard, name);
    return dtx_disk_join(ctx, reader->folder, name, path);
}

static enum dtx_status open_shard(struct dtx_ctx *ctx, const void *self, int shard, char path[DTX_DISK_PATH], int *fd)
{
    DTX_TRY(ctx, shard_path(ctx, self, shard, path));
    return dtx_disk_open_read(ctx, path, fd);
}

enum dtx_status dtx_ckpt_reader_plan(struct dtx_ctx *ctx, struct dtx_ckpt_reader *reader,
                                     const struct dtx_ckpt_entry *entries, const int64_t *list, int64_t n)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(struct dtx_ahead_range), &memory));
    struct dtx_ahead_range *ranges = memory;
    for (int64_t i = 0; i < n; i++) {
        const struct dtx_ckpt_entry *e = &entries[list[i]];
        ranges[i] = (struct dtx_ahead_range){e->shard, e->offset, e->bytes};
    }
    enum dtx_status status = dtx_ahead_begin(ctx, ranges, n, false, open_shard, reader, &reader->ahead);
    dtx_mem_free(memory);
    return status;
}

enum dtx_status dtx_ckpt_reader_box(struct dtx_ctx *ctx, struct dtx_ckpt_reader *reader,
                                    const struct dtx_ckpt_entry *entry, void *data, const struct dtx_ckpt_sink *sink)
{
    if (reader->shard != entry->shard) {
        if (reader->fd >= 0)
            close(reader->fd);
        reader->fd = reader->shard = -1;
        DTX_TRY(ctx, shard_path(ctx, reader, entry->shard, reader->path));
        if (!reader->ahead) {
            DTX_TRY(ctx, dtx_disk_open_read(ctx, reader->path, &reader->fd));
            dtx_disk_read_in_order(reader->fd);
        }
        reader->shard = entry->shard;
    }
    return read_box(ctx, &(struct input){reader->fd, reader->ahead, reader->path}, entry, data, sink);
}

static int by_offset(const void *a, const void *b)
{
    const struct dtx_ckpt_entry *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* The next bytes of a file, hashed where they lie. box: NULL between boxes, where HDF5's own structures stand. */
static enum dtx_status hash_next(struct dtx_ctx *ctx, struct dtx_ahead *ahead, int64_t bytes, struct dtx_hasher *file,
                                 struct dtx_hasher *box)
{
    const void *piece;
    for (int64_t at = 0, n; at < bytes; at += n) {
        DTX_TRY(ctx, dtx_ahead_peek(ahead, ctx, dtx_min64(READ_BYTES, bytes - at), &piece, &n));
        dtx_hasher_add(file, piece, (size_t)n);
        if (box)
            dtx_hasher_add(box, piece, (size_t)n);
        dtx_ahead_skip(ahead, n);
    }
    return DTX_OK;
}

static enum dtx_status check_box(struct dtx_ctx *ctx, struct dtx_ahead *ahead, const char *path,
                                 const struct dtx_ckpt_entry *box, struct dtx_hasher *file)
{
    struct dtx_hasher *hasher = dtx_hasher_begin(0);
    if (!hasher)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory hashing %s", path);
    enum dtx_status status = hash_next(ctx, ahead, box->bytes, file, hasher);
    uint64_t hash = dtx_hasher_end(hasher);
    return status == DTX_OK ? compare_checksum(ctx, path, box, hash) : status;
}

static enum dtx_status check_boxes(struct dtx_ctx *ctx, struct dtx_ahead *ahead, const char *path,
                                   struct dtx_hasher *file, const struct dtx_ckpt_entry *const *boxes, int64_t n,
                                   int64_t size, struct dtx_meter *meter)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (boxes[i]->offset < at || boxes[i]->offset + boxes[i]->bytes > size)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: a box of %s lies outside the file or in another box", path,
                            boxes[i]->name);
        DTX_TRY(ctx, hash_next(ctx, ahead, boxes[i]->offset - at, file, NULL));
        DTX_TRY(ctx, check_box(ctx, ahead, path, boxes[i], file));
        at = boxes[i]->offset + boxes[i]->bytes;
        dtx_meter_add(meter, boxes[i]->bytes);
    }
    return hash_next(ctx, ahead, size - at, file, NULL);
}

static enum dtx_status open_file(struct dtx_ctx *ctx, const void *self, int file, char path[DTX_DISK_PATH], int *fd)
{
    (void)file;
    snprintf(path, DTX_DISK_PATH, "%s", (const char *)self);
    return dtx_disk_open_read(ctx, path, fd);
}

enum dtx_status dtx_ckpt_shard_check(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_entry *entries,
                                     int64_t n, int shard, bool direct, struct dtx_meter *meter, int64_t *bytes,
                                     uint64_t *hash)
{
    enum dtx_status status;
    void *list;
    int64_t count = 0, size = 0;
    struct dtx_ahead *ahead = NULL;
    struct dtx_hasher *hasher = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(struct dtx_ckpt_entry *), &list));
    const struct dtx_ckpt_entry **boxes = list;
    for (int64_t i = 0; i < n; i++)
        if (entries[i].shard == shard)
            boxes[count++] = &entries[i];
    qsort(boxes, (size_t)count, sizeof *boxes, by_offset);
    DTX_TRY_GOTO(ctx, status, dtx_disk_size(ctx, path, &size), done);
    struct dtx_ahead_range whole = {0, 0, size};
    DTX_TRY_GOTO(ctx, status, dtx_ahead_begin(ctx, &whole, 1, direct, open_file, path, &ahead), done);
    hasher = dtx_hasher_begin(0);
    if (hasher)
        status = check_boxes(ctx, ahead, path, hasher, boxes, count, size, meter);
    else
        status = dtx_fail(ctx, DTX_E_MEMORY, "out of memory hashing %s", path);
done:;
    uint64_t value = dtx_hasher_end(hasher);
    dtx_ahead_end(ahead);
    dtx_mem_free(list);
    if (status == DTX_OK) {
        *bytes = size;
        *hash = value;
    }
    return status;
}
