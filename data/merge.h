/* Private to the tokenizer: the bytes of one piece merged to tokens. */
#ifndef DTX_DATA_MERGE_H
#define DTX_DATA_MERGE_H

#include "data/tokenizer_build.h"

enum { DTX_SHORT_PIECE = 48 };

/* Merges piece[n], n ≤ DTX_SHORT_PIECE, by looking for the smallest rank again and again; the number of ids. */
int64_t dtx_merge_short(const struct dtx_tokenizer *t, const char *piece, int64_t n, int32_t *ids);

struct dtx_merge_scratch; /* of one thread */
enum dtx_status dtx_merge_scratch_create(struct dtx_ctx *ctx, struct dtx_merge_scratch **out);
void dtx_merge_scratch_free(struct dtx_merge_scratch *m); /* accepts NULL */
/* The same result in O(n log n); ids are appended. */
enum dtx_status dtx_merge_long(struct dtx_ctx *ctx, struct dtx_merge_scratch *m, const struct dtx_tokenizer *t,
                               const char *piece, int64_t n, struct dtx_ids *out);

#endif
