#include "data/tokenizer.h"

#include <string.h>

#include "data/tokenizer_build.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"

static int64_t table_size(int64_t entries)
{
    int64_t size = 64;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

static enum dtx_status empty_table(struct dtx_ctx *ctx, int64_t entries, int32_t **table, int64_t *mask)
{
    void *p;
    int64_t size = table_size(entries);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, size, sizeof(int32_t), &p));
    memset(p, 0xff, (size_t)size * sizeof(int32_t));
    *table = p;
    *mask = size - 1;
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
    DTX_TRY(ctx, empty_table(ctx, vocab, &t->by_text, &t->text_mask));
    DTX_TRY(ctx, empty_table(ctx, merges, &t->by_pair, &t->pair_mask));
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_create(struct dtx_ctx *ctx, const char *source, int64_t vocab, int64_t merges,
                                     struct dtx_tokenizer **out)
{
    if (vocab < 1 || vocab > INT32_MAX / 4 || merges < 0 || merges > INT32_MAX / 4)
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
    dtx_mem_free(t->by_pair);
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

enum dtx_status dtx_tokenizer_add_token(struct dtx_ctx *ctx, struct dtx_tokenizer *t, int64_t id, const char *bytes,
                                        int64_t n, bool special)
{
    if (id < 0 || id >= t->vocab)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld is outside the vocabulary of %lld", t->source,
                        (long long)id, (long long)t->vocab);
    struct dtx_token *token = &t->tokens[id];
    if (token->n > 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld is used twice", t->source, (long long)id);
    if (n < 1 || n > INT32_MAX / 4)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: token id %lld has %lld bytes", t->source, (long long)id, (long long)n);
    int32_t *slot = special ? NULL : text_slot(t, bytes, n);
    if (slot && *slot >= 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: tokens %d and %lld have the same bytes", t->source, *slot,
                        (long long)id);
    *token = (struct dtx_token){.first = t->text.n, .n = (int32_t)n, .special = special};
    enum dtx_status status = dtx_bytes_append(ctx, &t->text, bytes, n);
    if (status != DTX_OK) {
        token->n = 0;
        return status;
    }
    if (slot)
        *slot = (int32_t)id;
    if (!special && n == 1)
        t->byte_id[(unsigned char)bytes[0]] = (int32_t)id;
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
    if (dtx_pair_rank(t, merge.left, merge.right) >= 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: merges %d and %lld are the same", t->source,
                        dtx_pair_rank(t, merge.left, merge.right), (long long)t->n_merges);
    uint64_t slot = dtx_pair_hash(merge.left, merge.right);
    while (t->by_pair[slot & (uint64_t)t->pair_mask] >= 0)
        slot++;
    t->by_pair[slot & (uint64_t)t->pair_mask] = (int32_t)t->n_merges;
    t->merges[t->n_merges++] = merge;
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_finish(struct dtx_ctx *ctx, struct dtx_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: byte 0x%02x has no token: not a byte-level vocabulary",
                            t->source, b);
    t->source = NULL;
    return dtx_pattern_gpt2(ctx, &t->pattern);
}

int64_t dtx_tokenizer_vocab(const struct dtx_tokenizer *t)
{
    return t->vocab;
}

int64_t dtx_tokenizer_merges(const struct dtx_tokenizer *t)
{
    return t->n_merges;
}

int32_t dtx_tokenizer_special(const struct dtx_tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (int64_t id = 0; id < t->vocab; id++)
        if (t->tokens[id].special && (size_t)t->tokens[id].n == n &&
            memcmp(t->text.data + t->tokens[id].first, text, n) == 0)
            return (int32_t)id;
    return -1;
}

const char *dtx_tokenizer_token(const struct dtx_tokenizer *t, int32_t id, int64_t *n)
{
    *n = t->tokens[id].n;
    return t->text.data + t->tokens[id].first;
}

uint64_t dtx_tokenizer_hash(const struct dtx_tokenizer *t)
{
    uint64_t h = dtx_hash(&t->vocab, sizeof t->vocab, t->ignore_merges);
    for (int64_t id = 0; id < t->vocab; id++)
        h = dtx_hash(t->text.data + t->tokens[id].first, (size_t)t->tokens[id].n, h + t->tokens[id].special);
    return dtx_hash(t->merges, (size_t)t->n_merges * sizeof *t->merges, h);
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
