/* Short measurements of a machine. Each takes about `seconds`. */
#ifndef DTX_LAUNCH_DOCTOR_MEASURE_H
#define DTX_LAUNCH_DOCTOR_MEASURE_H

#include "parallel/comm.h"

/* Memory bandwidth: a = b + s·c over arrays far larger than the caches, 24 bytes per element (as STREAM counts), the
 * median of the passes. Not collective. */
enum dtx_status dtx_measure_triad(struct dtx_ctx *ctx, int threads, int64_t memory_bytes, double seconds,
                                  double *bytes_per_second);
/* One file in `folder` (made there, removed again): writing and fsync, reading what was written back and comparing it
 * (past the system's cache where that can be emptied), and the median of a 4 KiB write + fsync. Not collective. */
struct dtx_disk_speed {
    double write_bytes, read_bytes, sync; /* bytes/s, bytes/s, seconds */
};
enum dtx_status dtx_measure_disk(struct dtx_ctx *ctx, const char *folder, double seconds, struct dtx_disk_speed *out);
/* Sorts them; the upper one of two, so that the slow one of two ranks is the one out of line. 0 of none. */
double dtx_measure_median(double *values, int n);
/* All-reduce of 16 MiB of f32 (payload bytes per second) and of one f32 (seconds). Collective over comm. */
enum dtx_status dtx_measure_all_reduce(struct dtx_comm *comm, struct dtx_backend *backend, double seconds,
                                       double *bytes_per_second, double *latency_seconds);

#endif
