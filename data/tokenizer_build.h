/* Private to the tokenizer: its inside, and how loaders and the learner make one. */
#ifndef DTX_DATA_TOKENIZER_BUILD_H
#define DTX_DATA_TOKENIZER_BUILD_H

#include "data/pretokenize.h"
#include "data/tokenizer.h"

struct dtx_token {
    int64_t first; /* offset into text */
    int32_t n;     /* bytes; 0: this id has no token */
    bool special;
};

struct dtx_merge {
    int32_t left, right, id; /* tokens left and right become token id; the rank is the index */
};

struct dtx_tokenizer {
    const char *source; /* for messages while it is built: the file */
    int64_t vocab;
    struct dtx_token *tokens; /* [vocab] */
    struct dtx_bytes text;
    struct dtx_merge *merges; /* [n_merges] */
    int64_t n_merges, merge_capacity;
    int32_t byte_id[256]; /* −1: missing */
    bool ignore_merges;   /* a piece that is a token is not merged */
    int32_t *by_text;     /* hash table of ids by bytes, −1 empty; special tokens are not in it */
    int64_t text_mask;
    int32_t *by_pair; /* hash table of ranks by (left, right), −1 empty */
    int64_t pair_mask;
    struct dtx_pattern *pattern;
};

/* An empty tokenizer with room for vocab ids and that many merges. `source` must outlive dtx_tokenizer_finish. */
enum dtx_status dtx_tokenizer_create(struct dtx_ctx *ctx, const char *source, int64_t vocab, int64_t merges,
                                     struct dtx_tokenizer **out);
/* Gives id its bytes (copied). Ids used twice and bytes used twice are refused. */
enum dtx_status dtx_tokenizer_add_token(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *bytes,
                                        int64_t n, bool special);
/* The next merge in rank; the tokens, their concatenation included, must be there. */
enum dtx_status dtx_tokenizer_add_merge(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *left, int64_t n_left,
                                        const char *right, int64_t n_right);
/* Checks that every byte has a token and compiles the pattern. */
enum dtx_status dtx_tokenizer_finish(struct dtx_ctx *ctx, struct dtx_tokenizer *t);
/* Id of the token with these bytes, special ones excepted, or −1. */
int32_t dtx_tokenizer_find(const struct dtx_tokenizer *t, const char *bytes, int64_t n);

/* Rank of the pair, or −1. */
static inline uint64_t dtx_pair_hash(int32_t left, int32_t right)
{
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    return x ^ x >> 29;
}
static inline int32_t dtx_pair_rank(const struct dtx_tokenizer *t, int32_t left, int32_t right)
{
    for (uint64_t slot = dtx_pair_hash(left, right);; slot++) {
        int32_t rank = t->by_pair[slot & (uint64_t)t->pair_mask];
        if (rank < 0 || (t->merges[rank].left == left && t->merges[rank].right == right))
            return rank;
    }
}

#endif
