#include "trainer/start.h"

#include <stdio.h>

#include "kernels/base/clock.h"

void dtx_start_begin(struct dtx_start *start)
{
    *start = (struct dtx_start){.begin = dtx_clock_now()};
    start->last = start->begin;
}

void dtx_start_mark(struct dtx_start *start, const char *name)
{
    double now = dtx_clock_now();
    if (start->n < DTX_START_PARTS) {
        start->part[start->n].name = name;
        start->part[start->n++].seconds = now - start->last;
    }
    start->last = now;
}

void dtx_start_log(const struct dtx_start *start, const struct dtx_ctx *ctx)
{
    char text[512];
    size_t used = 0;
    for (int i = 0; i < start->n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.2f s", i ? ", " : "", start->part[i].name,
                                 start->part[i].seconds);
    dtx_log(ctx, DTX_LOG_INFO, "start: %s; %.2f s in all", text, start->last - start->begin);
}
