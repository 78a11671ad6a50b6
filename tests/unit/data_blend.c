/* test: label=unit timeout=60 */
#include <math.h>

#include "data/blend.h"
#include "tests/unit/data_support.h"

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

static struct dtx_blend make(struct data_fixture *f, uint64_t seed, const double *weights, int n)
{
    struct dtx_blend blend;
    data_ok(f, dtx_blend_init(&f->ctx, &blend, seed, weights, names, n));
    return blend;
}

/* count(s, i) is how often s was chosen below i; the shares are kept to within a few samples, from any i on. */
static void counts_are_choices_counted(void **state)
{
    struct data_fixture *f = *state;
    static const double sets[][8] = {
        {1}, {1, 1}, {7, 2, 1}, {0.3, 0.3, 0.4, 1e-9}, {1e-300, 2e-300}, {1, 2, 3, 4, 5, 6, 7, 8}};
    static const int sizes[] = {1, 2, 3, 4, 2, 8};
    for (int k = 0; k < 6; k++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct dtx_blend blend = make(f, seed, sets[k], sizes[k]);
            double total = 0;
            int64_t counted[8] = {0};
            for (int s = 0; s < sizes[k]; s++)
                total += sets[k][s];
            for (int64_t i = 0; i <= 5000; i++) {
                for (int s = 0; s < sizes[k]; s++) {
                    assert_int_equal(dtx_blend_count(&blend, s, i), counted[s]);
                    assert_true(fabs((double)counted[s] - (double)i * sets[k][s] / total) <= log2((double)i + 1) + 1);
                }
                counted[dtx_blend_source(&blend, i)]++;
            }
            dtx_blend_free(&blend);
        }
}

/* Far out, where nothing can be counted one by one: windows of every length keep the shares, and the counts of all
 * sources add up. */
static void seeks_far_out(void **state)
{
    struct data_fixture *f = *state;
    static const double weights[] = {0.6, 0.25, 0.15 - 1e-9, 1e-9};
    struct dtx_blend blend = make(f, 9, weights, 4);
    for (int bits = 20; bits <= 61; bits++) {
        int64_t base = (INT64_C(1) << bits) + 12345, sum = 0;
        for (int s = 0; s < 4; s++)
            sum += dtx_blend_count(&blend, s, base);
        assert_int_equal(sum, base);
        for (int64_t window = 1; window <= 1 << 18; window *= 8)
            for (int s = 0; s < 4; s++) {
                int64_t got = dtx_blend_count(&blend, s, base + window) - dtx_blend_count(&blend, s, base);
                assert_true(fabs((double)got - weights[s] * (double)window) <= 2 * bits + 2);
            }
        int64_t got[4] = {0};
        for (int64_t i = base; i < base + 2000; i++)
            got[dtx_blend_source(&blend, i)]++;
        for (int s = 0; s < 4; s++)
            assert_int_equal(dtx_blend_count(&blend, s, base + 2000) - dtx_blend_count(&blend, s, base), got[s]);
    }
    int64_t most = INT64_C(1) << 62;
    assert_int_equal(dtx_blend_count(&blend, 3, most) / 1000000, (int64_t)floor(1e-9 * (double)most / 1e6));
    dtx_blend_free(&blend);
}

/* CASES 19: the smallest weight turns up as often as it should: once in 10^9. */
static void tiny_weights_turn_up(void **state)
{
    struct data_fixture *f = *state;
    static const double weights[] = {1, 1e-9};
    struct dtx_blend blend = make(f, 1, weights, 2);
    assert_in_range(dtx_blend_count(&blend, 1, INT64_C(1000000000)), 0, 3);
    assert_in_range(dtx_blend_count(&blend, 1, INT64_C(100000000000)), 60, 140);
    int64_t low = 0, high = INT64_C(100000000000); /* where the first one is */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(dtx_blend_count(&blend, 1, middle) > 0 ? &high : &low) = middle;
    }
    assert_int_equal(dtx_blend_source(&blend, low), 1);
    assert_int_equal(dtx_blend_source(&blend, low + 1), 0);
    dtx_blend_free(&blend);
}

static void seeds_shuffle_differently(void **state)
{
    struct data_fixture *f = *state;
    static const double weights[] = {1, 1};
    struct dtx_blend a = make(f, 1, weights, 2);
    int other = 0;
    for (uint64_t seed = 2; seed < 12; seed++) {
        struct dtx_blend b = make(f, seed, weights, 2);
        other += dtx_blend_source(&a, 0) != dtx_blend_source(&b, 0);
        dtx_blend_free(&b);
    }
    assert_in_range(other, 1, 9);
    dtx_blend_free(&a);
}

static void refuses_what_is_no_weight(void **state)
{
    struct data_fixture *f = *state;
    static const double bad[][2] = {{1, 0}, {1, -0.5}, {1, NAN}, {1, INFINITY}, {1e308, 1.7e308}, {1, 1e-13}};
    static const char *const words[] = {"0", "-0.5", "nan", "inf", "add up", "1e-13"};
    struct dtx_blend blend;
    for (int k = 0; k < 6; k++)
        data_fails(f, dtx_blend_init(&f->ctx, &blend, 1, bad[k], names, 2), DTX_E_CONFIG, words[k],
                   k == 4 ? "weights" : "source b", NULL);
}

static void reads_lists_of_sources(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_source_list list;
    data_ok(f, dtx_source_list_read(&f->ctx, "x, y,z", &list));
    assert_int_equal(list.n, 1);
    assert_int_equal(list.n_paths, 3);
    assert_string_equal(list.paths[1], "y");
    dtx_source_list_free(&list);
    data_ok(f, dtx_source_list_read(&f->ctx, "0.7 web-0, web-1,\n 3e-1  code with blanks ,1 inf-x", &list));
    assert_int_equal(list.n, 3);
    assert_int_equal(list.first[1], 2);
    assert_int_equal(list.first[3], 4);
    assert_string_equal(list.paths[1], "web-1");
    assert_string_equal(list.paths[2], "code with blanks");
    assert_true(list.weights[1] == 0.3 && list.weights[2] == 1);
    dtx_source_list_free(&list);
    static const struct {
        const char *text, *word;
    } cases[] = {{"", "empty"}, {"a,,b", "empty"}, {"0.5 ", "empty path"}, {"a, 0.5 b", "each source"},
                 {"0 a", "0"},  {"1 a, 0 b", "b"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        enum dtx_status status = dtx_source_list_read(&f->ctx, cases[k].text, &list);
        if (k == 2) { /* a path that is a number */
            data_ok(f, status);
            assert_string_equal(list.paths[0], "0.5");
            dtx_source_list_free(&list);
            continue;
        }
        data_fails(f, status, DTX_E_CONFIG, cases[k].word, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(counts_are_choices_counted), DATA_TEST(seeks_far_out),
        DATA_TEST(tiny_weights_turn_up),       DATA_TEST(seeds_shuffle_differently),
        DATA_TEST(refuses_what_is_no_weight),  DATA_TEST(reads_lists_of_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
