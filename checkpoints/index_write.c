#include "checkpoints/index.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "checkpoints/disk.h"
#include "checkpoints/h5.h"
#include "checkpoints/index_type.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/mutant.h"

static enum dtx_status write_meta(struct dtx_ctx *ctx, hid_t file, const char *path, const struct dtx_ckpt_meta *meta)
{
    int32_t format = DTX_CKPT_FORMAT;
    int32_t mesh[3] = {meta->mesh[0], meta->mesh[1], meta->mesh[2]};
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "format", H5T_STD_I32LE, 0, &format));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "step", H5T_STD_I64LE, 0, &meta->step));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "tokens", H5T_STD_I64LE, 0, &meta->tokens));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "samples", H5T_STD_I64LE, 0, &meta->samples));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "seed", H5T_STD_U64LE, 0, &meta->seed));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "mesh", H5T_STD_I32LE, 3, mesh));
    int32_t context = meta->mesh[3];
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "context_ranks", H5T_STD_I32LE, 0, &context));
    DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "best_heldout", H5T_IEEE_F64LE, 0, &meta->best_heldout));
    DTX_TRY(ctx, dtx_h5_write_text_attribute(ctx, file, path, "isa", meta->isa));
    DTX_TRY(ctx, dtx_h5_write_text_attribute(ctx, file, path, "program", meta->program));
    if (!isnan(meta->heldout))
        DTX_TRY(ctx, dtx_h5_write_attribute(ctx, file, path, "heldout", H5T_IEEE_F64LE, 0, &meta->heldout));
    if (meta->origin[0])
        DTX_TRY(ctx, dtx_h5_write_text_attribute(ctx, file, path, "origin", meta->origin));
    if (meta->ledger && meta->ledger[0])
        DTX_TRY(ctx, dtx_h5_write_text(ctx, file, path, "/ledger", meta->ledger));
    if (meta->health && meta->health[0])
        DTX_TRY(ctx, dtx_h5_write_text(ctx, file, path, "/health", meta->health));
    return dtx_h5_write_text(ctx, file, path, "/config", meta->config ? meta->config : "");
}

static enum dtx_status write_table(struct dtx_ctx *ctx, hid_t file, const char *path,
                                   const struct dtx_ckpt_entry *entries, int64_t n)
{
    enum dtx_status status = DTX_OK;
    hsize_t count = (hsize_t)n;
    hid_t memory = -1, packed = -1, space = -1, set = -1;
    DTX_H5_GOTO(ctx, status, memory, dtx_ckpt_entry_type(), path, "make the table's type", done);
    DTX_H5_GOTO(ctx, status, packed, H5Tcopy(memory), path, "copy a type", done);
    if (H5Tpack(packed) < 0) {
        status = dtx_h5_fail(ctx, path, "pack a type");
        goto done;
    }
    DTX_H5_GOTO(ctx, status, space, H5Screate_simple(1, &count, NULL), path, "make a space", done);
    DTX_TRY_GOTO(ctx, status, dtx_h5_create_set(ctx, file, path, "/boxes", packed, space, H5P_DEFAULT, &set), done);
    if (n > 0 && H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, entries) < 0)
        status = dtx_h5_fail(ctx, path, "write the table of boxes");
done:
    if (set >= 0)
        H5Dclose(set);
    if (space >= 0)
        H5Sclose(space);
    if (packed >= 0)
        H5Tclose(packed);
    if (memory >= 0)
        H5Tclose(memory);
    return status;
}

/* What a reader without dtx sees where a shard is missing: NaN, or the value furthest from any count. */
static herr_t set_fill(hid_t list, enum dtx_dtype dtype)
{
    double nan_value = NAN;
    int64_t low = dtype == DTX_I32 ? INT32_MIN : dtype == DTX_I64 ? INT64_MIN : UINT8_MAX;
    if (dtype == DTX_F64 || dtype == DTX_F32 || dtype == DTX_BF16)
        return DTX_MUTANT(ckpt_no_nan_fill) ? 0 : H5Pset_fill_value(list, H5T_NATIVE_DOUBLE, &nan_value);
    return H5Pset_fill_value(list, H5T_NATIVE_INT64, &low);
}

/* Maps box i onto its place; `space` is the whole array's. */
static enum dtx_status map_box(struct dtx_ctx *ctx, const char *path, hid_t list, hid_t space,
                               const struct dtx_ckpt_entry *entries, int64_t i)
{
    const struct dtx_ckpt_entry *e = &entries[i];
    char source[32], name[DTX_CKPT_NAME + 24];
    hsize_t start[DTX_MAX_DIMS], count[DTX_MAX_DIMS];
    for (int d = 0; d < e->ndim; d++) {
        start[d] = (hsize_t)e->global[d];
        count[d] = (hsize_t)e->extent[d];
    }
    dtx_ckpt_shard_name(e->shard, source); /* a bare name: looked up beside the index, wherever the folder goes */
    dtx_ckpt_box_name(entries, i, name);
    hid_t box = H5Screate_simple(e->ndim, count, NULL);
    if (box < 0 || H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Pset_virtual(list, space, source, name, box) < 0) {
        enum dtx_status status = dtx_h5_fail(ctx, path, "map a box");
        if (box >= 0)
            H5Sclose(box);
        return status;
    }
    H5Sclose(box);
    return DTX_OK;
}

/* One virtual dataset over entries[first, first + count). */
static enum dtx_status write_array(struct dtx_ctx *ctx, hid_t file, const char *path,
                                   const struct dtx_ckpt_entry *entries, int64_t first, int64_t count)
{
    const struct dtx_ckpt_entry *e = &entries[first];
    enum dtx_status status = DTX_OK;
    enum dtx_dtype dtype;
    hsize_t whole[DTX_MAX_DIMS];
    hid_t type = -1, space = -1, list = -1, set = -1;
    dtx_dtype_parse(e->dtype, &dtype);
    for (int d = 0; d < e->ndim; d++)
        whole[d] = (hsize_t)e->whole[d];
    DTX_H5_GOTO(ctx, status, type, dtx_h5_type(dtype), path, "make a type", done);
    DTX_H5_GOTO(ctx, status, space, H5Screate_simple(e->ndim, whole, NULL), path, "make a space", done);
    DTX_H5_GOTO(ctx, status, list, dtx_h5_creation_list(H5P_DATASET_CREATE), path, "make a property list", done);
    if (set_fill(list, dtype) < 0) {
        status = dtx_h5_fail(ctx, path, "set the fill value");
        goto done;
    }
    for (int64_t i = first; i < first + count; i++)
        DTX_TRY_GOTO(ctx, status, map_box(ctx, path, list, space, entries, i), done);
    if (H5Sselect_all(space) < 0)
        status = dtx_h5_fail(ctx, path, "select");
    DTX_TRY_GOTO(ctx, status, dtx_h5_create_set(ctx, file, path, e->name, type, space, list, &set), done);
done:
    if (set >= 0)
        H5Dclose(set);
    if (list >= 0)
        H5Pclose(list);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

static enum dtx_status write_arrays(struct dtx_ctx *ctx, hid_t file, const char *path,
                                    const struct dtx_ckpt_entry *entries, int64_t n)
{
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0, run; status == DTX_OK && i < n; i += run) {
        run = dtx_ckpt_run(entries, n, i);
        status = write_array(ctx, file, path, entries, i, run);
    }
    return status;
}

enum dtx_status dtx_ckpt_index_write(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_meta *meta,
                                     const struct dtx_ckpt_entry *entries, int64_t n)
{
    char path[DTX_DISK_PATH];
    struct dtx_h5_out out;
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, DTX_CKPT_INDEX, path));
    DTX_TRY(ctx, dtx_h5_create(ctx, path, &out));
    enum dtx_status status = write_meta(ctx, out.file, path, meta);
    if (status == DTX_OK)
        status = write_table(ctx, out.file, path, entries, n);
    if (status == DTX_OK)
        status = write_arrays(ctx, out.file, path, entries, n);
    if (status == DTX_OK)
        return dtx_h5_finish(ctx, path, &out);
    dtx_h5_discard(&out);
    return status;
}
