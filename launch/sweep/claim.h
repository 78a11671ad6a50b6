/*
 * Who works on a trial. Attempt k of a trial is the file SWEEP/state/ID.k, made by whoever links it first and never
 * removed or renamed: of two processes that want the next attempt one gets it, on any file system where link is atomic
 * (NFS too). How it ended is ID.k.end; no such file: its process is at work or was killed. It is at work when it, or
 * the trainer that it started, lives, where that can be seen (same host, same boot, same process namespace, same pid
 * and start), and elsewhere when it has touched its claim within `stale` seconds by the file server's own clock. Not
 * collective.
 */
#ifndef DTX_LAUNCH_SWEEP_CLAIM_H
#define DTX_LAUNCH_SWEEP_CLAIM_H

#include "kernels/base/status.h"
#include "launch/sweep/table.h"

/* This process, as claims name it. */
struct dtx_sweep_self {
    char host[64], place[128]; /* place: boot and process namespace */
    long pid;
    char started[32]; /* the kernel's start time of that pid */
    char job[64];     /* Slurm's, "" without; an array's task as 12_3 */
    int restart;      /* how often Slurm has restarted that job */
    double stale;     /* seconds */
};
void dtx_sweep_self_read(struct dtx_sweep_self *self, double stale);

enum dtx_sweep_outcome {
    DTX_SWEEP_UNFINISHED, /* no outcome was written */
    DTX_SWEEP_STOPPED,    /* on request, saved: goes on for nothing */
    DTX_SWEEP_CRASHED,    /* to be tried again */
    DTX_SWEEP_FAILED,     /* given up: too many crashes at one place, or a configuration that cannot run */
    DTX_SWEEP_BLOWN,      /* diverged */
    DTX_SWEEP_FINISHED
};

struct dtx_sweep_attempt {
    enum dtx_sweep_outcome outcome;
    bool alive;    /* UNFINISHED alone */
    char host[64]; /* of its process */
    char job[64];
    double time;     /* of the claim, by its host's clock */
    int64_t from;    /* step of the checkpoint that was there */
    char cause[256]; /* why it ended; empty when all went well */
};

/* Attempts so far, from a listing of SWEEP/state: numbers of all trials at once. */
enum dtx_status dtx_sweep_count_attempts(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int attempts[]);
/* Attempt k of a trial. A claim that cannot be read counts as one of a killed process. */
void dtx_sweep_attempt_read(const struct dtx_sweep *sweep, int trial, int k, const struct dtx_sweep_self *self,
                            struct dtx_sweep_attempt *out);
/* Takes attempt k; *won false: somebody else has it. */
enum dtx_status dtx_sweep_claim(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial, int k,
                                const struct dtx_sweep_self *self, int64_t from, bool *won);
/* In the trial's process, before it becomes the trainer: ID.k.pid, so that it is seen when its parent is killed. Ends
 * the process when that cannot be written. */
void dtx_sweep_note_child(const struct dtx_sweep *sweep, int trial, int k);
/* Sign of life, to be given well within `stale`. */
void dtx_sweep_touch(const struct dtx_sweep *sweep, int trial, int k);
/* By the holder, once. */
enum dtx_status dtx_sweep_end_attempt(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial, int k,
                                      enum dtx_sweep_outcome outcome, const char *cause);

#endif
