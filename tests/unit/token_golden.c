/* test: label=unit timeout=60 */
/* CASES 24: ids of OpenAI's tiktoken and Hugging Face tokenizers, 60 texts. The vocabularies are cut down to what these
 * texts can need (tests/golden/make_tokenizers.py), their ids are the real ones. */
#include <jansson.h>

#include "data/tokenizer.h"
#include "tests/unit/data_support.h"

static void check_line(struct data_fixture *f, struct dtx_encoder *e, const struct dtx_tokenizer *t, const json_t *root,
                       const char *name, bool normalizes)
{
    const json_t *expected = json_object_get(json_object_get(root, "ids"), name);
    const char *hex = json_string_value(json_object_get(root, "utf8_hex"));
    size_t n = strlen(hex) / 2;
    char *text = malloc(n + 1);
    struct dtx_ids ids = {0};
    struct dtx_bytes back = {0};
    int64_t invalid = 0;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&text[i]), 1);
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, (int64_t)n, &ids, &invalid));
    assert_int_equal(invalid, 0);
    bool same = (size_t)ids.n == json_array_size(expected);
    for (int64_t i = 0; same && i < ids.n; i++)
        same = ids.data[i] == json_integer_value(json_array_get(expected, (size_t)i));
    if (!same) {
        for (int64_t i = 0; i < ids.n; i++)
            print_message("%d ", ids.data[i]);
        fail_msg("%s: other ids for %s", name, json_string_value(json_object_get(root, "case")));
    }
    data_ok(f, dtx_tokenizer_decode(&f->ctx, t, ids.data, ids.n, &back));
    if (!normalizes) {
        assert_int_equal(back.n, n);
        assert_memory_equal(back.data ? back.data : "", text, n);
    }
    dtx_bytes_free(&back);
    dtx_ids_free(&ids);
    free(text);
}

static void check_all(struct data_fixture *f, const char *path, const char *name, enum dtx_special_text special)
{
    struct dtx_tokenizer *t;
    struct dtx_encoder *e;
    data_ok(f, dtx_tokenizer_load(&f->ctx, path, &t));
    data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
    data_ok(f, dtx_encoder_special(&f->ctx, e, special));
    FILE *file = fopen(data_source("tests/golden/tokenizer/ids.jsonl"), "rb");
    assert_non_null(file);
    static char line[1 << 16];
    int cases = 0;
    for (; fgets(line, sizeof line, file); cases++) {
        json_t *root = json_loads(line, 0, NULL);
        check_line(f, e, t, root, name, strcmp(name, "qwen3") == 0);
        json_decref(root);
    }
    assert_int_equal(cases, 60);
    fclose(file);
    dtx_encoder_free(e);
    dtx_tokenizer_free(t);
}

/* The whole file where DTX_TOKENIZERS names a folder that has it, else its part. */
static void check_file(void **state, const char *whole, const char *part, const char *name,
                       enum dtx_special_text special)
{
    struct data_fixture *f = *state;
    const char *folder = getenv("DTX_TOKENIZERS");
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : data_source("tests/golden/tokenizer"),
             folder ? whole : part);
    check_all(f, path, name, special);
}

static void gpt2(void **state)
{
    check_file(state, "vocab.bpe", "gpt2_vocab.bpe", "gpt2", DTX_SPECIAL_PLAIN);
}

static void cl100k(void **state)
{
    check_file(state, "cl100k_base.tiktoken", "cl100k_base.part.tiktoken", "cl100k_base", DTX_SPECIAL_PLAIN);
}

static void o200k(void **state)
{
    check_file(state, "o200k_base.tiktoken", "o200k_base.part.tiktoken", "o200k_base", DTX_SPECIAL_PLAIN);
}

/* The library finds special tokens in text unless it is told not to. */
static void qwen3(void **state)
{
    check_file(state, "qwen3/tokenizer.json", "qwen3.part.json", "qwen3", DTX_SPECIAL_TOKENS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {DATA_TEST(gpt2), DATA_TEST(cl100k), DATA_TEST(o200k), DATA_TEST(qwen3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
