/*
 * Byte-level BPE. A tokenizer never changes once it is made and may be shared between threads; an encoder (scratch
 * memory and a cache of pieces) belongs to one thread.
 *
 * Text is cut into pieces (data/pretokenize.h), the bytes of a piece are merged in order of rank, leftmost first among
 * equals: O(n log n) for any piece. Decoding what was encoded from valid UTF-8 gives the same bytes. Every maximal
 * invalid part of other text becomes one U+FFFD and is counted. Text that looks like a special token is ordinary text.
 */
#ifndef DTX_DATA_TOKENIZER_H
#define DTX_DATA_TOKENIZER_H

#include "data/buffer.h"

#define DTX_END_OF_TEXT "<|endoftext|>"

struct dtx_tokenizer;

/* Reads a Hugging Face tokenizer.json (byte-level BPE; an unknown component is refused by name) or GPT-2's vocab.bpe,
 * told apart by content. */
enum dtx_status dtx_tokenizer_load(struct dtx_ctx *ctx, const char *path, struct dtx_tokenizer **out);
/* Writes tokenizer.json, which Hugging Face tokenizers loads with the same ids. Atomic. */
enum dtx_status dtx_tokenizer_save(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const char *path);
void dtx_tokenizer_free(struct dtx_tokenizer *t); /* accepts NULL */

int64_t dtx_tokenizer_vocab(const struct dtx_tokenizer *t); /* ids are 0 … vocab − 1 */
int64_t dtx_tokenizer_merges(const struct dtx_tokenizer *t);
/* Id of a special token by its text, −1 when there is none. */
int32_t dtx_tokenizer_special(const struct dtx_tokenizer *t, const char *text);
/* Bytes of one token; *n = 0 for an id without a token. Owned by t. */
const char *dtx_tokenizer_token(const struct dtx_tokenizer *t, int32_t id, int64_t *n);
/* Hash of ids, merges and special tokens: equal for tokenizers that encode alike. */
uint64_t dtx_tokenizer_hash(const struct dtx_tokenizer *t);

/* Appends the bytes of ids[n]; special tokens decode to their text. An id outside the vocabulary is refused. */
enum dtx_status dtx_tokenizer_decode(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const int32_t *ids, int64_t n,
                                     struct dtx_bytes *out);

struct dtx_encoder;

enum dtx_status dtx_encoder_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, struct dtx_encoder **out);
void dtx_encoder_free(struct dtx_encoder *e); /* accepts NULL */
/* Appends the ids of text[n]; *invalid grows by the number of parts that were replaced. */
enum dtx_status dtx_encoder_run(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *text, int64_t n,
                                struct dtx_ids *out, int64_t *invalid);

#endif
