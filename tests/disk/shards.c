/* A checkpoint of as many shards as there may be, each with two rows of /model/wide and one element of /model/long, as
 * so many ranks would have written it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "tests/disk/states.h"
#include "tests/harness/ckpt_state.h"

enum { ROWS = 2, COLUMNS = 8 };

static void fill(struct dtx_ckpt_entry *e, const char *name, int shard, int64_t whole, int64_t columns, float *values)
{
    int64_t rows = columns ? ROWS : 1, n = rows * (columns ? columns : 1);
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->dtype, sizeof e->dtype, "f32");
    e->ndim = columns ? 2 : 1;
    e->shard = e->writer = shard;
    e->whole[0] = whole;
    e->global[0] = shard * rows;
    e->extent[0] = rows;
    if (columns)
        e->whole[1] = e->extent[1] = columns;
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(e->global[0] * (columns ? columns : 1) + i) + (columns ? 0.5f : 0.25f);
    e->bytes = n * (int64_t)sizeof *values;
    e->checksum = dtx_hash(values, (size_t)e->bytes, 0);
}

static enum dtx_status write_shard(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_entry *entries, int64_t n,
                                   struct dtx_ckpt_file *file, int shard)
{
    char path[DTX_DISK_PATH];
    float values[ROWS * COLUMNS];
    struct dtx_h5_out out;
    int fd = -1;
    dtx_ckpt_shard_name(shard, file->name);
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, file->name, path));
    DTX_TRY(ctx, dtx_ckpt_shard_begin(ctx, path, entries, n, shard, &out));
    DTX_TRY(ctx, dtx_disk_open_new(ctx, path, 0, &fd));
    for (int64_t i = 0; i < n; i++) {
        struct dtx_ckpt_entry again = {0};
        if (entries[i].shard != shard)
            continue;
        fill(&again, entries[i].name, shard, entries[i].whole[0], entries[i].ndim == 2 ? COLUMNS : 0, values);
        DTX_TRY(ctx, dtx_disk_write_at(ctx, fd, path, values, again.bytes, entries[i].offset));
    }
    DTX_TRY(ctx, dtx_ckpt_shard_end(ctx, path, fd, entries, n, shard, &out));
    DTX_TRY(ctx, dtx_disk_close_written(ctx, fd, path));
    return dtx_ckpt_shard_check(ctx, path, entries, n, shard, false, NULL, &file->bytes, &file->hash);
}

enum dtx_status many_shards(struct dtx_ctx *ctx, const char *folder, int shards)
{
    struct dtx_ckpt_meta meta = ckpt_state_meta(1, (struct ckpt_mesh){shards, 1, 1});
    struct dtx_ckpt_manifest *manifest = calloc(1, sizeof *manifest);
    struct dtx_ckpt_entry *entries = calloc((size_t)shards * 2, sizeof *entries);
    float values[ROWS * COLUMNS];
    char path[DTX_DISK_PATH], *data;
    DTX_TRY(ctx, dtx_disk_make_folders(ctx, folder));
    for (int s = 0; s < shards; s++) {
        fill(&entries[2 * s], "/model/wide", s, shards * ROWS, COLUMNS, values);
        fill(&entries[2 * s + 1], "/model/long", s, shards, 0, values);
    }
    dtx_ckpt_sort(entries, 2 * shards);
    DTX_TRY(ctx, dtx_ckpt_check_table(ctx, folder, entries, 2 * shards, shards));
    for (int s = 0; s < shards; s++)
        DTX_TRY(ctx, write_shard(ctx, folder, entries, 2 * shards, &manifest->files[1 + s], s));
    DTX_TRY(ctx, dtx_ckpt_index_write(ctx, folder, &meta, entries, 2 * shards));
    snprintf(manifest->files[0].name, sizeof manifest->files[0].name, "%s", DTX_CKPT_INDEX);
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, DTX_CKPT_INDEX, path));
    DTX_TRY(ctx, dtx_disk_read(ctx, path, INT64_MAX - 1, &data, &manifest->files[0].bytes));
    manifest->files[0].hash = dtx_hash(data, (size_t)manifest->files[0].bytes, 0);
    manifest->n_files = 1 + shards;
    manifest->sequence = manifest->step = 1;
    dtx_mem_free(data);
    free(entries);
    enum dtx_status status = dtx_ckpt_manifest_write(ctx, folder, manifest);
    free(manifest);
    return status;
}
