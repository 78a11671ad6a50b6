#include "checkpoints/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { MANIFEST_LINE = 96, MANIFEST_BYTES = (8 + DTX_CKPT_SHARDS) * MANIFEST_LINE };

enum dtx_status dtx_ckpt_manifest_write(struct dtx_ctx *ctx, const char *folder,
                                        const struct dtx_ckpt_manifest *manifest)
{
    char path[DTX_DISK_PATH];
    void *memory;
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, DTX_CKPT_MANIFEST, path));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, MANIFEST_BYTES, 1, &memory));
    char *text = memory;
    int n = snprintf(text, MANIFEST_BYTES, "dtx checkpoint %d\nsequence %lld\nstep %lld\n", DTX_CKPT_FORMAT,
                     (long long)manifest->sequence, (long long)manifest->step);
    for (int i = 0; i < manifest->n_files; i++)
        n += snprintf(text + n, (size_t)(MANIFEST_BYTES - n), "file %s %lld %016" PRIx64 "\n", manifest->files[i].name,
                      (long long)manifest->files[i].bytes, manifest->files[i].hash);
    snprintf(text + n, (size_t)(MANIFEST_BYTES - n), "end %016" PRIx64 "\n", dtx_hash(text, (size_t)n, 0));
    enum dtx_status status = dtx_disk_write_text(ctx, path, text);
    dtx_mem_free(text);
    return status;
}

/* The file name that line i of the list must have. */
static void file_name(int i, char out[32])
{
    if (i == 0)
        snprintf(out, 32, "%s", DTX_CKPT_INDEX);
    else
        dtx_ckpt_shard_name(i - 1, out);
}

static enum dtx_status parse(struct dtx_ctx *ctx, const char *path, char *text, struct dtx_ckpt_manifest *out)
{
    int format, used = 0;
    long long sequence, step;
    if (sscanf(text, "dtx checkpoint %d\n", &format) != 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is not dtx's: it should start with 'dtx checkpoint'", path);
    if (format > DTX_CKPT_FORMAT)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "%s: the checkpoint has format %d, written by a newer dtx; this one reads up to format %d",
                        path, format, DTX_CKPT_FORMAT);
    char *end = strstr(text, "\nend ");
    if (format < 1 || !end ||
        sscanf(text, "dtx checkpoint %*d\nsequence %lld\nstep %lld\n%n", &sequence, &step, &used) != 2 || used == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is cut off or damaged", path);
    end++;
    char own[32];
    snprintf(own, sizeof own, "end %016" PRIx64 "\n", dtx_hash(text, (size_t)(end - text), 0));
    if (strcmp(end, own) != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged: its checksum differs", path);
    if (sequence < 1 || sequence > DTX_CKPT_SEQUENCE_MAX || step < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: sequence %lld and step %lld make no sense", path, sequence, step);
    out->sequence = sequence;
    out->step = step;
    out->n_files = 0;
    for (char *line = text + used; line < end; line = strchr(line, '\n') + 1) {
        char expected[32];
        struct dtx_ckpt_file *file = &out->files[out->n_files];
        long long bytes;
        if (out->n_files > DTX_CKPT_SHARDS ||
            sscanf(line, "file %31s %lld %" SCNx64 "\n", file->name, &bytes, &file->hash) != 3)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: line '%.60s' makes no sense", path, line);
        file->bytes = bytes;
        file_name(out->n_files++, expected);
        if (strcmp(file->name, expected) != 0)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s stands where %s should", path, file->name, expected);
    }
    if (out->n_files < 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s names no files", path);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_manifest_read(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_manifest *manifest)
{
    char path[DTX_DISK_PATH], *text;
    int64_t bytes;
    DTX_TRY(ctx, dtx_disk_join(ctx, folder, DTX_CKPT_MANIFEST, path));
    if (dtx_disk_is_folder(folder) && !dtx_disk_exists(path))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is incomplete or no checkpoint: it has no file " DTX_CKPT_MANIFEST,
                        folder);
    DTX_TRY(ctx, dtx_disk_read(ctx, path, MANIFEST_BYTES, &text, &bytes));
    enum dtx_status status = parse(ctx, path, text, manifest);
    dtx_mem_free(text);
    if (status != DTX_OK || DTX_MUTANT(ckpt_missing_shard_unseen))
        return status;
    for (int i = 0; i < manifest->n_files; i++) {
        DTX_TRY(ctx, dtx_disk_join(ctx, folder, manifest->files[i].name, path));
        if (!dtx_disk_exists(path))
            return dtx_fail(ctx, DTX_E_FORMAT, "%s is missing", path);
        DTX_TRY(ctx, dtx_disk_size(ctx, path, &bytes));
        if (bytes != manifest->files[i].bytes)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes instead of %lld: it was cut off or replaced", path,
                            (long long)bytes, (long long)manifest->files[i].bytes);
    }
    return DTX_OK;
}
