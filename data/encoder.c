/* Text to ids: added tokens, normal form, pieces, a cache of short pieces in front of merging. */
#include <string.h>

#include "data/added.h"
#include "data/merge.h"
#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { BATCH = 256, CACHE_BITS = 16, CACHED_BYTES = 15, CACHED_IDS = 12, MOST_PIECE = 1 << 30 };

/* A piece of up to 15 bytes is its own key: the bytes, zeros behind them, the length in the last byte. One cache line.
 * Key 0: empty. Fewer ids than there is room for: the last one is −number. */
struct cached {
    uint64_t key[2];
    int32_t ids[CACHED_IDS];
};

struct cached_key {
    uint64_t key[2];
    struct cached *place;
};

struct dtx_encoder {
    const struct dtx_tokenizer *t;
    struct dtx_added_set *added[2]; /* for text as it is, for normalized text; NULL: nothing to look for */
    struct dtx_splitter *splitter;
    struct dtx_merge_scratch *merge;
    struct cached *cache; /* [1 << CACHE_BITS] */
    struct dtx_bytes repaired, normal[2];
    struct dtx_normal_scratch scratch;
    struct dtx_piece_span pieces[BATCH];
    struct cached_key keys[BATCH]; /* of the batch's short pieces */
};

enum dtx_status dtx_encoder_special(struct dtx_ctx *ctx, struct dtx_encoder *e, enum dtx_special_text special)
{
    for (int i = 0; i < 2; i++) {
        struct dtx_added_set *set;
        DTX_TRY(ctx, dtx_added_set_create(ctx, e->t, i == 1, special, &set));
        dtx_added_set_free(e->added[i]);
        e->added[i] = set;
    }
    return DTX_OK;
}

enum dtx_status dtx_encoder_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, struct dtx_encoder **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_encoder), &p));
    struct dtx_encoder *e = p;
    e->t = t;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_splitter_create(ctx, t->pattern, &e->splitter), fail);
    DTX_TRY_GOTO(ctx, status, dtx_merge_scratch_create(ctx, &e->merge), fail);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, INT64_C(1) << CACHE_BITS, sizeof *e->cache, &p), fail);
    e->cache = p;
    DTX_TRY_GOTO(ctx, status, dtx_encoder_special(ctx, e, DTX_SPECIAL_PLAIN), fail);
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
    dtx_added_set_free(e->added[0]);
    dtx_added_set_free(e->added[1]);
    dtx_splitter_free(e->splitter);
    dtx_merge_scratch_free(e->merge);
    dtx_mem_free(e->cache);
    dtx_bytes_free(&e->repaired);
    dtx_bytes_free(&e->normal[0]);
    dtx_bytes_free(&e->normal[1]);
    dtx_normal_scratch_free(&e->scratch);
    dtx_mem_free(e);
}

/* Key of piece[n], n ≤ CACHED_BYTES, with `room` readable bytes from its start on. */
static inline void make_key(const char *piece, int64_t n, int64_t room, uint64_t key[2])
{
    if (room >= 16) {
        memcpy(key, piece, 16);
        uint64_t low = n >= 8 ? UINT64_MAX : (UINT64_C(1) << 8 * n) - 1;
        uint64_t high = n > 8 ? (UINT64_C(1) << 8 * (n - 8)) - 1 : 0;
        key[0] &= low;
        key[1] &= high;
    } else {
        key[0] = key[1] = 0;
        memcpy(key, piece, (size_t)n);
    }
    if (!DTX_MUTANT(cache_key_without_length))
        key[1] |= (uint64_t)n << 56;
}

static inline uint64_t place_of(const uint64_t key[2])
{
    uint64_t h = (key[0] ^ key[1] * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return (h ^ h >> 32) * UINT64_C(0xD6E8FEB86659FD93) >> (64 - CACHE_BITS);
}

/* Keys of the batch; their lines of the cache are on their way when they are looked at. */
static void prepare(struct dtx_encoder *e, const char *text, int64_t end, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const struct dtx_piece_span *piece = &e->pieces[i];
        if (piece->n > CACHED_BYTES)
            continue;
        make_key(text + piece->first, piece->n, end - piece->first, e->keys[i].key);
        e->keys[i].place = &e->cache[place_of(e->keys[i].key)];
        __builtin_prefetch(e->keys[i].place);
    }
}

/* Ids of a piece that no cache knows; `ids` has room for n ≤ DTX_SHORT_PIECE. */
static int64_t merge_piece(const struct dtx_tokenizer *t, const char *piece, int64_t n, int32_t *ids)
{
    ids[0] = t->ignore_merges && !DTX_MUTANT(ignore_merges_ignored) ? dtx_tokenizer_find(t, piece, n) : -1;
    return ids[0] >= 0 ? 1 : dtx_merge_short(t, piece, n, ids);
}

/* A piece that is not at its place in the cache takes it. */
static int64_t encode_new(struct dtx_encoder *e, const struct cached_key *key, const char *piece, int64_t n,
                          int32_t *ids)
{
    struct cached *line = key->place;
    int64_t n_ids = merge_piece(e->t, piece, n, ids);
    if (n_ids > CACHED_IDS)
        return n_ids;
    memcpy(line->key, key->key, sizeof key->key);
    memcpy(line->ids, ids, (size_t)n_ids * sizeof *ids);
    if (n_ids < CACHED_IDS)
        line->ids[CACHED_IDS - 1] = (int32_t)-n_ids;
    return n_ids;
}

static enum dtx_status encode_large(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *piece, int64_t n,
                                    struct dtx_ids *out)
{
    if (n > MOST_PIECE)
        return dtx_fail(ctx, DTX_E_RANGE, "a piece of %lld bytes without a break", (long long)n);
    int32_t whole = e->t->ignore_merges ? dtx_tokenizer_find(e->t, piece, n) : -1;
    if (whole < 0)
        return dtx_merge_long(ctx, e->merge, e->t, piece, n, out);
    DTX_TRY(ctx, dtx_ids_reserve(ctx, out, 1));
    out->data[out->n++] = whole;
    return DTX_OK;
}

static enum dtx_status encode_batch(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *text, int64_t n,
                                    struct dtx_ids *out)
{
    for (int64_t i = 0; i < n; i++) {
        const struct dtx_piece_span *piece = &e->pieces[i];
        if (piece->n > DTX_SHORT_PIECE) {
            DTX_TRY(ctx, encode_large(ctx, e, text + piece->first, piece->n, out));
            continue;
        }
        if (out->capacity - out->n < DTX_SHORT_PIECE)
            DTX_TRY(ctx, dtx_ids_reserve(ctx, out, DTX_SHORT_PIECE));
        int32_t *ids = out->data + out->n;
        if (piece->n > CACHED_BYTES) {
            out->n += merge_piece(e->t, text + piece->first, piece->n, ids);
            continue;
        }
        const struct cached_key *key = &e->keys[i];
        const struct cached *line = key->place;
        if (line->key[0] == key->key[0] && line->key[1] == key->key[1]) {
            int32_t last = line->ids[CACHED_IDS - 1];
            int64_t n_ids = last < 0 ? -last : CACHED_IDS;
            memcpy(ids, line->ids, 4 * sizeof *ids); /* most have no more */
            if (n_ids > 4)
                memcpy(ids + 4, line->ids + 4, sizeof line->ids - 4 * sizeof *ids);
            out->n += n_ids;
        } else {
            out->n += encode_new(e, key, text + piece->first, piece->n, ids);
        }
    }
    return DTX_OK;
}

static enum dtx_status encode_pieces(struct dtx_ctx *ctx, struct dtx_encoder *e, const char *text, int64_t n,
                                     struct dtx_ids *out)
{
    int64_t pieces;
    dtx_splitter_start(e->splitter, text, n);
    for (;;) {
        DTX_TRY(ctx, dtx_splitter_next(ctx, e->splitter, e->pieces, BATCH, &pieces));
        if (pieces == 0)
            return DTX_OK;
        prepare(e, text, n, pieces);
        DTX_TRY(ctx, encode_batch(ctx, e, text, pieces, out));
    }
}

static enum dtx_status encode_part(struct dtx_ctx *ctx, struct dtx_encoder *e, int stage, const char *text, int64_t n,
                                   struct dtx_ids *out);

/* Looks for the added tokens of a stage; what lies between them goes to the next one. */
static enum dtx_status cut_added(struct dtx_ctx *ctx, struct dtx_encoder *e, int stage, const char *text, int64_t n,
                                 struct dtx_ids *out)
{
    struct dtx_added_match match;
    int64_t at = 0, done = 0;
    while (dtx_added_find(e->added[stage], text, n, done, &at, &match)) {
        if (match.from > done)
            DTX_TRY(ctx, encode_part(ctx, e, stage + 1, text + done, match.from - done, out));
        DTX_TRY(ctx, dtx_ids_reserve(ctx, out, 1));
        out->data[out->n++] = match.id;
        done = match.to;
    }
    return done < n ? encode_part(ctx, e, stage + 1, text + done, n - done, out) : DTX_OK;
}

/* text[n] in the tokenizer's normal forms: itself, or in one of the encoder's buffers. */
static enum dtx_status normalize(struct dtx_ctx *ctx, struct dtx_encoder *e, const char **text, int64_t *n)
{
    const struct dtx_unicode *u = dtx_pattern_unicode(e->t->pattern);
    for (int i = 0; i < e->t->n_forms; i++) {
        if (dtx_normal_prefix(u, e->t->forms[i], *text, *n) == *n)
            continue;
        struct dtx_bytes *to = &e->normal[*text == e->normal[0].data];
        to->n = 0;
        DTX_TRY(ctx, dtx_normalize(ctx, u, e->t->forms[i], *text, *n, &e->scratch, to));
        *text = to->data;
        *n = to->n;
    }
    return DTX_OK;
}

/* Stage 0: text as it is; 1: between the first added tokens; 2: pieces. */
static enum dtx_status encode_part(struct dtx_ctx *ctx, struct dtx_encoder *e, int stage, const char *text, int64_t n,
                                   struct dtx_ids *out)
{
    if (stage == 1)
        DTX_TRY(ctx, normalize(ctx, e, &text, &n));
    if (stage < 2)
        return e->added[stage] ? cut_added(ctx, e, stage, text, n, out) : encode_part(ctx, e, stage + 1, text, n, out);
    return encode_pieces(ctx, e, text, n, out);
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
    return encode_part(ctx, e, 0, text, n, out);
}
