/* tokenizer.json and vocab.bpe. What loads encodes any text to ids that decode to it (its invalid parts replaced). */
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "tests/parse/parse.h"

static void use(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *text, int64_t n)
{
    struct dtx_encoder *e;
    struct dtx_ids ids = {0};
    struct dtx_bytes back = {0};
    int64_t invalid = 0;
    PROMISE(dtx_encoder_create(ctx, t, &e) == DTX_OK);
    PROMISE(dtx_encoder_run(ctx, e, text, n, &ids, &invalid) == DTX_OK);
    for (int64_t i = 0; i < ids.n; i++)
        PROMISE(ids.data[i] >= 0 && ids.data[i] < dtx_tokenizer_vocab(t));
    PROMISE(dtx_tokenizer_decode(ctx, t, ids.data, ids.n, &back) == DTX_OK);
    PROMISE(invalid > 0 || (back.n == n && (n == 0 || memcmp(back.data, text, (size_t)n) == 0)));
    (void)dtx_tokenizer_hash(t);
    dtx_ids_free(&ids);
    dtx_bytes_free(&back);
    dtx_encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    struct dtx_tokenizer *t;
    char path[512];
    dtx_ctx_init(&ctx);
    parse_write("tokenizer", data, n, path);
    enum dtx_status status = dtx_tokenizer_load(&ctx, path, &t);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED || status == DTX_E_MEMORY);
    if (status == DTX_OK) {
        use(&ctx, t, (const char *)data, (int64_t)(n < 256 ? n : 256));
        dtx_tokenizer_free(t);
    }
    return 0;
}
