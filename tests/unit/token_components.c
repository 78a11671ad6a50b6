/* test: label=unit timeout=60 */
/* CASES 25: every component of tokenizer.json that is read, with the ids of Hugging Face tokenizers
 * (tests/golden/make_components.py). */
#include <jansson.h>

#include "data/alphabet.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "tests/unit/data_support.h"

/* A whole tokenizer.json: the shared vocabulary and merges with one line's components. */
static json_t *assemble(const json_t *base, const json_t *line)
{
    json_t *vocab = json_deep_copy(json_object_get(base, "vocab"));
    for (int b = 0; b < 256; b++) {
        char text[5] = "";
        dtx_utf8_put(dtx_byte_to_char(b), text);
        json_object_set_new(vocab, text, json_integer(b));
    }
    json_t *model =
        json_pack("{s:s, s:o, s:O}", "type", "BPE", "vocab", vocab, "merges", json_object_get(base, "merges"));
    json_object_update(model, json_object_get(line, "model"));
    json_t *root = json_pack("{s:s, s:o}", "version", "1.0", "model", model);
    static const char *const keys[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor"};
    for (int i = 0; i < 4; i++)
        if (json_object_get(line, keys[i]))
            json_object_set(root, keys[i], json_object_get(line, keys[i]));
    return root;
}

static void check_ids(struct data_fixture *f, struct dtx_encoder *e, const json_t *texts, const json_t *expected,
                      const json_t *line)
{
    struct dtx_ids ids = {0};
    int64_t invalid = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *wanted = json_array_get(expected, i);
        ids.n = 0;
        data_ok(
            f, dtx_encoder_run(&f->ctx, e, json_string_value(text), (int64_t)json_string_length(text), &ids, &invalid));
        bool same = (size_t)ids.n == json_array_size(wanted);
        for (int64_t k = 0; same && k < ids.n; k++)
            same = ids.data[k] == json_integer_value(json_array_get(wanted, (size_t)k));
        if (same)
            continue;
        for (int64_t k = 0; k < ids.n; k++)
            print_message("%d ", ids.data[k]);
        print_message("instead of %s\n", json_dumps(wanted, 0));
        fail_msg("other ids for text %zu with %.400s", i,
                 json_dumps(json_object_get(line, "pre_tokenizer"), JSON_COMPACT));
    }
    dtx_ids_free(&ids);
}

static void ids_of_every_component(void **state)
{
    struct data_fixture *f = *state;
    FILE *file = fopen(data_source("tests/golden/tokenizer/components.jsonl"), "rb");
    assert_non_null(file);
    json_t *base = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL), *line;
    const json_t *texts = json_object_get(base, "texts");
    int lines = 0;
    for (; (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)); lines++) {
        json_t *root = assemble(base, line);
        struct dtx_tokenizer *t;
        struct dtx_encoder *e;
        assert_int_equal(json_dump_file(root, data_path(f, "t.json"), 0), 0);
        data_ok(f, dtx_tokenizer_load(&f->ctx, data_path(f, "t.json"), &t));
        data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
        check_ids(f, e, texts, json_object_get(line, "plain"), line);
        if (json_object_get(line, "found")) {
            data_ok(f, dtx_encoder_special(&f->ctx, e, DTX_SPECIAL_TOKENS));
            check_ids(f, e, texts, json_object_get(line, "found"), line);
        }
        dtx_encoder_free(e);
        dtx_tokenizer_free(t);
        json_decref(root);
        json_decref(line);
    }
    assert_int_equal(lines, 67);
    json_decref(base);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {DATA_TEST(ids_of_every_component)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
