/* A token file's index: the first byte is half the data's length in bytes, the rest the index. What opens is read to
 * its end, by positions and by documents. */
#include "data/source.h"
#include "tests/parse/parse.h"

static void use(struct dtx_ctx *ctx, struct dtx_source *f)
{
    const struct dtx_source_info *info = dtx_source_info(f);
    int32_t ids[512];
    int64_t first, last = 0, d, largest;
    PROMISE(info->tokens >= 0 && info->tokens <= 512 && info->documents >= 0);
    for (d = 0; d <= info->documents; d++) {
        if (dtx_source_document(ctx, f, d, &first) != DTX_OK)
            return;
        PROMISE(first >= last && first <= info->tokens);
        last = first;
    }
    PROMISE(last == info->tokens);
    for (int64_t i = 0; i < info->tokens; i++) {
        PROMISE(dtx_source_find(ctx, f, i, &d) == DTX_OK && d >= 0 && d < info->documents);
        PROMISE(dtx_source_document(ctx, f, d, &first) == DTX_OK && first <= i);
    }
    enum dtx_status read = dtx_source_read(ctx, f, 0, info->tokens, ids);
    dtx_error_clear(ctx);
    PROMISE((read == DTX_OK) == (dtx_source_verify(ctx, f, NULL, &largest) == DTX_OK));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char tokens[512] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9};
    struct dtx_ctx ctx;
    struct dtx_source *f;
    struct dtx_filepool *files;
    char path[512];
    if (n == 0)
        return 0;
    dtx_ctx_init(&ctx);
    parse_write("t.bin", tokens, 2 * (size_t)data[0], path);
    parse_write("t.idx", data + 1, n - 1, path);
    path[strlen(path) - 4] = '\0';
    PROMISE(dtx_filepool_create(&ctx, false, 0, &files) == DTX_OK);
    struct dtx_source_config config = {.files = files, .separator = -1};
    enum dtx_status status = dtx_source_open(&ctx, &config, path, &f);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_UNSUPPORTED);
    if (status == DTX_OK) {
        use(&ctx, f);
        dtx_source_close(f);
    }
    dtx_filepool_free(files);
    return 0;
}
