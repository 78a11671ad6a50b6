/*
 * Hugging Face's config.json of DiffLlama and Llama, and the small files around it. What one side cannot hold is
 * refused by the name of the setting: a model that is nearly right would be worse than none. Nothing here communicates.
 */
#ifndef DTX_CHECKPOINTS_HF_CONFIG_H
#define DTX_CHECKPOINTS_HF_CONFIG_H

#include "checkpoints/format.h"

/* Refuses a model that DiffLlama or Llama cannot hold. */
enum dtx_status dtx_hf_check(struct dtx_ctx *ctx, const char *checkpoint, const struct dtx_ckpt_model *model);
/* Writes config.json, generation_config.json and, where the job has a tokenizer, tokenizer.json (the same bytes),
 * tokenizer_config.json and special_tokens_map.json. */
enum dtx_status dtx_hf_write_config(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job);
/* Parses the text of a config.json; a key that is not known is refused. */
enum dtx_status dtx_hf_parse_config(struct dtx_ctx *ctx, const char *path, const char *text, int64_t bytes,
                                    struct dtx_ckpt_model *out);

#endif
