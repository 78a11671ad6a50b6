#include "data/bpe_count.h"

#include <string.h>

#include "data/utf8.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"

enum { PIECES = 256 };

void dtx_counter_free(struct dtx_counter *c)
{
    dtx_bytes_free(&c->text);
    dtx_mem_free(c->pieces);
    dtx_mem_free(c->table);
    *c = (struct dtx_counter){0};
}

/* Twice as many slots as there will be pieces. */
static enum dtx_status grow_table(struct dtx_ctx *ctx, struct dtx_counter *c)
{
    int64_t size = c->table ? 4 * (c->mask + 1) : 1 << 14;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, size, sizeof *c->table, &p));
    memset(p, 0xff, (size_t)size * sizeof *c->table);
    dtx_mem_free(c->table);
    c->table = p;
    c->mask = size - 1;
    for (int64_t i = 0; i < c->n; i++) {
        uint64_t slot = c->pieces[i].hash;
        while (c->table[slot & (uint64_t)c->mask] >= 0)
            slot++;
        c->table[slot & (uint64_t)c->mask] = (int32_t)i;
    }
    return DTX_OK;
}

enum dtx_status dtx_counter_add(struct dtx_ctx *ctx, struct dtx_counter *c, const char *piece, int64_t n, int64_t times)
{
    if (!c->table || 2 * c->n > c->mask)
        DTX_TRY(ctx, grow_table(ctx, c));
    uint64_t hash = dtx_hash(piece, (size_t)n, 0), slot = hash;
    for (;; slot++) {
        int32_t i = c->table[slot & (uint64_t)c->mask];
        if (i < 0)
            break;
        struct dtx_piece *known = &c->pieces[i];
        if (known->hash == hash && known->n == n && memcmp(c->text.data + known->first, piece, (size_t)n) == 0) {
            known->count += times;
            return DTX_OK;
        }
    }
    if (c->n == INT32_MAX)
        return dtx_fail(ctx, DTX_E_RANGE, "more than 2^31 different pieces of text");
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, c->pieces, c->n, c->n + 1, sizeof *c->pieces, &c->capacity, &p));
    c->pieces = p;
    int64_t first = c->text.n;
    DTX_TRY(ctx, dtx_bytes_append(ctx, &c->text, piece, n));
    c->pieces[c->n] = (struct dtx_piece){first, times, hash, (int32_t)n};
    c->table[slot & (uint64_t)c->mask] = (int32_t)c->n++;
    return DTX_OK;
}

enum dtx_status dtx_counter_text(struct dtx_ctx *ctx, struct dtx_counter *c, struct dtx_splitter *splitter,
                                 const char *text, int64_t n)
{
    struct dtx_bytes repaired = {0};
    int64_t replaced = 0;
    enum dtx_status status = DTX_OK;
    if (dtx_utf8_valid(text, n) < n) {
        DTX_TRY_GOTO(ctx, status, dtx_utf8_repair(ctx, text, n, &repaired, &replaced), done);
        text = repaired.data;
        n = repaired.n;
    }
    struct dtx_piece_span pieces[PIECES];
    int64_t found = 1;
    dtx_splitter_start(splitter, text, n);
    while (found > 0) {
        DTX_TRY_GOTO(ctx, status, dtx_splitter_next(ctx, splitter, pieces, PIECES, &found), done);
        for (int64_t i = 0; i < found; i++)
            for (int64_t at = pieces[i].first, end = at + pieces[i].n; at < end; at += DTX_PIECE_MOST)
                DTX_TRY_GOTO(ctx, status, dtx_counter_add(ctx, c, text + at, dtx_min64(DTX_PIECE_MOST, end - at), 1),
                             done);
    }
done:
    dtx_bytes_free(&repaired);
    return status;
}

enum dtx_status dtx_counter_merge(struct dtx_ctx *ctx, struct dtx_counter *c, const struct dtx_counter *from)
{
    for (int64_t i = 0; i < from->n; i++)
        DTX_TRY(ctx, dtx_counter_add(ctx, c, from->text.data + from->pieces[i].first, from->pieces[i].n,
                                     from->pieces[i].count));
    return DTX_OK;
}
