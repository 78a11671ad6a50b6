#include "data/order.h"

#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

/* Small domains get more rounds: a round there has few bits to mix with. */
enum { ROUNDS = 8, ROUNDS_SMALL = 24, SMALL_BITS = 16 };
/* Keys of numbers lie far apart. */
#define NUMBER_STEP UINT64_C(0x9e3779b97f4a7c15)

enum dtx_status dtx_order_init(struct dtx_ctx *ctx, struct dtx_order *order, uint64_t seed, int64_t number, int64_t n)
{
    if (n < 1 || n > INT64_C(1) << 62)
        return dtx_fail(ctx, DTX_E_RANGE, "an order of %lld samples is not possible: 1 … 2^62", (long long)n);
    int bits = 2; /* a half of 0 bits would mix nothing */
    while (bits < 62 && INT64_C(1) << bits < n)
        bits++;
    *order = (struct dtx_order){.key = dtx_rng_key(seed, "data order") + (uint64_t)number * NUMBER_STEP,
                                .n = n,
                                .high_bits = bits - bits / 2,
                                .low_bits = bits / 2,
                                .rounds = DTX_MUTANT(order_few_rounds) ? 2
                                          : bits <= SMALL_BITS         ? ROUNDS_SMALL
                                                                       : ROUNDS};
    return DTX_OK;
}

/* Even rounds change the high half by the low one, odd rounds the other way round: each is its own inverse, so that
 * the rounds in falling order undo those in rising order. */
static uint64_t permute(const struct dtx_order *o, uint64_t epoch, uint64_t x, bool inverse)
{
    uint64_t low_mask = (UINT64_C(1) << o->low_bits) - 1, high_mask = (UINT64_C(1) << o->high_bits) - 1;
    uint64_t low = x & low_mask, high = x >> o->low_bits;
    if (DTX_MUTANT(order_epoch_not_in_key))
        epoch = 0;
    for (int k = 0; k < o->rounds; k++) {
        int round = inverse ? o->rounds - 1 - k : k;
        uint32_t r[4];
        if (round % 2 == 0) {
            dtx_philox(o->key, low | (uint64_t)round << 56, epoch, r);
            high ^= r[0] & high_mask;
        } else {
            dtx_philox(o->key, high | (uint64_t)round << 56, epoch, r);
            low ^= r[0] & low_mask;
        }
    }
    return high << o->low_bits | low;
}

static int64_t walk(const struct dtx_order *order, int64_t epoch, int64_t i, bool inverse)
{
    uint64_t x = (uint64_t)i, n = (uint64_t)order->n;
    do
        x = permute(order, (uint64_t)epoch, x, inverse);
    while (x >= n && !DTX_MUTANT(order_no_cycle_walk));
    return (int64_t)(x % n);
}

int64_t dtx_order_at(const struct dtx_order *order, int64_t epoch, int64_t i)
{
    return walk(order, epoch, i, false);
}

int64_t dtx_order_find(const struct dtx_order *order, int64_t epoch, int64_t x)
{
    return walk(order, epoch, x, true);
}

int64_t dtx_order_sample(const struct dtx_order *order, int64_t g)
{
    return dtx_order_at(order, g / order->n, g % order->n);
}
