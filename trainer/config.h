/*
 * The training options (one row each, see kernels/base/opt.h) and the structs made from them.
 */
#ifndef DTX_TRAINER_CONFIG_H
#define DTX_TRAINER_CONFIG_H

#include "kernels/base/opt.h"
#include "kernels/base/tensor.h"
#include "parallel/mesh.h"
#include "parallel/transfer.h"

enum dtx_subnorm { DTX_SUBNORM_AFFINE, DTX_SUBNORM_PLAIN, DTX_SUBNORM_NONE };

/* The model's shape. heads counts what the variant counts: differential heads for diff (each of two maps), plain heads
 * for softmax; width = heads · value width. */
struct dtx_model_config {
    int64_t layers, width, heads, kv_heads, head_dim, ffn, vocab;
    const struct dtx_attn_variant *attention;
    bool tied;
    double rope_theta, norm_eps;
    enum dtx_subnorm subnorm;
    double lambda_init; /* one constant for all layers; NaN: by depth, 0.8 − 0.6·exp(−0.3·layer) */
    struct dtx_transfer transfer;
};

/* How the pipeline cuts the model (trainer/split.h). */
struct dtx_split {
    int chunks;         /* of each stage; 0 counts as 1 */
    const char *layout; /* blocks of each part, "3,5,4,4"; NULL or "": balanced */
    bool by_flops;      /* balance FLOPs with embedding and head, instead of blocks */
};

struct dtx_batch_config {
    int64_t length;       /* tokens a sequence, all context ranks together */
    int64_t micro_batch;  /* sequences in one forward pass of one data rank */
    int micro_batches;    /* forward passes of one data rank in a step */
    int64_t global_batch; /* sequences a step: dp · micro_batches · micro_batch */
};

struct dtx_optim_config {
    const struct dtx_optim_variant *variant;
    double beta1, beta2, eps, decay, clip; /* clip 0: off */
    bool decay_embeddings;
    bool stochastic; /* rounding of masters to bf16 weights */
};

/* Which layers run forward again before their backward pass instead of keeping what they made: attention layers, or
 * whole blocks (then the block's input alone is kept); of the blocks 0, every, 2·every, … */
enum dtx_recompute { DTX_RECOMPUTE_NONE, DTX_RECOMPUTE_ATTENTION, DTX_RECOMPUTE_BLOCK };
struct dtx_recompute_config {
    enum dtx_recompute what;
    int64_t every;
};

struct dtx_engine_config {
    struct dtx_model_config model;
    struct dtx_batch_config batch;
    struct dtx_recompute_config recompute;
    struct dtx_optim_config optim;
    enum dtx_dtype dtype;
    bool fp8; /* products of the matrices of attention and FFN; not with f64 */
    int64_t seed;
    int mesh[DTX_AXES];
    bool ring;     /* context ranks pass keys and values round instead of gathering them all */
    bool sequence; /* rows of the residual stream are cut over the tensor ranks, when there are several */
    const char *schedule;
    int zero;             /* 1: masters and optimizer states cut over the data ranks; 2: gradients too */
    bool overlap;         /* sums of gradients and gathers of weights go on beside the computation */
    int64_t bucket_bytes; /* of gradients that are reduced together */
    struct dtx_split split;
    bool graphs;   /* passes are recorded once and launched as one (trainer/graphs.h); not with tp or cp above 1 */
    bool snapshot; /* a copy of masters and states in host memory, to go back to (trainer/health.h) */
};

/* Rows of `dtx train`, ended by a NULL key. */
extern const struct dtx_opt_row dtx_train_options[];

/* Reads the structs; contradictions (heads and tp, batch and dp, …) are added to opt's faults, all of them, each saying
 * what would fit. `world_size` 0: not known, mesh taken as written. Call dtx_opt_check afterwards. */
void dtx_engine_config_read(struct dtx_opt *opt, int world_size, struct dtx_engine_config *out);

/* "none", "attention", "block", or the latter two with ":n" (every n-th block). False for any other text. */
bool dtx_recompute_parse(const char *text, struct dtx_recompute_config *out);

#endif
