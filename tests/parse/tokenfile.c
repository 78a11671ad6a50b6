/* A token file's index: the first byte is half the data's length in bytes, the rest the index. What opens is read to
 * its end, by positions and by documents. */
#include "data/tokenfile.h"
#include "tests/parse/parse.h"

static void use(struct dtx_ctx *ctx, const struct dtx_tokenfile *f)
{
    const struct dtx_tokenfile_info *info = dtx_tokenfile_info(f);
    int32_t ids[512];
    int64_t first, last = 0, d, largest;
    PROMISE(info->tokens >= 0 && info->tokens <= 512 && info->documents >= 0);
    for (d = 0; d <= info->documents; d++) {
        if (dtx_tokenfile_document(ctx, f, d, &first) != DTX_OK)
            return;
        PROMISE(first >= last && first <= info->tokens);
        last = first;
    }
    PROMISE(last == info->tokens);
    for (int64_t i = 0; i < info->tokens; i++) {
        PROMISE(dtx_tokenfile_find(ctx, f, i, &d) == DTX_OK && d >= 0 && d < info->documents);
        PROMISE(dtx_tokenfile_document(ctx, f, d, &first) == DTX_OK && first <= i);
    }
    enum dtx_status read = dtx_tokenfile_read(ctx, f, 0, info->tokens, ids);
    dtx_error_clear(ctx);
    PROMISE((read == DTX_OK) == (dtx_tokenfile_verify(ctx, f, &largest) == DTX_OK));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char tokens[512] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9};
    struct dtx_ctx ctx;
    struct dtx_tokenfile *f;
    char path[512];
    if (n == 0)
        return 0;
    dtx_ctx_init(&ctx);
    parse_write("t.bin", tokens, 2 * (size_t)data[0], path);
    parse_write("t.idx", data + 1, n - 1, path);
    path[strlen(path) - 4] = '\0';
    enum dtx_status status = dtx_tokenfile_open(&ctx, path, 0, &f);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED);
    if (status == DTX_OK) {
        use(&ctx, f);
        dtx_tokenfile_close(f);
    }
    return 0;
}
