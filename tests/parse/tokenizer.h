/* What the fuzzers of tokenizers do with one that loads: it encodes any text to ids that decode to it (its invalid
 * parts replaced), unless it normalizes, drops or strips; a pattern may be too slow for a text, and says so. */
#ifndef DTX_TESTS_PARSE_TOKENIZER_H
#define DTX_TESTS_PARSE_TOKENIZER_H

#include "data/tokenizer_build.h"
#include "tests/parse/parse.h"

static inline bool parse_keeps_text(const struct dtx_tokenizer *t)
{
    bool keeps = t->n_forms == 0 && !strstr(dtx_tokenizer_pattern(t), " (removed");
    for (int64_t i = 0; i < t->n_added; i++)
        keeps &= !t->added[i].lstrip && !t->added[i].rstrip;
    return keeps;
}

static inline void parse_encode(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, enum dtx_special_text special,
                                const char *text, int64_t n)
{
    struct dtx_encoder *e;
    struct dtx_ids ids = {0};
    struct dtx_bytes back = {0};
    int64_t invalid = 0;
    PROMISE(dtx_encoder_create(ctx, t, &e) == DTX_OK);
    PROMISE(dtx_encoder_special(ctx, e, special) == DTX_OK);
    enum dtx_status status = dtx_encoder_run(ctx, e, text, n, &ids, &invalid);
    PROMISE(status == DTX_OK || status == DTX_E_LIBRARY || status == DTX_E_UNSUPPORTED);
    for (int64_t i = 0; i < ids.n; i++)
        PROMISE(ids.data[i] >= 0 && ids.data[i] < dtx_tokenizer_vocab(t));
    PROMISE(dtx_tokenizer_decode(ctx, t, ids.data, ids.n, &back) == DTX_OK);
    PROMISE(status != DTX_OK || invalid > 0 || !parse_keeps_text(t) ||
            (back.n == n && (n == 0 || memcmp(back.data, text, (size_t)n) == 0)));
    dtx_ids_free(&ids);
    dtx_bytes_free(&back);
    dtx_encoder_free(e);
}

/* Loads `path` and encodes the first bytes of the file as a text. */
static inline void parse_tokenizer(const char *path, const char *text, int64_t n)
{
    struct dtx_ctx ctx;
    struct dtx_tokenizer *t;
    dtx_ctx_init(&ctx);
    enum dtx_status status = dtx_tokenizer_load(&ctx, path, &t);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED || status == DTX_E_MEMORY);
    if (status != DTX_OK)
        return;
    parse_encode(&ctx, t, DTX_SPECIAL_PLAIN, text, n);
    parse_encode(&ctx, t, DTX_SPECIAL_TOKENS, text, n);
    (void)dtx_tokenizer_hash(t);
    dtx_tokenizer_free(t);
}

#endif
