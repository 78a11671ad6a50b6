/*
 * The process mesh: world rank = ((pp·dp_size + dp)·cp_size + cp)·tp_size + tp, so that tensor ranks are neighbours and
 * the context ranks of a sequence lie next to each other. Each axis has a communicator of the ranks that differ only in
 * it; pipeline neighbours have one channel per direction of data. Data and context ranks hold the same weights:
 * together they are the ranks that gradients are summed over and that ZeRO cuts for (`data`).
 */
#ifndef DTX_PARALLEL_MESH_H
#define DTX_PARALLEL_MESH_H

#include "parallel/comm.h"

enum dtx_axis { DTX_AXIS_TP, DTX_AXIS_DP, DTX_AXIS_PP, DTX_AXIS_CP, DTX_AXES };
const char *dtx_axis_name(enum dtx_axis axis);

struct dtx_mesh {
    int size[DTX_AXES], rank[DTX_AXES];
    struct dtx_comm *world;                      /* borrowed */
    struct dtx_comm *axis[DTX_AXES];             /* owned */
    struct dtx_comm *data;                       /* dp × cp ranks in world order; for cp 1 that is axis[DTX_AXIS_DP] */
    struct dtx_comm *grads;                      /* owned: the data ranks again, for sums of gradients and gathers of
                                                    weights, which go on beside everything else */
    struct dtx_comm *control;                    /* owned: the world's ranks; agreements beside data traffic */
    struct dtx_comm *forward_in, *forward_out;   /* activations from the previous / to the next stage: 2 ranks each, */
    struct dtx_comm *backward_in, *backward_out; /* gradients from the next / to the previous stage; NULL at the ends */
    struct dtx_comm *wrap_forward, *wrap_backward; /* first and last stage: from the end of one chunk to the beginning
                                                      of the next, and back; NULL elsewhere and for pp 1 */
    struct dtx_comm
        *tied; /* first and last stage of this (tp, cp, dp): rank 0 first, 1 last; NULL elsewhere and for pp 1 */
};

/* Collective over world. sizes' product must be world's size (else DTX_E_CONFIG naming what would fit). */
enum dtx_status dtx_mesh_create(struct dtx_ctx *ctx, struct dtx_comm *world, const int size[DTX_AXES],
                                struct dtx_mesh *out);
void dtx_mesh_free(struct dtx_mesh *mesh);
/* Ranks that hold the same weights, and which of them this one is: size and rank of `data`, without communicators. */
static inline int dtx_mesh_data_size(const struct dtx_mesh *m)
{
    return m->size[DTX_AXIS_DP] * m->size[DTX_AXIS_CP];
}
static inline int dtx_mesh_data_rank(const struct dtx_mesh *m)
{
    return m->rank[DTX_AXIS_DP] * m->size[DTX_AXIS_CP] + m->rank[DTX_AXIS_CP];
}
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
