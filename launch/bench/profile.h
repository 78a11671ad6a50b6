/* Tables of what a tap saw: a step's time by operation, or the speed of single calls. Not collective. */
#ifndef DTX_LAUNCH_BENCH_PROFILE_H
#define DTX_LAUNCH_BENCH_PROFILE_H

#include "launch/bench/comm_tap.h"
#include "launch/bench/tap.h"

struct dtx_profile {
    const struct dtx_tap_row *rows; /* [n] */
    int n;
    double flops, bytes;                  /* peaks of this rank: FLOP/s of products, bytes/s of a triad */
    double seconds;                       /* of the whole step */
    const struct dtx_comm_tap_row *comms; /* [n_comms] */
    int n_comms;
    double comm_share; /* of the step that ranks spend in communicators, their mean */
};

/* Time of all calls, by operation and shapes, by communicator, and what lies outside both. */
void dtx_profile_print(const struct dtx_profile *profile, FILE *file);
json_t *dtx_profile_json(const struct dtx_profile *profile);
/* Median of the repeated single calls. */
void dtx_profile_print_each(const struct dtx_profile *profile, FILE *file);
json_t *dtx_profile_json_each(const struct dtx_profile *profile);

#endif
