/* Hugging Face tokenizer.json: byte-level BPE read and written. What is not understood is refused by its name: ids that
 * are nearly right would be worse than none. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "data/alphabet.h"
#include "data/file.h"
#include "data/tokenizer_build.h"
#include "data/tokenizer_formats.h"
#include "kernels/base/mem.h"

static enum dtx_status refuse(struct dtx_ctx *ctx, const char *path, const char *key, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum dtx_status status =
        dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: %s = %.200s is not supported", path, key, text ? text : "(missing)");
    free(text);
    return status;
}

static bool absent(const json_t *v)
{
    return !v || json_is_null(v);
}

/* A component that must be missing, null or have this type. */
static enum dtx_status expect_type(struct dtx_ctx *ctx, const char *path, const json_t *root, const char *key,
                                   const char *type)
{
    const json_t *v = json_object_get(root, key);
    const char *got = json_string_value(json_object_get(v, "type"));
    if (absent(v) || (got && type && strcmp(got, type) == 0))
        return DTX_OK;
    return refuse(ctx, path, key, v);
}

static enum dtx_status check_components(struct dtx_ctx *ctx, const char *path, const json_t *root)
{
    const json_t *model = json_object_get(root, "model"), *pre = json_object_get(root, "pre_tokenizer");
    const char *type = json_string_value(json_object_get(model, "type"));
    const char *pre_type = json_string_value(json_object_get(pre, "type"));
    if (!json_is_object(model) || (type && strcmp(type, "BPE") != 0))
        return refuse(ctx, path, "model.type", json_object_get(model, "type"));
    if (!pre_type || strcmp(pre_type, "ByteLevel") != 0)
        return refuse(ctx, path, "pre_tokenizer", pre);
    if (json_is_true(json_object_get(pre, "add_prefix_space")))
        return refuse(ctx, path, "pre_tokenizer.add_prefix_space", json_true());
    if (json_is_false(json_object_get(pre, "use_regex")))
        return refuse(ctx, path, "pre_tokenizer.use_regex", json_false());
    DTX_TRY(ctx, expect_type(ctx, path, root, "normalizer", NULL));
    DTX_TRY(ctx, expect_type(ctx, path, root, "post_processor", "ByteLevel"));
    DTX_TRY(ctx, expect_type(ctx, path, root, "decoder", "ByteLevel"));
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        if (!absent(v) && json_string_length(v) > 0)
            return refuse(ctx, path, empty[i], v);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!absent(dropout) && json_number_value(dropout) != 0)
        return refuse(ctx, path, "model.dropout", dropout);
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return refuse(ctx, path, "model.byte_fallback", json_true());
    return DTX_OK;
}

static const char *added_content(const json_t *added, int64_t id)
{
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry)
    {
        if (json_integer_value(json_object_get(entry, "id")) == id)
            return json_string_value(json_object_get(entry, "content"));
    }
    return NULL;
}

/* Ids may have gaps; the vocabulary ends behind the largest. */
static enum dtx_status count_ids(struct dtx_ctx *ctx, const char *path, json_t *vocab, const json_t *added,
                                 int64_t *count)
{
    const char *key;
    json_t *value;
    size_t i;
    int64_t largest = -1;
    json_object_foreach(vocab, key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX)
            return refuse(ctx, path, key, value);
        largest = dtx_max64(largest, json_integer_value(value));
    }
    json_array_foreach(added, i, value)
    {
        const json_t *id = json_object_get(value, "id");
        if (!json_is_integer(id) || !json_is_string(json_object_get(value, "content")) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return refuse(ctx, path, "added_tokens", value);
        largest = dtx_max64(largest, json_integer_value(id));
    }
    *count = largest + 1;
    return DTX_OK;
}

static enum dtx_status add_tokens(struct dtx_ctx *ctx, struct dtx_tokenizer *t, json_t *vocab, const json_t *added)
{
    size_t i;
    json_t *value;
    const char *key;
    json_array_foreach(added, i, value)
    {
        const json_t *content = json_object_get(value, "content");
        DTX_TRY(ctx, dtx_tokenizer_add_token(ctx, t, json_integer_value(json_object_get(value, "id")),
                                             json_string_value(content), (int64_t)json_string_length(content), true));
    }
    struct dtx_bytes bytes = {0};
    enum dtx_status status = DTX_OK;
    json_object_foreach(vocab, key, value)
    {
        int64_t id = json_integer_value(value);
        const char *special = t->tokens[id].n > 0 ? added_content(added, id) : NULL;
        if (special && strcmp(special, key) == 0)
            continue;
        bool ok;
        bytes.n = 0;
        DTX_TRY_GOTO(ctx, status, dtx_alphabet_decode(ctx, key, (int64_t)strlen(key), &bytes, &ok), done);
        if (!ok) {
            status = dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: token %lld '%.60s' is not in the byte alphabet", t->source,
                              (long long)id, key);
            goto done;
        }
        DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_token(ctx, t, id, bytes.data, bytes.n, false), done);
    }
done:
    dtx_bytes_free(&bytes);
    return status;
}

/* "left right" or ["left", "right"] */
static enum dtx_status add_merge(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *merge,
                                 struct dtx_bytes *left, struct dtx_bytes *right)
{
    const char *a = json_string_value(merge), *b = NULL;
    size_t n_a = 0;
    if (a) {
        const char *space = strchr(a, ' ');
        b = space ? space + 1 : NULL;
        n_a = space ? (size_t)(space - a) : 0;
    } else if (json_array_size(merge) == 2) {
        a = json_string_value(json_array_get(merge, 0));
        b = json_string_value(json_array_get(merge, 1));
        n_a = a ? strlen(a) : 0;
    }
    if (!a || !b || n_a == 0 || !*b)
        return refuse(ctx, t->source, "an entry of model.merges", merge);
    bool ok_left, ok_right;
    left->n = right->n = 0;
    DTX_TRY(ctx, dtx_alphabet_decode(ctx, a, (int64_t)n_a, left, &ok_left));
    DTX_TRY(ctx, dtx_alphabet_decode(ctx, b, (int64_t)strlen(b), right, &ok_right));
    if (!ok_left || !ok_right)
        return refuse(ctx, t->source, "an entry of model.merges", merge);
    return dtx_tokenizer_add_merge(ctx, t, left->data, left->n, right->data, right->n);
}

static enum dtx_status add_merges(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *merges)
{
    struct dtx_bytes left = {0}, right = {0};
    enum dtx_status status = DTX_OK;
    size_t i;
    json_t *merge;
    json_array_foreach(merges, i, merge)
    {
        status = add_merge(ctx, t, merge, &left, &right);
        if (status != DTX_OK)
            break;
    }
    dtx_bytes_free(&left);
    dtx_bytes_free(&right);
    return status;
}

static enum dtx_status build(struct dtx_ctx *ctx, const char *path, const json_t *root, struct dtx_tokenizer **out)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    int64_t count = 0;
    DTX_TRY(ctx, check_components(ctx, path, root));
    if (!json_is_object(vocab) || !json_is_array(merges))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: model.vocab or model.merges is missing", path);
    DTX_TRY(ctx, count_ids(ctx, path, vocab, added, &count));
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, count, (int64_t)json_array_size(merges), &t));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, add_tokens(ctx, t, vocab, added), fail);
    DTX_TRY_GOTO(ctx, status, add_merges(ctx, t, merges), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}

enum dtx_status dtx_tokenizer_read_json(struct dtx_ctx *ctx, const char *path, const char *text, int64_t n,
                                        struct dtx_tokenizer **out)
{
    json_error_t error;
    json_t *root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    enum dtx_status status = build(ctx, path, root, out);
    json_decref(root);
    return status;
}

/* The token as tokenizer.json spells it; NUL-terminated in `out`. */
static enum dtx_status spell(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, int32_t id, struct dtx_bytes *out)
{
    const struct dtx_token *token = &t->tokens[id];
    const char *bytes = t->text.data + token->first;
    out->n = 0;
    if (token->special)
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, bytes, token->n));
    else
        DTX_TRY(ctx, dtx_alphabet_encode(ctx, bytes, token->n, out));
    return dtx_bytes_append(ctx, out, "", 1);
}

static enum dtx_status pack_model(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, json_t *added, json_t *vocab,
                                  json_t *merges)
{
    struct dtx_bytes a = {0}, b = {0};
    enum dtx_status status = DTX_OK;
    int failed = 0;
    for (int32_t id = 0; id < t->vocab; id++) {
        if (t->tokens[id].n == 0)
            continue;
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, id, &a), done);
        failed |= json_object_set_new(vocab, a.data, json_integer(id));
        if (t->tokens[id].special)
            failed |= json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content",
                                                             a.data, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                                             "normalized", 0, "special", 1));
    }
    for (int64_t m = 0; m < t->n_merges; m++) {
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, t->merges[m].left, &a), done);
        a.data[a.n - 1] = ' ';
        DTX_TRY_GOTO(ctx, status, spell(ctx, t, t->merges[m].right, &b), done);
        DTX_TRY_GOTO(ctx, status, dtx_bytes_append(ctx, &a, b.data, b.n), done);
        failed |= json_array_append_new(merges, json_string(a.data));
    }
    if (failed)
        status = dtx_fail(ctx, DTX_E_MEMORY, "out of memory writing a tokenizer");
done:
    dtx_bytes_free(&a);
    dtx_bytes_free(&b);
    return status;
}

struct sink {
    struct dtx_ctx *ctx;
    struct dtx_outfile file;
};

static int write_chunk(const char *data, size_t bytes, void *sink)
{
    struct sink *s = sink;
    return dtx_outfile_write(s->ctx, &s->file, data, bytes) == DTX_OK ? 0 : -1;
}

static enum dtx_status write_json(struct dtx_ctx *ctx, const json_t *root, const char *path)
{
    struct sink sink = {.ctx = ctx};
    DTX_TRY(ctx, dtx_outfile_open(ctx, &sink.file, path));
    enum dtx_status status;
    if (json_dump_callback(root, write_chunk, &sink, JSON_INDENT(1)) != 0)
        status = dtx_fail(ctx, DTX_E_IO, "cannot write %s", path);
    else
        status = dtx_outfile_sync(ctx, &sink.file);
    if (status == DTX_OK)
        status = dtx_outfile_rename(ctx, &sink.file);
    dtx_outfile_discard(&sink.file);
    return status == DTX_OK ? dtx_file_sync_folder(ctx, path) : status;
}

enum dtx_status dtx_tokenizer_save(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const char *path)
{
    json_t *added = json_array(), *vocab = json_object(), *merges = json_array();
    enum dtx_status status = pack_model(ctx, t, added, vocab, merges);
    /* json_pack takes the references with o, also when it fails. */
    json_t *root =
        json_pack("{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b},"
                  " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                  "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "post_processor",
                  "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model",
                  "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  0, "byte_fallback", 0, "ignore_merges", t->ignore_merges, "vocab", vocab, "merges", merges);
    if (status == DTX_OK && !root)
        status = dtx_fail(ctx, DTX_E_MEMORY, "out of memory writing %s", path);
    if (status == DTX_OK)
        status = write_json(ctx, root, path);
    json_decref(root);
    return status;
}
