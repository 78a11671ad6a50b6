/* RUN/status: the run's state for scripts, which must not trust a launcher's exit code. Lines "key: value", replaced
 * atomically. Rank 0; not collective. */
#ifndef DTX_TRAINER_RUN_STATUS_H
#define DTX_TRAINER_RUN_STATUS_H

#include "kernels/base/status.h"

/* state: running, done, paused (train.until), requeue, failed. A failure to write is only a warning. */
void dtx_run_status_write(const struct dtx_ctx *ctx, const char *run_dir, const char *state, int64_t step,
                          int64_t steps, enum dtx_status status, const char *cause);
/* The same for a run that ends where nobody knows its step: the one noted last stays. */
void dtx_run_status_fail(const struct dtx_ctx *ctx, const char *run_dir, const char *cause);
/* The value of a key, in `text`; false when there is none. */
bool dtx_run_status_read(const char *run_dir, const char *key, char *text, size_t bytes);

#endif
