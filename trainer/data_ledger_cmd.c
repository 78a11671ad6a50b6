/* dtx data ledger: what a run has consumed of its data, from its checkpoint. */
#include <stdio.h>
#include <string.h>

#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "data/ledger.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"

static const char usage[] =
    "usage: dtx data ledger [--text] CHECKPOINT\n"
    "\n"
    "Prints what a run has consumed of each source of its data. CHECKPOINT: a checkpoint's folder (step-00001000), or "
    "a\n"
    "folder of checkpoints, which stands for its newest complete one. --text: as it stands in the checkpoint.\n";

/* The newest complete checkpoint of a folder of them, or the path itself. */
static enum dtx_status pick(struct dtx_ctx *ctx, const char *path, char out[DTX_DISK_PATH])
{
    struct dtx_ckpt_place *places;
    int n, bytes;
    DTX_TRY(ctx, dtx_ckpt_list(ctx, path, &places, &n));
    bytes = snprintf(out, DTX_DISK_PATH, "%s%s%s", path, n > 0 ? "/" : "", n > 0 ? places[0].name : "");
    dtx_mem_free(places);
    return bytes < DTX_DISK_PATH ? DTX_OK : dtx_fail(ctx, DTX_E_CONFIG, "path too long: %.200s…", path);
}

static enum dtx_status print(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_meta *meta, bool text)
{
    struct dtx_data_ledger ledger;
    if (!meta->ledger[0])
        return dtx_fail(
            ctx, DTX_E_CONFIG,
            "checkpoint %s has no ledger: %s. It stands at sample %lld of its data, all files as one source", path,
            meta->origin[0] ? meta->origin : "it was written by an earlier dtx", (long long)meta->samples);
    if (text) {
        fputs(meta->ledger, stdout);
        return DTX_OK;
    }
    DTX_TRY(ctx, dtx_data_ledger_read(ctx, meta->ledger, &ledger));
    printf("checkpoint  %s, step %lld\n", path, (long long)meta->step);
    dtx_data_ledger_print(&ledger, stdout);
    dtx_data_ledger_free(&ledger);
    return DTX_OK;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    char path[DTX_DISK_PATH];
    struct dtx_ckpt_index index;
    bool text = argc > 0 && strcmp(argv[0], "--text") == 0;
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        fputs(usage, stdout);
        return DTX_OK;
    }
    if (argc != 1 + text)
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx data ledger takes one checkpoint\n%s", usage);
    DTX_TRY(ctx, pick(ctx, argv[argc - 1], path));
    DTX_TRY(ctx, dtx_ckpt_index_read(ctx, path, &index));
    enum dtx_status status = print(ctx, path, &index.meta, text);
    dtx_ckpt_index_free(&index);
    return status;
}

extern const struct dtx_command dtx_command_data_ledger;
const struct dtx_command dtx_command_data_ledger = {"data ledger", "what a run has consumed of its data", run};
