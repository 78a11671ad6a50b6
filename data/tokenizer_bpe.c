/* GPT-2's vocab.bpe: a line "#version…", then one merge a line in the byte alphabet. Its ids follow from it alone: the
 * 256 bytes in the alphabet's order, the merges' results, <|endoftext|>. */
#include <string.h>

#include "data/alphabet.h"
#include "data/tokenizer_build.h"
#include "data/tokenizer_formats.h"

static enum dtx_status add_bytes(struct dtx_ctx *ctx, struct dtx_tokenizer *t)
{
    int64_t id = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            char c = (char)b;
            if ((dtx_byte_to_char(b) == (uint32_t)b) == (pass == 0)) /* those that print first */
                DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, id++, &c, 1, false));
        }
    return DTX_OK;
}

/* One line "left right" without its newline; line numbers start at 1. */
static enum dtx_status add_line(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *path, int64_t line,
                                const char *text, int64_t n, struct dtx_bytes *both)
{
    const char *space = memchr(text, ' ', (size_t)n);
    bool ok_left = false, ok_right = false;
    both->n = 0;
    int64_t n_left = 0;
    if (space) {
        DTX_TRY(ctx, dtx_alphabet_decode(ctx, text, space - text, both, &ok_left));
        n_left = both->n;
        DTX_TRY(ctx, dtx_alphabet_decode(ctx, space + 1, text + n - space - 1, both, &ok_right));
    }
    if (!ok_left || !ok_right || n_left == 0 || both->n == n_left)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %lld is no merge in the byte alphabet: '%.*s'", path,
                        (long long)line, (int)(n < 60 ? n : 60), text);
    DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, 256 + t->n_merges, both->data, both->n, false));
    return dtx_tokenizer_add_merge(ctx, t, both->data, n_left, both->data + n_left, both->n - n_left);
}

static enum dtx_status read_lines(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const char *path, const char *text,
                                  int64_t n)
{
    struct dtx_bytes both = {0};
    enum dtx_status status = DTX_OK;
    int64_t line = 1;
    for (int64_t i = 0; i < n && status == DTX_OK; line++) {
        const char *newline = memchr(text + i, '\n', (size_t)(n - i));
        int64_t end = newline ? newline - text : n, bytes = end - i;
        bytes -= bytes > 0 && text[i + bytes - 1] == '\r';
        if (bytes > 0 && line > 1)
            status = add_line(ctx, t, path, line, text + i, bytes, &both);
        i = end + 1;
    }
    dtx_bytes_free(&both);
    return status;
}

enum dtx_status dtx_tokenizer_read_bpe(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                       struct dtx_tokenizer **out)
{
    int64_t content = 0;
    for (int64_t i = 0; i < n; i++) {
        content += text[i] != '\n' && text[i] != '\r' && (i == 0 || text[i - 1] == '\n');
    }
    int64_t merges = content - 1;
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, 256 + merges + 1, merges, &t));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, add_bytes(ctx, t), fail);
    DTX_TRY_GOTO(ctx, status, read_lines(ctx, t, path, text, n), fail);
    DTX_TRY_GOTO(ctx, status,
                 dtx_tokenizer_add_token(ctx, t, 256 + merges, DTX_END_OF_TEXT, sizeof DTX_END_OF_TEXT - 1, true),
                 fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}
