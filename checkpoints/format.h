/*
 * Foreign formats of weights. A format is one file in formats/ that exports one const table, dtx_ckpt_format_<name>;
 * the list is made by the build. Nothing here communicates: one process exports, imports and averages.
 */
#ifndef DTX_CHECKPOINTS_FORMAT_H
#define DTX_CHECKPOINTS_FORMAT_H

#include "checkpoints/index.h"
#include "checkpoints/model.h"

/* A checkpoint that becomes a folder of another format. */
struct dtx_ckpt_export {
    const char *checkpoint; /* its folder */
    const struct dtx_ckpt_index *index;
    struct dtx_ckpt_model model;
    const char *folder;    /* exists, empty; the format syncs each file it writes */
    bool as_trained;       /* choose the dtype: bf16 where the activations were, else f32 */
    enum dtx_dtype dtype;  /* of matrices: f32 or bf16; vectors stay f32 */
    int64_t shard_bytes;   /* files of weights are cut there */
    const char *tokenizer; /* tokenizer.json, or "" */
    const char *end_token; /* of the tokenizer: begins and ends documents */
    struct dtx_meter *meter;
};

/* Weights that become a checkpoint: items with `read`, one box each. Made by a format or by averaging. */
struct dtx_ckpt_weights {
    struct dtx_ckpt_model model;
    struct dtx_ckpt_item *items;
    int n;
    void *impl;
    void (*close)(struct dtx_ckpt_weights *weights);
};

struct dtx_ckpt_format {
    const char *name;
    enum dtx_status (*export_weights)(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job);
    /* Checks the folder and opens it; `meter` counts bytes of weights as they are read. */
    enum dtx_status (*open)(struct dtx_ctx *ctx, const char *folder, struct dtx_meter *meter,
                            struct dtx_ckpt_weights *out);
};

/* NULL when there is none of that name; the names as "a|b". */
const struct dtx_ckpt_format *dtx_ckpt_format_find(const char *name);
const char *dtx_ckpt_format_names(void);

#endif
