/* test: label=long timeout=600 */
/* For every size from 1 to 5000 each sample comes once an epoch, and places are even over many epochs (chi-square). */
#include <math.h>

#include "data/order.h"
#include "tests/unit/data_support.h"

static void every_size(void **state)
{
    struct data_fixture *f = *state;
    static char seen[5000];
    for (int64_t n = 1; n <= 5000; n++) {
        struct dtx_order order;
        data_ok(f, dtx_order_init(&f->ctx, &order, 7, n % 3, n));
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < n; i++) {
            int64_t x = dtx_order_at(&order, n % 11, i);
            assert_true(x >= 0 && x < n && !seen[x]);
            seen[x] = 1;
        }
    }
}

/* Where sample 0, one in the middle and the last come over 4,000 epochs: on 40 places of equal width. */
static void places_are_even(void **state)
{
    enum { EPOCHS = 4000, CELLS = 40 };
    struct data_fixture *f = *state;
    static const int64_t sizes[] = {40, 1000, 4999, 65536, 100003, 1 << 20};
    for (int k = 0; k < 6; k++)
        for (int which = 0; which < 3; which++) {
            int64_t n = sizes[k], x = which == 0 ? 0 : which == 1 ? n / 2 : n - 1, counts[CELLS] = {0};
            struct dtx_order order;
            double chi = 0, mean = (double)EPOCHS / CELLS;
            data_ok(f, dtx_order_init(&f->ctx, &order, 3, 0, n));
            for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
                counts[dtx_order_find(&order, epoch, x) * CELLS / n]++;
            for (int c = 0; c < CELLS; c++)
                chi += ((double)counts[c] - mean) * ((double)counts[c] - mean) / mean;
            assert_true(fabs(chi - (CELLS - 1)) < 5 * sqrt(2.0 * (CELLS - 1)));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(every_size),
        DATA_TEST(places_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
