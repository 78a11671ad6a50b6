/* Private to the tokenizer: the formats of its files. `path` stands in messages; text[n] is the whole file. */
#ifndef DTX_DATA_TOKENIZER_FORMATS_H
#define DTX_DATA_TOKENIZER_FORMATS_H

#include "data/tokenizer.h"

enum dtx_status dtx_tokenizer_read_json(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                        struct dtx_tokenizer **out);
enum dtx_status dtx_tokenizer_read_bpe(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                       struct dtx_tokenizer **out);

#endif
