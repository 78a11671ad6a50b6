/* test: label=unit timeout=120 */
#include <math.h>
#include <time.h>

#include "data/bpe_train.h"
#include "data/tokenizer_build.h"
#include "data/utf8.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

static struct dtx_tokenizer *load_gpt2(struct data_fixture *f)
{
    struct dtx_tokenizer *t;
    data_ok(f, dtx_tokenizer_load(&f->ctx, data_source("tests/golden/tokenizer/gpt2_vocab.bpe"), &t));
    return t;
}

static struct dtx_encoder *encoder(struct data_fixture *f, const struct dtx_tokenizer *t)
{
    struct dtx_encoder *e;
    data_ok(f, dtx_encoder_create(&f->ctx, t, &e));
    return e;
}

static void check_round_trip(struct data_fixture *f, struct dtx_encoder *e, const struct dtx_tokenizer *t,
                             const char *text, int64_t n, struct dtx_ids *ids)
{
    struct dtx_bytes back = {0};
    int64_t invalid = 0;
    ids->n = 0;
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, n, ids, &invalid));
    assert_int_equal(invalid, 0);
    data_ok(f, dtx_tokenizer_decode(&f->ctx, t, ids->data, ids->n, &back));
    assert_int_equal(back.n, n);
    if (n)
        assert_memory_equal(back.data, text, (size_t)n);
    dtx_bytes_free(&back);
}

/* The textbook: look at all pairs, merge the first of the lowest rank, again. */
static int64_t merge_naively(const struct dtx_tokenizer *t, const char *piece, int64_t n, int32_t *ids)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = t->byte_id[(unsigned char)piece[i]];
    for (;;) {
        int64_t best = -1;
        int32_t best_rank = INT32_MAX;
        for (int64_t i = 0; i + 1 < n; i++)
            for (int32_t r = 0; r < t->n_merges && r < best_rank; r++)
                if (t->merges[r].left == ids[i] && t->merges[r].right == ids[i + 1]) {
                    best = i;
                    best_rank = r;
                }
        if (best < 0)
            return n;
        ids[best] = t->merges[best_rank].id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(n - best - 2) * sizeof *ids);
        n--;
    }
}

/* Words over two letters are full of overlapping pairs; lengths on both sides of the long pieces' limit. */
static struct dtx_tokenizer *learn_two_letters(struct data_fixture *f)
{
    static char text[40000];
    for (size_t i = 0; i < sizeof text; i++) {
        double u = dtx_rng_uniform(11, i);
        text[i] = u < 0.15 ? ' ' : u < 0.7 ? 'a' : 'b';
    }
    struct dtx_bpe_trainer *trainer;
    struct dtx_tokenizer *t;
    data_ok(f, dtx_bpe_trainer_create(&f->ctx, 1, &trainer));
    data_ok(f, dtx_bpe_trainer_feed(&f->ctx, trainer, text, sizeof text));
    data_ok(f, dtx_bpe_trainer_finish(&f->ctx, trainer, 400, &t));
    dtx_bpe_trainer_free(trainer);
    assert_int_equal(dtx_tokenizer_vocab(t), 400);
    return t;
}

static void merges_like_the_textbook(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t = learn_two_letters(f);
    struct dtx_encoder *e = encoder(f, t);
    struct dtx_ids ids = {0};
    uint64_t at = 0;
    for (int round = 0; round < 600; round++) {
        char piece[256];
        int32_t expected[256];
        int64_t n = 1 + (int64_t)(dtx_rng_uniform(12, at++) * (round % 3 ? 70 : 250));
        double share = dtx_rng_uniform(12, at++);
        for (int64_t i = 0; i < n; i++)
            piece[i] = dtx_rng_uniform(12, at++) < share ? 'a' : 'b';
        check_round_trip(f, e, t, piece, n, &ids);
        assert_int_equal(ids.n, merge_naively(t, piece, n, expected));
        assert_memory_equal(ids.data, expected, (size_t)ids.n * sizeof *expected);
        check_round_trip(f, e, t, piece, n, &ids); /* now perhaps from the cache */
        assert_memory_equal(ids.data, expected, (size_t)ids.n * sizeof *expected);
    }
    dtx_ids_free(&ids);
    dtx_encoder_free(e);
    dtx_tokenizer_free(t);
}

/* Random code points of many kinds; longer than the cache, so that entries are replaced. */
static void decoding_gives_the_text_back(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        uint32_t first, n;
    } kinds[] = {{0, 128},      {' ', 1},       {'a', 26},      {'\'', 1},     {0x80, 0x180}, {0x300, 0x70},
                 {0x180e, 1},   {0x2000, 0x30}, {0x3000, 2},    {0x4e00, 200}, {0xe000, 16},  {0xfe0f, 1},
                 {0x1f600, 64}, {0x660, 10},    {0x10fff0, 16}, {'\n', 1},     {'s', 2},      {0x378, 2}};
    struct dtx_tokenizer *t = load_gpt2(f);
    struct dtx_encoder *e = encoder(f, t);
    struct dtx_ids ids = {0};
    struct dtx_bytes text = {0};
    for (int round = 0; round < 30; round++) {
        text.n = 0;
        for (int i = 0; i < 3000; i++) {
            uint64_t k = (uint64_t)round * 3000 + (uint64_t)i;
            size_t kind = (size_t)(dtx_rng_uniform(13, k) * (sizeof kinds / sizeof *kinds));
            uint32_t code = kinds[kind].first + (uint32_t)(dtx_rng_uniform(14, k) * kinds[kind].n);
            data_ok(f, dtx_bytes_reserve(&f->ctx, &text, 4));
            text.n += dtx_utf8_put(code, text.data + text.n);
        }
        check_round_trip(f, e, t, text.data, text.n, &ids);
    }
    dtx_bytes_free(&text);
    dtx_ids_free(&ids);
    dtx_encoder_free(e);
    dtx_tokenizer_free(t);
}

/* CASES 26 */
static void invalid_bytes_and_special_text(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t = load_gpt2(f);
    struct dtx_encoder *e = encoder(f, t);
    struct dtx_ids ids = {0}, expected = {0};
    struct dtx_bytes back = {0};
    int64_t invalid = 0, none = 0;
    const char broken[] = "caf\xe9 \xf0\x9f\x98 end \xff\xfe", repaired[] = "caf\xef\xbf\xbd \xef\xbf\xbd end "
                                                                            "\xef\xbf\xbd\xef\xbf\xbd";
    data_ok(f, dtx_encoder_run(&f->ctx, e, broken, sizeof broken - 1, &ids, &invalid));
    data_ok(f, dtx_encoder_run(&f->ctx, e, repaired, sizeof repaired - 1, &expected, &none));
    assert_int_equal(invalid, 4);
    assert_int_equal(none, 0);
    assert_int_equal(ids.n, expected.n);
    assert_memory_equal(ids.data, expected.data, (size_t)ids.n * sizeof *ids.data);
    ids.n = 0;
    const char special[] = "a<|endoftext|>b";
    check_round_trip(f, e, t, special, sizeof special - 1, &ids);
    for (int64_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.data[i], 50256);
    const int32_t end = 50256, beyond = 50257;
    data_ok(f, dtx_tokenizer_decode(&f->ctx, t, &end, 1, &back));
    assert_memory_equal(back.data, DTX_END_OF_TEXT, (size_t)back.n);
    data_fails(f, dtx_tokenizer_decode(&f->ctx, t, &beyond, 1, &back), DTX_E_RANGE, "50257", NULL);
    dtx_bytes_free(&back);
    dtx_ids_free(&ids);
    dtx_ids_free(&expected);
    dtx_encoder_free(e);
    dtx_tokenizer_free(t);
}

/* Texts without a break, and a few that make a pattern or a normal form look far. */
static const char *const units[] = {"a",
                                    " ",
                                    "\n",
                                    "=",
                                    "ab",
                                    "\xe6\x97\xa5\xe6\x9c\xac",
                                    "1",
                                    " \n\t",
                                    "'s",
                                    "A",
                                    "\xe6\x97\xa5Z",
                                    "\xcc\x81\xcc\xa3" /* marks of two classes, in the wrong order */,
                                    "<",
                                    "<|im_start|"};
enum { UNITS = sizeof units / sizeof *units, BASE64 = UNITS, SPACES_AND_WORD, INPUTS };

static void make_input(char *text, int64_t n, int input)
{
    for (int64_t i = 0, k = 0; i < n; i++)
        if (input == BASE64) {
            text[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(
                int)(dtx_rng_uniform(15, (uint64_t)i) * 64)];
        } else if (input == SPACES_AND_WORD) {
            text[i] = i + 1 < n ? ' ' : 'x';
        } else {
            text[i] = units[input][k];
            k = units[input][k + 1] ? k + 1 : 0;
        }
}

/* Seconds of this process' own time, so that a busy machine does not matter. */
static double encode_seconds(struct data_fixture *f, struct dtx_encoder *e, const char *text, int64_t n,
                             struct dtx_ids *ids)
{
    int64_t invalid = 0;
    ids->n = 0;
    clock_t start = clock();
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, n, ids, &invalid));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* CASES 27: twice the text takes twice the time; four times would be quadratic. Whole characters: n is a multiple of
 * all units' lengths. */
static void check_growth(struct data_fixture *f, struct dtx_encoder *e, char *text, int64_t n, int input,
                         struct dtx_ids *ids)
{
    double ratio = 0;
    for (int attempt = 0; attempt < 6; attempt++) {
        double once = 1e9, twice = 1e9;
        for (int i = 0; i < 2; i++) {
            make_input(text, n, input);
            once = fmin(once, encode_seconds(f, e, text, n, ids));
            make_input(text, 2 * n, input);
            twice = fmin(twice, encode_seconds(f, e, text, 2 * n, ids));
        }
        ratio = twice / fmax(once, 2e-3);
        if (ratio < 3)
            return;
    }
    fail_msg("input %d: twice the text takes %.1f times as long", input, ratio);
}

static void no_input_is_quadratic(void **state)
{
    struct data_fixture *f = *state;
    static const char *const files[] = {"gpt2_vocab.bpe", "cl100k_base.part.tiktoken", "o200k_base.part.tiktoken",
                                        "qwen3.part.json"};
    const int64_t n = 132 * 400; /* lengths 1, 2, 3, 4, 6, 11 */
    char *text = malloc((size_t)n * 200);
    struct dtx_ids ids = {0};
    for (size_t kind = 0; kind < sizeof files / sizeof *files; kind++) {
        struct dtx_tokenizer *t;
        char name[256];
        snprintf(name, sizeof name, "tests/golden/tokenizer/%s", files[kind]);
        data_ok(f, dtx_tokenizer_load(&f->ctx, data_source(name), &t));
        struct dtx_encoder *e = encoder(f, t);
        data_ok(f, dtx_encoder_special(&f->ctx, e, DTX_SPECIAL_TOKENS));
        for (int input = 0; input < INPUTS; input++) {
            check_growth(f, e, text, n, input, &ids);
        }
        /* A megabyte of each, ten of spaces: seconds, where a quadratic way takes hours. */
        for (int input = 0; input < INPUTS && kind == 0; input++) {
            make_input(text, 20 * n, input);
            assert_true(encode_seconds(f, e, text, 20 * n, &ids) < 3);
        }
        if (kind == 0) {
            make_input(text, 200 * n, SPACES_AND_WORD);
            assert_true(encode_seconds(f, e, text, 200 * n, &ids) < 20);
        }
        dtx_encoder_free(e);
        dtx_tokenizer_free(t);
    }
    free(text);
    dtx_ids_free(&ids);
}

/* Cutting where dtx_split_point says changes no id. */
static void check_parts(struct data_fixture *f, const struct dtx_tokenizer *t)
{
    struct dtx_encoder *e = encoder(f, t);
    struct dtx_ids whole = {0}, parts = {0};
    int64_t invalid = 0;
    static char text[6000];
    assert_true(dtx_tokenizer_may_cut(t));
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab c\n\n '  s1\xff.\t"[(int)(dtx_rng_uniform(16, i) * 15)];
    data_ok(f, dtx_encoder_run(&f->ctx, e, text, sizeof text, &whole, &invalid));
    for (int64_t start = 0, size = 5; start < (int64_t)sizeof text; size = size * 7 % 101 + 4) {
        int64_t n = start + size < (int64_t)sizeof text ? dtx_split_point(text + start, size) : 0;
        if (n == 0)
            n = (int64_t)sizeof text - start < 200 ? (int64_t)sizeof text - start : dtx_split_point(text + start, 200);
        assert_true(n > 0);
        data_ok(f, dtx_encoder_run(&f->ctx, e, text + start, n, &parts, &invalid));
        start += n;
    }
    assert_int_equal(parts.n, whole.n);
    assert_memory_equal(parts.data, whole.data, (size_t)whole.n * sizeof *whole.data);
    dtx_ids_free(&whole);
    dtx_ids_free(&parts);
    dtx_encoder_free(e);
}

static void parts_have_the_ids_of_the_whole(void **state)
{
    struct data_fixture *f = *state;
    static const char *const files[] = {"gpt2_vocab.bpe", "cl100k_base.part.tiktoken", "o200k_base.part.tiktoken",
                                        "qwen3.part.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[256];
        struct dtx_tokenizer *t;
        snprintf(name, sizeof name, "tests/golden/tokenizer/%s", files[i]);
        data_ok(f, dtx_tokenizer_load(&f->ctx, data_source(name), &t));
        check_parts(f, t);
        dtx_tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(merges_like_the_textbook),        DATA_TEST(decoding_gives_the_text_back),
        DATA_TEST(invalid_bytes_and_special_text),  DATA_TEST(no_input_is_quadratic),
        DATA_TEST(parts_have_the_ids_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
