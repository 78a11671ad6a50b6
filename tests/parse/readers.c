/* The readers beside Megatron's: the first byte chooses. 0: an llm.c file. 1: two u64, the index of a .ds with three
 * tokens, then its metadata. 2: a .npy file, raw or NumPy's. What opens is read to its end. */
#include "data/source.h"
#include "tests/parse/parse.h"

static void use(struct dtx_ctx *ctx, struct dtx_source *s, size_t n)
{
    const struct dtx_source_info *info = dtx_source_info(s);
    int64_t first, last = 0, largest, next;
    int32_t id;
    PROMISE(info->tokens >= 0 && info->tokens <= (int64_t)n && info->documents >= -1 && info->documents <= 2);
    for (int64_t d = 0; d <= info->documents; d++) {
        PROMISE(dtx_source_document(ctx, s, d, &first) == DTX_OK && first >= last && first <= info->tokens);
        last = first;
    }
    PROMISE(info->documents < 0 || last == info->tokens);
    bool good = true;
    for (int64_t t = 0; t < info->tokens && t < 200; t++) {
        good &= dtx_source_read(ctx, s, t, 1, &id) == DTX_OK && id >= 0;
        if (dtx_source_next_document(ctx, s, t, 8, &next) == DTX_OK)
            PROMISE(next == -1 || (next >= t && next <= info->tokens));
        dtx_error_clear(ctx);
    }
    PROMISE(info->tokens > 200 || good == (dtx_source_verify(ctx, s, NULL, &largest) == DTX_OK));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"t.bin", "t.ds", "t.npy"};
    struct dtx_ctx ctx;
    struct dtx_filepool *files;
    struct dtx_source *s;
    char path[512], other[512];
    if (n == 0 || data[0] > 2 || (data[0] == 1 && n < 17))
        return 0;
    dtx_ctx_init(&ctx);
    if (data[0] == 1) {
        parse_write("t.ds.index", data + 1, 16, other);
        parse_write("t.ds.metadata", data + 17, n - 17, other);
        parse_write("t.ds", "\1\0\2\0\3", 6, path);
    } else {
        parse_write(names[data[0]], data + 1, n - 1, path);
    }
    PROMISE(dtx_filepool_create(&ctx, false, 0, &files) == DTX_OK);
    struct dtx_source_config config = {.files = files, .separator = 3, .vocab = data[0] == 2 ? 50000 : 0};
    enum dtx_status status = dtx_source_open(&ctx, &config, path, &s);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT ||
            (data[0] == 1 && status == DTX_E_CONFIG)); /* nothing says the type */
    if (status == DTX_OK) {
        use(&ctx, s, n);
        dtx_source_close(s);
    }
    dtx_filepool_free(files);
    return 0;
}
