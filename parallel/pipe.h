/*
 * Runs one stage's part of a schedule: receives, computes, sends. Receives are posted ahead, in the sender's order;
 * sends are waited for before their buffer is used again. With one stage no message is sent. After the first pass
 * nothing is allocated. A pass that failed leaves messages under way: end the job (dtx_comm_finish), do not run again.
 */
#ifndef DTX_PARALLEL_PIPE_H
#define DTX_PARALLEL_PIPE_H

#include "parallel/mesh.h"
#include "parallel/schedule.h"

/* What the trainer hands down: the steps of one stage (step->chunk, micro_batch, slot and keep say which). Tensors are
 * the boundary activations [rows held, D] of the activation dtype, in buffers owned by the pipe and valid during the
 * call only: the stage copies what its later steps need. in and din are absent (data NULL) on the model's first part
 * (chunk 0 of the first stage), out and dout on its last. The stage writes all of out and din. */
struct dtx_pipe_stage {
    void *self;
    enum dtx_status (*forward)(void *self, const struct dtx_step *step, const struct dtx_tensor *in,
                               const struct dtx_tensor *out);
    /* Backward of both kinds: input gradient din and, added to the gradient buffers, the weights'. */
    enum dtx_status (*backward)(void *self, const struct dtx_step *step, const struct dtx_tensor *dout,
                                const struct dtx_tensor *din);
    /* The same in two parts; the second finds in gradient slot step->keep what the first left there. Not called by
     * schedules that keep nothing. */
    enum dtx_status (*backward_input)(void *self, const struct dtx_step *step, const struct dtx_tensor *dout,
                                      const struct dtx_tensor *din);
    enum dtx_status (*backward_weight)(void *self, const struct dtx_step *step);
};

struct dtx_pipe;

/* chunks: model chunks of every stage, 1 when there is one stage. boundary: shape and dtype of the tensor between parts
 * (data ignored). Allocates buffers on the backend of `queue`. Not collective; every stage must use the same arguments.
 * mesh, queue and schedule must outlive the pipe. */
enum dtx_status dtx_pipe_create(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_queue *queue,
                                const struct dtx_schedule *schedule, int micro_batches, int chunks,
                                const struct dtx_tensor *boundary, struct dtx_pipe **out);
/* Bytes of buffers that a stage's pipe takes from the backend; 0 for one stage. */
size_t dtx_pipe_bytes(int stage, int stages, int chunks, const struct dtx_tensor *boundary);
/* One pass over all micro-batches. Collective over the pp axis. */
enum dtx_status dtx_pipe_run(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage);
/* Forward only (evaluation): `micro_batches` forwards of each chunk in order, all in slot 0. Collective over the pp
 * axis. */
enum dtx_status dtx_pipe_run_forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batches);
/* Slots the stage must provide for activations, and for gradients between the two parts of backward (0: never split).
 */
int dtx_pipe_slots(const struct dtx_pipe *pipe);
int dtx_pipe_kept(const struct dtx_pipe *pipe);
void dtx_pipe_free(struct dtx_pipe *pipe);

#endif
