/* tiktoken's files: a line "base64 rank" for each token. The rank is the id, and every pair of tokens whose bytes
 * together are a token merges, in order of that token's rank. Pattern and special tokens are not in the file: they are
 * OpenAI's, by name. */
#include <string.h>

#include "data/tokenizer_build.h"
#include "data/tokenizer_formats.h"
#include "kernels/base/mem.h"

enum { MOST_TOKEN_BYTES = 4096, MOST_SPECIAL = 6 };

struct special {
    int32_t id;
    const char *text;
};

/* Special tokens belong to the vocabulary of that many ids in the file; another one has none that we know. */
static const struct kind {
    const char *name;
    enum dtx_scan scan;
    int64_t ranks;
    struct special special[MOST_SPECIAL];
} kinds[] = {
    {"gpt2", DTX_SCAN_GPT2, 50256, {{50256, DTX_END_OF_TEXT}}},
    {"r50k", DTX_SCAN_GPT2, 50256, {{50256, DTX_END_OF_TEXT}}},
    {"p50k", DTX_SCAN_GPT2, 50280, {{50256, DTX_END_OF_TEXT}}},
    {"cl100k",
     DTX_SCAN_CL100K,
     100256,
     {{100257, DTX_END_OF_TEXT},
      {100258, "<|fim_prefix|>"},
      {100259, "<|fim_middle|>"},
      {100260, "<|fim_suffix|>"},
      {100276, "<|endofprompt|>"}}},
    {"o200k", DTX_SCAN_O200K, 199998, {{199999, DTX_END_OF_TEXT}, {200018, "<|endofprompt|>"}}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int dtx_tiktoken_kind(const char *text, size_t n)
{
    for (int k = 0; k < KINDS; k++)
        if (strlen(kinds[k].name) == n && memcmp(kinds[k].name, text, n) == 0)
            return k;
    return -1;
}

/* By the name that stands in the file's name. */
static int kind_of_path(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    for (int k = 0; k < KINDS; k++)
        if (strstr(file, kinds[k].name))
            return k;
    return -1;
}

static int value64(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Bytes of text[n] in base64 with its padding; −1: not base64. */
static int64_t decode64(const char *text, int64_t n, char *out)
{
    if (n % 4 != 0 || n == 0)
        return -1;
    int64_t bytes = n / 4 * 3 - (text[n - 1] == '=') - (text[n - 2] == '='), at = 0;
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) {
            int value = i + k >= n - 2 && text[i + k] == '=' ? 0 : value64(text[i + k]);
            if (value < 0 || (k == 3 && text[i + 2] == '=' && text[i + 3] != '='))
                return -1;
            word = word << 6 | (uint32_t)value;
        }
        for (int k = 16; k >= 0 && at < bytes; k -= 8)
            out[at++] = (char)(word >> k & 255);
    }
    return bytes;
}

struct line {
    char bytes[MOST_TOKEN_BYTES + 4];
    int64_t n, rank;
};

/* The line at *at, which moves behind it; *more false at the end of the file. Empty lines are passed over. */
static enum dtx_status read_line(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n, int64_t *at,
                                 int64_t *number, struct line *out, bool *more)
{
    int64_t begin = *at, end = begin;
    while (begin < n && (text[begin] == '\n' || text[begin] == '\r')) {
        *number += text[begin] == '\n';
        begin++;
    }
    *more = begin < n;
    if (!*more)
        return DTX_OK;
    const char *newline = memchr(text + begin, '\n', (size_t)(n - begin));
    *at = end = newline ? newline - text : n;
    end -= text[end - 1] == '\r';
    const char *space = memchr(text + begin, ' ', (size_t)(end - begin));
    int64_t length = space ? space - text - begin : 0, digits = end - begin - length - 1;
    bool ok = space && length <= MOST_TOKEN_BYTES / 3 * 4 && digits >= 1 && digits <= 9;
    out->n = ok ? decode64(text + begin, length, out->bytes) : -1;
    out->rank = 0;
    for (int64_t i = end - digits; i < end && ok; i++) {
        ok = text[i] >= '0' && text[i] <= '9';
        out->rank = 10 * out->rank + (text[i] - '0');
    }
    if (out->n < 1 || !ok)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %lld is no token in base64 (up to %d bytes) with its rank: '%.*s'",
                        path, (long long)*number, MOST_TOKEN_BYTES, (int)(end - begin < 60 ? end - begin : 60),
                        text + begin);
    return DTX_OK;
}

/* Tokens and the largest rank of all lines; with t, adds the tokens. */
static enum dtx_status read_lines(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n, struct line *line,
                                  struct dtx_tokenizer *t, int64_t *count, int64_t *largest)
{
    bool more;
    *count = 0;
    *largest = -1;
    for (int64_t at = 0, number = 1;; ++*count) {
        DTX_TRY(ctx, read_line(ctx, path, text, n, &at, &number, line, &more));
        if (!more)
            return DTX_OK;
        *largest = line->rank > *largest ? line->rank : *largest;
        if (t)
            DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, line->rank, line->bytes, line->n));
    }
}

/* All ways to put each token together from two others. */
static enum dtx_status add_pairs(struct dtx_ctx *ctx, struct dtx_tokenizer *t)
{
    for (int32_t id = 0; id < t->vocab; id++) {
        const struct dtx_token *token = &t->tokens[id];
        const char *bytes = t->text.data + token->first;
        for (int32_t cut = 1; cut < token->n; cut++) {
            struct dtx_pair pair = {.left = dtx_tokenizer_find(t, bytes, cut), .rank = id, .id = id};
            if (pair.left < 0)
                continue;
            pair.right = dtx_tokenizer_find(t, bytes + cut, token->n - cut);
            if (pair.right >= 0)
                DTX_TRY(ctx, dtx_tokenizer_add_pair(ctx, t, &pair));
        }
    }
    return DTX_OK;
}

static enum dtx_status build(struct dtx_ctx *ctx, const struct kind *kind, const char *path, const char *text,
                             int64_t n, struct line *line, struct dtx_tokenizer **out)
{
    int64_t count, largest;
    DTX_TRY(ctx, read_lines(ctx, path, text, n, line, NULL, &count, &largest));
    bool known = count == kind->ranks;
    for (int i = 0; i < MOST_SPECIAL && known; i++)
        largest = kind->special[i].id > largest ? kind->special[i].id : largest;
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, largest + 1, 0, &t));
    t->by_rank = t->ignore_merges = true;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, read_lines(ctx, path, text, n, line, t, &count, &largest), fail);
    DTX_TRY_GOTO(ctx, status, add_pairs(ctx, t), fail);
    for (int i = 0; i < MOST_SPECIAL && known && kind->special[i].text; i++)
        DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_special(ctx, t, kind->special[i].id, kind->special[i].text), fail);
    DTX_TRY_GOTO(ctx, status, dtx_pattern_create(ctx, &t->pattern), fail);
    DTX_TRY_GOTO(ctx, status, dtx_pattern_add_scan(ctx, t->pattern, kind->scan), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}

bool dtx_tiktoken_looks_so(const char *text, int64_t n)
{
    int64_t i = 0;
    while (i < n && (value64(text[i]) >= 0 || text[i] == '='))
        i++;
    return i > 0 && i + 1 < n && text[i] == ' ' && text[i + 1] >= '0' && text[i + 1] <= '9';
}

enum dtx_status dtx_tokenizer_read_tiktoken(struct dtx_ctx *ctx, const char *path, int kind, const char *text,
                                            int64_t n, struct dtx_tokenizer **out)
{
    if (kind < 0)
        kind = kind_of_path(path);
    if (kind < 0)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "%s is a tiktoken file, but its name does not say which pattern cuts text: put gpt2:, r50k:, "
                        "p50k:, cl100k: or o200k: in front of the path",
                        path);
    void *line;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct line), &line));
    enum dtx_status status = build(ctx, &kinds[kind], path, text, n, line, out);
    dtx_mem_free(line);
    return status;
}
