/* What a run's folder says about it: status, the end of its metrics, the newest checkpoint's name. Not collective. */
#ifndef DTX_LAUNCH_STATUS_RUN_VIEW_H
#define DTX_LAUNCH_STATUS_RUN_VIEW_H

#include "kernels/base/status.h"

struct dtx_run_view {
    const char *path;
    char state[32];       /* of the status; "none": not a run; "silent": running, but nothing has come for long */
    char cause[512];      /* why the last attempt ended; empty when all is well */
    char before[512];     /* how the attempt before the last ended; empty: there was none */
    char checkpoint[64];  /* the last one's name, "-" for none */
    char local[64];       /* the last one's on the nodes' disks, "-" for none */
    int64_t step, steps;  /* the last step that was written down */
    double loss, heldout; /* NaN: none */
    double tokens_per_s;  /* NaN: none */
    double step_seconds;  /* between the ends of steps, median of the last ones; NaN: none */
    double left_seconds;  /* to the last step; NaN: not known or not running */
    double age_seconds;   /* of the last sign */
    int64_t attempts;     /* 0: not known */
};

/* false: no status and no metrics there. `now`: dtx_clock_wall. */
bool dtx_run_view_read(const char *path, double now, struct dtx_run_view *out);

#endif
