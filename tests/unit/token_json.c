/* test: label=unit timeout=60 */
#include "data/alphabet.h"
#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

/* tokenizer.json with the 256 bytes as ids 0–255 and what the strings add; "" for nothing. */
struct json_parts {
    const char *vocab;  /* after the bytes: `,"ab":256` */
    const char *merges; /* `"a b"` */
    const char *model;  /* further keys of the model: `,"ignore_merges":true` */
    const char *pre;    /* the pre-tokenizer; NULL for the usual one */
    const char *top;    /* further keys of the whole */
};

#define SPLIT(pattern, behavior)                                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior   \
    "\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"

static void write_json(struct data_fixture *f, const struct json_parts *p)
{
    FILE *file = fopen(data_path(f, "t.json"), "wb");
    fprintf(file,
            "\n{\"version\":\"1.0\",\"normalizer\":null,\"pre_tokenizer\":%s%s,\"model\":{\"type\":\"BPE\"%s,"
            "\"vocab\":{",
            p->pre ? p->pre : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", p->top,
            p->model);
    for (int b = 0; b < 256; b++) {
        char text[5] = "";
        dtx_utf8_put(dtx_byte_to_char(b), text);
        fprintf(file, "%s\"%s%s\":%d", b ? "," : "", b == '"' || b == '\\' ? "\\" : "", text, b);
    }
    fprintf(file, "%s},\"merges\":[%s]}}", p->vocab, p->merges);
    fclose(file);
}

static enum dtx_status load(struct data_fixture *f, struct dtx_tokenizer **t)
{
    *t = NULL;
    return dtx_tokenizer_load(&f->ctx, data_path(f, "t.json"), t);
}

/* The ids of text, compared with expected[n]. */
static void check_ids(struct data_fixture *f, const struct dtx_tokenizer *t, const char *text, int n,
                      const int32_t *expected)
{
    struct dtx_encoder *e;
    struct dtx_ids ids = {0};
    int64_t invalid = 0;
    data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, (int64_t)strlen(text), &ids, &invalid));
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.data, expected, (size_t)n * sizeof *expected);
    dtx_ids_free(&ids);
    dtx_encoder_free(e);
}

static void both_forms_of_merges(void **state)
{
    struct data_fixture *f = *state;
    static const char *const forms[] = {"\"a b\",\"ab c\"", "[\"a\",\"b\"],[\"ab\",\"c\"]"};
    for (int i = 0; i < 2; i++) {
        struct dtx_tokenizer *t;
        write_json(f, &(struct json_parts){",\"ab\":256,\"abc\":257", forms[i], "", NULL, ""});
        data_ok(f, load(f, &t));
        check_ids(f, t, "abcab b", 4, (const int32_t[]){257, 256, ' ', 'b'});
        dtx_tokenizer_free(t);
    }
}

static void ignore_merges_takes_whole_pieces(void **state)
{
    struct data_fixture *f = *state;
    static const char vocab[] = ",\"ab\":256,\"abab\":257";
    struct dtx_tokenizer *t;
    write_json(f, &(struct json_parts){vocab, "\"a b\"", ",\"ignore_merges\":false", NULL, ""});
    data_ok(f, load(f, &t));
    check_ids(f, t, "abab", 2, (const int32_t[]){256, 256});
    dtx_tokenizer_free(t);
    write_json(f, &(struct json_parts){vocab, "\"a b\"", ",\"ignore_merges\":true", NULL, ""});
    data_ok(f, load(f, &t));
    check_ids(f, t, "abab", 1, (const int32_t[]){257});
    dtx_tokenizer_free(t);
}

static void special_tokens_and_gaps(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t;
    int64_t n;
    write_json(f, &(struct json_parts){",\"<end>\":256,\"ab\":260", "\"a b\"", "", NULL,
                                       ",\"added_tokens\":[{\"id\":256,\"content\":\"<end>\",\"special\":true},"
                                       "{\"id\":270,\"content\":\"<pad one>\",\"special\":true}]"});
    data_ok(f, load(f, &t));
    assert_int_equal(dtx_tokenizer_vocab(t), 271);
    assert_int_equal(dtx_tokenizer_special(t, "<end>"), 256);
    assert_int_equal(dtx_tokenizer_special(t, "<pad one>"), 270);
    assert_int_equal(dtx_tokenizer_special(t, "ab"), -1);
    dtx_tokenizer_token(t, 258, &n);
    assert_int_equal(n, 0);
    check_ids(f, t, "<end>ab", 6, (const int32_t[]){'<', 'e', 'n', 'd', '>', 260});
    dtx_tokenizer_free(t);
}

static void saving_keeps_everything(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t, *again;
    data_ok(f, dtx_tokenizer_load(&f->ctx, data_source("tests/golden/tokenizer/gpt2_vocab.bpe"), &t));
    data_ok(f, dtx_tokenizer_save(&f->ctx, t, data_path(f, "t.json")));
    data_ok(f, load(f, &again));
    assert_int_equal(dtx_tokenizer_hash(again), dtx_tokenizer_hash(t));
    assert_int_equal(dtx_tokenizer_merges(again), 50000);
    assert_int_equal(dtx_tokenizer_special(again, DTX_END_OF_TEXT), 50256);
    assert_int_equal(access(data_path(f, "t.json.partial"), F_OK), -1);
    data_fails(f, dtx_tokenizer_save(&f->ctx, t, data_path(f, "no/folder.json")), DTX_E_CONFIG, "no/folder.json", NULL);
    dtx_tokenizer_free(t);
    dtx_tokenizer_free(again);
}

/* CASES 25: nearly right ids are worse than none. */
static void refuses_unknown_components_by_name(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        struct json_parts parts;
        const char *word;
    } cases[] = {
        {{"", "", ",\"byte_fallback\":true", NULL, ""}, "byte_fallback"},
        {{"", "", ",\"dropout\":0.1", NULL, ""}, "dropout"},
        {{"", "", ",\"continuing_subword_prefix\":\"##\"", NULL, ""}, "##"},
        {{"", "", ",\"end_of_word_suffix\":\"</w>\"", NULL, ""}, "</w>"},
        {{"", "", "", "null", ""}, "pre_tokenizer"},
        {{"", "", "", "{\"type\":\"Metaspace\"}", ""}, "Metaspace"},
        {{"", "", "", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", ""}, "add_prefix_space"},
        {{"", "", "", "{\"type\":\"ByteLevel\"}", ""}, "add_prefix_space"},
        {{"", "", "", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}]}", ""}, "Whitespace"},
        {{"", "", "", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}", ""}, "without ByteLevel"},
        {{"", "", "", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", ""}, "pre_tokenizer"},
        {{"", "", "", "{\"type\":\"Sequence\"}", ""}, "pretokenizers"},
        {{"", "", "", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Sequence\"}]}", ""}, "in a Sequence"},
        {{"", "", "", SPLIT("{\"Regex\":\"a\"}", "Merged"), ""}, "Merged"},
        {{"", "", "", SPLIT("{\"Glob\":\"a\"}", "Isolated"), ""}, "Glob"},
        {{"", "", "", SPLIT("{\"String\":\"\"}", "Isolated"), ""}, "Split.pattern"},
        {{"", "", "", SPLIT("{\"Regex\":\"a(\"}", "Isolated"), ""}, "'a('"},
        {{"", "", "", SPLIT("{\"Regex\":\"a\\\\b\"}", "Isolated"), ""}, "\\b at byte 1"},
        {{"", "", "", SPLIT("{\"Regex\":\"[\\\\W]\"}", "Isolated"), ""}, "\\W at byte 1"},
        {{"", "", "", SPLIT("{\"Regex\":\"[a&&b]\"}", "Isolated"), ""}, "&& in a class"},
        {{"", "", "", SPLIT("{\"Regex\":\"[a[b]]\"}", "Isolated"), ""}, "class inside"},
        {{"", "", "", SPLIT("{\"Regex\":\"(?m:.)\"}", "Isolated"), ""}, "option m"},
        {{"", "", "", SPLIT("{\"Regex\":\"a{1,2}+\"}", "Isolated"), ""}, "possessive"},
        {{"", "", "", SPLIT("{\"Regex\":\"\\\\p{Nothing}\"}", "Isolated"), ""}, "Nothing"},
        {{"", "", "", NULL, ",\"decoder\":{\"type\":\"WordPiece\"}"}, "WordPiece"},
        {{"", "", "", NULL, ",\"post_processor\":{\"type\":\"BertProcessing\"}"}, "BertProcessing"},
        {{",\"\xe6\x97\xa5\":256", "", "", NULL, ""}, "alphabet"},
        {{",\"ab\":255", "", "", NULL, ""}, "255 is used twice"},
        {{",\"ab\":-1", "", "", NULL, ""}, "ab"},
        {{",\"ab\":1.5", "", "", NULL, ""}, "ab"},
        {{",\"ab\":99999999999", "", "", NULL, ""}, "99999999999"},
        {{",\"ab\":2000000000", "", "", NULL, ""}, "2000000001"},
        {{",\"\":256", "", "", NULL, ""}, "0 bytes"},
        {{"", "\"a b\"", "", NULL, ""}, "result is no token"},
        {{",\"ab\":256", "\"a b\",\"a b\"", "", NULL, ""}, "the same"},
        {{",\"ab\":256", "\"ab\"", "", NULL, ""}, "model.merges"},
        {{",\"ab\":256", "[\"a\"]", "", NULL, ""}, "model.merges"},
        {{",\"ab\":256", "7", "", NULL, ""}, "model.merges"},
        {{"", "", "", NULL, ",\"added_tokens\":[{\"content\":\"x\"}]"}, "added_tokens"},
        {{"", "", "", NULL, ",\"added_tokens\":[{\"id\":\"x\",\"content\":\"x\"}]"}, "added_tokens"},
        {{"", "", "", NULL, ",\"normalizer\":{\"type\":\"NFC\"}"}, "duplicate"},
        {{",\"ab\":256", "", "", NULL, ",\"added_tokens\":[{\"id\":300,\"content\":\"ab\"}]"}, "id 300, but id 256"},
        {{"", "", "", NULL, ",\"added_tokens\":[{\"id\":300,\"content\":\"x y\",\"lstrip\":1}]"}, "lstrip"},
        {{"", "", "", NULL, ",\"added_tokens\":[{\"id\":97,\"content\":\"x y\"}]"}, "97 is used twice"},
        {{"", "{", "", NULL, ""}, "line"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtx_tokenizer *t;
        write_json(f, &cases[i].parts);
        enum dtx_status status = load(f, &t);
        assert_int_not_equal(status, DTX_OK);
        data_fails(f, status, status, "t.json", cases[i].word, NULL);
        assert_null(t);
    }
    static const char *const files[][2] = {{"", "neither"},
                                           {"GGUF", "neither"},
                                           {"{}", "model"},
                                           {"{\"model\":{\"type\":\"Unigram\"}}", "Unigram"},
                                           {"#version: 0.2\na b\nab\n", "line 3"},
                                           {"#version: 0.2\na b\na b\n", "same bytes"},
                                           {"#version: 0.2\nab c\n", "left part"},
                                           {"#version: 0.2\n\xff b\n", "line 2"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct dtx_tokenizer *t;
        data_write(data_path(f, "t.json"), files[i][0], strlen(files[i][0]));
        enum dtx_status status = load(f, &t);
        assert_int_not_equal(status, DTX_OK);
        data_fails(f, status, status, "t.json", files[i][1], NULL);
    }
}

/* Random damage is refused or gives a tokenizer that works; the sanitizers watch. */
static void survives_damage(void **state)
{
    struct data_fixture *f = *state;
    size_t n;
    write_json(f, &(struct json_parts){",\"ab\":256,\"abc\":257", "\"a b\",[\"ab\",\"c\"]", "", NULL, ""});
    char *good = data_read(data_path(f, "t.json"), &n), *bad = malloc(n);
    for (uint64_t round = 0; round < 1500; round++) {
        memcpy(bad, good, n);
        for (uint64_t k = 0; k < 1 + round % 3; k++)
            bad[(size_t)(dtx_rng_uniform(1, 8 * round + k) * (double)n)] =
                "\"{}[],:0129ab\\ \xff"[(int)(dtx_rng_uniform(2, 8 * round + k) * 16)];
        size_t length = round % 5 ? n : (size_t)(dtx_rng_uniform(3, round) * (double)n);
        data_write(data_path(f, "t.json"), bad, length);
        struct dtx_tokenizer *t;
        if (load(f, &t) == DTX_OK) {
            struct dtx_encoder *e;
            struct dtx_ids ids = {0};
            int64_t invalid = 0;
            data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
            data_ok(f, dtx_encoder_run(&f->ctx, e, good, (int64_t)n, &ids, &invalid));
            for (int64_t i = 0; i < ids.n; i++)
                assert_in_range(ids.data[i], 0, dtx_tokenizer_vocab(t) - 1);
            dtx_ids_free(&ids);
            dtx_encoder_free(e);
        }
        dtx_tokenizer_free(t);
        dtx_error_clear(&f->ctx);
    }
    free(good);
    free(bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(both_forms_of_merges),
        DATA_TEST(ignore_merges_takes_whole_pieces),
        DATA_TEST(special_tokens_and_gaps),
        DATA_TEST(saving_keeps_everything),
        DATA_TEST(refuses_unknown_components_by_name),
        DATA_TEST(survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
