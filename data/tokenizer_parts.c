/* The components of tokenizer.json around the model: normalizer, pre-tokenizer, post-processor, decoder. What is not
 * understood is refused by its name: ids that are nearly right would be worse than none. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_formats.h"

enum dtx_status dtx_tokenizer_refuse(struct dtx_ctx *ctx, const char *path, const char *key, const json_t *value)
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

static bool is_type(const json_t *v, const char *type)
{
    const char *got = json_string_value(json_object_get(v, "type"));
    return got && strcmp(got, type) == 0;
}

/* Calls `one` for a component, or for each of a Sequence whose parts stand under `key`. */
typedef enum dtx_status (*reader)(struct dtx_ctx *, struct dtx_tokenizer *, const json_t *);
static enum dtx_status each(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v, const char *key, reader one)
{
    if (!is_type(v, "Sequence"))
        return one(ctx, t, v);
    const json_t *parts = json_object_get(v, key);
    if (!json_is_array(parts))
        return dtx_tokenizer_refuse(ctx, t->source, key, v);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        if (is_type(part, "Sequence"))
            return dtx_tokenizer_refuse(ctx, t->source, "a Sequence in a Sequence", part);
        DTX_TRY(ctx, one(ctx, t, part));
    }
    return DTX_OK;
}

static enum dtx_status read_normalizer(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++)
        if (is_type(v, names[i]) && t->n_forms < DTX_MOST_FORMS) {
            t->forms[t->n_forms++] = (enum dtx_normal_form)i;
            return DTX_OK;
        }
    return dtx_tokenizer_refuse(ctx, t->source, "normalizer", v);
}

static enum dtx_status read_split(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(v, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    const json_t *source = regex ? regex : text;
    const char *behavior = json_string_value(json_object_get(v, "behavior"));
    int found = -1;
    for (int i = 0; i < 5 && behavior; i++)
        if (strcmp(behavior, names[i]) == 0)
            found = i;
    if (!json_is_string(source) || (text && json_string_length(text) == 0))
        return dtx_tokenizer_refuse(ctx, t->source, "Split.pattern", pattern);
    if (found < 0)
        return dtx_tokenizer_refuse(ctx, t->source, "Split.behavior", json_object_get(v, "behavior"));
    return dtx_pattern_add_regex(ctx, t->pattern, t->source, json_string_value(source),
                                 (int64_t)json_string_length(source), regex == NULL, (enum dtx_behavior)found,
                                 json_is_true(json_object_get(v, "invert")));
}

static enum dtx_status read_digits(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    bool each_digit = json_is_true(json_object_get(v, "individual_digits"));
    const char *regex = each_digit ? "\\p{N}" : "\\p{N}+";
    return dtx_pattern_add_regex(ctx, t->pattern, t->source, regex, (int64_t)strlen(regex), false, DTX_SPLIT_ISOLATED,
                                 false);
}

static enum dtx_status read_byte_level(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    /* Both are true where the file says nothing. */
    const json_t *space = json_object_get(v, "add_prefix_space"), *regex = json_object_get(v, "use_regex");
    if (!json_is_false(space))
        return dtx_tokenizer_refuse(ctx, t->source, "pre_tokenizer.add_prefix_space", space);
    return json_is_false(regex) ? DTX_OK : dtx_pattern_add_scan(ctx, t->pattern, DTX_SCAN_GPT2);
}

static enum dtx_status read_pre_tokenizer(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    static const struct {
        const char *type;
        reader read;
    } known[] = {{"ByteLevel", read_byte_level}, {"Split", read_split}, {"Digits", read_digits}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_type(v, known[i].type))
            return known[i].read(ctx, t, v);
    return dtx_tokenizer_refuse(ctx, t->source, "pre_tokenizer", v);
}

/* The last step, and no other, turns bytes into letters: steps behind it would see those. */
static enum dtx_status check_byte_level(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    const json_t *parts = is_type(v, "Sequence") ? json_object_get(v, "pretokenizers") : NULL;
    size_t n = parts ? json_array_size(parts) : 1;
    for (size_t i = 0; i < n; i++)
        if (is_type(parts ? json_array_get(parts, i) : v, "ByteLevel") != (i + 1 == n))
            return dtx_tokenizer_refuse(ctx, t->source, "pre_tokenizer without ByteLevel as its last step", v);
    return n > 0 ? DTX_OK : dtx_tokenizer_refuse(ctx, t->source, "pre_tokenizer", v);
}

/* What templates add around a text is left out: documents are encoded as if add_special_tokens were false. */
static enum dtx_status read_post_processor(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    if (is_type(v, "ByteLevel") || is_type(v, "TemplateProcessing"))
        return DTX_OK;
    return dtx_tokenizer_refuse(ctx, t->source, "post_processor", v);
}

static enum dtx_status read_decoder(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *v)
{
    return is_type(v, "ByteLevel") ? DTX_OK : dtx_tokenizer_refuse(ctx, t->source, "decoder", v);
}

enum dtx_status dtx_tokenizer_read_parts(struct dtx_ctx *ctx, struct dtx_tokenizer *t, const json_t *root)
{
    const json_t *normalizer = json_object_get(root, "normalizer"), *pre = json_object_get(root, "pre_tokenizer");
    const json_t *post = json_object_get(root, "post_processor"), *decoder = json_object_get(root, "decoder");
    if (!absent(normalizer))
        DTX_TRY(ctx, each(ctx, t, normalizer, "normalizers", read_normalizer));
    DTX_TRY(ctx, dtx_pattern_create(ctx, &t->pattern));
    DTX_TRY(ctx, each(ctx, t, pre, "pretokenizers", read_pre_tokenizer));
    DTX_TRY(ctx, check_byte_level(ctx, t, pre));
    if (!absent(post))
        DTX_TRY(ctx, each(ctx, t, post, "processors", read_post_processor));
    return absent(decoder) ? DTX_OK : each(ctx, t, decoder, "decoders", read_decoder);
}
