/* test: label=unit timeout=60 */
/* tiktoken files, GPT-2's pair of files, folders; and what every kind of tokenizer keeps: decode(encode(x)) = x. */
#include <jansson.h>

#include "data/alphabet.h"
#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

static const char *const kinds[] = {"gpt2_vocab.bpe", "cl100k_base.part.tiktoken", "o200k_base.part.tiktoken",
                                    "qwen3.part.json"};

static struct dtx_tokenizer *load(struct data_fixture *f, const char *path)
{
    struct dtx_tokenizer *t;
    data_ok(f, dtx_tokenizer_load(&f->ctx, path, &t));
    return t;
}

static struct dtx_tokenizer *load_kind(struct data_fixture *f, int kind)
{
    char name[256];
    snprintf(name, sizeof name, "tests/golden/tokenizer/%s", kinds[kind]);
    return load(f, data_source(name));
}

static void encode(struct data_fixture *f, const struct dtx_tokenizer *t, const char *text, int64_t n,
                   struct dtx_ids *ids)
{
    struct dtx_encoder *e;
    int64_t invalid = 0;
    ids->n = 0;
    data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, n, ids, &invalid));
    dtx_encoder_free(e);
}

static void check_ids(struct data_fixture *f, const struct dtx_tokenizer *t, const char *text, int n,
                      const int32_t *expected)
{
    struct dtx_ids ids = {0};
    encode(f, t, text, (int64_t)strlen(text), &ids);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.data, expected, (size_t)n * sizeof *expected);
    dtx_ids_free(&ids);
}

static void put64(FILE *file, const char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t word = 0;
        for (size_t k = 0; k < 3; k++)
            word = word << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            fputc(i + k <= n ? digits[word >> (18 - 6 * k) & 63] : '=', file);
    }
}

/* The 256 bytes as ranks 0 to 255 and further tokens. */
static const char *write_ranks(struct data_fixture *f, const char *name, const char *const *tokens)
{
    FILE *file = fopen(data_path(f, name), "wb");
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        put64(file, &c, 1);
        fprintf(file, " %d\n", b);
    }
    for (int i = 0; tokens && tokens[i]; i++) {
        put64(file, tokens[i], strlen(tokens[i]));
        fprintf(file, " %d\r\n", 256 + 2 * i);
    }
    fclose(file);
    return data_path(f, name);
}

/* Every pair whose bytes are a token merges, by its rank, leftmost first; a piece that is a token is that token. */
static void tiktoken_merges_by_rank(void **state)
{
    struct data_fixture *f = *state;
    static const char *const tokens[] = {"aa", "aaa", "ab", "zzzz", "12", "123", "\n\n", "\n\n ", NULL};
    struct dtx_tokenizer *t = load(f, write_ranks(f, "small.cl100k.txt", tokens));
    assert_int_equal(dtx_tokenizer_vocab(t), 271);
    assert_int_equal(dtx_tokenizer_merges(t), 8); /* a+a, a+aa, aa+a, a+b, 1+2, 12+3, two of \n */
    assert_int_equal(dtx_tokenizer_special(t, DTX_END_OF_TEXT), -1);
    check_ids(f, t, "aaaa", 2, (const int32_t[]){256, 256});
    check_ids(f, t, "aaaaa", 2, (const int32_t[]){256, 258});
    check_ids(f, t, "aaaab", 3, (const int32_t[]){256, 256, 'b'});
    check_ids(f, t, "zzzz", 1, (const int32_t[]){262});
    check_ids(f, t, "zzzzz", 5, (const int32_t[]){'z', 'z', 'z', 'z', 'z'});
    check_ids(f, t, "1234", 2, (const int32_t[]){266, '4'});
    check_ids(f, t, "a\n\n ", 2, (const int32_t[]){'a', 270}); /* tiktoken keeps white space at the end together */
    dtx_tokenizer_free(t);
    rename(data_path(f, "small.cl100k.txt"), data_path(f, "ranks"));
    data_fails(f, dtx_tokenizer_load(&f->ctx, data_path(f, "ranks"), &t), DTX_E_UNSUPPORTED, "ranks", "cl100k:", NULL);
    char named[600];
    snprintf(named, sizeof named, "gpt2:%s", data_path(f, "ranks"));
    t = load(f, named);
    check_ids(f, t, "1234", 2, (const int32_t[]){266, '4'});
    check_ids(f, t, "a\n\n ", 2, (const int32_t[]){'a', 270});
    struct dtx_tokenizer *other;
    snprintf(named, sizeof named, "cl100k:%s", data_path(f, "ranks"));
    other = load(f, named);
    assert_int_not_equal(dtx_tokenizer_hash(other), dtx_tokenizer_hash(t)); /* the same ranks, another pattern */
    dtx_tokenizer_free(other);
    check_ids(f, t, "a\n\n b", 4, (const int32_t[]){'a', 268, ' ', 'b'});
    dtx_tokenizer_free(t);
}

static void tiktoken_refuses_damage(void **state)
{
    struct data_fixture *f = *state;
    static const char *const lines[][2] = {{"YWE= 256\nYWE= 257\n", "same bytes"},
                                           {"YWE= 255\n", "used twice"},
                                           {"YWE 256\n", "line 257"},
                                           {"Y=E= 256\n", "line 257"},
                                           {"YWE= \n", "line 257"},
                                           {"YWE=\n", "line 257"},
                                           {"YWE= x\n", "line 257"},
                                           {"YWE= 2147483648\n", "line 257"},
                                           {" 256\n", "line 257"},
                                           {"YWE= 999999999\n", "1000000000 ids"},
                                           {"YW*= 256", "line 257"},
                                           {"\n\nYWE=256\n", "line 259"}};
    size_t n;
    char *good = data_read(write_ranks(f, "o200k", NULL), &n), *bad = malloc(n + 64);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct dtx_tokenizer *t = NULL;
        memcpy(bad, good, n);
        strcpy(bad + n, lines[i][0]);
        data_write(data_path(f, "o200k"), bad, n + strlen(lines[i][0]));
        enum dtx_status status = dtx_tokenizer_load(&f->ctx, data_path(f, "o200k"), &t);
        assert_int_not_equal(status, DTX_OK);
        data_fails(f, status, status, "o200k", lines[i][1], NULL);
    }
    struct dtx_tokenizer *t;
    data_write(data_path(f, "o200k"), good, n - 9); /* the last byte's line is gone */
    data_fails(f, dtx_tokenizer_load(&f->ctx, data_path(f, "o200k"), &t), DTX_E_UNSUPPORTED, "0xff", NULL);
    free(good);
    free(bad);
}

/* encoder.json decides over the ids, whichever of the two files is named, or their folder. */
static void encoder_and_merges(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *gpt2 = load_kind(f, 0), *t;
    json_t *ids = json_object();
    struct dtx_bytes text = {0};
    size_t n;
    for (int32_t id = 0; id < 50256; id++) {
        int64_t bytes;
        const char *token = dtx_tokenizer_token(gpt2, id, &bytes);
        text.n = 0;
        data_ok(f, dtx_alphabet_encode(&f->ctx, token, bytes, &text));
        data_ok(f, dtx_bytes_append(&f->ctx, &text, "", 1));
        json_object_set_new(ids, text.data, json_integer(50256 - id));
    }
    json_object_set_new(ids, DTX_END_OF_TEXT, json_integer(50300));
    char *merges = data_read(data_source("tests/golden/tokenizer/gpt2_vocab.bpe"), &n);
    data_write(data_path(f, "vocab.bpe"), merges, n);
    assert_int_equal(json_dump_file(ids, data_path(f, "encoder.json"), 0), 0);
    const char *const paths[] = {data_path(f, "vocab.bpe"), data_path(f, "encoder.json"), f->folder};
    for (int i = 0; i < 3; i++) {
        t = load(f, paths[i]);
        check_ids(f, t, "hello world", 2, (const int32_t[]){50256 - 31373, 50256 - 995});
        assert_int_equal(dtx_tokenizer_special(t, DTX_END_OF_TEXT), 50300);
        dtx_tokenizer_free(t);
    }
    json_object_del(ids, "hello");
    assert_int_equal(json_dump_file(ids, data_path(f, "encoder.json"), 0), 0);
    data_fails(f, dtx_tokenizer_load(&f->ctx, f->folder, &t), DTX_E_FORMAT, "vocab.bpe", "no token", NULL);
    json_object_set_new(ids, "hello", json_string("x"));
    assert_int_equal(json_dump_file(ids, data_path(f, "encoder.json"), 0), 0);
    data_fails(f, dtx_tokenizer_load(&f->ctx, f->folder, &t), DTX_E_FORMAT, "encoder.json", "'hello' has no id", NULL);
    assert_int_equal(remove(data_path(f, "vocab.bpe")), 0);
    data_fails(f, dtx_tokenizer_load(&f->ctx, f->folder, &t), DTX_E_FORMAT, "encoder.json", "vocab.bpe", NULL);
    assert_int_equal(remove(data_path(f, "encoder.json")), 0);
    data_fails(f, dtx_tokenizer_load(&f->ctx, f->folder, &t), DTX_E_CONFIG, f->folder, "tokenizer.json", NULL);
    free(merges);
    json_decref(ids);
    dtx_bytes_free(&text);
    dtx_tokenizer_free(gpt2);
}

/* CASES 26: random bytes, repaired and counted; what is valid comes back. Qwen's normal form changes text, but what it
 * has changed once it leaves alone. */
static void random_bytes_come_back(void **state)
{
    struct data_fixture *f = *state;
    for (int kind = 0; kind < 4; kind++) {
        struct dtx_tokenizer *t = load_kind(f, kind);
        struct dtx_encoder *e;
        struct dtx_ids ids = {0}, again = {0};
        struct dtx_bytes back = {0}, repaired = {0}, twice = {0};
        data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
        for (uint64_t round = 0; round < 300; round++) {
            char text[400];
            int64_t n = (int64_t)(dtx_rng_uniform(31, round) * 400), invalid = 0, expected = 0;
            for (int64_t i = 0; i < n; i++) {
                double u = dtx_rng_uniform(32, round * 400 + (uint64_t)i);
                text[i] = (char)(round % 3 ? (int)(u * 256) : "\xc3\xa9 \xcc\x81 <t>e1\n'"[(int)(u * 13)]);
            }
            ids.n = back.n = repaired.n = 0;
            data_ok(f, dtx_utf8_repair(&f->ctx, text, n, &repaired, &expected));
            data_ok(f, dtx_encoder_run(&f->ctx, e, text, n, &ids, &invalid));
            data_ok(f, dtx_tokenizer_decode(&f->ctx, t, ids.data, ids.n, &back));
            assert_int_equal(invalid, expected);
            if (kind < 3) {
                assert_int_equal(back.n, repaired.n);
                assert_memory_equal(back.data ? back.data : "", repaired.data ? repaired.data : "", (size_t)back.n);
                continue;
            }
            again.n = twice.n = 0;
            data_ok(f, dtx_encoder_run(&f->ctx, e, back.data, back.n, &again, &invalid));
            data_ok(f, dtx_tokenizer_decode(&f->ctx, t, again.data, again.n, &twice));
            assert_int_equal(invalid, expected);
            assert_int_equal(twice.n, back.n);
            assert_memory_equal(twice.data ? twice.data : "", back.data ? back.data : "", (size_t)back.n);
        }
        dtx_ids_free(&ids);
        dtx_ids_free(&again);
        dtx_bytes_free(&back);
        dtx_bytes_free(&repaired);
        dtx_bytes_free(&twice);
        dtx_encoder_free(e);
        dtx_tokenizer_free(t);
    }
}

/* Special tokens are found only when asked for; hashes tell tokenizers apart. */
static void specials_and_hashes(void **state)
{
    struct data_fixture *f = *state;
    uint64_t hashes[4];
    for (int kind = 0; kind < 4; kind++) {
        struct dtx_tokenizer *t = load_kind(f, kind), *again = load_kind(f, kind);
        hashes[kind] = dtx_tokenizer_hash(t);
        assert_int_equal(dtx_tokenizer_hash(again), hashes[kind]);
        for (int other = 0; other < kind; other++)
            assert_int_not_equal(hashes[other], hashes[kind]);
        assert_true(dtx_tokenizer_may_cut(t));
        dtx_tokenizer_free(t);
        dtx_tokenizer_free(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(tiktoken_merges_by_rank), DATA_TEST(tiktoken_refuses_damage), DATA_TEST(encoder_and_merges),
        DATA_TEST(random_bytes_come_back),  DATA_TEST(specials_and_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
