/*
 * The order of samples: a keyed permutation of [0, n) for each epoch, computed, never stored. A Feistel network over
 * Philox permutes the smallest power of two ≥ n; values outside [0, n) are sent through it again until they land
 * inside (at most twice on average), which keeps it a permutation. O(1) for every n up to 2^62.
 */
#ifndef DTX_DATA_ORDER_H
#define DTX_DATA_ORDER_H

#include "kernels/base/status.h"

struct dtx_order {
    uint64_t key;
    int64_t n;
    int high_bits, low_bits; /* halves of the index, high ≥ low; their sum covers n − 1 */
    int rounds;
};

/* n in [1, 2^62]. The order depends on seed, number and n alone; number: of the order among those of a run, 0, 1, … */
enum dtx_status dtx_order_init(struct dtx_ctx *ctx, struct dtx_order *order, uint64_t seed, int64_t number, int64_t n);
/* Element i of epoch's permutation, 0 ≤ i < n. */
int64_t dtx_order_at(const struct dtx_order *order, int64_t epoch, int64_t i);
/* The i with dtx_order_at(order, epoch, i) = x. */
int64_t dtx_order_find(const struct dtx_order *order, int64_t epoch, int64_t x);
/* Sample g ≥ 0 of the endless sequence: element g mod n of the permutation of epoch g / n. */
int64_t dtx_order_sample(const struct dtx_order *order, int64_t g);

#endif
