/* Text to ids: pieces, a cache of short pieces, and two ways of merging that give the same ids. */
#include <string.h>

#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { CACHE_ENTRIES = 1 << 15, CACHED_BYTES = 30, CACHED_IDS = 8, SHORT_PIECE = 48, MOST_PIECE = 1 << 30 };

/* One cache line. n_bytes = 0: empty. */
struct cached {
    uint8_t n_bytes, n_ids;
    char bytes[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};

/* A symbol of a long piece. Links are positions; a symbol that was merged into its left neighbour has id −1. */
struct symbol {
    int32_t id, before, after;
};

struct dtx_encoder {
    const struct dtx_tokenizer *t;
    struct dtx_splitter *splitter;
    struct cached *cache; /* [CACHE_ENTRIES], direct mapped */
    struct dtx_bytes repaired;
    struct symbol *symbols;
    int64_t symbol_capacity;
    uint64_t *heap; /* rank << 32 | position, smallest first */
    int64_t heap_n, heap_capacity;
};

enum dtx_status dtx_encoder_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, struct dtx_encoder **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_encoder), &p));
    struct dtx_encoder *e = p;
    e->t = t;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_splitter_create(ctx, t->pattern, &e->splitter), fail);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, CACHE_ENTRIES, sizeof *e->cache, &p), fail);
    e->cache = p;
    *out = e;
    return DTX_OK;
fail:
    dtx_encoder_free(e);
    return status;
}

void dtx_encoder_free(struct dtx_encoder *e)
{
    if (!e)
        return;
    dtx_splitter_free(e->splitter);
    dtx_mem_free(e->cache);
    dtx_bytes_free(&e->repaired);
    dtx_mem_free(e->symbols);
    dtx_mem_free(e->heap);
    dtx_mem_free(e);
}

/* Merges ids[n], n ≤ SHORT_PIECE, in place by looking for the smallest rank again and again; returns what is left. */
static int64_t merge_short(const struct dtx_tokenizer *t, int32_t *ids, int64_t n)
{
    uint32_t ranks[SHORT_PIECE]; /* of (i, i + 1); no merge: the largest number */
    for (int64_t i = 0; i + 1 < n; i++)
        ranks[i] = (uint32_t)dtx_pair_rank(t, ids[i], ids[i + 1]);
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best] || (DTX_MUTANT(bpe_rightmost_first) && ranks[i] == ranks[best]))
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        ids[best] = t->merges[ranks[best]].id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(n - best - 2) * sizeof *ids);
        if (best + 2 < n)
            memmove(ranks + best, ranks + best + 1, (size_t)(n - best - 2) * sizeof *ranks);
        n--;
        if (best + 1 < n)
            ranks[best] = (uint32_t)dtx_pair_rank(t, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = (uint32_t)dtx_pair_rank(t, ids[best - 1], ids[best]);
    }
    return n;
}

static void heap_push(struct dtx_encoder *e, uint64_t value)
{
    int64_t i = e->heap_n++;
    for (; i > 0 && e->heap[(i - 1) / 2] > value; i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = value;
}

static uint64_t heap_pop(struct dtx_encoder *e)
{
    uint64_t top = e->heap[0], last = e->heap[--e->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= e->heap_n)
            break;
        child += child + 1 < e->heap_n && e->heap[child + 1] < e->heap[child];
        if (e->heap[child] >= last)
            break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

static void push_pair(struct dtx_encoder *e, int32_t at)
{
    const struct symbol *s = &e->symbols[at];
    if (s->after < 0)
        return;
    int32_t rank = dtx_pair_rank(e->t, s->id, e->symbols[s->after].id);
    if (rank >= 0)
        heap_push(e, (uint64_t)rank << 32 | (uint32_t)at);
}

/* The heap gets n − 1 pairs and at most two more for each of the n − 1 merges. */
static enum dtx_status reserve_long(struct dtx_ctx *ctx, struct dtx_encoder *e, int64_t n)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, e->symbols, 0, n, sizeof *e->symbols, &e->symbol_capacity, &p));
    e->symbols = p;
    DTX_TRY(ctx, dtx_grow(ctx, e->heap, 0, 3 * n, sizeof *e->heap, &e->heap_capacity, &p));
    e->heap = p;
    return DTX_OK;
}

/* The same result as merge_short in O(n log n): pairs in a heap by (rank, position); a popped entry counts only when
 * the pair at its position still has that rank. */
static enum dtx_status merge_long(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *piece, int64_t n,
                                  struct dtx_ids *out)
{
    DTX_TRY(ctx, reserve_long(ctx, e, n));
    struct symbol *symbols = e->symbols;
    e->heap_n = 0;
    for (int64_t i = 0; i < n; i++)
        symbols[i] =
            (struct symbol){e->t->byte_id[(unsigned char)piece[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    for (int64_t i = 0; i + 1 < n; i++)
        push_pair(e, (int32_t)i);
    while (e->heap_n > 0) {
        uint64_t top = heap_pop(e);
        int32_t at = (int32_t)(uint32_t)top, rank = (int32_t)(top >> 32);
        struct symbol *s = &symbols[at];
        if (s->id < 0 || s->after < 0)
            continue;
        if (dtx_pair_rank(e->t, s->id, symbols[s->after].id) != rank && !DTX_MUTANT(bpe_stale_pairs_merged))
            continue;
        struct symbol *gone = &symbols[s->after];
        s->id = e->t->merges[rank].id;
        s->after = gone->after;
        gone->id = -1;
        if (s->after >= 0)
            symbols[s->after].before = at;
        push_pair(e, at);
        if (s->before >= 0)
            push_pair(e, s->before);
    }
    DTX_TRY(ctx, dtx_ids_reserve(ctx, out, n));
    for (int32_t i = 0; i >= 0; i = symbols[i].after)
        out->data[out->n++] = symbols[i].id;
    return DTX_OK;
}

static enum dtx_status encode_piece(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *piece, int64_t n,
                                    struct dtx_ids *out)
{
    if (n > SHORT_PIECE) {
        int32_t whole = e->t->ignore_merges ? dtx_tokenizer_find(e->t, piece, n) : -1;
        if (whole < 0)
            return merge_long(ctx, e, piece, n, out);
        DTX_TRY(ctx, dtx_ids_reserve(ctx, out, 1));
        out->data[out->n++] = whole;
        return DTX_OK;
    }
    DTX_TRY(ctx, dtx_ids_reserve(ctx, out, n));
    int32_t *ids = out->data + out->n;
    struct cached *entry = NULL;
    if (n <= CACHED_BYTES) {
        entry = &e->cache[dtx_hash(piece, (size_t)n, 0) % CACHE_ENTRIES];
        if (entry->n_bytes == n && memcmp(entry->bytes, piece, (size_t)n) == 0) {
            memcpy(ids, entry->ids, entry->n_ids * sizeof *ids);
            out->n += entry->n_ids;
            return DTX_OK;
        }
    }
    int64_t n_ids = 1;
    ids[0] = e->t->ignore_merges ? dtx_tokenizer_find(e->t, piece, n) : -1;
    if (ids[0] < 0) {
        for (int64_t i = 0; i < n; i++)
            ids[i] = e->t->byte_id[(unsigned char)piece[i]];
        n_ids = merge_short(e->t, ids, n);
    }
    if (entry && n_ids <= CACHED_IDS) {
        entry->n_bytes = (uint8_t)n;
        entry->n_ids = (uint8_t)n_ids;
        memcpy(entry->bytes, piece, (size_t)n);
        memcpy(entry->ids, ids, (size_t)n_ids * sizeof *ids);
    }
    out->n += n_ids;
    return DTX_OK;
}

enum dtx_status dtx_encoder_run(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *text, int64_t n,
                                struct dtx_ids *out, int64_t *invalid)
{
    if (dtx_utf8_valid(text, n) < n) {
        e->repaired.n = 0;
        DTX_TRY(ctx, dtx_utf8_repair(ctx, text, n, &e->repaired, invalid));
        text = e->repaired.data;
        n = e->repaired.n;
    }
    for (int64_t start = 0, end; start < n; start = end) {
        DTX_TRY(ctx, dtx_splitter_next(ctx, e->splitter, text, n, start, &end));
        if (end - start > MOST_PIECE)
            return dtx_fail(ctx, DTX_E_RANGE, "a piece of %lld bytes without a break at byte %lld",
                            (long long)(end - start), (long long)start);
        DTX_TRY(ctx, encode_piece(ctx, e, text + start, end - start, out));
    }
    return DTX_OK;
}
