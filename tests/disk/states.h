/* Checkpoints of tests/disk: save number N holds values that depend on N alone, so that a mixture of two shows. */
#ifndef DTX_TESTS_DISK_STATES_H
#define DTX_TESTS_DISK_STATES_H

#include "checkpoints/ckpt.h"

enum { SAVES = 5 }; /* of a record */

/* Collective. Keeps two checkpoints, in fewer shards than ranks. beside: as beside training. */
enum dtx_status numbered_save(struct dtx_comm *world, const char *dir, int64_t number, int64_t step, bool beside);
/* Collective: the number of the newest checkpoint, loaded by every rank and compared bit for bit; −1 with the cause in
 * the context. `what`: latest, or a folder's name. */
int64_t numbered_load(struct dtx_comm *world, const char *dir, const char *what);
/* Not collective: "" when `latest` names a complete checkpoint, or when it is not there and `may_lack`; else what is
 * wrong with it. `alone`: one rank. */
const char *latest_fault(struct dtx_comm *alone, const char *dir, bool may_lack);

/* The test's programs: see tool.c. */
int replay(const char *record);
int replay_run(const char *record, const char *root, const char *below, int64_t last_step);
enum dtx_status many_shards(struct dtx_ctx *ctx, const char *folder, int shards);
int enumerate(struct dtx_comm *world, const char *dir, int stride);

#endif
