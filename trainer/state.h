/*
 * The state of a run as a checkpoint sees it: every weight, master and optimizer state under its global name, as this
 * rank's boxes. /model/<weight> is what the layers use; /optimizer/master/<weight> exists where the layers use a
 * rounded copy, and is then the truth on load; /optimizer/<state>/<weight> is the optimizer's.
 */
#ifndef DTX_TRAINER_STATE_H
#define DTX_TRAINER_STATE_H

#include "checkpoints/ckpt.h"
#include "trainer/engine.h"

/* Writes a checkpoint below `dir`. Collective over the world. */
enum dtx_status dtx_state_save(struct dtx_engine *engine, const char *dir, const struct dtx_ckpt_meta *meta,
                               const struct dtx_ckpt_save_options *options);
/* Fills weights and, unless weights_only, optimizer state from one checkpoint folder. weights_only takes masters where
 * the checkpoint has them, else what its layers use, whatever this run's activations are. Collective over the world. */
enum dtx_status dtx_state_load(struct dtx_engine *engine, const char *path, bool weights_only);

#endif
