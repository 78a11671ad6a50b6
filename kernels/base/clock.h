/* All time and sleep of dtx come from here. */
#ifndef DTX_KERNELS_BASE_CLOCK_H
#define DTX_KERNELS_BASE_CLOCK_H

/* Seconds on a monotonic clock. */
double dtx_clock_now(void);
/* Seconds since 1970-01-01 UTC. */
double dtx_clock_wall(void);
void dtx_clock_sleep(double seconds);

#endif
