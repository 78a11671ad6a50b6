/* Private to the tokenizer: its inside, and how loaders and the learner make one. */
#ifndef DTX_DATA_TOKENIZER_BUILD_H
#define DTX_DATA_TOKENIZER_BUILD_H

#include "data/normalize.h"
#include "data/pretokenize.h"
#include "data/tokenizer.h"

struct dtx_token {
    int64_t first; /* offset into text */
    int32_t n;     /* bytes; 0: this id has no token */
};

struct dtx_merge {
    int32_t left, right, id; /* tokens left and right become token id; the rank is the index */
};

/* What merging asks for a pair of neighbours: 16 bytes, one cache line. left −1: empty. */
struct dtx_pair {
    int32_t left, right, rank, id;
};

/* A token that is looked for in the text itself, before all else. */
struct dtx_added {
    int32_t id;
    bool special; /* plain text unless the encoder is told otherwise */
    bool single_word, lstrip, rstrip, normalized;
};

enum { DTX_MOST_FORMS = 4 };

struct dtx_tokenizer {
    const char *source; /* for messages while it is built: the file */
    int64_t vocab;
    struct dtx_token *tokens; /* [vocab] */
    struct dtx_bytes text;
    struct dtx_merge *merges; /* [n_merges]; none where every pair whose bytes are a token merges (tiktoken) */
    int64_t n_merges, merge_capacity;
    int32_t byte_id[256]; /* −1: missing */
    bool ignore_merges;   /* a piece that is a token is not merged */
    bool by_rank;         /* tiktoken: a pair's rank is the id of its token */
    int32_t *by_text; /* hash table of ids by bytes, −1 empty; added tokens outside the vocabulary are not in it */
    struct dtx_pair *pairs; /* hash table by (left, right) */
    int64_t text_mask, n_pairs;
    int pair_shift; /* 64 − log2 of the table's size */
    /* A bit for each pair's hash, in a table small enough for a cache: most pairs merge to nothing. */
    uint64_t *filter;
    int filter_shift;
    uint64_t *byte_pairs;    /* [65536] dtx_pair_rank of all pairs of bytes, first byte × 256 + second */
    struct dtx_added *added; /* [n_added] */
    int64_t n_added, added_capacity;
    enum dtx_normal_form forms[DTX_MOST_FORMS];
    int n_forms;
    struct dtx_pattern *pattern; /* set before dtx_tokenizer_finish; NULL becomes GPT-2's */
};

/* An empty tokenizer with room for vocab ids and that many merges. `source` must outlive dtx_tokenizer_finish. */
enum dtx_status dtx_tokenizer_create(struct dtx_ctx *ctx, const char *source, int64_t vocab, int64_t merges,
                                     struct dtx_tokenizer **out);
/* Gives id its bytes (copied). Ids used twice and bytes used twice are refused. */
enum dtx_status dtx_tokenizer_add_token(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *bytes,
                                        int64_t n);
/* An added token and its text; its id may be that of a token with the same bytes. After all ordinary tokens. */
enum dtx_status dtx_tokenizer_add_added(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const struct dtx_added *added,
                                        const char *bytes, int64_t n);
/* A special token without further properties. */
enum dtx_status dtx_tokenizer_add_special(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *text);
/* The next merge in rank; the tokens, their concatenation included, must be there. */
enum dtx_status dtx_tokenizer_add_merge(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *left, int64_t n_left,
                                        const char *right, int64_t n_right);
/* A pair that merges; one that is there already stays. */
enum dtx_status dtx_tokenizer_add_pair(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const struct dtx_pair *pair);
/* Checks that every byte has a token. */
enum dtx_status dtx_tokenizer_finish(struct dtx_ctx *ctx, struct dtx_tokenizer *t);
/* Id of the token with these bytes, or −1. */
int32_t dtx_tokenizer_find(const struct dtx_tokenizer *t, const char *bytes, int64_t n);

static inline uint64_t dtx_pair_hash(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
}

/* Where the pair belongs: its entry, or the empty one. */
static inline struct dtx_pair *dtx_pair_slot(const struct dtx_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t mask = (UINT64_C(1) << (64 - t->pair_shift)) - 1;
    for (uint64_t slot = dtx_pair_hash(left, right) >> t->pair_shift;; slot = (slot + 1) & mask) {
        struct dtx_pair *pair = &t->pairs[slot];
        if (pair->left < 0 || (pair->left == left && pair->right == right))
            return pair;
    }
}

/* Rank and token of a pair as one number, rank first: smaller for smaller ranks, the largest where nothing merges. */
static inline uint64_t dtx_pair_rank(const struct dtx_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t bit = dtx_pair_hash(left, right) >> t->filter_shift;
    if (!(t->filter[bit >> 6] >> (bit & 63) & 1))
        return UINT64_MAX;
    const struct dtx_pair *pair = dtx_pair_slot(t, left, right);
    return (uint64_t)(uint32_t)pair->rank << 32 | (uint32_t)pair->id;
}

#endif
