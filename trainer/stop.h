/*
 * Requests to stop: USR1 (the scheduler's warning), TERM and INT. The handler only notes the first signal; the loop
 * asks between steps, all ranks agree, save and leave with exit code 75. Later signals change nothing. A TERM that a
 * launcher sends because another rank died saves nothing: that rank cannot agree, and the watch ends the others.
 *
 * A signal handler can reach nothing but static data: stop.c holds the one mutable static variable of dtx. Install once
 * a process, from the main thread, before other threads start. Not collective.
 */
#ifndef DTX_TRAINER_STOP_H
#define DTX_TRAINER_STOP_H

#include <signal.h>

#include "kernels/base/status.h"

enum { DTX_STOP_SIGNALS = 3, DTX_STOP_TIME = 1000 /* no signal: the job's time ends (trainer/deadline.h) */ };

struct dtx_stop {
    struct sigaction before[DTX_STOP_SIGNALS]; /* what uninstall puts back */
    int n_installed;
};

/* Forgets an earlier request. An INT that the parent ignores (nohup, a background job of a script) stays ignored. */
enum dtx_status dtx_stop_install(struct dtx_ctx *ctx, struct dtx_stop *stop);
void dtx_stop_uninstall(struct dtx_stop *stop);
/* The first signal received since install, or 0. */
int dtx_stop_requested(void);
/* "USR1", "TERM", "INT", "the end of the job's time"; "none" for 0. */
const char *dtx_stop_name(int signal_number);

#endif
