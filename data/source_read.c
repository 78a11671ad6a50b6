/* Tokens and documents of a source: the same for all formats. */
#include <stdio.h>
#include <string.h>

#include "data/reader.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"

#define WIDEN(type, wide)                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        type v;                                                                                                        \
        memcpy(&v, raw + i * (int64_t)sizeof v, sizeof v);                                                             \
        out[i] = (int32_t)v;                                                                                           \
        bad |= (wide)v >= (wide)limit;                                                                                 \
    }                                                                                                                  \
    break

/* raw[n] tokens to int32; true when all are in [0, limit), limit ≤ 2^31. */
static bool widen(const struct dtx_token_type *t, const char *raw, int64_t n, int64_t limit, int32_t *out)
{
    int bad = 0;
    bool is_signed = t->name[0] == 'i';
    switch (t->bytes * 2 + is_signed) {
    case 2:
        WIDEN(uint8_t, uint32_t);
    case 3:
        WIDEN(int8_t, uint32_t);
    case 4:
        WIDEN(uint16_t, uint32_t);
    case 5:
        WIDEN(int16_t, uint32_t);
    case 8:
        WIDEN(uint32_t, uint32_t);
    case 9:
        WIDEN(int32_t, uint32_t);
    default:
        WIDEN(int64_t, uint64_t);
    }
    return !bad;
}

/* One token as it stands in the file; negative for a u64 over 2^63. */
static int64_t raw_value(const struct dtx_token_type *t, const char *p)
{
    int32_t v = 0;
    int64_t wide = 0;
    if (t->bytes == 8)
        memcpy(&wide, p, sizeof wide);
    else
        widen(t, p, 1, 0, &v);
    return t->bytes == 8 ? wide : strcmp(t->name, "u32") == 0 ? (int64_t)(uint32_t)v : v;
}

/* raw holds tokens from `first` on, one of which is out of range: says which. */
static enum dtx_status fail_id(struct dtx_ctx *ctx, struct dtx_source *s, const char *raw, int64_t first, int64_t limit)
{
    int64_t i = 0, value, document;
    for (;; i++) {
        value = raw_value(s->type, raw + i * s->type->bytes);
        if (value < 0 || value >= limit)
            break;
    }
    char where[64] = "";
    struct dtx_ctx scratch;
    dtx_ctx_init_child(&scratch, ctx);
    if (s->info.documents >= 0 && dtx_source_find(&scratch, s, first + i, &document) == DTX_OK)
        snprintf(where, sizeof where, ", document %lld", (long long)document);
    return dtx_fail(ctx, DTX_E_FORMAT,
                    "%s: id %lld at byte offset %lld (token %lld%s) is outside the vocabulary of %lld", s->data.path,
                    (long long)value, (long long)(s->data_at + (first + i) * s->type->bytes), (long long)(first + i),
                    where, (long long)limit);
}

enum dtx_status dtx_source_read(struct dtx_ctx *ctx, struct dtx_source *s, int64_t first, int64_t n, int32_t *out)
{
    if (first < 0 || n < 0 || first > s->info.tokens - n)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: tokens %lld … %lld are wanted, it has %lld", s->data.path,
                        (long long)first, (long long)(first + n), (long long)s->info.tokens);
    _Alignas(64) char raw[32768];
    int bytes = s->type->bytes;
    int64_t limit = s->vocab > 0 ? dtx_min64(s->vocab, INT64_C(1) << 31) : INT64_C(1) << 31;
    int64_t block = (int64_t)sizeof raw / bytes;
    if (DTX_MUTANT(source_ids_unchecked))
        limit = INT64_C(1) << 31;
    for (int64_t done = 0; done < n; done += block) {
        int64_t part = dtx_min64(block, n - done), at = s->data_at + (first + done) * bytes;
        if (DTX_MUTANT(source_offset_32))
            at = (uint32_t)at;
        DTX_TRY(ctx, dtx_poolfile_read(ctx, &s->data, raw, (size_t)(part * bytes), at));
        if (!widen(s->type, raw, part, limit, out + done))
            return fail_id(ctx, s, raw, first + done, limit);
    }
    return DTX_OK;
}

void dtx_source_cache(struct dtx_ctx *ctx, struct dtx_source *s, const char *dir)
{
    dtx_poolfile_cache(ctx, &s->data, dir);
}

void dtx_source_advise(struct dtx_source *s, int64_t first, int64_t n)
{
    dtx_poolfile_advise(&s->data, (size_t)(n * s->type->bytes), s->data_at + first * s->type->bytes);
}

enum dtx_status dtx_source_document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t d, int64_t *first)
{
    if (s->info.documents < 0)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: document %lld is wanted, it has no index of documents", s->data.path,
                        (long long)d);
    if (d < 0 || d > s->info.documents)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: document %lld is wanted, it has %lld", s->index.path, (long long)d,
                        (long long)s->info.documents);
    if (d < s->info.documents)
        return s->reader->document(ctx, s, d, first);
    *first = s->info.tokens;
    return DTX_OK;
}

enum dtx_status dtx_source_find(struct dtx_ctx *ctx, struct dtx_source *s, int64_t token, int64_t *d)
{
    if (token < 0 || token >= s->info.tokens)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: token %lld is wanted, it has %lld", s->data.path, (long long)token,
                        (long long)s->info.tokens);
    int64_t low = 0, high = s->info.documents; /* start(low) ≤ token < start(high) */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, first = 0;
        DTX_TRY(ctx, dtx_source_document(ctx, s, middle, &first));
        if (first <= token)
            low = middle;
        else
            high = middle;
    }
    *d = low;
    return DTX_OK;
}

enum { BLOCK = 4096 };

/* Behind the first separator at or after token − 1. */
static enum dtx_status search_separator(struct dtx_ctx *ctx, struct dtx_source *s, int64_t token, int64_t last,
                                        int64_t *start)
{
    int32_t ids[BLOCK];
    for (int64_t t = token - 1; t < last; t += BLOCK) {
        int64_t part = dtx_min64(BLOCK, last - t);
        DTX_TRY(ctx, dtx_source_read(ctx, s, t, part, ids));
        for (int64_t i = 0; i < part; i++)
            if (ids[i] == s->separator) {
                *start = t + i + 1;
                return DTX_OK;
            }
    }
    *start = last == s->info.tokens ? last : -1;
    return DTX_OK;
}

enum dtx_status dtx_source_next_document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t token, int64_t within,
                                         int64_t *start)
{
    int64_t tokens = s->info.tokens, d, first;
    if (token < 0 || token > tokens || within < 0)
        return dtx_fail(ctx, DTX_E_RANGE, "%s: a document's start at token %lld or after it is wanted, it has %lld",
                        s->data.path, (long long)token, (long long)tokens);
    if (token == 0 || token == tokens) {
        *start = token;
        return DTX_OK;
    }
    int64_t last = within < tokens - token ? token + within : tokens;
    if (s->info.documents < 0 && s->separator < 0) {
        *start = last == tokens ? tokens : -1;
        return DTX_OK;
    }
    if (s->info.documents < 0)
        return search_separator(ctx, s, token, last, start);
    DTX_TRY(ctx, dtx_source_find(ctx, s, token - 1, &d));
    DTX_TRY(ctx, dtx_source_document(ctx, s, d + 1, &first));
    if (first < token)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: document %lld starts at token %lld, the one before it at %lld or later",
                        s->index.path, (long long)(d + 1), (long long)first, (long long)token - 1);
    *start = first <= last ? first : -1;
    return DTX_OK;
}

enum dtx_status dtx_source_verify(struct dtx_ctx *ctx, struct dtx_source *s, struct dtx_meter *progress,
                                  int64_t *largest)
{
    if (s->reader->check)
        DTX_TRY(ctx, s->reader->check(ctx, s));
    int32_t ids[BLOCK];
    int64_t max = -1;
    for (int64_t t = 0; t < s->info.tokens; t += BLOCK) {
        int64_t part = dtx_min64(BLOCK, s->info.tokens - t);
        DTX_TRY(ctx, dtx_source_read(ctx, s, t, part, ids));
        for (int64_t i = 0; i < part; i++)
            max = dtx_max64(max, ids[i]);
        if (progress)
            dtx_meter_add(progress, part * s->type->bytes);
    }
    *largest = max;
    return DTX_OK;
}
