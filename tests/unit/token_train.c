/* test: label=unit timeout=60 */
#include "data/bpe_train.h"
#include "data/tokenizer_build.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

enum { MOST_PIECES = 4000, PIECE_SYMBOLS = 256 };

/* The textbook learner: all pairs counted anew before each merge. */
struct naive {
    int n_pieces;
    int32_t symbols[MOST_PIECES][PIECE_SYMBOLS];
    int n[MOST_PIECES];
    int64_t counts[512][512];
};

static void cut_pieces(struct data_fixture *f, struct naive *w, const char *text, int64_t n)
{
    struct dtx_pattern *pattern;
    struct dtx_splitter *splitter;
    data_ok(f, dtx_pattern_create(&f->ctx, &pattern));
    data_ok(f, dtx_pattern_add_scan(&f->ctx, pattern, DTX_SCAN_GPT2));
    data_ok(f, dtx_splitter_create(&f->ctx, pattern, &splitter));
    dtx_splitter_start(splitter, text, n);
    for (;;) {
        struct dtx_piece_span piece;
        int64_t found;
        data_ok(f, dtx_splitter_next(&f->ctx, splitter, &piece, 1, &found));
        if (found == 0)
            break;
        assert_true(w->n_pieces < MOST_PIECES && piece.n <= PIECE_SYMBOLS);
        for (int64_t i = 0; i < piece.n; i++)
            w->symbols[w->n_pieces][i] = (unsigned char)text[piece.first + i];
        w->n[w->n_pieces++] = (int)piece.n;
    }
    dtx_splitter_free(splitter);
    dtx_pattern_free(pattern);
}

static int64_t find_best(struct naive *w, int32_t *left, int32_t *right)
{
    memset(w->counts, 0, sizeof w->counts);
    for (int p = 0; p < w->n_pieces; p++)
        for (int i = 0; i + 1 < w->n[p]; i++)
            w->counts[w->symbols[p][i]][w->symbols[p][i + 1]]++;
    int64_t best = 0;
    for (int32_t a = 0; a < 512; a++)
        for (int32_t b = 0; b < 512; b++)
            if (w->counts[a][b] > best) {
                best = w->counts[a][b];
                *left = a;
                *right = b;
            }
    return best;
}

static void replace_pair(struct naive *w, int32_t left, int32_t right, int32_t id)
{
    for (int p = 0; p < w->n_pieces; p++) {
        int n = 0;
        for (int i = 0; i < w->n[p];) {
            bool match = i + 1 < w->n[p] && w->symbols[p][i] == left && w->symbols[p][i + 1] == right;
            w->symbols[p][n++] = match ? id : w->symbols[p][i];
            i += match ? 2 : 1;
        }
        w->n[p] = n;
    }
}

static struct dtx_tokenizer *learn(struct data_fixture *f, const char *text, int64_t n, int threads, int feeds,
                                   int64_t vocab)
{
    struct dtx_bpe_trainer *trainer;
    struct dtx_tokenizer *t;
    data_ok(f, dtx_bpe_trainer_create(&f->ctx, threads, &trainer));
    for (int64_t start = 0, k = 1; k <= feeds; k++) {
        int64_t part = k == feeds ? n - start : dtx_split_point(text + start, n / feeds);
        data_ok(f, dtx_bpe_trainer_feed(&f->ctx, trainer, text + start, part));
        start += part;
    }
    data_ok(f, dtx_bpe_trainer_finish(&f->ctx, trainer, vocab, &t));
    dtx_bpe_trainer_free(trainer);
    return t;
}

static void make_text(char *text, int64_t n, uint64_t seed, int letters)
{
    for (int64_t i = 0; i < n; i++) {
        double u = dtx_rng_uniform(seed, (uint64_t)i);
        text[i] = u < 0.2 ? ' ' : (char)('a' + (int)((u - 0.2) / 0.8 * letters));
    }
}

static void merges_like_the_textbook(void **state)
{
    struct data_fixture *f = *state;
    static char text[12000];
    for (int letters = 1; letters <= 7; letters += 2) {
        struct naive *w = calloc(1, sizeof *w);
        make_text(text, sizeof text, (uint64_t)letters, letters);
        cut_pieces(f, w, text, sizeof text);
        struct dtx_tokenizer *t = learn(f, text, sizeof text, 2, 3, 380);
        int64_t merge = 0;
        for (; merge < t->n_merges; merge++) {
            int32_t left = -1, right = -1;
            assert_true(find_best(w, &left, &right) >= 2);
            const struct dtx_merge *m = &t->merges[merge];
            assert_int_equal(m->left, left);
            assert_int_equal(m->right, right);
            replace_pair(w, left, right, m->id);
        }
        int32_t a, b;
        if (t->vocab < 380) /* stopped early: nothing was left to merge */
            assert_true(find_best(w, &a, &b) < 2);
        else
            assert_true(merge >= 380 - 257);
        dtx_tokenizer_free(t);
        free(w);
    }
}

static void threads_and_feeds_change_nothing(void **state)
{
    struct data_fixture *f = *state;
    static char text[200000];
    make_text(text, sizeof text, 9, 20);
    text[777] = (char)0xff; /* replaced, not fatal */
    struct dtx_tokenizer *one = learn(f, text, sizeof text, 1, 1, 1000);
    assert_int_equal(dtx_tokenizer_vocab(one), 1000);
    assert_int_equal(dtx_tokenizer_special(one, DTX_END_OF_TEXT), 256);
    for (int threads = 1; threads <= 5; threads++)
        for (int feeds = 1; feeds <= 3; feeds++) {
            struct dtx_tokenizer *t = learn(f, text, sizeof text, threads, feeds, 1000);
            assert_int_equal(dtx_tokenizer_hash(t), dtx_tokenizer_hash(one));
            dtx_tokenizer_free(t);
        }
    dtx_tokenizer_free(one);
}

static void small_and_strange_texts(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t = learn(f, "", 0, 2, 1, 300);
    assert_int_equal(dtx_tokenizer_vocab(t), 257);
    dtx_tokenizer_free(t);
    t = learn(f, "x", 1, 3, 1, 300);
    assert_int_equal(dtx_tokenizer_vocab(t), 257);
    dtx_tokenizer_free(t);
    char *text = malloc(1000000); /* one piece of a megabyte: counted in slices, merged in no time */
    memset(text, 'a', 1000000);
    t = learn(f, text, 1000000, 2, 1, 300);
    assert_true(dtx_tokenizer_vocab(t) > 260);
    dtx_tokenizer_free(t);
    free(text);
    struct dtx_bpe_trainer *trainer;
    data_fails(f, dtx_bpe_trainer_create(&f->ctx, 0, &trainer), DTX_E_RANGE, "0 threads", NULL);
    data_ok(f, dtx_bpe_trainer_create(&f->ctx, 1, &trainer));
    data_fails(f, dtx_bpe_trainer_finish(&f->ctx, trainer, 256, &t), DTX_E_CONFIG, "256", NULL);
    dtx_bpe_trainer_free(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(merges_like_the_textbook),
        DATA_TEST(threads_and_feeds_change_nothing),
        DATA_TEST(small_and_strange_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
