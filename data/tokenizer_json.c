/* The model of Hugging Face's tokenizer.json: vocabulary, merges, added tokens. */
#include <string.h>

#include "data/alphabet.h"
#include "data/tokenizer_formats.h"
#include "kernels/base/mem.h"

static bool absent(const json_t *v)
{
    return !v || json_is_null(v);
}

static enum dtx_status check_model(struct dtx_ctx *ctx, const char *path, const json_t *model)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model) || (type && strcmp(type, "BPE") != 0))
        return dtx_tokenizer_refuse(ctx, path, "model.type", json_object_get(model, "type"));
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i]);
        if (!absent(v) && json_string_length(v) > 0)
            return dtx_tokenizer_refuse(ctx, path, empty[i], v);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!absent(dropout) && json_number_value(dropout) != 0)
        return dtx_tokenizer_refuse(ctx, path, "model.dropout", dropout);
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return dtx_tokenizer_refuse(ctx, path, "model.byte_fallback", json_true());
    if (!json_is_object(json_object_get(model, "vocab")) || !json_is_array(json_object_get(model, "merges")))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: model.vocab or model.merges is missing", path);
    return DTX_OK;
}

/* Whether a token that is not in the byte alphabet is one that is added: it then needs no place in the vocabulary. */
static bool is_added(const json_t *added, const char *content, int64_t id)
{
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry)
    {
        if (json_integer_value(json_object_get(entry, "id")) == id &&
            strcmp(json_string_value(json_object_get(entry, "content")), content) == 0)
            return true;
    }
    return false;
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
            return dtx_tokenizer_refuse(ctx, path, key, value);
        largest = dtx_max64(largest, json_integer_value(value));
    }
    json_array_foreach(added, i, value)
    {
        const json_t *id = json_object_get(value, "id");
        if (!json_is_integer(id) || !json_is_string(json_object_get(value, "content")) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return dtx_tokenizer_refuse(ctx, path, "added_tokens", value);
        largest = dtx_max64(largest, json_integer_value(id));
    }
    *count = largest + 1;
    return DTX_OK;
}

static enum dtx_status add_tokens(struct dtx_ctx *ctx, struct dtx_tokenizer *t, json_t *vocab, const json_t *added)
{
    json_t *value;
    const char *key;
    struct dtx_bytes bytes = {0};
    enum dtx_status status = DTX_OK;
    json_object_foreach(vocab, key, value)
    {
        int64_t id = json_integer_value(value);
        bool ok;
        bytes.n = 0;
        DTX_TRY_GOTO(ctx, status, dtx_alphabet_decode(ctx, key, (int64_t)strlen(key), &bytes, &ok), done);
        if (!ok && is_added(added, key, id))
            continue;
        if (!ok) {
            status = dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: token %lld '%.60s' is not in the byte alphabet", t->source,
                              (long long)id, key);
            goto done;
        }
        DTX_TRY_GOTO(ctx, status, dtx_tokenizer_add_token(ctx, t, id, bytes.data, bytes.n), done);
    }
done:
    dtx_bytes_free(&bytes);
    return status;
}

static enum dtx_status read_flag(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, const json_t *entry,
                                 const char *key, bool initial, bool *out)
{
    const json_t *v = json_object_get(entry, key);
    if (v && !json_is_boolean(v))
        return dtx_tokenizer_refuse(ctx, t->source, "added_tokens", entry);
    *out = v ? json_is_true(v) : initial;
    return DTX_OK;
}

/* After the vocabulary. A text that it has as well must have the same id there: the library would take that one. */
static enum dtx_status add_added(struct dtx_ctx *ctx, struct dtx_tokenizer *t, json_t *vocab, const json_t *added)
{
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry)
    {
        const json_t *content = json_object_get(entry, "content");
        struct dtx_added a = {.id = (int32_t)json_integer_value(json_object_get(entry, "id"))};
        const json_t *known = json_object_get(vocab, json_string_value(content));
        if (known && json_integer_value(known) != a.id)
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: added token '%.60s' has id %d, but id %lld in the vocabulary",
                            t->source, json_string_value(content), a.id, (long long)json_integer_value(known));
        DTX_TRY(ctx, read_flag(ctx, t, entry, "special", false, &a.special));
        DTX_TRY(ctx, read_flag(ctx, t, entry, "single_word", false, &a.single_word));
        DTX_TRY(ctx, read_flag(ctx, t, entry, "lstrip", false, &a.lstrip));
        DTX_TRY(ctx, read_flag(ctx, t, entry, "rstrip", false, &a.rstrip));
        DTX_TRY(ctx, read_flag(ctx, t, entry, "normalized", !a.special, &a.normalized));
        DTX_TRY(ctx,
                dtx_tokenizer_add_added(ctx, t, &a, json_string_value(content), (int64_t)json_string_length(content)));
    }
    return DTX_OK;
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
        return dtx_tokenizer_refuse(ctx, t->source, "an entry of model.merges", merge);
    bool ok_left, ok_right;
    left->n = right->n = 0;
    DTX_TRY(ctx, dtx_alphabet_decode(ctx, a, (int64_t)n_a, left, &ok_left));
    DTX_TRY(ctx, dtx_alphabet_decode(ctx, b, (int64_t)strlen(b), right, &ok_right));
    if (!ok_left || !ok_right)
        return dtx_tokenizer_refuse(ctx, t->source, "an entry of model.merges", merge);
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

enum dtx_status dtx_tokenizer_read_json(struct dtx_ctx *ctx, const char *path, json_t *root, struct dtx_tokenizer **out)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    int64_t count = 0;
    DTX_TRY(ctx, check_model(ctx, path, model));
    DTX_TRY(ctx, count_ids(ctx, path, vocab, added, &count));
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_create(ctx, path, count, (int64_t)json_array_size(merges), &t));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_read_parts(ctx, t, root), fail);
    DTX_TRY_GOTO(ctx, status, add_tokens(ctx, t, vocab, added), fail);
    DTX_TRY_GOTO(ctx, status, add_added(ctx, t, vocab, added), fail);
    DTX_TRY_GOTO(ctx, status, add_merges(ctx, t, merges), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_finish(ctx, t), fail);
    *out = t;
    return DTX_OK;
fail:
    dtx_tokenizer_free(t);
    return status;
}
