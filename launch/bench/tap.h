/*
 * A tap between whoever calls operations and the backend: it times every call and adds up calls, seconds, FLOPs and
 * bytes by operation and shapes. With `repeats` it runs the first call of each kind that often, with the very arguments
 * of the step and out of a flushed cache; results are then no longer those of a step (sums are added several times).
 *
 * Calls of one thread only. Counts by ops.def: an operation without a cost is a link error.
 */
#ifndef DTX_LAUNCH_BENCH_TAP_H
#define DTX_LAUNCH_BENCH_TAP_H

#include "launch/bench/bench.h"

/* What one call computes and moves at least (each tensor once). flops 0: bound by memory, or too small to matter. */
struct dtx_cost {
    double flops, bytes;
    char shape[72];
};
#define DTX_OP(name)      struct dtx_cost dtx_cost_##name(const struct dtx_##name##_args *args);
#define DTX_OP_WORK(name) DTX_OP(name)
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK

enum { DTX_TAP_ROWS = 128 };

struct dtx_tap_row {
    const char *op;
    struct dtx_cost each; /* of one call */
    int64_t calls;
    double seconds;             /* of all calls; repeats not counted */
    struct dtx_samples repeats; /* seconds of one call */
};

struct dtx_tap;

/* yardstick: NULL, or measured for a moment before each kind is repeated. */
enum dtx_status dtx_tap_open(struct dtx_backend *backend, enum dtx_bench_clock clock, int repeats,
                             struct dtx_yardstick *yardstick, struct dtx_tap **out);
/* Takes the tap out of the backend; accepts NULL. */
void dtx_tap_close(struct dtx_tap *tap);
/* While paused calls pass through uncounted. */
void dtx_tap_pause(struct dtx_tap *tap, bool paused);
/* Rows, the longest time first. */
struct dtx_tap_row *dtx_tap_rows(struct dtx_tap *tap, int *n);

/* FLOPs per (query, key) pair and head of `maps` maps of width d over values of width dv. */
double dtx_attention_forward_flops(int maps, double d, double dv);
double dtx_attention_backward_flops(int maps, double d, double dv);
/* Causal pairs of tq queries from q_first on and tk keys from k_first on. */
double dtx_attention_pairs(int64_t q_first, int64_t tq, int64_t k_first, int64_t tk);

#endif
