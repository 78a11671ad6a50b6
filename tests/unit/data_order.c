/* test: label=unit timeout=60 */
#include <math.h>

#include "data/order.h"
#include "tests/unit/data_support.h"

static struct dtx_order make(struct data_fixture *f, uint64_t seed, int64_t n)
{
    struct dtx_order order;
    data_ok(f, dtx_order_init(&f->ctx, &order, seed, 0, n));
    return order;
}

/* Each of [0, n) once an epoch, and the inverse finds where. */
static void check_bijective(struct data_fixture *f, int64_t n, int64_t epoch)
{
    struct dtx_order order = make(f, 7, n);
    char *seen = calloc(1, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t x = dtx_order_at(&order, epoch, i);
        assert_in_range(x, 0, n - 1);
        assert_int_equal(seen[x], 0);
        if (i % 16 == 0)
            assert_int_equal(dtx_order_find(&order, epoch, x), i);
        seen[x] = 1;
    }
    free(seen);
}

static void every_sample_once_an_epoch(void **state)
{
    struct data_fixture *f = *state;
    for (int64_t n = 1; n <= 260; n++)
        for (int64_t epoch = 0; epoch < 3; epoch++)
            check_bijective(f, n, epoch);
    for (int64_t n = 263; n <= 5000; n += 47)
        check_bijective(f, n, n % 5);
    for (int bits = 9; bits <= 17; bits++)
        for (int64_t n = (1 << bits) - 1; n <= (1 << bits) + 1; n++)
            check_bijective(f, n, bits);
}

static void endless_sequence(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_order order = make(f, 3, 11);
    for (int64_t g = 0; g < 55; g++)
        assert_int_equal(dtx_order_sample(&order, g), dtx_order_at(&order, g / 11, g % 11));
    int same_epoch = 0, same_seed = 0;
    struct dtx_order big = make(f, 3, 10000), other = make(f, 4, 10000);
    for (int64_t i = 0; i < 10000; i++) {
        same_epoch += dtx_order_at(&big, 0, i) == dtx_order_at(&big, 1, i);
        same_seed += dtx_order_at(&big, 0, i) == dtx_order_at(&other, 0, i);
    }
    assert_true(same_epoch < 12 && same_seed < 12); /* about 1 by chance */
    struct dtx_order none;
    data_fails(f, dtx_order_init(&f->ctx, &none, 1, 0, 0), DTX_E_RANGE, "0 samples", NULL);
    data_fails(f, dtx_order_init(&f->ctx, &none, 1, 0, -5), DTX_E_RANGE, "-5", NULL);
}

/* χ² of `counts`, `cells` with equal expectation, as a number of standard deviations from its mean. */
static double chi_square(const int64_t *counts, int cells, int64_t total)
{
    double expected = (double)total / cells, chi = 0;
    for (int c = 0; c < cells; c++)
        chi += ((double)counts[c] - expected) * ((double)counts[c] - expected) / expected;
    return (chi - (cells - 1)) / sqrt(2.0 * (cells - 1));
}

/* All 6, 24 and 120 permutations of 3, 4 and 5 samples turn up equally often over seeds and epochs. */
static void small_permutations_are_uniform(void **state)
{
    struct data_fixture *f = *state;
    for (int n = 3; n <= 5; n++) {
        int64_t counts[120] = {0};
        int cells = n == 3 ? 6 : n == 4 ? 24 : 120;
        for (int seed = 0; seed < 120; seed++) {
            struct dtx_order order = make(f, (uint64_t)seed, n);
            for (int epoch = 0; epoch < 100; epoch++) {
                int code = 0, digits[5];
                for (int i = 0; i < n; i++)
                    digits[i] = (int)dtx_order_at(&order, epoch, i);
                for (int i = 0; i < n; i++) {
                    int smaller = 0;
                    for (int j = i + 1; j < n; j++)
                        smaller += digits[j] < digits[i];
                    code = code * (n - i) + smaller;
                }
                counts[code]++;
            }
        }
        assert_true(fabs(chi_square(counts, cells, 12000)) < 5);
    }
}

/* Pairs of neighbours (x, y) fall evenly on a 16 × 16 grid, and no difference between neighbours, nor between an
 * element and its place, is frequent. */
static void neighbours_are_independent(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t sizes[] = {1000, 4096, 5000, 65536, 65537, 100003};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k], pairs[256] = {0}, places[256] = {0};
        int64_t *shift = calloc((size_t)n, sizeof *shift), *stride = calloc((size_t)n, sizeof *stride);
        struct dtx_order order = make(f, 99, n);
        int64_t before = dtx_order_at(&order, 0, n - 1), most = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t x = dtx_order_at(&order, 0, i);
            pairs[before * 16 / n * 16 + x * 16 / n]++;
            places[i * 16 / n * 16 + x * 16 / n]++;
            shift[(x - i + n) % n]++;
            stride[(x - before + n) % n]++;
            before = x;
        }
        for (int64_t i = 0; i < n; i++)
            most = shift[i] > most ? shift[i] : stride[i] > most ? stride[i] : most;
        assert_true(fabs(chi_square(pairs, 256, n)) < 5);
        assert_true(chi_square(places, 256, n) < 5);
        assert_true(most <= 12); /* Poisson with mean 1: 12 has probability 1e-9 */
        free(shift);
        free(stride);
    }
}

static void works_up_to_two_to_forty(void **state)
{
    struct data_fixture *f = *state;
    for (int bits = 31; bits <= 62; bits += bits < 40 ? 1 : 22)
        for (int64_t off = -1; off <= (bits < 62); off++) {
            int64_t n = (INT64_C(1) << bits) + off, quarter[4] = {0};
            struct dtx_order order = make(f, 1, n);
            int64_t a = dtx_order_at(&order, 0, 0), b = dtx_order_at(&order, 0, n - 1);
            assert_true(a >= 0 && a < n && b >= 0 && b < n && a != b);
            for (int64_t i = 0; i < 2000; i++) {
                int64_t x = dtx_order_at(&order, 5, n / 2000 * i);
                assert_true(x >= 0 && x < n);
                quarter[x / (n / 4 + 1)]++;
            }
            assert_true(fabs(chi_square(quarter, 4, 2000)) < 6);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(every_sample_once_an_epoch),     DATA_TEST(endless_sequence),
        DATA_TEST(small_permutations_are_uniform), DATA_TEST(neighbours_are_independent),
        DATA_TEST(works_up_to_two_to_forty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
