/*
 * GPT-2's two files. vocab.bpe (merges.txt): a line "#version…", then one merge a line in the byte alphabet.
 * encoder.json (vocab.json): {"token in the byte alphabet": id, …}. Without the second, ids follow from the first: the
 * 256 bytes in the alphabet's order, the merges' results, <|endoftext|>.
 */
#include <jansson.h>
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
                DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, id++, &c, 1));
        }
    return DTX_OK;
}

/* One line "left right" without its newline; line numbers start at 1. With `ids`, merges make tokens. */
static enum dtx_status add_line(struct dtx_ctx *ctx, struct dtx_tokenizer *t, bool ids, const char *path, int64_t line,
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
    if (ids)
        DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, 256 + t->n_merges, both->data, both->n));
    return dtx_tokenizer_add_merge(ctx, t, both->data, n_left, both->data + n_left, both->n - n_left);
}

static enum dtx_status read_lines(struct dtx_ctx *ctx, struct dtx_tokenizer *t, bool ids, const char *path,
                                  const char *text, int64_t n)
{
    struct dtx_bytes both = {0};
    enum dtx_status status = DTX_OK;
    int64_t line = 1;
    for (int64_t i = 0; i < n && status == DTX_OK; line++) {
        const char *newline = memchr(text + i, '\n', (size_t)(n - i));
        int64_t end = newline ? newline - text : n, bytes = end - i;
        bytes -= bytes > 0 && text[i + bytes - 1] == '\r';
        if (bytes > 0 && line > 1)
            status = add_line(ctx, t, ids, path, line, text + i, bytes, &both);
        i = end + 1;
    }
    dtx_bytes_free(&both);
    return status;
}

static int64_t count_merges(const char *text, int64_t n)
{
    int64_t content = 0;
    for (int64_t i = 0; i < n; i++)
        content += text[i] != '\n' && text[i] != '\r' && (i == 0 || text[i - 1] == '\n');
    return content - 1;
}

enum dtx_status dtx_tokenizer_read_bpe(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                       struct dtx_tokenizer **out)
{
    int64_t merges = count_merges(text, n);
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, 256 + merges + 1, merges, &t));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, add_bytes(ctx, t), fail);
    DTX_TRY_GOTO(ctx, status, read_lines(ctx, t, true, path, text, n), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_special(ctx, t, 256 + merges, DTX_END_OF_TEXT), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}

/* <|endoftext|> is a special token, and none of the vocabulary. */
static enum dtx_status add_ids(struct dtx_ctx *ctx, struct dtx_tokenizer *t, json_t *ids, struct dtx_bytes *bytes)
{
    const char *key;
    json_t *value;
    json_object_foreach(ids, key, value)
    {
        bool ok;
        if (strcmp(key, DTX_END_OF_TEXT) == 0)
            continue;
        bytes->n = 0;
        DTX_TRY(ctx, dtx_alphabet_decode(ctx, key, (int64_t)strlen(key), bytes, &ok));
        if (!ok)
            return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: token '%.60s' is not in the byte alphabet", t->source, key);
        DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, json_integer_value(value), bytes->data, bytes->n));
    }
    const json_t *end = json_object_get(ids, DTX_END_OF_TEXT);
    return end ? dtx_tokenizer_add_special(ctx, t, json_integer_value(end), DTX_END_OF_TEXT) : DTX_OK;
}

/* The vocabulary ends behind the largest id. */
static enum dtx_status count_ids(struct dtx_ctx *ctx, const char *path, json_t *ids, int64_t *count)
{
    const char *key;
    json_t *value;
    *count = 0;
    json_object_foreach(ids, key, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id > INT32_MAX)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: '%.60s' has no id: neither a tokenizer.json nor an encoder.json",
                            path, key);
        *count = id >= *count ? id + 1 : *count;
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenizer_read_encoder(struct dtx_ctx *ctx, const char *path, json_t *ids, const char *merges_path,
                                           const char *merges, int64_t n, struct dtx_tokenizer **out)
{
    int64_t count, n_merges = count_merges(merges, n);
    struct dtx_bytes bytes = {0};
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, count_ids(ctx, path, ids, &count));
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, count, n_merges < 0 ? 0 : n_merges, &t));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, add_ids(ctx, t, ids, &bytes), fail);
    t->source = merges_path;
    DTX_TRY_GOTO(ctx, status, read_lines(ctx, t, false, merges_path, merges, n), fail);
    t->source = path;
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    dtx_bytes_free(&bytes);
    *out = t;
    return DTX_OK;
fail:
    dtx_bytes_free(&bytes);
    dtx_tokenizer_free(t);
    return status;
}
