/* Private to the learner: from counted pieces to merges. */
#ifndef DTX_DATA_BPE_MERGE_H
#define DTX_DATA_BPE_MERGE_H

#include "data/bpe_count.h"
#include "data/tokenizer_build.h"

struct dtx_bpe_result {
    struct dtx_token *tokens; /* [n_tokens], ids from first_id on; bytes in text */
    int64_t n_tokens, token_capacity;
    struct dtx_merge *merges; /* [n_merges] in rank order; two may make the same token */
    int64_t n_merges, merge_capacity;
    struct dtx_bytes text;
};

/* Bytes have ids 0–255; new tokens get first_id, first_id + 1, … until there are `want` or no pair occurs twice. */
enum dtx_status dtx_bpe_merge(struct dtx_ctx *ctx, const struct dtx_counter *pieces, int32_t first_id, int64_t want,
                              struct dtx_bpe_result *out);
void dtx_bpe_result_free(struct dtx_bpe_result *r);

#endif
