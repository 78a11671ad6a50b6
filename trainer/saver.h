/*
 * A run's checkpoints while it trains: the step stops while the state is copied, a thread writes the copy
 * (checkpoints/staging.h). What it came to is logged by dtx_saver_finish, hence between two steps and only once it is
 * durable. A save that fails is a warning; earlier checkpoints are untouched.
 */
#ifndef DTX_TRAINER_SAVER_H
#define DTX_TRAINER_SAVER_H

#include "trainer/progress.h"
#include "trainer/session.h"

struct dtx_saver;

/* progress: NULL or what is cleared before a line is logged. Collective over the world. */
enum dtx_status dtx_saver_open(struct dtx_session *session, struct dtx_progress *progress, struct dtx_saver **out);
/* Waits for what is under way, without a word. Collective over the world. Accepts NULL. */
void dtx_saver_close(struct dtx_saver *saver);
/* For a rank that failed: dtx_ckpt_staging_halt. True: its thread is no more. Not collective. Accepts NULL. */
bool dtx_saver_halt(struct dtx_saver *saver);

/* Is a checkpoint to be made after this step, of the loop's own accord? */
bool dtx_saver_due(const struct dtx_saver *saver, int64_t step);
/* DUE: in the tier whose turn it is. LAST: nothing comes after it. */
enum dtx_save_kind { DTX_SAVE_DUE, DTX_SAVE_DURABLE, DTX_SAVE_LAST };
/* Begins a save. One that is still under way is finished first or, where checkpoint.busy says skip and it is not the
 * last, this one is left out. `ended`: the save under way has ended on all ranks. Nothing is wrong with the run when
 * a save fails: only that of the last is returned, once all is written. Takes meta->ledger and health over. Collective
 * over the world. */
enum dtx_status dtx_saver_save(struct dtx_saver *saver, const struct dtx_ckpt_meta *meta, bool ended,
                               enum dtx_save_kind kind);
bool dtx_saver_busy(const struct dtx_saver *saver);
/* Durable saves that are under way or begin after this step. Not collective. */
int dtx_saver_pending(const struct dtx_saver *saver, int64_t step);
/* No save is under way on this rank. Not collective. */
bool dtx_saver_done(struct dtx_saver *saver);
/* Waits for the save under way, if there is one, and says what it came to. Collective over the world. */
void dtx_saver_finish(struct dtx_saver *saver);
/* What the longest durable save has taken, the one under way up to now; 0: there was none. Not collective. */
double dtx_saver_seconds(struct dtx_saver *saver);
/* Step of the last checkpoint that is known to be durable; −1: none. */
int64_t dtx_saver_saved(const struct dtx_saver *saver);

#endif
