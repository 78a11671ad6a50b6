/* test: label=unit timeout=60 */
/* Philox against Random123's known answers; streams: ranges, moments, independence of keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "kernels/base/hash.h"
#include "kernels/base/rng.h"

/* philox4x32 10 of Random123's kat_vectors. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, low, high;
        uint32_t out[4];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 */
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (int v = 0; v < 3; v++) {
        uint32_t out[4];
        dtx_philox(vectors[v].key, vectors[v].low, vectors[v].high, out);
        assert_memory_equal(out, vectors[v].out, sizeof out);
    }
}

static void keys(void **state)
{
    (void)state;
    assert_int_equal(dtx_rng_key(1, "model.0.q"), dtx_rng_key(1, "model.0.q"));
    assert_int_not_equal(dtx_rng_key(1, "model.0.q"), dtx_rng_key(2, "model.0.q"));
    assert_int_not_equal(dtx_rng_key(1, "model.0.q"), dtx_rng_key(1, "model.0.k"));
    assert_int_equal(dtx_hash_text("abc", 0), 0x78af5f94892f3950); /* published by xxHash */
    assert_int_equal(dtx_hash("abc", 3, 0), dtx_hash_text("abc", 0));
}

/* Neighbouring counters, positions over 2^32 and other keys give other numbers. */
static void positions(void **state)
{
    (void)state;
    const uint64_t at[] = {0, 1, 2, 1ull << 31, 1ull << 32, (1ull << 32) + 1, 1ull << 40, UINT64_MAX};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) {
            assert_true(dtx_rng_normal(5, at[i]) != dtx_rng_normal(5, at[j]));
            assert_true(dtx_rng_uniform(5, at[i]) != dtx_rng_uniform(5, at[j]));
        }
    assert_true(dtx_rng_normal(5, 0) != dtx_rng_normal(6, 0));
}

static void uniform_range(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = dtx_rng_uniform(11, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    /* Five standard errors. */
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
}

/* Moments 1 to 4 of the standard normal are 0, 1, 0, 3; their variances 1, 2, 15, 96. */
static void normal_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    for (uint64_t key = 0; key < 3; key++) {
        double m[4] = {0}, neighbours = 0, last = 0, largest = 0;
        for (uint64_t i = 0; i < N; i++) {
            double x = dtx_rng_normal(key, i);
            assert_true(isfinite(x));
            m[0] += x / N;
            m[1] += x * x / N;
            m[2] += x * x * x / N;
            m[3] += x * x * x * x / N;
            neighbours += x * last / N;
            last = x;
            largest = fmax(largest, fabs(x));
        }
        assert_true(fabs(m[0]) < 5 * sqrt(1.0 / N));
        assert_true(fabs(m[1] - 1) < 5 * sqrt(2.0 / N));
        assert_true(fabs(m[2]) < 5 * sqrt(15.0 / N));
        assert_true(fabs(m[3] - 3) < 5 * sqrt(96.0 / N));
        assert_true(fabs(neighbours) < 5 * sqrt(1.0 / N));
        assert_true(largest > 3.9 && largest < 6.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(keys),
                                       cmocka_unit_test(positions), cmocka_unit_test(uniform_range),
                                       cmocka_unit_test(normal_moments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
