/*
 * A tap on the communicators of a mesh: calls, time and bytes of each on this rank. Time is the wall's and holds
 * waiting for the other ranks; of a communicator with a progress thread it is the thread's. Opening and closing are not
 * collective; in between the mesh is used as ever, but by no other tap.
 */
#ifndef DTX_LAUNCH_BENCH_COMM_TAP_H
#define DTX_LAUNCH_BENCH_COMM_TAP_H

#include "parallel/mesh.h"

struct dtx_comm_tap_row {
    const char *name; /* the communicator's */
    int64_t calls;    /* a send and its wait are two */
    int64_t sent_bytes;
    double seconds;
};

struct dtx_comm_tap;

/* Communicators of one rank are left out. mesh outlives the tap. */
enum dtx_status dtx_comm_tap_open(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_comm_tap **out);
void dtx_comm_tap_close(struct dtx_comm_tap *tap); /* accepts NULL */
const struct dtx_comm_tap_row *dtx_comm_tap_rows(struct dtx_comm_tap *tap, int *n);
/* Of all rows but those of progress threads: the rank computes meanwhile. */
double dtx_comm_tap_seconds(struct dtx_comm_tap *tap);

#endif
