/*
 * Threads that encode batches, and the ring in which batches go round: empty → filled → encoded → empty. One thread
 * fills and empties, in order. With one thread there is none: a batch is encoded when it is asked for.
 */
#ifndef DTX_DATA_TOKENIZE_POOL_H
#define DTX_DATA_TOKENIZE_POOL_H

#include "data/tokenize_batch.h"

struct dtx_tokenize_pool;

enum dtx_status dtx_tokenize_pool_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *tokenizer, int threads,
                                         struct dtx_tokenize_pool **out);
void dtx_tokenize_pool_free(struct dtx_tokenize_pool *p); /* stops the threads; accepts NULL */
/* The batch to be filled next; NULL when all are on their way: empty one first. */
struct dtx_text_batch *dtx_tokenize_pool_empty(struct dtx_tokenize_pool *p);
void dtx_tokenize_pool_filled(struct dtx_tokenize_pool *p); /* it is: somebody may encode it */
/* The oldest batch that is not emptied, encoded (waits for it); NULL: there is none. */
struct dtx_text_batch *dtx_tokenize_pool_encoded(struct dtx_tokenize_pool *p);
void dtx_tokenize_pool_emptied(struct dtx_tokenize_pool *p);

#endif
