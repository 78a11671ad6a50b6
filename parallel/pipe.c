#include "parallel/pipe.h"

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/*
 * One direction between this stage and a neighbour. Message k uses buffer k % DTX_PIPE_BUFFERS. Both ends number
 * messages in the order of the sender's steps; the receiver posts its receives in that order and finds a micro-batch's
 * message by `index`.
 */
struct lane {
    struct dtx_comm *comm; /* NULL: no neighbour there, buffers absent */
    int peer;
    struct dtx_tensor buffer[DTX_PIPE_BUFFERS];
    struct dtx_request request[DTX_PIPE_BUFFERS];
    bool busy[DTX_PIPE_BUFFERS]; /* a receive posted or not consumed; a send under way */
    int next;                    /* message to post or to send */
    int total;                   /* of this pass */
    const int *index;            /* receiver: micro-batch → message; NULL: equal */
};

struct dtx_pipe {
    struct dtx_ctx *ctx;
    struct dtx_queue *queue;
    int micro_batches, slots, n_steps;
    struct dtx_step *steps;
    int *forward_index, *backward_index; /* [micro_batches], by the neighbours' lists */
    struct lane in, out, din, dout;      /* out, din are sent; in, dout received */
};

static enum dtx_status make_lane(struct dtx_pipe *pipe, struct dtx_comm *comm, const struct dtx_tensor *boundary,
                                 struct lane *lane)
{
    *lane = (struct lane){.comm = comm};
    for (int i = 0; i < DTX_PIPE_BUFFERS; i++) {
        lane->buffer[i] = *boundary;
        lane->buffer[i].data = NULL;
        if (!comm)
            continue;
        struct dtx_backend *backend = pipe->queue->backend;
        DTX_TRY(pipe->ctx, backend->memory->alloc(backend, dtx_tensor_bytes(boundary), &lane->buffer[i].data));
    }
    if (comm)
        lane->peer = 1 - comm->rank;
    return DTX_OK;
}

static void free_lane(struct dtx_pipe *pipe, struct lane *lane)
{
    struct dtx_backend *backend = pipe->queue->backend;
    for (int i = 0; i < DTX_PIPE_BUFFERS; i++)
        if (lane->buffer[i].data)
            backend->memory->free(backend, lane->buffer[i].data);
}

static void reset_lane(struct lane *lane, int total, const int *index)
{
    for (int i = 0; i < DTX_PIPE_BUFFERS; i++)
        lane->busy[i] = false;
    lane->next = 0;
    lane->total = total;
    lane->index = index;
}

/* Posts receives while a buffer is free. */
static enum dtx_status post_receives(struct dtx_pipe *pipe, struct lane *lane)
{
    while (lane->comm && lane->next < lane->total && !lane->busy[lane->next % DTX_PIPE_BUFFERS]) {
        int i = lane->next % DTX_PIPE_BUFFERS;
        DTX_TRY(pipe->ctx,
                dtx_comm_recv_start(lane->comm, pipe->queue, &lane->buffer[i], lane->peer, &lane->request[i]));
        lane->busy[i] = true;
        lane->next++;
    }
    return DTX_OK;
}

static int buffer_of(const struct lane *lane, int micro_batch)
{
    return (lane->index ? lane->index[micro_batch] : micro_batch) % DTX_PIPE_BUFFERS;
}

static enum dtx_status receive(struct dtx_pipe *pipe, struct lane *lane, int micro_batch, struct dtx_tensor **out)
{
    int i = buffer_of(lane, micro_batch);
    *out = &lane->buffer[i];
    if (!lane->comm)
        return DTX_OK;
    /* The schedule was simulated with these buffers, so the message is among the posted ones. */
    if (DTX_MUTANT(receive_not_waited))
        return DTX_OK;
    DTX_TRY(pipe->ctx, dtx_comm_wait(&lane->request[i]));
    return DTX_OK;
}

static enum dtx_status consumed(struct dtx_pipe *pipe, struct lane *lane, int micro_batch)
{
    lane->busy[buffer_of(lane, micro_batch)] = false;
    return post_receives(pipe, lane);
}

/* The next send buffer, once its last message was taken. */
static enum dtx_status send_buffer(struct dtx_pipe *pipe, struct lane *lane, struct dtx_tensor **out)
{
    int i = lane->next % DTX_PIPE_BUFFERS;
    *out = &lane->buffer[i];
    if (!lane->busy[i] || DTX_MUTANT(send_buffer_not_waited))
        return DTX_OK;
    lane->busy[i] = false;
    DTX_TRY(pipe->ctx, dtx_comm_wait(&lane->request[i]));
    return DTX_OK;
}

static enum dtx_status send(struct dtx_pipe *pipe, struct lane *lane)
{
    if (!lane->comm)
        return DTX_OK;
    int i = lane->next++ % DTX_PIPE_BUFFERS;
    DTX_TRY(pipe->ctx, dtx_comm_send_start(lane->comm, pipe->queue, &lane->buffer[i], lane->peer, &lane->request[i]));
    lane->busy[i] = true;
    return DTX_OK;
}

static enum dtx_status finish_sends(struct dtx_pipe *pipe, struct lane *lane)
{
    struct dtx_tensor *unused;
    for (int i = 0; i < DTX_PIPE_BUFFERS; i++, lane->next++)
        DTX_TRY(pipe->ctx, send_buffer(pipe, lane, &unused));
    return DTX_OK;
}

static enum dtx_status forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batch, int slot)
{
    struct dtx_tensor *in, *out;
    DTX_TRY(pipe->ctx, receive(pipe, &pipe->in, micro_batch, &in));
    DTX_TRY(pipe->ctx, send_buffer(pipe, &pipe->out, &out));
    DTX_TRY(pipe->ctx, stage->forward(stage->self, micro_batch, slot, in, out));
    DTX_TRY(pipe->ctx, send(pipe, &pipe->out));
    return consumed(pipe, &pipe->in, micro_batch);
}

static enum dtx_status backward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batch, int slot)
{
    struct dtx_tensor *dout, *din;
    DTX_TRY(pipe->ctx, receive(pipe, &pipe->dout, micro_batch, &dout));
    DTX_TRY(pipe->ctx, send_buffer(pipe, &pipe->din, &din));
    DTX_TRY(pipe->ctx, stage->backward(stage->self, micro_batch, slot, dout, din));
    DTX_TRY(pipe->ctx, send(pipe, &pipe->din));
    return consumed(pipe, &pipe->dout, micro_batch);
}

enum dtx_status dtx_pipe_run(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage)
{
    reset_lane(&pipe->in, pipe->micro_batches, pipe->forward_index);
    reset_lane(&pipe->dout, pipe->micro_batches, pipe->backward_index);
    reset_lane(&pipe->out, pipe->micro_batches, NULL);
    reset_lane(&pipe->din, pipe->micro_batches, NULL);
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->in));
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->dout));
    for (int i = 0; i < pipe->n_steps; i++) {
        const struct dtx_step *s = &pipe->steps[i];
        if (s->kind == DTX_STEP_FORWARD)
            DTX_TRY(pipe->ctx, forward(pipe, stage, s->micro_batch, s->slot));
        else
            DTX_TRY(pipe->ctx, backward(pipe, stage, s->micro_batch, s->slot));
    }
    DTX_TRY(pipe->ctx, finish_sends(pipe, &pipe->out));
    return finish_sends(pipe, &pipe->din);
}

enum dtx_status dtx_pipe_run_forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batches)
{
    reset_lane(&pipe->in, micro_batches, NULL);
    reset_lane(&pipe->out, micro_batches, NULL);
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->in));
    for (int m = 0; m < micro_batches; m++)
        DTX_TRY(pipe->ctx, forward(pipe, stage, m, 0));
    return finish_sends(pipe, &pipe->out);
}

/* The place of each micro-batch among the messages that stage `sender` makes in one direction. */
static enum dtx_status number_messages(struct dtx_pipe *pipe, const struct dtx_schedule *schedule, int sender,
                                       int stages, enum dtx_step_kind kind, int **out)
{
    void *index = NULL, *steps = NULL;
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, pipe->micro_batches, sizeof(int), &index));
    *out = index;
    if (sender < 0 || sender >= stages)
        return DTX_OK;
    int n = schedule->steps(sender, stages, pipe->micro_batches, 1, NULL), k = 0;
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, n, sizeof(struct dtx_step), &steps));
    n = schedule->steps(sender, stages, pipe->micro_batches, 1, steps);
    for (int i = 0; i < n; i++) {
        const struct dtx_step *s = (struct dtx_step *)steps + i;
        if (s->kind == kind)
            (*out)[s->micro_batch] = k++;
    }
    dtx_mem_free(steps);
    return DTX_OK;
}

static enum dtx_status make_steps(struct dtx_pipe *pipe, const struct dtx_schedule *schedule, int stage, int stages)
{
    void *steps = NULL;
    int n = schedule->steps(stage, stages, pipe->micro_batches, 1, NULL);
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, n, sizeof(struct dtx_step), &steps));
    pipe->steps = steps;
    pipe->n_steps = schedule->steps(stage, stages, pipe->micro_batches, 1, pipe->steps);
    pipe->slots = schedule->peak(stage, stages, pipe->micro_batches, 1);
    for (int i = 0; i < n; i++)
        if (pipe->steps[i].kind != DTX_STEP_FORWARD && pipe->steps[i].kind != DTX_STEP_BACKWARD)
            return dtx_fail(pipe->ctx, DTX_E_UNSUPPORTED,
                            "schedule %s splits the backward pass, which the pipe does not do yet", schedule->name);
    DTX_TRY(pipe->ctx, number_messages(pipe, schedule, stage - 1, stages, DTX_STEP_FORWARD, &pipe->forward_index));
    return number_messages(pipe, schedule, stage + 1, stages, DTX_STEP_BACKWARD, &pipe->backward_index);
}

static enum dtx_status make_lanes(struct dtx_pipe *pipe, const struct dtx_mesh *mesh, const struct dtx_tensor *boundary)
{
    bool swapped = DTX_MUTANT(channels_swapped) && mesh->forward_out;
    DTX_TRY(pipe->ctx, make_lane(pipe, mesh->forward_in, boundary, &pipe->in));
    DTX_TRY(pipe->ctx, make_lane(pipe, swapped ? mesh->backward_in : mesh->forward_out, boundary, &pipe->out));
    DTX_TRY(pipe->ctx, make_lane(pipe, mesh->backward_out, boundary, &pipe->din));
    return make_lane(pipe, swapped ? mesh->forward_out : mesh->backward_in, boundary, &pipe->dout);
}

enum dtx_status dtx_pipe_create(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_queue *queue,
                                const struct dtx_schedule *schedule, int micro_batches,
                                const struct dtx_tensor *boundary, struct dtx_pipe **out)
{
    int stages = mesh->size[DTX_AXIS_PP], stage = mesh->rank[DTX_AXIS_PP];
    double bubble;
    DTX_TRY(ctx, dtx_schedule_simulate(ctx, schedule, stages, micro_batches, 1, &bubble));
    void *p = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_pipe), &p));
    struct dtx_pipe *pipe = p;
    pipe->ctx = ctx;
    pipe->queue = queue;
    pipe->micro_batches = micro_batches;
    enum dtx_status status = make_steps(pipe, schedule, stage, stages);
    if (status == DTX_OK)
        status = make_lanes(pipe, mesh, boundary);
    if (status != DTX_OK) {
        dtx_pipe_free(pipe);
        return status;
    }
    *out = pipe;
    return DTX_OK;
}

int dtx_pipe_slots(const struct dtx_pipe *pipe)
{
    return pipe->slots;
}

void dtx_pipe_free(struct dtx_pipe *pipe)
{
    if (!pipe)
        return;
    free_lane(pipe, &pipe->in);
    free_lane(pipe, &pipe->out);
    free_lane(pipe, &pipe->din);
    free_lane(pipe, &pipe->dout);
    dtx_mem_free(pipe->steps);
    dtx_mem_free(pipe->forward_index);
    dtx_mem_free(pipe->backward_index);
    dtx_mem_free(pipe);
}
