/*
 * Learns byte-level BPE: pieces of all text are counted (several threads, each with its own table), then the most
 * frequent pair of neighbouring tokens is merged, again and again. Ties go to the smaller left id, then the smaller
 * right one. The result depends on the text alone, not on threads or on how the text was fed.
 *
 * Ids: 0–255 the bytes, 256 <|endoftext|>, then the merges in order.
 */
#ifndef DTX_DATA_BPE_TRAIN_H
#define DTX_DATA_BPE_TRAIN_H

#include "data/tokenizer.h"

struct dtx_bpe_trainer;

enum dtx_status dtx_bpe_trainer_create(struct dtx_ctx *ctx, int threads, struct dtx_bpe_trainer **out);
void dtx_bpe_trainer_free(struct dtx_bpe_trainer *t); /* accepts NULL */
/* Counts the pieces of text[n], a document or a part of one cut at dtx_split_point. Invalid parts are replaced. */
enum dtx_status dtx_bpe_trainer_feed(struct dtx_ctx *ctx, struct dtx_bpe_trainer *t, const char *text, int64_t n);
/* Merges until there are `vocab` ids or no pair occurs twice: then the vocabulary is smaller. Ends the counting. */
enum dtx_status dtx_bpe_trainer_finish(struct dtx_ctx *ctx, struct dtx_bpe_trainer *t, int64_t vocab,
                                       struct dtx_tokenizer **out);

#endif
