/* Where the trials of a sweep stand, derived from SWEEP/state and the runs' folders alone. Not collective. */
#ifndef DTX_LAUNCH_SWEEP_STATE_H
#define DTX_LAUNCH_SWEEP_STATE_H

#include "launch/sweep/claim.h"
#include "launch/sweep/record.h"

enum dtx_sweep_phase {
    DTX_SWEEP_PENDING,
    DTX_SWEEP_RUNNING,
    DTX_SWEEP_DONE, /* a verified record */
    DTX_SWEEP_GIVEN_UP,
    DTX_SWEEP_IS_DIVERGED,
    DTX_SWEEP_PHASES
};

struct dtx_sweep_state {
    enum dtx_sweep_phase phase;
    bool blocked; /* pending for ever: what it starts from failed or diverged */
    bool ready;   /* pending, and what it starts from is done */
    int attempts, failures;
    struct dtx_sweep_attempt last;  /* where attempts > 0 */
    struct dtx_sweep_record record; /* where it is done */
};

/* states: one a trial, zeroed before the first call; what is done stays. wanted: looks at those alone, among them
 * what each starts from; NULL: at all. */
enum dtx_status dtx_sweep_look(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const struct dtx_sweep_self *self,
                               const bool *wanted, struct dtx_sweep_state states[]);
/* "pending", "running", "done", "failed", "diverged". */
const char *dtx_sweep_phase_name(enum dtx_sweep_phase phase);
/* Step of the newest checkpoint in the run's own folder; 0: none. */
int64_t dtx_sweep_saved_step(const struct dtx_sweep *sweep, int trial);
/* Is a program at work in the run's folder, whoever started it? (Where the file system has locks.) */
bool dtx_sweep_run_busy(const struct dtx_sweep *sweep, int trial);
/* Crashes in a row since the checkpoint of step `from` was the last. */
int dtx_sweep_crashes_at(const struct dtx_sweep *sweep, int trial, int attempts, int64_t from,
                         const struct dtx_sweep_self *self);

/* How far all (wanted: those) trials are, in exact FLOPs of their own steps, and the seconds that are left at the speed
 * of those that run now, wherever; NaN: none runs. */
struct dtx_sweep_progress {
    double done, all, left_seconds;
};
struct dtx_sweep_progress dtx_sweep_progress(const struct dtx_sweep *sweep, const struct dtx_sweep_state states[],
                                             const bool *wanted);

/* SWEEP/results.csv: a row a trial that is done, stems left out, in the table's order. Safe beside others that do the
 * same: the last one has all records that were there. */
enum dtx_status dtx_sweep_results_write(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const char *path);

#endif
