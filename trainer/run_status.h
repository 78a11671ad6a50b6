/*
 * RUN/status: one page on the run, for people and for scripts, which must not trust a launcher's exit code. Replaced
 * atomically when the run begins, every log.every steps but at most once a second, with every durable save, at the end.
 * Lines "key: value":
 *   state            running, done, paused (train.until), requeue, failed
 *   step, steps      done (at the end: saved, but for failed); the run's last
 *   left             seconds to the last step, and for people; missing where not known
 *   attempt          its number, from 1
 *   checkpoint, local_checkpoint    names of the newest, durable and on the nodes' disks; "-": none
 *   before           how the attempt before ended
 *   cause, kind, code    why this one has ended: in words, the status' name, the exit code
 *   time, host       of this page, seconds since 1970; rank 0's
 * Rank 0; not collective.
 */
#ifndef DTX_TRAINER_RUN_STATUS_H
#define DTX_TRAINER_RUN_STATUS_H

#include "kernels/base/status.h"

/* What the page says beside state, code and cause. */
struct dtx_run_page {
    int64_t step, steps; /* done; the run's last */
    double left_seconds; /* to the last step; NaN: not known */
    int64_t attempt;     /* from 1; 0: nothing is known yet */
    char checkpoint[64]; /* name of the newest durable one, "-": none */
    char local[64];      /* of the newest on the nodes' disks, by this attempt */
    char before[512];    /* how the attempt before ended; "" for the first */
    double written;      /* when, dtx_clock_now */
};

/* For a new attempt in run_dir: what there is to know of the ones before. attempt: its number; 0: the next. */
void dtx_run_page_begin(const char *run_dir, int64_t attempt, struct dtx_run_page *page);
/* state: running, done, paused (train.until), requeue, failed. A failure to write is only a warning. */
void dtx_run_status_write(const struct dtx_ctx *ctx, const char *run_dir, const struct dtx_run_page *page,
                          const char *state, enum dtx_status status, const char *cause);
/* "running", without a sync of the disk, and not when it was written less than a second ago. */
void dtx_run_status_refresh(const struct dtx_ctx *ctx, const char *run_dir, struct dtx_run_page *page);
/* "failed" by whichever rank and thread reports it: all else stays as it was noted last. */
void dtx_run_status_fail(const struct dtx_ctx *ctx, const char *run_dir, const char *cause);
/* The value of a key, in `text`; false when there is none. */
bool dtx_run_status_read(const char *run_dir, const char *key, char *text, size_t bytes);

#endif
