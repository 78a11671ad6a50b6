/*
 * The model that a checkpoint holds, as its stored options tell: what a converter must know of it. The trainer owns the
 * options; their names are repeated here because it stands above this folder. Nothing here touches files.
 */
#ifndef DTX_CHECKPOINTS_MODEL_H
#define DTX_CHECKPOINTS_MODEL_H

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"
#include "parallel/transfer.h"

enum { DTX_CKPT_LAMBDA_TEXT = 32 };

struct dtx_ckpt_model {
    bool diff;                                             /* differential attention; else softmax */
    int64_t layers, width, heads, kv_heads, head_dim, ffn; /* heads: of diff, each of two maps of head_dim */
    int64_t vocab, length;                                 /* length: positions it was trained on */
    bool tied;
    double rope_theta, norm_eps;
    char subnorm[8];                        /* "affine", "plain", "none" */
    char lambda_init[DTX_CKPT_LAMBDA_TEXT]; /* "depth" or a number */
    enum dtx_dtype dtype;                   /* of the activations it was trained with */
    struct dtx_transfer transfer;
};

/* From a checkpoint's options; what is missing or impossible is named. `name` leads messages. */
enum dtx_status dtx_ckpt_model_read(struct dtx_ctx *ctx, const char *config, const char *name,
                                    struct dtx_ckpt_model *out);
/* The options of such a model as YAML (free with dtx_mem_free): what a checkpoint of weights alone stores. */
enum dtx_status dtx_ckpt_model_write(struct dtx_ctx *ctx, const struct dtx_ckpt_model *model, char **config);
/* Refuses two checkpoints whose models differ, naming each option that does. */
enum dtx_status dtx_ckpt_model_compare(struct dtx_ctx *ctx, const char *config, const char *name, const char *other,
                                       const char *other_name);

#endif
