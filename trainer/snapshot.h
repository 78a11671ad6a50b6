/*
 * A copy of what the optimizer changes (masters and states of this rank) in host memory, to go back to. Weights that
 * are rounded copies are made again from the masters. Every rank has its own part: taking it needs nobody.
 */
#ifndef DTX_TRAINER_SNAPSHOT_H
#define DTX_TRAINER_SNAPSHOT_H

#include "trainer/engine.h"

struct dtx_snapshot {
    struct dtx_engine *engine;
    char *copy;
};

/* Bytes of host memory; after dtx_params_layout. */
size_t dtx_snapshot_bytes(const struct dtx_params *params);
/* Not collective. */
enum dtx_status dtx_snapshot_open(struct dtx_ctx *ctx, struct dtx_engine *engine, struct dtx_snapshot *out);
void dtx_snapshot_close(struct dtx_snapshot *snapshot);
/* Waits for the queue. Not collective. */
enum dtx_status dtx_snapshot_take(struct dtx_snapshot *snapshot);
/* Collective over the data ranks. */
enum dtx_status dtx_snapshot_restore(struct dtx_snapshot *snapshot);

#endif
