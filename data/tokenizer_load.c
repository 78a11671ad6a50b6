/* A tokenizer file of either format, told apart by its content. */
#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenizer_formats.h"

enum { MOST_FILE_BYTES = 1 << 30 };

static enum dtx_status read_whole(struct dtx_ctx *ctx, const char *path, struct dtx_bytes *out)
{
    int fd;
    int64_t bytes;
    DTX_TRY(ctx, dtx_file_open(ctx, path, &fd, &bytes));
    enum dtx_status status;
    if (bytes > MOST_FILE_BYTES)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes: not a tokenizer", path, (long long)bytes);
    else
        status = dtx_bytes_reserve(ctx, out, bytes);
    if (status == DTX_OK)
        status = dtx_file_read_at(ctx, fd, path, out->data, (size_t)bytes, 0);
    out->n = status == DTX_OK ? bytes : 0;
    close(fd);
    return status;
}

enum dtx_status dtx_tokenizer_load(struct dtx_ctx *ctx, const char *path, struct dtx_tokenizer **out)
{
    struct dtx_bytes text = {0};
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, read_whole(ctx, path, &text), done);
    int64_t start = 0;
    while (start < text.n && strchr(" \t\r\n", text.data[start]) && text.data[start])
        start++;
    if (start < text.n && text.data[start] == '{')
        status = dtx_tokenizer_read_json(ctx, path, text.data, text.n, out);
    else if (text.n >= 8 && memcmp(text.data, "#version", 8) == 0)
        status = dtx_tokenizer_read_bpe(ctx, path, text.data, text.n, out);
    else
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s is neither a tokenizer.json nor a vocab.bpe", path);
done:
    dtx_bytes_free(&text);
    return status;
}
