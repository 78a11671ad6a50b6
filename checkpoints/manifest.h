/*
 * The file COMPLETE of a checkpoint folder: the last one written, naming every other file with its size and checksum,
 * ended by a checksum of itself. A folder without a whole one is no checkpoint. Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_MANIFEST_H
#define DTX_CHECKPOINTS_MANIFEST_H

#include "checkpoints/layout.h"

#define DTX_CKPT_INDEX    "checkpoint.h5"
#define DTX_CKPT_MANIFEST "COMPLETE"

#define DTX_CKPT_SEQUENCE_MAX (INT64_MAX / 2)

struct dtx_ckpt_file {
    char name[32];
    int64_t bytes;
    uint64_t hash; /* xxh3 of the whole file */
};

struct dtx_ckpt_manifest {
    int64_t sequence; /* saves are counted in a folder of checkpoints; the greatest is the newest */
    int64_t step;
    int n_files; /* the index, then the shards in order */
    struct dtx_ckpt_file files[1 + DTX_CKPT_SHARDS];
};

enum dtx_status dtx_ckpt_manifest_write(struct dtx_ctx *ctx, const char *folder,
                                        const struct dtx_ckpt_manifest *manifest);
/* Reads it and looks whether every file is there with its size. DTX_E_UNSUPPORTED for a newer format. */
enum dtx_status dtx_ckpt_manifest_read(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_manifest *manifest);

#endif
