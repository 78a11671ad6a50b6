/* JSON lines, packed or not: the bytes as a file, in documents, each line's text taken; twice, the second time from the
 * middle on, as a continued call does. */
#include "data/jsonline.h"
#include "data/textfile.h"
#include "data/utf8.h"
#include "tests/parse/parse.h"

enum { MOST = 64 };

/* Reads all; ends[n] gets where documents end. */
static enum dtx_status read_all(struct dtx_ctx *ctx, const char *path, int64_t skip, int64_t lines, int64_t *ends,
                                int64_t *numbers, int *n)
{
    struct dtx_textfile *file;
    struct dtx_text_part part;
    struct dtx_bytes text = {0};
    bool more = true;
    DTX_TRY(ctx, dtx_textfile_open(ctx, path, DTX_SPLIT_LINE, -1, &file));
    enum dtx_status status = skip > 0 ? dtx_textfile_skip(ctx, file, skip, lines) : DTX_OK;
    for (*n = 0; status == DTX_OK;) {
        status = dtx_textfile_next(ctx, file, &part, &more);
        if (status != DTX_OK || !more)
            break;
        char why[DTX_JSONLINE_WHY];
        int64_t invalid = 0;
        text.n = 0;
        PROMISE(part.n > 0 && part.ends && part.line > 0);
        PROMISE(dtx_jsonline_text(ctx, part.text, part.n, "text", &text, &invalid, why) == DTX_OK);
        PROMISE(dtx_utf8_valid(text.data, text.n) == text.n);
        PROMISE(!why[0] || text.n == 0);
        PROMISE(invalid > 0 || dtx_utf8_valid(part.text, part.n) == part.n);
        if (*n == MOST)
            break;
        ends[*n] = dtx_textfile_position(file);
        numbers[(*n)++] = part.line;
    }
    dtx_bytes_free(&text);
    dtx_textfile_close(file);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    char path[512];
    int64_t ends[MOST], again[MOST], numbers[MOST], numbers_again[MOST];
    int count, rest;
    dtx_ctx_init(&ctx);
    parse_write("t.jsonl", data, n, path);
    enum dtx_status status = read_all(&ctx, path, 0, 0, ends, numbers, &count);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
    if (status != DTX_OK || count < 2)
        return 0;
    int half = count / 2;
    PROMISE(read_all(&ctx, path, ends[half - 1], numbers[half - 1], again, numbers_again, &rest) == DTX_OK);
    for (int i = half; i < count; i++)
        PROMISE(again[i - half] == ends[i] && numbers_again[i - half] == numbers[i]);
    return 0;
}
