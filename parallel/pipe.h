/*
 * Runs one stage's part of a schedule: receives, computes, sends. Receives are posted ahead, in the sender's order;
 * sends are waited for before their buffer is used again. With one stage no message is sent. After the first pass
 * nothing is allocated. A pass that failed leaves messages under way: end the job (dtx_comm_finish), do not run again.
 */
#ifndef DTX_PARALLEL_PIPE_H
#define DTX_PARALLEL_PIPE_H

#include "parallel/mesh.h"
#include "parallel/schedule.h"

/* What the trainer hands down. Tensors are the boundary activations [rows held, D] of the activation dtype, in buffers
 * owned by the pipe and valid during the call only: the stage copies what its backward needs. in and din are absent
 * (data NULL) on the first stage, out and dout on the last. The stage writes all of out and din. */
struct dtx_pipe_stage {
    void *self;
    enum dtx_status (*forward)(void *self, int micro_batch, int slot, const struct dtx_tensor *in,
                               const struct dtx_tensor *out);
    /* Backward of both kinds: input gradient din and, added to the gradient buffers, the weights'. */
    enum dtx_status (*backward)(void *self, int micro_batch, int slot, const struct dtx_tensor *dout,
                                const struct dtx_tensor *din);
};

struct dtx_pipe;

/* boundary: shape and dtype of the tensor between stages (data ignored). Allocates buffers on the backend of `queue`.
 * Not collective; every stage must use the same arguments. mesh, queue and schedule must outlive the pipe. */
enum dtx_status dtx_pipe_create(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_queue *queue,
                                const struct dtx_schedule *schedule, int micro_batches,
                                const struct dtx_tensor *boundary, struct dtx_pipe **out);
/* One pass over all micro-batches. Collective over the pp axis. */
enum dtx_status dtx_pipe_run(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage);
/* Forward only (evaluation): `micro_batches` forwards in order in slot 0. Collective over the pp axis. */
enum dtx_status dtx_pipe_run_forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batches);
/* Slots the stage must provide. */
int dtx_pipe_slots(const struct dtx_pipe *pipe);
void dtx_pipe_free(struct dtx_pipe *pipe);

#endif
