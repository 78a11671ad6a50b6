/* Private to the tokenizer: the formats of its files. `path` stands in messages; text[n] is a whole file. */
#ifndef DTX_DATA_TOKENIZER_FORMATS_H
#define DTX_DATA_TOKENIZER_FORMATS_H

#include <jansson.h>

#include "data/tokenizer_build.h"

/* root: the file, an object with "model". */
enum dtx_status dtx_tokenizer_read_json(struct dtx_ctx *ctx, const char *path, json_t *root,
                                        struct dtx_tokenizer **out);
/* Its normalizer, pre-tokenizer, post-processor and decoder; what is not understood is refused by name. */
enum dtx_status dtx_tokenizer_read_parts(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *root);
/* Refuses `key` = value as not supported. */
enum dtx_status dtx_tokenizer_refuse(struct dtx_ctx *ctx, const char *path, const char *key, const json_t *value);

/* vocab.bpe alone, and with encoder.json. */
enum dtx_status dtx_tokenizer_read_bpe(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                       struct dtx_tokenizer **out);
enum dtx_status dtx_tokenizer_read_encoder(struct dtx_ctx *ctx, const char *path, json_t *ids, const char *merges_path,
                                           const char *merges, int64_t n, struct dtx_tokenizer **out);

/* Number of a kind of tiktoken file by its name (text[n]: "cl100k"), −1: there is no such kind. */
int dtx_tiktoken_kind(const char *text, size_t n);
bool dtx_tiktoken_looks_so(const char *text, int64_t n);
/* kind −1: by the path. */
enum dtx_status dtx_tokenizer_read_tiktoken(struct dtx_ctx *ctx, const char *path, int kind, const char *text,
                                            int64_t n, struct dtx_tokenizer **out);

#endif
