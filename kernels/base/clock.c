#include "kernels/base/clock.h"

#include <errno.h>
#include <math.h>
#include <time.h>

static double seconds_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dtx_clock_now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double dtx_clock_wall(void)
{
    return seconds_of(CLOCK_REALTIME);
}

void dtx_clock_sleep(double seconds)
{
    struct timespec t = {(time_t)floor(seconds), (long)(1e9 * (seconds - floor(seconds)))};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}
