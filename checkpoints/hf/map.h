/*
 * A model's weights in dtx and in Hugging Face's DiffLlama or Llama: names, shapes and where each row goes. This is the
 * only place that knows the permutations. Rows of q, k, v are blocks of head_dim rows, one a map:
 *   pairs    dtx keeps the maps of a head together (0 signal, 0 noise, 1 signal, …); DiffLlama has all signal blocks
 *            first, then all noise blocks. q, k, v of differential attention.
 *   rotary   dtx turns rows 2i and 2i+1 of a block together; they turn i and head_dim/2 + i. q and k.
 * DiffLlama's norm over heads has no gain: dtx's scales the columns of its out-projection. Factors of the forward pass
 * are folded in where one weight alone carries them: embedding, q, the two ends of a block, the final norm's gain.
 */
#ifndef DTX_CHECKPOINTS_HF_MAP_H
#define DTX_CHECKPOINTS_HF_MAP_H

#include "checkpoints/model.h"

struct dtx_hf_tensor {
    char ours[64];   /* "layers.07.attn.q" */
    char theirs[80]; /* "model.layers.7.self_attn.q_proj.weight"; "": only dtx has it (the gain) */
    int ndim;
    int64_t shape[2]; /* the same on both sides; (out, in) */
    bool pairs, rotary;
    int64_t block; /* rows of a map; 0 where rows stay */
    char gain[64]; /* our vector that scales the columns of what they hold, tiled; "" for none */
    int64_t gain_n;
    double scale; /* theirs over ours besides: their forward pass has no factors (parallel/transfer.h) */
};

/* All weights of the model, in the order of its layers; free with dtx_mem_free. With subnorm plain there is no gain. */
enum dtx_status dtx_hf_tensors(struct dtx_ctx *ctx, const struct dtx_ckpt_model *model, struct dtx_hf_tensor **out,
                               int *n);
/* Their row that holds our row, and the inverse. */
int64_t dtx_hf_row(const struct dtx_hf_tensor *tensor, int64_t ours);
int64_t dtx_hf_row_back(const struct dtx_hf_tensor *tensor, int64_t theirs);
/* How many of our rows from `first` on, at most `limit`, lie together on their side too; at least 1. */
int64_t dtx_hf_run(const struct dtx_hf_tensor *tensor, int64_t first, int64_t limit);

#endif
