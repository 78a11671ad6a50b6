/* The list of schedules; schedule_sim.c checks and plays one. */
#include "parallel/schedule.h"

#include <string.h>

#define DTX_VARIANT(name) extern const struct dtx_schedule dtx_schedule_##name;
#include "parallel/schedules.inc"
#undef DTX_VARIANT

static const struct dtx_schedule *const schedules[] = {
#define DTX_VARIANT(name) &dtx_schedule_##name,
#include "parallel/schedules.inc"
#undef DTX_VARIANT
};

const struct dtx_schedule *const *dtx_schedule_list(int *n)
{
    *n = (int)(sizeof schedules / sizeof *schedules);
    return schedules;
}

const struct dtx_schedule *dtx_schedule_find(const char *name)
{
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++)
        if (strcmp(schedules[i]->name, name) == 0)
            return schedules[i];
    return NULL;
}
