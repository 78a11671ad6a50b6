/* The state of a model on a mesh as whole arrays: weights and both optimizer states, compared bit for bit. */
#ifndef DTX_TESTS_HARNESS_MESH_STATE_H
#define DTX_TESTS_HARNESS_MESH_STATE_H

#include "trainer/engine.h"

/* Whole arrays of all rows, one kind after another. */
struct mesh_state {
    int64_t n;
    double *values; /* malloc'ed */
};

/* A mesh's whole arrays, known to all ranks of the world afterwards. engine: NULL on ranks that are not in the mesh;
 * the world's rank 0 is. Collective over world. */
void mesh_state_gather(struct dtx_comm *world, struct dtx_engine *engine, struct mesh_state *out);
/* Fails the test unless every tensor of this rank (weight, master and states; CPU memory) has the bits of the whole
 * arrays, in all copies, and padding is zero. */
void mesh_state_compare(struct dtx_comm *world, struct dtx_engine *engine, const struct mesh_state *whole,
                        const char *title);

#endif
