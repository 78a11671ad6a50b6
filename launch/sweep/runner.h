/*
 * One `dtx sweep run`: trials as child processes, as many at once as the machine has room for. run.c decides, child.c
 * starts and stops processes, gpus.c deals out GPUs, ending.c says what became of them. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_RUNNER_H
#define DTX_LAUNCH_SWEEP_RUNNER_H

#include <sys/types.h>

#include "launch/sweep/state.h"

enum { DTX_SWEEP_GPUS = 64 }; /* of a node, at most */

struct dtx_sweep_child {
    pid_t pid; /* 0: this place is free */
    int trial, attempt;
    int64_t from;     /* step of the checkpoint it goes on from */
    double started;   /* monotonic */
    double asked;     /* to stop, last time; 0: not */
    char before[512]; /* the run's status when it was started */
};

struct dtx_sweep_runner {
    struct dtx_ctx *ctx;
    struct dtx_sweep sweep;
    struct dtx_sweep_self self;
    struct dtx_sweep_state *state; /* [trials], like the others */
    int *order;                    /* trials as they are to be begun */
    bool *wanted;
    int *again_to;      /* attempts up to this one do not count as given up */
    double *not_before; /* monotonic; after a crash */
    struct dtx_sweep_child *child;
    char gpu[DTX_SWEEP_GPUS][32]; /* dealt out among trials at once, by index or UUID */
    int gpus;
    int jobs, threads; /* threads: of each rank, where the configuration does not say */
    int64_t retries;
    double backoff;
    const char *launcher; /* words before dtx train; "": mpirun where there are several ranks */
    bool stopping;
    const char *stopped_by;
};

/* Which GPUs are dealt out: `list` (0,1,3), "none", or "auto", those that this process sees. */
enum dtx_status dtx_sweep_gpus_choose(struct dtx_sweep_runner *runner, const char *list);
/* Sets CUDA_VISIBLE_DEVICES for the trial in the place-th of the places for trials at once, one GPU a rank. */
void dtx_sweep_gpus_deal(const struct dtx_sweep_runner *runner, int place);
/* Puts the attempt, which is claimed, to work: RUN/logs/attempt-K.log has what it says. */
enum dtx_status dtx_sweep_child_start(struct dtx_sweep_runner *runner, struct dtx_sweep_child *child);
/* Asks it to save and stop. */
void dtx_sweep_child_stop(struct dtx_sweep_child *child);
/* The process has ended with `code` of waitpid: what became of the trial, written down. */
enum dtx_status dtx_sweep_child_ended(struct dtx_sweep_runner *runner, struct dtx_sweep_child *child, int code);
/* The attempt has ended with `code` of dtx train, and the trial is not done: what comes next, written down. */
enum dtx_status dtx_sweep_not_done(struct dtx_sweep_runner *runner, struct dtx_sweep_child *child, int code,
                                   const char *cause);
/* Writes the record of a trial whose run is complete; *done. */
enum dtx_status dtx_sweep_finish_verified(struct dtx_sweep_runner *runner, int trial, int attempt, bool *done);

#endif
