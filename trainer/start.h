/*
 * How long the parts of a start take on this rank, by the wall: told in one line once the first step is through. Each
 * part ends in an agreement or another collective, so rank 0 sees what the slowest rank needs. Not collective.
 */
#ifndef DTX_TRAINER_START_H
#define DTX_TRAINER_START_H

#include "kernels/base/status.h"

enum { DTX_START_PARTS = 12 };

struct dtx_start {
    double begin, last;
    int n;
    struct {
        const char *name;
        double seconds;
    } part[DTX_START_PARTS];
};

void dtx_start_begin(struct dtx_start *start);
/* `name` (not copied) says what was done since the mark before. */
void dtx_start_mark(struct dtx_start *start, const char *name);
/* "start: MPI 0.52 s, options 0.01 s, …; 1.43 s in all" */
void dtx_start_log(const struct dtx_start *start, const struct dtx_ctx *ctx);

#endif
