/*
 * The largest sum that each communicator of a mesh makes in a step: on a device it needs memory there, which the plan
 * states and the engine takes before the first step.
 */
#ifndef DTX_TRAINER_SUMS_H
#define DTX_TRAINER_SUMS_H

#include "trainer/engine.h"

enum dtx_sums_over {
    DTX_SUMS_TENSOR,
    DTX_SUMS_CONTEXT,
    DTX_SUMS_STAGES,
    DTX_SUMS_DATA,
    DTX_SUMS_GRADS,
    DTX_SUMS_TIED,
    DTX_SUMS
};

struct dtx_sums {
    int ranks[DTX_SUMS];
    size_t bytes[DTX_SUMS]; /* of comm_nccl's work: 0 for the host's memory, and for one rank */
};

/* params: laid out. mesh: sizes and this rank's place. */
void dtx_sums_find(const struct dtx_backend *backend, const struct dtx_engine_config *config,
                   const struct dtx_params *params, const struct dtx_env *env, const struct dtx_mesh *mesh,
                   struct dtx_sums *out);
/* Takes that memory for the mesh's communicators. Not collective. */
enum dtx_status dtx_sums_prepare(const struct dtx_sums *sums, const struct dtx_mesh *mesh);

/* Columns of this rank's keys and values. */
int64_t dtx_key_columns(const struct dtx_engine_config *config);
int64_t dtx_value_columns(const struct dtx_engine_config *config);

#endif
