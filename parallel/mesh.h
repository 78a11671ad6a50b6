/*
 * The process mesh: world rank = (pp·dp_size + dp)·tp_size + tp, so that tensor ranks are neighbours. Each axis has a
 * communicator of the ranks that differ only in it; pipeline neighbours have one channel per direction of data.
 */
#ifndef DTX_PARALLEL_MESH_H
#define DTX_PARALLEL_MESH_H

#include "parallel/comm.h"

enum dtx_axis { DTX_AXIS_TP, DTX_AXIS_DP, DTX_AXIS_PP, DTX_AXES };
const char *dtx_axis_name(enum dtx_axis axis);

struct dtx_mesh {
    int size[DTX_AXES], rank[DTX_AXES];
    struct dtx_comm *world;                      /* borrowed */
    struct dtx_comm *axis[DTX_AXES];             /* owned */
    struct dtx_comm *control;                    /* owned: the world's ranks; agreements beside data traffic */
    struct dtx_comm *forward_in, *forward_out;   /* activations from the previous / to the next stage: 2 ranks each, */
    struct dtx_comm *backward_in, *backward_out; /* gradients from the next / to the previous stage; NULL at the ends */
    struct dtx_comm *wrap_forward, *wrap_backward; /* first and last stage: from the end of one chunk to the beginning
                                                      of the next, and back; NULL elsewhere and for pp 1 */
    struct dtx_comm
        *tied; /* first and last stage of this (tp, dp): rank 0 first, 1 last; NULL elsewhere and for pp 1 */
};

/* Collective over world. sizes' product must be world's size (else DTX_E_CONFIG naming what would fit). */
enum dtx_status dtx_mesh_create(struct dtx_ctx *ctx, struct dtx_comm *world, const int size[DTX_AXES],
                                struct dtx_mesh *out);
void dtx_mesh_free(struct dtx_mesh *mesh);
/* Where a rank of the world stands. */
void dtx_mesh_place(const int size[DTX_AXES], int world_rank, int place[DTX_AXES]);
static inline bool dtx_mesh_first_stage(const struct dtx_mesh *m)
{
    return m->rank[DTX_AXIS_PP] == 0;
}
static inline bool dtx_mesh_last_stage(const struct dtx_mesh *m)
{
    return m->rank[DTX_AXIS_PP] == m->size[DTX_AXIS_PP] - 1;
}

#endif
