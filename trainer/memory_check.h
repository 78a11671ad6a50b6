/* Is there room for what a configuration will take? */
#ifndef DTX_TRAINER_MEMORY_CHECK_H
#define DTX_TRAINER_MEMORY_CHECK_H

#include "trainer/engine.h"

/* DTX_E_CONFIG, before anything is allocated, when the ranks of one host will together take more than its processes may
 * have, or a rank more than its device has free. saves: the run writes checkpoints. The mesh must be that of world's
 * ranks. *bytes: what this rank's engine will take of the backend, for its `reserve`. Collective over world. */
enum dtx_status dtx_memory_check(struct dtx_comm *world, const struct dtx_engine_config *config,
                                 struct dtx_backend *backend, bool saves, size_t *bytes);

#endif
