#include "data/tokenizer.h"

#include <string.h>

#include "data/tokenizer_build.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { MOST_IDS = INT32_MAX / 4 };

static int log2_of_table(int64_t entries)
{
    int bits = 6;
    while ((INT64_C(1) << bits) < 2 * entries)
        bits++;
    return bits;
}

static enum dtx_status make_pairs(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int bits)
{
    void *p;
    int64_t size = INT64_C(1) << bits;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, size, sizeof *t->pairs, &p));
    memset(p, 0xff, (size_t)size * sizeof *t->pairs);
    t->pairs = p;
    t->pair_shift = 64 - bits;
    return DTX_OK;
}

static enum dtx_status allocate(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t vocab, int64_t merges)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, vocab, sizeof *t->tokens, &p));
    t->tokens = p;
    t->vocab = vocab;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, merges, sizeof *t->merges, &p));
    t->merges = p;
    t->merge_capacity = merges;
    int64_t size = INT64_C(1) << log2_of_table(vocab);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, size, sizeof(int32_t), &p));
    memset(p, 0xff, (size_t)size * sizeof(int32_t));
    t->by_text = p;
    t->text_mask = size - 1;
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    return make_pairs(ctx, t, log2_of_table(0)); /* grows */
}

enum dtx_status dtx_tokenizer_create(struct dtx_ctx *ctx, const char *source, int64_t vocab, int64_t merges,
                                     struct dtx_tokenizer **out)
{
    if (vocab < 1 || vocab > MOST_IDS || merges < 0 || merges > MOST_IDS)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: a tokenizer with %lld ids and %lld merges is not possible", source,
                        (long long)vocab, (long long)merges);
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tokenizer), &p));
    struct dtx_tokenizer *t = p;
    t->source = source;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, allocate(ctx, t, vocab, merges), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}

void dtx_tokenizer_free(struct dtx_tokenizer *t)
{
    if (!t)
        return;
    dtx_mem_free(t->tokens);
    dtx_bytes_free(&t->text);
    dtx_mem_free(t->merges);
    dtx_mem_free(t->by_text);
    dtx_mem_free(t->pairs);
    dtx_mem_free(t->filter);
    dtx_mem_free(t->byte_pairs);
    dtx_mem_free(t->added);
    dtx_pattern_free(t->pattern);
    dtx_mem_free(t);
}

/* Slot of by_text that holds these bytes, or the empty one where they belong. */
static int32_t *text_slot(const struct dtx_tokenizer *t, const char *bytes, int64_t n)
{
    for (uint64_t h = dtx_hash(bytes, (size_t)n, 0);; h++) {
        int32_t *slot = &t->by_text[h & (uint64_t)t->text_mask];
        const struct dtx_token *token = *slot >= 0 ? &t->tokens[*slot] : NULL;
        if (!token || (token->n == n && memcmp(t->text.data + token->first, bytes, (size_t)n) == 0))
            return slot;
    }
}

int32_t dtx_tokenizer_find(const struct dtx_tokenizer *t, const char *bytes, int64_t n)
{
    return *text_slot(t, bytes, n);
}

static enum dtx_status set_token(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *bytes, int64_t n)
{
    if (id < 0 || id >= t->vocab)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld is outside the vocabulary of %lld", t->source,
                        (long long)id, (long long)t->vocab);
    if (t->tokens[id].n > 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld is used twice", t->source, (long long)id);
    if (n < 1 || n > INT32_MAX / 4)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld has %lld bytes", t->source, (long long)id, (long long)n);
    int64_t first = t->text.n;
    DTX_TRY(ctx, dtx_bytes_append(ctx, &t->text, bytes, n));
    t->tokens[id] = (struct dtx_token){.first = first, .n = (int32_t)n};
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_add_token(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *bytes,
                                        int64_t n)
{
    int32_t *slot = text_slot(t, bytes, n);
    if (*slot >= 0 && id != *slot)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: tokens %d and %lld have the same bytes", t->source, *slot,
                        (long long)id);
    DTX_TRY(ctx, set_token(ctx, t, id, bytes, n));
    *slot = (int32_t)id;
    if (n == 1)
        t->byte_id[(unsigned char)bytes[0]] = (int32_t)id;
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_add_added(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const struct dtx_added *added,
                                        const char *bytes, int64_t n)
{
    const struct dtx_token *token = added->id >= 0 && added->id < t->vocab ? &t->tokens[added->id] : NULL;
    if (!token || token->n != n || memcmp(t->text.data + token->first, bytes, (size_t)n) != 0)
        DTX_TRY(ctx, set_token(ctx, t, added->id, bytes, n));
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, t->added, t->n_added, t->n_added + 1, sizeof *t->added, &t->added_capacity, &p));
    t->added = p;
    t->added[t->n_added++] = *added;
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_add_special(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *text)
{
    struct dtx_added added = {.id = (int32_t)id, .special = true};
    return dtx_tokenizer_add_added(ctx, t, &added, text, (int64_t)strlen(text));
}

enum dtx_status dtx_tokenizer_add_pair(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const struct dtx_pair *pair)
{
    int bits = 64 - t->pair_shift;
    if (5 * (t->n_pairs + 1) > 4 * (INT64_C(1) << bits)) { /* dense: a table twice as large costs more misses */
        struct dtx_pair *old = t->pairs;
        enum dtx_status status = make_pairs(ctx, t, bits + 1);
        for (int64_t i = 0; i < INT64_C(1) << bits && status == DTX_OK; i++)
            if (old[i].left >= 0)
                *dtx_pair_slot(t, old[i].left, old[i].right) = old[i];
        if (status == DTX_OK)
            dtx_mem_free(old);
        DTX_TRY(ctx, status);
    }
    struct dtx_pair *slot = dtx_pair_slot(t, pair->left, pair->right);
    if (slot->left < 0) {
        *slot = *pair;
        t->n_pairs++;
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_add_merge(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *left, int64_t n_left,
                                        const char *right, int64_t n_right)
{
    if (t->n_merges == t->merge_capacity)
        return dtx_fail(ctx, DTX_E_INTERNAL, "%s: more merges than the %lld announced", t->source,
                        (long long)t->merge_capacity);
    struct dtx_bytes both = {0};
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, &both, n_left + n_right + 1));
    memcpy(both.data, left, (size_t)n_left);
    memcpy(both.data + n_left, right, (size_t)n_right);
    struct dtx_merge merge = {dtx_tokenizer_find(t, left, n_left), dtx_tokenizer_find(t, right, n_right),
                              dtx_tokenizer_find(t, both.data, n_left + n_right)};
    dtx_bytes_free(&both);
    if (merge.left < 0 || merge.right < 0 || merge.id < 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: merge %lld: its %s is no token", t->source, (long long)t->n_merges,
                        merge.left < 0    ? "left part"
                        : merge.right < 0 ? "right part"
                                          : "result");
    const struct dtx_pair *known = dtx_pair_slot(t, merge.left, merge.right);
    if (known->left >= 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: merges %d and %lld are the same", t->source, known->rank,
                        (long long)t->n_merges);
    struct dtx_pair pair = {merge.left, merge.right, (int32_t)t->n_merges, merge.id};
    DTX_TRY(ctx, dtx_tokenizer_add_pair(ctx, t, &pair));
    t->merges[t->n_merges++] = merge;
    return DTX_OK;
}

/* What makes merging fast: one bit in sixteen of the filter is set, so that it fits a cache. */
static enum dtx_status index_pairs(struct dtx_ctx *ctx, struct dtx_tokenizer *t)
{
    void *p;
    int bits = log2_of_table(8 * t->n_pairs);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, INT64_C(1) << (bits - 6), sizeof *t->filter, &p));
    t->filter = p;
    t->filter_shift = 64 - bits;
    for (int64_t i = 0; i < INT64_C(1) << (64 - t->pair_shift); i++) {
        const struct dtx_pair *pair = &t->pairs[i];
        if (pair->left < 0)
            continue;
        uint64_t bit = dtx_pair_hash(pair->left, pair->right) >> t->filter_shift;
        t->filter[bit >> 6] |= UINT64_C(1) << (bit & 63);
    }
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 65536, sizeof *t->byte_pairs, &p));
    t->byte_pairs = p;
    for (int k = 0; k < 65536; k++)
        t->byte_pairs[k] = dtx_pair_rank(t, t->byte_id[k >> 8], t->byte_id[k & 255]);
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_finish(struct dtx_ctx *ctx, struct dtx_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: byte 0x%02x has no token: not a byte-level vocabulary",
                            t->source, b);
    t->source = NULL;
    DTX_TRY(ctx, index_pairs(ctx, t));
    if (t->pattern)
        return DTX_OK;
    DTX_TRY(ctx, dtx_pattern_create(ctx, &t->pattern));
    return dtx_pattern_add_scan(ctx, t->pattern, DTX_SCAN_GPT2);
}

int64_t dtx_tokenizer_vocab(const struct dtx_tokenizer *t)
{
    return t->vocab;
}

int64_t dtx_tokenizer_merges(const struct dtx_tokenizer *t)
{
    return t->by_rank ? t->n_pairs : t->n_merges;
}

int32_t dtx_tokenizer_special(const struct dtx_tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (int64_t i = 0; i < t->n_added; i++) {
        const struct dtx_token *token = &t->tokens[t->added[i].id];
        if ((size_t)token->n == n && memcmp(t->text.data + token->first, text, n) == 0)
            return t->added[i].id;
    }
    return -1;
}

const char *dtx_tokenizer_token(const struct dtx_tokenizer *t, int32_t id, int64_t *n)
{
    *n = t->tokens[id].n;
    return t->text.data + t->tokens[id].first;
}

const char *dtx_tokenizer_pattern(const struct dtx_tokenizer *t)
{
    return dtx_pattern_text(t->pattern);
}

uint64_t dtx_tokenizer_hash(const struct dtx_tokenizer *t)
{
    const int32_t flags[] = {t->ignore_merges, t->by_rank, t->n_forms};
    uint64_t pattern = DTX_MUTANT(hash_without_pattern) ? 0 : dtx_hash_text(dtx_pattern_text(t->pattern), 0);
    uint64_t h = dtx_hash(&t->vocab, sizeof t->vocab, pattern);
    h = dtx_hash(flags, sizeof flags, h);
    for (int i = 0; i < t->n_forms; i++)
        h = dtx_hash(&(int32_t){(int32_t)t->forms[i]}, sizeof(int32_t), h);
    for (int64_t i = 0; i < t->n_added; i++) {
        const struct dtx_added *a = &t->added[i];
        const int32_t words[] = {a->id, a->special, a->single_word, a->lstrip, a->rstrip, a->normalized};
        h = dtx_hash(words, sizeof words, h);
    }
    for (int64_t id = 0; id < t->vocab; id++)
        h = dtx_hash(t->text.data + t->tokens[id].first, (size_t)t->tokens[id].n, h);
    return dtx_hash(t->merges, (size_t)t->n_merges * sizeof *t->merges, h);
}

/* The tokens that could reach from a letter or digit over the space behind it. */
static bool joins_a_space(const char *text, int64_t n)
{
    return dtx_split_point(text, n) > 0;
}

bool dtx_tokenizer_may_cut(const struct dtx_tokenizer *t)
{
    bool known = false;
    for (int scan = 0; scan < DTX_SCANS; scan++)
        known |= dtx_pattern_is(t->pattern, (enum dtx_scan)scan);
    for (int64_t i = 0; i < t->n_added && known; i++) {
        const struct dtx_token *token = &t->tokens[t->added[i].id];
        known = !joins_a_space(t->text.data + token->first, token->n);
    }
    return known;
}

enum dtx_status dtx_tokenizer_decode(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const int32_t *ids, int64_t n,
                                     struct dtx_bytes *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab)
            return dtx_fail(ctx, DTX_E_RANGE, "id %d at position %lld is outside the tokenizer's vocabulary of %lld",
                            ids[i], (long long)i, (long long)t->vocab);
        const struct dtx_token *token = &t->tokens[ids[i]];
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, t->text.data + token->first, token->n));
    }
    return DTX_OK;
}
