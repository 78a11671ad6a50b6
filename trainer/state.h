/*
 * The state of a run as a checkpoint sees it: every weight, master and optimizer state under its global name, as this
 * rank's boxes. /model/<weight> is what the layers use; /optimizer/master/<weight> exists where the layers use a
 * rounded copy, and is then the truth on load; /optimizer/<state>/<weight> is the optimizer's.
 */
#ifndef DTX_TRAINER_STATE_H
#define DTX_TRAINER_STATE_H

#include "checkpoints/staging.h"
#include "trainer/engine.h"

/* What this rank writes: items, and the tensors in the backend's memory that their bytes come from. */
struct dtx_state {
    struct dtx_engine *engine;
    struct dtx_ctx *ctx;
    int n;
    struct dtx_ckpt_item *items;
    struct dtx_tensor *tensors; /* [n]: this rank's part of each item */
    int64_t *skip;              /* [n]: where the part begins in the item's rows */
};

/* Not collective. Lists what a save of this rank writes, for the engine's life. */
enum dtx_status dtx_state_open(struct dtx_engine *engine, struct dtx_state *out);
void dtx_state_close(struct dtx_state *state);
/* Copies all of it to the staging buffer, where its items then point; the step stops no longer than this takes. Then
 * dtx_ckpt_staging_start with state->items. Not collective. */
enum dtx_status dtx_state_snapshot(struct dtx_state *state, struct dtx_ckpt_staging *staging);
/* Bytes of the staging buffer of a rank (mesh->rank), after dtx_params_layout. */
enum dtx_status dtx_state_bytes(struct dtx_ctx *ctx, struct dtx_params *params, const struct dtx_mesh *mesh,
                                const struct dtx_optim_variant *optim, size_t *bytes);
/* Writes a checkpoint below `dir`, at once. Collective over the world. */
enum dtx_status dtx_state_save(struct dtx_engine *engine, const char *dir, const struct dtx_ckpt_meta *meta,
                               const struct dtx_ckpt_save_options *options);
/* Fills weights and, unless weights_only, optimizer state from one checkpoint folder. weights_only takes masters where
 * the checkpoint has them, else what its layers use, whatever this run's activations are. local: of a checkpoint of the
 * local tier, of which `path` is this node's folder; else NULL. After a failure the engine holds a mixture:
 * it must be freed or loaded again. Collective over the world. */
enum dtx_status dtx_state_load(struct dtx_engine *engine, const char *path, const struct dtx_ckpt_index *local,
                               bool weights_only);

#endif
