#include "checkpoints/index.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/h5.h"
#include "checkpoints/index_type.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static herr_t insert_text(hid_t row, const char *name, size_t offset, size_t bytes)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    herr_t result = type < 0 || H5Tset_size(type, bytes) < 0 ? -1 : H5Tinsert(row, name, offset, type);
    if (type >= 0)
        H5Tclose(type);
    return result;
}

static herr_t insert_dims(hid_t row, const char *name, size_t offset)
{
    hsize_t n = DTX_MAX_DIMS;
    hid_t type = H5Tarray_create2(H5T_STD_I64LE, 1, &n);
    herr_t result = type < 0 ? -1 : H5Tinsert(row, name, offset, type);
    if (type >= 0)
        H5Tclose(type);
    return result;
}

hid_t dtx_ckpt_entry_type(void)
{
    hid_t row = H5Tcreate(H5T_COMPOUND, sizeof(struct dtx_ckpt_entry));
    if (row < 0)
        return row;
    if (insert_text(row, "array", HOFFSET(struct dtx_ckpt_entry, name), DTX_CKPT_NAME) < 0 ||
        insert_text(row, "dtype", HOFFSET(struct dtx_ckpt_entry, dtype), 8) < 0 ||
        H5Tinsert(row, "dimensions", HOFFSET(struct dtx_ckpt_entry, ndim), H5T_STD_I32LE) < 0 ||
        H5Tinsert(row, "shard", HOFFSET(struct dtx_ckpt_entry, shard), H5T_STD_I32LE) < 0 ||
        insert_dims(row, "whole", HOFFSET(struct dtx_ckpt_entry, whole)) < 0 ||
        insert_dims(row, "global", HOFFSET(struct dtx_ckpt_entry, global)) < 0 ||
        insert_dims(row, "extent", HOFFSET(struct dtx_ckpt_entry, extent)) < 0 ||
        H5Tinsert(row, "offset", HOFFSET(struct dtx_ckpt_entry, offset), H5T_STD_I64LE) < 0 ||
        H5Tinsert(row, "bytes", HOFFSET(struct dtx_ckpt_entry, bytes), H5T_STD_I64LE) < 0 ||
        H5Tinsert(row, "checksum", HOFFSET(struct dtx_ckpt_entry, checksum), H5T_STD_U64LE) < 0) {
        H5Tclose(row);
        return -1;
    }
    return row;
}

static enum dtx_status read_meta(struct dtx_ctx *ctx, hid_t file, const char *path, struct dtx_ckpt_meta *meta)
{
    int32_t format, mesh[3], context = 1; /* files of before context parallelism do not say */
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "format", H5T_NATIVE_INT32, 0, &format));
    if (format > DTX_CKPT_FORMAT)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s has format %d, written by a newer dtx; this one reads up to %d",
                        path, format, DTX_CKPT_FORMAT);
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "step", H5T_NATIVE_INT64, 0, &meta->step));
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "tokens", H5T_NATIVE_INT64, 0, &meta->tokens));
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "samples", H5T_NATIVE_INT64, 0, &meta->samples));
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "seed", H5T_NATIVE_UINT64, 0, &meta->seed));
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "mesh", H5T_NATIVE_INT32, 3, mesh));
    if (H5Aexists(file, "context_ranks") > 0)
        DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "context_ranks", H5T_NATIVE_INT32, 0, &context));
    DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "best_heldout", H5T_NATIVE_DOUBLE, 0, &meta->best_heldout));
    DTX_TRY(ctx, dtx_h5_read_text_attribute(ctx, file, path, "isa", meta->isa, sizeof meta->isa));
    DTX_TRY(ctx, dtx_h5_read_text_attribute(ctx, file, path, "program", meta->program, sizeof meta->program));
    meta->heldout = NAN;
    if (H5Aexists(file, "heldout") > 0)
        DTX_TRY(ctx, dtx_h5_read_attribute(ctx, file, path, "heldout", H5T_NATIVE_DOUBLE, 0, &meta->heldout));
    if (H5Aexists(file, "origin") > 0)
        DTX_TRY(ctx, dtx_h5_read_text_attribute(ctx, file, path, "origin", meta->origin, sizeof meta->origin));
    for (int i = 0; i < 3; i++)
        meta->mesh[i] = mesh[i];
    meta->mesh[3] = context;
    if (H5Lexists(file, "/ledger", H5P_DEFAULT) > 0)
        DTX_TRY(ctx, dtx_h5_read_text(ctx, file, path, "/ledger", &meta->ledger));
    else
        DTX_TRY(ctx, dtx_mem_text(ctx, "", &meta->ledger));
    if (H5Lexists(file, "/health", H5P_DEFAULT) > 0)
        DTX_TRY(ctx, dtx_h5_read_text(ctx, file, path, "/health", &meta->health));
    else
        DTX_TRY(ctx, dtx_mem_text(ctx, "", &meta->health));
    return dtx_h5_read_text(ctx, file, path, "/config", &meta->config);
}

/* Every box lies in its shard: what is allocated and read later stays below the sizes of the files. */
static enum dtx_status check_places(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_index *index)
{
    for (int64_t i = 0; i < index->n && !DTX_MUTANT(ckpt_box_place_unchecked); i++) {
        const struct dtx_ckpt_entry *e = &index->entries[i];
        const struct dtx_ckpt_file *shard = &index->manifest.files[1 + e->shard];
        if (e->offset > shard->bytes - e->bytes)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: a box of %s should lie at bytes %lld to %lld of %s, which has %lld",
                            path, e->name, (long long)e->offset, (long long)(e->offset + e->bytes - 1), shard->name,
                            (long long)shard->bytes);
    }
    return DTX_OK;
}

static enum dtx_status read_table(struct dtx_ctx *ctx, hid_t file, const char *path, struct dtx_ckpt_index *out)
{
    enum dtx_status status = DTX_OK;
    void *rows = NULL;
    hid_t type = -1, space = -1, set;
    hssize_t n = 0;
    DTX_H5_GOTO(ctx, status, set, H5Dopen2(file, "/boxes", H5P_DEFAULT), path, "find the table of boxes", done);
    DTX_H5_GOTO(ctx, status, space, H5Dget_space(set), path, "read the table's size", done);
    DTX_H5_GOTO(ctx, status, type, dtx_ckpt_entry_type(), path, "make the table's type", done);
    DTX_H5_GOTO(ctx, status, n, H5Sget_simple_extent_npoints(space), path, "read the table's size", done);
    if (n > out->manifest.files[0].bytes) {
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s: a table of %lld boxes cannot be in this file", path, (long long)n);
        goto done;
    }
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, n, sizeof(struct dtx_ckpt_entry), &rows), done);
    if (n > 0 && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) < 0)
        status = dtx_h5_fail(ctx, path, "read the table of boxes");
done:
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (set >= 0)
        H5Dclose(set);
    if (status != DTX_OK) {
        dtx_mem_free(rows);
        return status;
    }
    out->entries = rows;
    out->n = n;
    for (int64_t i = 0; i < n; i++)
        out->entries[i].name[DTX_CKPT_NAME - 1] = '\0';
    dtx_ckpt_sort(out->entries, n);
    DTX_TRY(ctx, dtx_ckpt_check_table(ctx, path, out->entries, n, out->manifest.n_files - 1));
    return check_places(ctx, path, out);
}

static enum dtx_status read_image(struct dtx_ctx *ctx, const char *path, const char *data, int64_t bytes,
                                  struct dtx_ckpt_index *out)
{
    hid_t file;
    /* before HDF5 parses it, which trusts what it reads */
    if (dtx_hash(data, (size_t)bytes, 0) != out->manifest.files[0].hash)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged: its checksum differs", path);
    DTX_TRY(ctx, dtx_h5_open(ctx, path, data, bytes, &file));
    enum dtx_status status = read_meta(ctx, file, path, &out->meta);
    if (status == DTX_OK)
        status = read_table(ctx, file, path, out);
    H5Fclose(file);
    return status;
}

static enum dtx_status read_into(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_index *out)
{
    char path[DTX_DISK_PATH], *data;
    int64_t bytes;
    DTX_TRY(ctx, dtx_ckpt_manifest_read(ctx, folder, &out->manifest));
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, DTX_CKPT_INDEX, path));
    DTX_TRY(ctx, dtx_disk_read(ctx, path, out->manifest.files[0].bytes, &data, &bytes));
    enum dtx_status status = read_image(ctx, path, data, bytes, out);
    dtx_mem_free(data);
    return status;
}

enum dtx_status dtx_ckpt_index_read(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_index *out)
{
    memset(out, 0, sizeof *out);
    enum dtx_status status = read_into(ctx, folder, out);
    if (status != DTX_OK)
        dtx_ckpt_index_free(out);
    return status;
}

enum dtx_status dtx_ckpt_index_open(struct dtx_ctx *ctx, struct dtx_comm *world, const char *folder,
                                    struct dtx_ckpt_index *out)
{
    struct dtx_ckpt_index mine, sent;
    void *rows = NULL;
    bool root = world->rank == 0;
    memset(&mine, 0, sizeof mine);
    enum dtx_status status = root ? dtx_ckpt_index_read(ctx, folder, &mine) : DTX_OK;
    DTX_TRY(ctx, dtx_comm_agree(world, status));
    sent = mine;
    DTX_TRY_GOTO(ctx, status, dtx_comm_broadcast_bytes(world, &sent, sizeof sent, 0), fail);
    sent.meta.config = mine.meta.config; /* pointers stay each rank's own */
    sent.meta.ledger = mine.meta.ledger;
    sent.meta.health = mine.meta.health;
    sent.entries = mine.entries;
    mine = sent;
    DTX_TRY_GOTO(ctx, status, dtx_comm_broadcast_text(world, &mine.meta.config, 0), fail);
    DTX_TRY_GOTO(ctx, status, dtx_comm_broadcast_text(world, &mine.meta.ledger, 0), fail);
    DTX_TRY_GOTO(ctx, status, dtx_comm_broadcast_text(world, &mine.meta.health, 0), fail);
    if (!root) {
        status = dtx_mem_alloc(ctx, mine.n, sizeof(struct dtx_ckpt_entry), &rows);
        mine.entries = rows;
    }
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(world, status), fail);
    DTX_TRY_GOTO(ctx, status,
                 dtx_comm_broadcast_bytes(world, mine.entries, mine.n * (int64_t)sizeof(struct dtx_ckpt_entry), 0),
                 fail);
    *out = mine;
    return DTX_OK;
fail:
    dtx_ckpt_index_free(&mine);
    return status;
}

static enum dtx_status verify_shard(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                    int shard, struct dtx_meter *meter)
{
    const struct dtx_ckpt_file *file = &index->manifest.files[1 + shard];
    char path[DTX_DISK_PATH];
    int64_t bytes;
    uint64_t hash;
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, file->name, path));
    DTX_TRY(ctx, dtx_ckpt_shard_check(ctx, path, index->entries, index->n, shard, false, meter, &bytes, &hash));
    if (bytes != file->bytes || hash != file->hash)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged: its checksum differs, though those of its boxes do not",
                        path);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_index_verify(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                      struct dtx_meter *meter)
{
    for (int shard = 0; shard < index->manifest.n_files - 1; shard++)
        DTX_TRY(ctx, verify_shard(ctx, folder, index, shard, meter));
    return DTX_OK;
}

int64_t dtx_ckpt_index_weight(const struct dtx_ckpt_index *index, const char *weight, int64_t *first)
{
    char name[DTX_CKPT_NAME];
    snprintf(name, sizeof name, "/optimizer/master/%s", weight);
    int64_t count = dtx_ckpt_lookup(index->entries, index->n, name, first);
    if (count > 0)
        return count;
    snprintf(name, sizeof name, "/model/%s", weight);
    return dtx_ckpt_lookup(index->entries, index->n, name, first);
}

int64_t dtx_ckpt_index_bytes(const struct dtx_ckpt_index *index)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < index->n; i++)
        bytes += index->entries[i].bytes;
    return bytes;
}

void dtx_ckpt_index_free(struct dtx_ckpt_index *index)
{
    dtx_ckpt_meta_free(&index->meta);
    dtx_mem_free(index->entries);
    dtx_mem_free(index->readers);
    index->readers = NULL;
    index->entries = NULL;
    index->n = 0;
}
