/* test: label=unit timeout=60 */
#include <math.h>

#include "data/stream.h"
#include "tests/unit/data_support.h"
#include "tests/unit/stream_rows.h"

enum { VOCAB = 60000 };

static struct dtx_stream *open_stream(struct data_fixture *f, struct dtx_stream_config config)
{
    struct dtx_stream *s = NULL;
    if (!config.vocab)
        config.vocab = VOCAB;
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    return s;
}

/* CASES 15 and 16: sample i covers tokens i·length … i·length + length; each target once an epoch. */
static void samples_cover_every_target_once(void **state)
{
    struct data_fixture *f = *state;
    for (int64_t tokens = 2; tokens < 45; tokens++) {
        const int64_t length = 10;
        data_make_tokens(f, data_path(f, "t"), VOCAB, &tokens, 1);
        struct dtx_stream_config config = {
            .paths = data_path(f, "t"), .length = length, .seed = 1, .vocab = VOCAB, .separator = -1};
        struct dtx_stream *s = NULL;
        enum dtx_status status = dtx_stream_open(&f->ctx, &config, &s);
        if (tokens < length + 1) {
            char have[32];
            snprintf(have, sizeof have, "%lld tokens", (long long)tokens);
            data_fails(f, status, DTX_E_CONFIG, data_path(f, "t"), have, "10 + 1", NULL);
            continue;
        }
        data_ok(f, status);
        int64_t samples = (tokens - 1) / length;
        assert_int_equal(dtx_stream_samples(s), samples);
        assert_int_equal(dtx_stream_tokens(s), tokens);
        assert_int_equal(dtx_stream_tail(s), tokens - samples * length - 1);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int target[64] = {0};
            for (int64_t i = 0; i < samples; i++) {
                int32_t row[11];
                data_ok(f, stream_rows(&f->ctx, s, epoch * samples + i, 1, row, NULL));
                assert_int_equal(row[0] % length, 0);
                for (int t = 1; t <= length; t++) {
                    assert_int_equal(row[t], row[0] + t);
                    target[row[t]]++;
                }
            }
            for (int64_t t = 1; t <= samples * length; t++)
                assert_int_equal(target[t], 1);
        }
        dtx_stream_close(s);
    }
}

static void order_depends_on_seed_and_epoch_only(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = 2001;
    data_make_tokens(f, data_path(f, "t"), VOCAB, &tokens, 1);
    struct dtx_stream_config config = {.paths = data_path(f, "t"), .length = 4, .seed = 5, .separator = -1};
    struct dtx_stream *a = open_stream(f, config), *b = open_stream(f, config);
    config.seed = 6;
    struct dtx_stream *c = open_stream(f, config);
    int32_t row[2000 * 5], other[2000 * 5];
    int equal_epochs = 0, equal_seeds = 0;
    data_ok(f, stream_rows(&f->ctx, a, 0, 1000, row, NULL));
    for (int64_t i = 999; i >= 0; i--) { /* another order of asking */
        data_ok(f, stream_rows(&f->ctx, b, i, 1, other, NULL));
        assert_memory_equal(other, row + 5 * i, sizeof *row * 5);
        data_ok(f, stream_rows(&f->ctx, c, i, 1, other, NULL));
        equal_seeds += other[0] == row[5 * i];
    }
    for (int i = 0; i < 500; i++)
        equal_epochs += row[5 * i] == row[5 * (i + 500)];
    assert_true(equal_epochs < 10 && equal_seeds < 15);
    dtx_stream_close(a);
    dtx_stream_close(b);
    dtx_stream_close(c);
}

/* The held-out part is the last documents; no token is in both parts. */
static void heldout_never_overlaps_training(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t lengths[] = {50, 0, 7, 31, 12, 40, 1, 0, 33, 26}; /* sums to 200 */
    data_make_tokens(f, data_path(f, "t"), VOCAB, lengths, 10);
    static const struct {
        double share;
        int64_t train;
    } cases[] = {{0.0001, 174}, {0.1, 174}, {0.2, 141}, {0.24, 141}, {0.3, 141}, {0.5, 100}, {0.95, 50}, {0.999, 50}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct dtx_stream_config config = {
            .paths = data_path(f, "t"), .length = 3, .heldout = cases[k].share, .separator = -1};
        struct dtx_stream *train = open_stream(f, config);
        config.use_heldout = true;
        struct dtx_stream *held = open_stream(f, config);
        assert_int_equal(dtx_stream_tokens(train), cases[k].train);
        assert_int_equal(dtx_stream_tokens(held), 200 - cases[k].train);
        int32_t row[4];
        for (int64_t i = 0; i < 2 * dtx_stream_samples(train); i++) {
            data_ok(f, stream_rows(&f->ctx, train, i, 1, row, NULL));
            assert_true(row[3] < cases[k].train);
        }
        for (int64_t i = 0; i < 2 * dtx_stream_samples(held); i++) { /* plain order, wraps */
            data_ok(f, stream_rows(&f->ctx, held, i, 1, row, NULL));
            assert_int_equal(row[0], cases[k].train + 3 * (i % dtx_stream_samples(held)));
        }
        dtx_stream_close(train);
        dtx_stream_close(held);
    }
}

static void document_starts(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t ids[] = {5, 6, 0, 7, 0, 0, 8, 9, 1, 2, 0, 3, 4};
    static const int32_t expected[2][6] = {{0, 0, 0, 3, 3, 5}, {0, 0, 0, 0, 0, 5}};
    struct dtx_tokenwriter *w;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "t"), 10, 0, &w));
    data_ok(f, dtx_tokenwriter_add(&f->ctx, w, ids, 13));
    data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
    for (int reset = 0; reset < 2; reset++) {
        struct dtx_stream *s = open_stream(
            f, (struct dtx_stream_config){
                   .paths = data_path(f, "t"), .length = 6, .vocab = 10, .separator = 0, .doc_reset = reset});
        int32_t rows[2][7], starts[2][6];
        data_ok(f, stream_rows(&f->ctx, s, 0, 2, rows[0], starts[0]));
        for (int r = 0; r < 2; r++)
            for (int t = 0; t < 6; t++)
                assert_int_equal(starts[r][t], reset ? expected[rows[r][0] == 8][t] : 0);
        dtx_stream_close(s);
    }
}

static void several_sources(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t lengths[] = {31, 5, 0, 47};
    static const char *const names[] = {"a", "b", "c", "d"};
    char paths[4096] = "";
    for (int i = 0; i < 4; i++) {
        data_make_tokens(f, data_path(f, names[i]), VOCAB, &lengths[i], 1);
        snprintf(paths + strlen(paths), sizeof paths - strlen(paths), "%s%s", i ? "," : "", data_path(f, names[i]));
    }
    struct dtx_stream *s = open_stream(f, (struct dtx_stream_config){.paths = paths, .length = 10, .separator = -1});
    assert_int_equal(dtx_stream_samples(s), 3 + 0 + 0 + 4);
    assert_int_equal(dtx_stream_tokens(s), 83);
    assert_int_equal(dtx_stream_tail(s), 0 + 5 + 0 + 6);
    int seen[4] = {0}; /* samples that start at 0, 10, 20 and 30 */
    int32_t row[11];
    for (int i = 0; i < 7; i++) {
        data_ok(f, stream_rows(&f->ctx, s, i, 1, row, NULL));
        seen[row[0] / 10]++;
    }
    assert_true(seen[0] == 2 && seen[1] == 2 && seen[2] == 2 && seen[3] == 1);
    dtx_stream_close(s);
}

static void refuses_what_cannot_be(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t lengths[] = {20, 20, 1};
    data_make_tokens(f, data_path(f, "one"), VOCAB, lengths, 1);
    data_make_tokens(f, data_path(f, "t"), VOCAB, lengths, 3);
    char empty[600], missing[600];
    snprintf(empty, sizeof empty, "%s,,x", data_path(f, "t"));
    snprintf(missing, sizeof missing, "%s,%s", data_path(f, "t"), data_path(f, "nothing"));
    const struct {
        struct dtx_stream_config config;
        const char *word;
        enum dtx_status status;
    } cases[] = {
        {{.paths = data_path(f, "t"), .length = 0, .vocab = VOCAB}, "length of 0", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = 0}, "vocabulary of 0", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = VOCAB, .heldout = 1}, "[0, 1)", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = VOCAB, .heldout = NAN}, "[0, 1)", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = VOCAB, .use_heldout = true}, "share is 0", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = 9, .separator = 9}, "separator 9", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = 9, .separator = -1, .doc_reset = true},
         "needs one",
         DTX_E_CONFIG},
        {{.paths = data_path(f, "one"), .length = 5, .vocab = VOCAB, .heldout = 0.1}, "1 document", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 2, .vocab = VOCAB, .heldout = 0.1, .use_heldout = true},
         "1 tokens",
         DTX_E_CONFIG},
        {{.paths = empty, .length = 5, .vocab = VOCAB}, "empty path", DTX_E_CONFIG},
        {{.paths = missing, .length = 5, .vocab = VOCAB}, "nothing.idx", DTX_E_CONFIG},
        {{.paths = data_path(f, "t"), .length = 5, .vocab = 70000}, "u16", DTX_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtx_stream *s = NULL;
        enum dtx_status status = dtx_stream_open(&f->ctx, &cases[i].config, &s);
        if (i == 11)
            assert_int_equal(status, DTX_E_FORMAT);
        data_fails(f, status, cases[i].status, cases[i].word, NULL);
        assert_null(s);
    }
}

static void entropy_of_the_part(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t ids[] = {1, 1, 1, 1, 2, 2, 3, 4};
    struct dtx_tokenwriter *w;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "t"), 10, 0, &w));
    for (int d = 0; d < 2; d++) {
        data_ok(f, dtx_tokenwriter_add(&f->ctx, w, ids, d ? 8 : 3));
        data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    }
    data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
    struct dtx_stream *s = open_stream(f, (struct dtx_stream_config){.paths = data_path(f, "t"),
                                                                     .length = 1,
                                                                     .vocab = 10,
                                                                     .heldout = 0.5,
                                                                     .use_heldout = true,
                                                                     .separator = -1});
    double nats;
    data_ok(f, dtx_stream_entropy(&f->ctx, s, &nats));
    assert_true(fabs(nats - 1.75 * log(2)) < 1e-12);
    dtx_stream_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(samples_cover_every_target_once),
        DATA_TEST(order_depends_on_seed_and_epoch_only),
        DATA_TEST(heldout_never_overlaps_training),
        DATA_TEST(document_starts),
        DATA_TEST(several_sources),
        DATA_TEST(refuses_what_cannot_be),
        DATA_TEST(entropy_of_the_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
