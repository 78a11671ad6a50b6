/*
 * The table of a sweep, SWEEP/plan.jsonl: made once, read by everybody, never changed but by rows that are added behind
 * the others. Format in README.md. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_TABLE_H
#define DTX_LAUNCH_SWEEP_TABLE_H

#include "launch/sweep/trial.h"

enum { DTX_SWEEP_PATH = 4096 };

struct dtx_sweep {
    char dir[DTX_SWEEP_PATH / 4];    /* as an absolute path */
    char name[DTX_SWEEP_NAME];       /* of the sweep */
    char folder[DTX_SWEEP_PATH / 4]; /* where it was planned: relative paths of its options count from here */
    int ranks;                       /* of each trial */
    char dtype[16];
    struct dtx_sweep_trials trials;
};

/* DTX_E_CONFIG: there is no table. DTX_E_FORMAT: it is damaged. Free with dtx_sweep_free also then. */
enum dtx_status dtx_sweep_read(struct dtx_ctx *ctx, const char *dir, struct dtx_sweep *out);
void dtx_sweep_free(struct dtx_sweep *sweep);

/* A new plan beside the table that is there. */
struct dtx_sweep_change {
    bool there;      /* there is a table */
    int kept, added; /* trials of the plan that are in it; that are not */
    int missing;     /* trials of the table that the plan does not have: they stay */
};
/* DTX_E_CONFIG when they differ, unless `extend`. Afterwards sweep->trials are the table's with what is new behind
 * them. */
enum dtx_status dtx_sweep_compare(struct dtx_ctx *ctx, struct dtx_sweep *sweep, bool extend,
                                  struct dtx_sweep_change *change);
/* The folder with configs/ of new trials, spec.yaml and last the table, each whole or not at all. */
enum dtx_status dtx_sweep_write(struct dtx_ctx *ctx, struct dtx_sweep *sweep, const char *spec);

/* SWEEP/configs/ID.yaml, SWEEP/runs/ID. */
void dtx_sweep_config_path(const struct dtx_sweep *sweep, int trial, char path[DTX_SWEEP_PATH]);
void dtx_sweep_run_path(const struct dtx_sweep *sweep, int trial, char path[DTX_SWEEP_PATH]);
/* The trial that a user means: its number from 1, or the beginning of its id or label; −1: none or several. */
int dtx_sweep_find(const struct dtx_sweep *sweep, const char *word);

#endif
