/*
 * The files of weights of a Hugging Face folder: their names, the index over several, and reading them as weights in
 * dtx's layout. Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_HF_FOLDER_H
#define DTX_CHECKPOINTS_HF_FOLDER_H

#include "checkpoints/format.h"
#include "checkpoints/hf/map.h"

/* "model.safetensors", or "model-00002-of-00005.safetensors" for file 1 of 5. */
void dtx_hf_file_name(int file, int n_files, char out[64]);
/* model.safetensors.index.json; file_of −1: no file has the tensor. */
enum dtx_status dtx_hf_write_index(struct dtx_ctx *ctx, const char *folder, const struct dtx_hf_tensor *tensors, int n,
                                   const int *file_of, int n_files, int64_t total_bytes);
/* dtx_ckpt_format.open: checks config.json, the names, shapes and dtypes of all tensors; what is missing or too much is
 * named. The items give fp32. */
enum dtx_status dtx_hf_open(struct dtx_ctx *ctx, const char *folder, struct dtx_meter *meter,
                            struct dtx_ckpt_weights *out);

#endif
