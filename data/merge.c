#include "data/merge.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* A symbol of a long piece. Links are positions; a symbol that was merged into its left neighbour has id −1. */
struct symbol {
    int32_t id, before, after;
};

struct dtx_merge_scratch {
    struct symbol *symbols;
    int64_t symbol_capacity;
    uint64_t *heap; /* rank << 32 | position, smallest first */
    int64_t heap_n, heap_capacity;
};

int64_t dtx_merge_short(const struct dtx_tokenizer *t, const char *piece, int64_t n, int32_t *ids)
{
    uint64_t pairs[DTX_SHORT_PIECE]; /* of (i, i + 1) */
    for (int64_t i = 0; i < n; i++)
        ids[i] = t->byte_id[(unsigned char)piece[i]];
    for (int64_t i = 0; i + 1 < n; i++)
        pairs[i] = t->byte_pairs[(size_t)(unsigned char)piece[i] << 8 | (unsigned char)piece[i + 1]];
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (pairs[i] >> 32 < pairs[best] >> 32 ||
                (DTX_MUTANT(bpe_rightmost_first) && pairs[i] >> 32 == pairs[best] >> 32))
                best = i;
        if (pairs[best] == UINT64_MAX)
            break;
        ids[best] = (int32_t)(uint32_t)pairs[best];
        n--;
        for (int64_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            pairs[i - 1] = pairs[i];
        }
        if (best + 1 < n)
            pairs[best] = dtx_pair_rank(t, ids[best], ids[best + 1]);
        if (best > 0)
            pairs[best - 1] = dtx_pair_rank(t, ids[best - 1], ids[best]);
    }
    return n;
}

enum dtx_status dtx_merge_scratch_create(struct dtx_ctx *ctx, struct dtx_merge_scratch **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_merge_scratch), &p));
    *out = p;
    return DTX_OK;
}

void dtx_merge_scratch_free(struct dtx_merge_scratch *m)
{
    if (!m)
        return;
    dtx_mem_free(m->symbols);
    dtx_mem_free(m->heap);
    dtx_mem_free(m);
}

static void heap_push(struct dtx_merge_scratch *m, uint64_t value)
{
    int64_t i = m->heap_n++;
    for (; i > 0 && m->heap[(i - 1) / 2] > value; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = value;
}

static uint64_t heap_pop(struct dtx_merge_scratch *m)
{
    uint64_t top = m->heap[0], last = m->heap[--m->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= m->heap_n)
            break;
        child += child + 1 < m->heap_n && m->heap[child + 1] < m->heap[child];
        if (m->heap[child] >= last)
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static void push_pair(struct dtx_merge_scratch *m, const struct dtx_tokenizer *t, int32_t at)
{
    const struct symbol *s = &m->symbols[at];
    if (s->after < 0)
        return;
    uint64_t pair = dtx_pair_rank(t, s->id, m->symbols[s->after].id);
    if (pair != UINT64_MAX)
        heap_push(m, pair >> 32 << 32 | (uint32_t)at);
}

/* The heap gets n − 1 pairs and at most two more for each of the n − 1 merges. */
static enum dtx_status start_long(struct dtx_ctx *ctx, struct dtx_merge_scratch *m, const struct dtx_tokenizer *t,
                                  const char *piece, int64_t n)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, m->symbols, 0, n, sizeof *m->symbols, &m->symbol_capacity, &p));
    m->symbols = p;
    DTX_TRY(ctx, dtx_grow(ctx, m->heap, 0, 3 * n, sizeof *m->heap, &m->heap_capacity, &p));
    m->heap = p;
    m->heap_n = 0;
    for (int64_t i = 0; i < n; i++)
        m->symbols[i] =
            (struct symbol){t->byte_id[(unsigned char)piece[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    for (int64_t i = 0; i + 1 < n; i++)
        push_pair(m, t, (int32_t)i);
    return DTX_OK;
}

/* Pairs in a heap by (rank, position); a popped entry counts only when the pair at its position still has that rank. */
enum dtx_status dtx_merge_long(struct dtx_ctx *ctx, struct dtx_merge_scratch *m, const struct dtx_tokenizer *t,
                               const char *piece, int64_t n, struct dtx_ids *out)
{
    DTX_TRY(ctx, start_long(ctx, m, t, piece, n));
    struct symbol *symbols = m->symbols;
    while (m->heap_n > 0) {
        uint64_t top = heap_pop(m);
        int32_t at = (int32_t)(uint32_t)top;
        struct symbol *s = &symbols[at];
        if (s->id < 0 || s->after < 0)
            continue;
        struct symbol *gone = &symbols[s->after];
        uint64_t pair = dtx_pair_rank(t, s->id, gone->id);
        if (pair == UINT64_MAX || (pair >> 32 != top >> 32 && !DTX_MUTANT(bpe_stale_pairs_merged)))
            continue;
        s->id = (int32_t)(uint32_t)pair;
        s->after = gone->after;
        gone->id = -1;
        if (s->after >= 0)
            symbols[s->after].before = at;
        push_pair(m, t, at);
        if (s->before >= 0)
            push_pair(m, t, s->before);
    }
    DTX_TRY(ctx, dtx_ids_reserve(ctx, out, n));
    for (int32_t i = 0; i >= 0; i = symbols[i].after)
        out->data[out->n++] = symbols[i].id;
    return DTX_OK;
}
