/* Pair counts are kept up to date merge by merge; a heap with stale entries finds the most frequent pair. */
#include "data/bpe_merge.h"

#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct word {
    int64_t first, count; /* offset into symbols */
    int32_t n;
};

struct pair {
    int32_t left, right;
    int64_t count;
    int64_t words;      /* head of the list of words where it occurs or occurred, −1 at its end */
    int64_t touched_by; /* the last merge that raised its count */
};

struct occurrence {
    int32_t word;
    int64_t next;
};

struct candidate {
    int64_t count;
    int32_t left, right;
    int32_t pair;
};

struct learner {
    int32_t *symbols;
    struct word *words;
    int64_t n_words;
    struct pair *pairs;
    int64_t n_pairs, pair_capacity;
    int32_t *table; /* pair indices by (left, right), −1 empty */
    int64_t mask;
    struct occurrence *occurrences;
    int64_t n_occurrences, occurrence_capacity;
    struct candidate *heap;
    int64_t heap_n, heap_capacity;
    int32_t *touched; /* pairs whose count the current merge raised */
    int64_t n_touched, touched_capacity;
    int64_t merge; /* number of the current merge, from 1 */
    int32_t first_id;
    int32_t *by_text; /* result tokens by bytes, −1 empty */
    int64_t text_mask;
};

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15);
    return x ^ x >> 29;
}

static enum dtx_status grow_table(struct dtx_ctx *ctx, struct learner *l)
{
    int64_t size = l->table ? 4 * (l->mask + 1) : 1 << 14;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, size, sizeof *l->table, &p));
    memset(p, 0xff, (size_t)size * sizeof *l->table);
    dtx_mem_free(l->table);
    l->table = p;
    l->mask = size - 1;
    for (int64_t i = 0; i < l->n_pairs; i++) {
        uint64_t slot = hash_pair(l->pairs[i].left, l->pairs[i].right);
        while (l->table[slot & (uint64_t)l->mask] >= 0)
            slot++;
        l->table[slot & (uint64_t)l->mask] = (int32_t)i;
    }
    return DTX_OK;
}

/* The pair's index; a new one has count 0 and no words. */
static enum dtx_status find_pair(struct dtx_ctx *ctx, struct learner *l, int32_t left, int32_t right, int32_t *out)
{
    if (!l->table || 2 * l->n_pairs > l->mask)
        DTX_TRY(ctx, grow_table(ctx, l));
    uint64_t slot = hash_pair(left, right);
    for (;; slot++) {
        int32_t i = l->table[slot & (uint64_t)l->mask];
        if (i < 0)
            break;
        if (l->pairs[i].left == left && l->pairs[i].right == right) {
            *out = i;
            return DTX_OK;
        }
    }
    if (l->n_pairs == INT32_MAX)
        return dtx_fail(ctx, DTX_E_RANGE, "more than 2^31 different pairs of tokens");
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, l->pairs, l->n_pairs, l->n_pairs + 1, sizeof *l->pairs, &l->pair_capacity, &p));
    l->pairs = p;
    l->pairs[l->n_pairs] = (struct pair){.left = left, .right = right, .words = -1};
    *out = l->table[slot & (uint64_t)l->mask] = (int32_t)l->n_pairs++;
    return DTX_OK;
}

/* Counts the pair `count` times more in a word. */
static enum dtx_status raise_pair(struct dtx_ctx *ctx, struct learner *l, int32_t left, int32_t right, int64_t count,
                                  int32_t word)
{
    int32_t i;
    DTX_TRY(ctx, find_pair(ctx, l, left, right, &i));
    struct pair *pair = &l->pairs[i];
    pair->count += count;
    void *p;
    if (pair->touched_by != l->merge) {
        pair->touched_by = l->merge;
        DTX_TRY(ctx, dtx_grow(ctx, l->touched, l->n_touched, l->n_touched + 1, sizeof *l->touched, &l->touched_capacity,
                              &p));
        l->touched = p;
        l->touched[l->n_touched++] = i;
    }
    if (pair->words >= 0 && l->occurrences[pair->words].word == word)
        return DTX_OK;
    DTX_TRY(ctx, dtx_grow(ctx, l->occurrences, l->n_occurrences, l->n_occurrences + 1, sizeof *l->occurrences,
                          &l->occurrence_capacity, &p));
    l->occurrences = p;
    l->occurrences[l->n_occurrences] = (struct occurrence){word, pair->words};
    pair->words = l->n_occurrences++;
    return DTX_OK;
}

static enum dtx_status lower_pair(struct dtx_ctx *ctx, struct learner *l, int32_t left, int32_t right, int64_t count)
{
    int32_t i;
    DTX_TRY(ctx, find_pair(ctx, l, left, right, &i));
    l->pairs[i].count -= count;
    return DTX_OK;
}

/* More frequent first, then the smaller ids. */
static bool before(const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static enum dtx_status push(struct dtx_ctx *ctx, struct learner *l, int32_t pair)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, l->heap, l->heap_n, l->heap_n + 1, sizeof *l->heap, &l->heap_capacity, &p));
    l->heap = p;
    struct candidate c = {l->pairs[pair].count, l->pairs[pair].left, l->pairs[pair].right, pair};
    int64_t i = l->heap_n++;
    for (; i > 0 && before(&c, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = c;
    return DTX_OK;
}

static struct candidate pop(struct learner *l)
{
    struct candidate top = l->heap[0], last = l->heap[--l->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= l->heap_n)
            break;
        child += child + 1 < l->heap_n && before(&l->heap[child + 1], &l->heap[child]);
        if (!before(&l->heap[child], &last))
            break;
        l->heap[i] = l->heap[child];
        i = child;
    }
    l->heap[i] = last;
    return top;
}

/* Replaces left, right by id all over a word and updates the counts of the pairs around. */
static enum dtx_status merge_word(struct dtx_ctx *ctx, struct learner *l, int32_t w, int32_t left, int32_t right,
                                  int32_t id)
{
    struct word *word = &l->words[w];
    int32_t *s = l->symbols + word->first, n = 0;
    for (int32_t i = 0; i < word->n;) {
        if (i + 1 >= word->n || s[i] != left || s[i + 1] != right) {
            s[n++] = s[i++];
            continue;
        }
        if (n > 0) {
            DTX_TRY(ctx, lower_pair(ctx, l, s[n - 1], left, word->count));
            DTX_TRY(ctx, raise_pair(ctx, l, s[n - 1], id, word->count, w));
        }
        if (i + 2 < word->n) {
            DTX_TRY(ctx, lower_pair(ctx, l, right, s[i + 2], word->count));
            DTX_TRY(ctx, raise_pair(ctx, l, id, s[i + 2], word->count, w));
        }
        s[n++] = id;
        i += 2;
    }
    word->n = n;
    return DTX_OK;
}

static enum dtx_status load_words(struct dtx_ctx *ctx, struct learner *l, const struct dtx_counter *pieces)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, pieces->text.n, sizeof *l->symbols, &p));
    l->symbols = p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, pieces->n, sizeof *l->words, &p));
    l->words = p;
    int64_t at = 0;
    for (int64_t i = 0; i < pieces->n; i++) {
        const struct dtx_piece *piece = &pieces->pieces[i];
        l->words[i] = (struct word){at, piece->count, piece->n};
        for (int32_t k = 0; k < piece->n; k++)
            l->symbols[at + k] = (unsigned char)pieces->text.data[piece->first + k];
        for (int32_t k = 0; k + 1 < piece->n; k++)
            DTX_TRY(ctx, raise_pair(ctx, l, l->symbols[at + k], l->symbols[at + k + 1], piece->count, (int32_t)i));
        at += piece->n;
    }
    l->n_words = pieces->n;
    for (int32_t i = 0; i < l->n_pairs; i++)
        DTX_TRY(ctx, push(ctx, l, i));
    return DTX_OK;
}

static void token_bytes(const struct learner *l, const struct dtx_bpe_result *r, int32_t id, char *byte,
                        const char **bytes, int64_t *n)
{
    *byte = (char)id;
    *bytes = id < 256 ? byte : r->text.data + r->tokens[id - l->first_id].first;
    *n = id < 256 ? 1 : r->tokens[id - l->first_id].n;
}

/* The id of left's and right's bytes together: a new token, or the old one that other tokens were merged into. */
static enum dtx_status make_token(struct dtx_ctx *ctx, struct learner *l, struct dtx_bpe_result *r, int32_t left,
                                  int32_t right, int32_t *id)
{
    char byte;
    const char *bytes;
    int64_t n, first = r->text.n;
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, &r->text, 2 * DTX_PIECE_MOST));
    token_bytes(l, r, left, &byte, &bytes, &n);
    DTX_TRY(ctx, dtx_bytes_append(ctx, &r->text, bytes, n));
    token_bytes(l, r, right, &byte, &bytes, &n);
    DTX_TRY(ctx, dtx_bytes_append(ctx, &r->text, bytes, n));
    const char *both = r->text.data + first;
    n = r->text.n - first;
    uint64_t slot = dtx_hash(both, (size_t)n, 0);
    for (;; slot++) {
        int32_t i = l->by_text[slot & (uint64_t)l->text_mask];
        if (i < 0)
            break;
        if (r->tokens[i].n == n && memcmp(r->text.data + r->tokens[i].first, both, (size_t)n) == 0) {
            r->text.n = first;
            *id = l->first_id + i;
            return DTX_OK;
        }
    }
    r->tokens[r->n_tokens] = (struct dtx_token){.first = first, .n = (int32_t)n};
    l->by_text[slot & (uint64_t)l->text_mask] = (int32_t)r->n_tokens;
    *id = l->first_id + (int32_t)r->n_tokens++;
    return DTX_OK;
}

static enum dtx_status merge_best(struct dtx_ctx *ctx, struct learner *l, struct dtx_bpe_result *r, int32_t best)
{
    int32_t left = l->pairs[best].left, right = l->pairs[best].right, id;
    DTX_TRY(ctx, make_token(ctx, l, r, left, right, &id));
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, r->merges, r->n_merges, r->n_merges + 1, sizeof *r->merges, &r->merge_capacity, &p));
    r->merges = p;
    r->merges[r->n_merges++] = (struct dtx_merge){left, right, id};
    l->merge++;
    l->n_touched = 0;
    for (int64_t at = l->pairs[best].words; at >= 0; at = l->occurrences[at].next)
        DTX_TRY(ctx, merge_word(ctx, l, l->occurrences[at].word, left, right, id));
    l->pairs[best].count = 0;
    for (int64_t i = 0; i < l->n_touched; i++)
        if (l->pairs[l->touched[i]].count > 0)
            DTX_TRY(ctx, push(ctx, l, l->touched[i]));
    return DTX_OK;
}

static enum dtx_status merge_all(struct dtx_ctx *ctx, struct learner *l, int64_t want, struct dtx_bpe_result *r)
{
    while (r->n_tokens < want && l->heap_n > 0) {
        struct candidate best = pop(l);
        int64_t count = l->pairs[best.pair].count;
        if (count < 2)
            continue;
        if (count == best.count || DTX_MUTANT(bpe_stale_counts))
            DTX_TRY(ctx, merge_best(ctx, l, r, best.pair));
        else if (count < best.count) /* a raised count has an entry of its own */
            DTX_TRY(ctx, push(ctx, l, best.pair));
    }
    return DTX_OK;
}

enum dtx_status dtx_bpe_merge(struct dtx_ctx *ctx, const struct dtx_counter *pieces, int32_t first_id, int64_t want,
                              struct dtx_bpe_result *out)
{
    struct learner l = {.first_id = first_id};
    enum dtx_status status;
    void *p;
    int64_t slots = 64;
    while (slots < 2 * want)
        slots *= 2;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, want, sizeof *out->tokens, &p), done);
    out->tokens = p;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, slots, sizeof *l.by_text, &p), done);
    l.by_text = p;
    l.text_mask = slots - 1;
    memset(l.by_text, 0xff, (size_t)slots * sizeof *l.by_text);
    DTX_TRY_GOTO(ctx, status, load_words(ctx, &l, pieces), done);
    DTX_TRY_GOTO(ctx, status, merge_all(ctx, &l, want, out), done);
done:
    dtx_mem_free(l.symbols);
    dtx_mem_free(l.words);
    dtx_mem_free(l.pairs);
    dtx_mem_free(l.table);
    dtx_mem_free(l.occurrences);
    dtx_mem_free(l.heap);
    dtx_mem_free(l.touched);
    dtx_mem_free(l.by_text);
    return status;
}

void dtx_bpe_result_free(struct dtx_bpe_result *r)
{
    dtx_mem_free(r->tokens);
    dtx_mem_free(r->merges);
    dtx_bytes_free(&r->text);
    *r = (struct dtx_bpe_result){0};
}
