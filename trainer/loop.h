/*
 * The training loop: data in, steps, evaluation, metrics, checkpoints, requests to stop. Collective over the world.
 */
#ifndef DTX_TRAINER_LOOP_H
#define DTX_TRAINER_LOOP_H

#include "trainer/session.h"

/* Trains from the session's step to the last, or (*next_stage) to where the run's next stage begins (stages.h), with
 * everything saved. DTX_E_REQUEUE: stopped by a signal, everything saved. */
enum dtx_status dtx_loop_run(struct dtx_session *session, bool *next_stage);

struct dtx_heldout; /* the held-out samples as batches of this data rank */

enum dtx_status dtx_heldout_open(struct dtx_session *session, struct dtx_heldout **out);
void dtx_heldout_close(struct dtx_heldout *heldout); /* accepts NULL */
/* Mean loss over the targets of the first `samples` held-out sequences (fewer when there are fewer); the same value for
 * every mesh up to rounding. With `cut` it is given up (*cut) when a rank is asked to stop (stop.h): saving is urgent.
 */
enum dtx_status dtx_heldout_loss(struct dtx_heldout *heldout, int64_t samples, bool *cut, double *loss,
                                 int64_t *targets);

#endif
