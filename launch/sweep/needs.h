/* What a trial needs of a machine, by the trainer's own counts. Not collective. */
#ifndef DTX_LAUNCH_SWEEP_NEEDS_H
#define DTX_LAUNCH_SWEEP_NEEDS_H

#include "kernels/backend.h"
#include "launch/sweep/table.h"

struct dtx_sweep_needs {
    double memory_bytes; /* of its fullest rank, host memory included, times its ranks */
    double disk_bytes;   /* of the checkpoints that it leaves */
    int threads;         /* of each rank; 0: not said */
    bool cpu;            /* the configuration says that no GPU is used */
};

/* What counts; opened once for many trials. */
struct dtx_sweep_counter {
    struct dtx_backend *backend;
    struct dtx_queue *queue;
};
enum dtx_status dtx_sweep_counter_open(struct dtx_ctx *ctx, struct dtx_sweep_counter *out);
void dtx_sweep_counter_close(struct dtx_sweep_counter *counter); /* accepts a zeroed one */

/* From the trial's configuration: its text, or the file's where it has none. */
enum dtx_status dtx_sweep_needs(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                const struct dtx_sweep_counter *counter, struct dtx_sweep_needs *out);

#endif
