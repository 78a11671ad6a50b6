/*
 * Byte-level BPE. A tokenizer never changes once it is made and may be shared between threads; an encoder (scratch
 * memory and a cache of pieces) belongs to one thread.
 *
 * Text is repaired (every maximal invalid part becomes one U+FFFD and is counted), cut at added tokens, normalized,
 * cut into pieces (data/pretokenize.h); the bytes of a piece are merged in order of rank, leftmost first among equals:
 * O(n log n) for any piece. Decoding what was encoded from valid UTF-8 gives the same bytes, unless the tokenizer
 * normalizes text, drops parts of it or strips spaces around added tokens.
 */
#ifndef DTX_DATA_TOKENIZER_H
#define DTX_DATA_TOKENIZER_H

#include "data/buffer.h"

#define DTX_END_OF_TEXT "<|endoftext|>"

struct dtx_tokenizer;

/* Reads, told apart by content: a Hugging Face tokenizer.json (byte-level BPE; an unknown component is refused by
 * name); GPT-2's vocab.bpe or encoder.json, with the other one beside it; a tiktoken file, whose pattern is told by
 * gpt2, r50k, p50k, cl100k or o200k in its name or before it ("cl100k:ranks.txt"). A folder: what is in it. */
enum dtx_status dtx_tokenizer_load(struct dtx_ctx *ctx, const char *path, struct dtx_tokenizer **out);
/* Writes tokenizer.json, which Hugging Face tokenizers loads with the same ids. Atomic. Only what has GPT-2's pattern
 * and a list of merges: what dtx learned, or vocab.bpe. */
enum dtx_status dtx_tokenizer_save(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const char *path);
void dtx_tokenizer_free(struct dtx_tokenizer *t); /* accepts NULL */

int64_t dtx_tokenizer_vocab(const struct dtx_tokenizer *t); /* ids are 0 … vocab − 1 */
int64_t dtx_tokenizer_merges(const struct dtx_tokenizer *t);
/* Id of an added token (end of text, …) by its text, −1 when there is none. */
int32_t dtx_tokenizer_special(const struct dtx_tokenizer *t, const char *text);
/* Bytes of one token; *n = 0 for an id without a token. Owned by t. */
const char *dtx_tokenizer_token(const struct dtx_tokenizer *t, int32_t id, int64_t *n);
/* The regular expressions that cut text into pieces, a line each. Owned by t. */
const char *dtx_tokenizer_pattern(const struct dtx_tokenizer *t);
/* xxh3 of all that decides over ids (tokens, merges, added tokens, pattern, normal forms): equal for tokenizers that
 * encode alike, whatever file they came from. */
uint64_t dtx_tokenizer_hash(const struct dtx_tokenizer *t);
/* Whether text may be cut at dtx_split_point without changing ids: true unless an unknown pattern or an added token
 * could reach across. */
bool dtx_tokenizer_may_cut(const struct dtx_tokenizer *t);

/* Appends the bytes of ids[n]; special tokens decode to their text. An id outside the vocabulary is refused. */
enum dtx_status dtx_tokenizer_decode(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const int32_t *ids, int64_t n,
                                     struct dtx_bytes *out);

struct dtx_encoder;

/* Text that spells a special token: ordinary text (the default: documents may say anything), or that token. Added
 * tokens that are not special are always found. */
enum dtx_special_text { DTX_SPECIAL_PLAIN, DTX_SPECIAL_TOKENS };

enum dtx_status dtx_encoder_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, struct dtx_encoder **out);
void dtx_encoder_free(struct dtx_encoder *e); /* accepts NULL */
enum dtx_status dtx_encoder_special(struct dtx_ctx *ctx, struct dtx_encoder *e, enum dtx_special_text special);
/* Appends the ids of text[n]; *invalid grows by the number of parts that were replaced. */
enum dtx_status dtx_encoder_run(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *text, int64_t n,
                                struct dtx_ids *out, int64_t *invalid);

#endif
