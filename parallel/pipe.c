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
    const int *index;            /* receiver: chunk·micro_batches + micro-batch → message; NULL: forward_message */
};

struct dtx_pipe {
    struct dtx_ctx *ctx;
    struct dtx_queue *queue;
    int stage, stages, micro_batches, chunks, slots, kept, n_steps;
    struct dtx_step *steps;
    int *forward_index, *backward_index; /* [chunks·micro_batches], by the neighbours' lists */
    struct lane in, out, din, dout;      /* out, din are sent; in, dout received */
    struct dtx_tensor absent;            /* a boundary without data */
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

/* Forward only: micro-batches go in groups of as many as there are stages through one chunk after another. The number
 * of a unit's message among those into this stage; the last stage's last chunk sends none. */
static int forward_message(const struct dtx_pipe *pipe, int total, const struct dtx_step *s)
{
    int chunks = pipe->stage ? pipe->chunks : pipe->chunks - 1, from = pipe->stage ? s->chunk : s->chunk - 1;
    int micro_batches = total / chunks, first = s->micro_batch / pipe->stages * pipe->stages;
    int group = micro_batches - first < pipe->stages ? micro_batches - first : pipe->stages;
    if (DTX_MUTANT(evaluation_message_order))
        group = pipe->stages; /* as if the last group were full */
    return first * chunks + from * group + s->micro_batch - first;
}

static int buffer_of(const struct dtx_pipe *pipe, const struct lane *lane, const struct dtx_step *s)
{
    int k = lane->index ? lane->index[s->chunk * pipe->micro_batches + s->micro_batch]
                        : forward_message(pipe, lane->total, s);
    return k % DTX_PIPE_BUFFERS;
}

/* Whether a step has a part of the model before it (after it). */
static bool part_before(const struct dtx_pipe *pipe, const struct dtx_step *s)
{
    return s->chunk > 0 || pipe->stage > 0;
}

static bool part_after(const struct dtx_pipe *pipe, const struct dtx_step *s)
{
    return s->chunk < pipe->chunks - 1 || pipe->stage < pipe->stages - 1;
}

static enum dtx_status receive(struct dtx_pipe *pipe, struct lane *lane, const struct dtx_step *s,
                               const struct dtx_tensor **out)
{
    int i = buffer_of(pipe, lane, s);
    *out = &lane->buffer[i];
    /* The schedule was simulated with these buffers, so the message is among the posted ones. */
    if (DTX_MUTANT(receive_not_waited))
        return DTX_OK;
    DTX_TRY(pipe->ctx, dtx_comm_wait(&lane->request[i]));
    return DTX_OK;
}

static enum dtx_status consumed(struct dtx_pipe *pipe, struct lane *lane, const struct dtx_step *s)
{
    lane->busy[buffer_of(pipe, lane, s)] = false;
    return post_receives(pipe, lane);
}

/* The next send buffer, once its last message was taken. */
static enum dtx_status send_buffer(struct dtx_pipe *pipe, struct lane *lane, const struct dtx_tensor **out)
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
    int i = lane->next++ % DTX_PIPE_BUFFERS;
    DTX_TRY(pipe->ctx, dtx_comm_send_start(lane->comm, pipe->queue, &lane->buffer[i], lane->peer, &lane->request[i]));
    lane->busy[i] = true;
    return DTX_OK;
}

static enum dtx_status finish_sends(struct dtx_pipe *pipe, struct lane *lane)
{
    const struct dtx_tensor *unused;
    for (int i = 0; i < DTX_PIPE_BUFFERS; i++, lane->next++)
        DTX_TRY(pipe->ctx, send_buffer(pipe, lane, &unused));
    return DTX_OK;
}

typedef enum dtx_status (*stage_step)(void *self, const struct dtx_step *step, const struct dtx_tensor *in,
                                      const struct dtx_tensor *out);

/* Receives, computes, sends; a lane is NULL where the model begins or ends. */
static enum dtx_status do_step(struct dtx_pipe *pipe, void *self, stage_step compute, const struct dtx_step *s,
                               struct lane *from, struct lane *to)
{
    const struct dtx_tensor *in = &pipe->absent, *out = &pipe->absent;
    if (from)
        DTX_TRY(pipe->ctx, receive(pipe, from, s, &in));
    if (to)
        DTX_TRY(pipe->ctx, send_buffer(pipe, to, &out));
    DTX_TRY(pipe->ctx, compute(self, s, in, out));
    if (to)
        DTX_TRY(pipe->ctx, send(pipe, to));
    return from ? consumed(pipe, from, s) : DTX_OK;
}

static enum dtx_status forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, const struct dtx_step *s)
{
    return do_step(pipe, stage->self, stage->forward, s, part_before(pipe, s) ? &pipe->in : NULL,
                   part_after(pipe, s) ? &pipe->out : NULL);
}

static enum dtx_status backward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, const struct dtx_step *s)
{
    return do_step(pipe, stage->self, s->kind == DTX_STEP_BACKWARD ? stage->backward : stage->backward_input, s,
                   part_after(pipe, s) ? &pipe->dout : NULL, part_before(pipe, s) ? &pipe->din : NULL);
}

/* Messages that come in: one per unit that has a part before it (after it). */
static int messages(const struct dtx_pipe *pipe, int micro_batches, bool at_end)
{
    return micro_batches * (pipe->chunks - at_end);
}

enum dtx_status dtx_pipe_run(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage)
{
    bool first = pipe->stage == 0, last = pipe->stage == pipe->stages - 1;
    reset_lane(&pipe->in, messages(pipe, pipe->micro_batches, first), pipe->forward_index);
    reset_lane(&pipe->dout, messages(pipe, pipe->micro_batches, last), pipe->backward_index);
    reset_lane(&pipe->out, 0, NULL);
    reset_lane(&pipe->din, 0, NULL);
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->in));
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->dout));
    for (int i = 0; i < pipe->n_steps; i++) {
        const struct dtx_step *s = &pipe->steps[i];
        if (s->kind == DTX_STEP_FORWARD)
            DTX_TRY(pipe->ctx, forward(pipe, stage, s));
        else if (s->kind == DTX_STEP_BACKWARD_WEIGHT)
            DTX_TRY(pipe->ctx, stage->backward_weight(stage->self, s));
        else
            DTX_TRY(pipe->ctx, backward(pipe, stage, s));
    }
    DTX_TRY(pipe->ctx, finish_sends(pipe, &pipe->out));
    return finish_sends(pipe, &pipe->din);
}

enum dtx_status dtx_pipe_run_forward(struct dtx_pipe *pipe, const struct dtx_pipe_stage *stage, int micro_batches)
{
    reset_lane(&pipe->in, messages(pipe, micro_batches, pipe->stage == 0), NULL);
    reset_lane(&pipe->out, 0, NULL);
    DTX_TRY(pipe->ctx, post_receives(pipe, &pipe->in));
    for (int group = 0; group < micro_batches; group += pipe->stages)
        for (int c = 0; c < pipe->chunks; c++)
            for (int m = group; m < group + pipe->stages && m < micro_batches; m++) {
                struct dtx_step s = {.kind = DTX_STEP_FORWARD, .micro_batch = m, .chunk = c};
                DTX_TRY(pipe->ctx, forward(pipe, stage, &s));
            }
    return finish_sends(pipe, &pipe->out);
}

/* The unit that a message of `sender` is for: the same micro-batch in the part after it, or before it. −1: none. */
static int receiving_unit(const struct dtx_pipe *pipe, int sender, const struct dtx_step *s, bool is_forward)
{
    int part = s->chunk * pipe->stages + sender + (is_forward ? 1 : -1);
    if (part < 0 || part >= pipe->stages * pipe->chunks)
        return -1;
    int chunk = DTX_MUTANT(chunk_message_mixed_up) ? pipe->chunks - 1 - part / pipe->stages : part / pipe->stages;
    return chunk * pipe->micro_batches + s->micro_batch;
}

/* The place of each unit of this stage among the messages that its neighbour makes in one direction. */
static enum dtx_status number_messages(struct dtx_pipe *pipe, const struct dtx_schedule *schedule, bool is_forward,
                                       int **out)
{
    void *index = NULL, *steps = NULL;
    int sender = (pipe->stage + (is_forward ? pipe->stages - 1 : 1)) % pipe->stages;
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, (int64_t)pipe->chunks * pipe->micro_batches, sizeof(int), &index));
    *out = index;
    int n = schedule->steps(sender, pipe->stages, pipe->micro_batches, pipe->chunks, NULL), k = 0;
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, n, sizeof(struct dtx_step), &steps));
    n = schedule->steps(sender, pipe->stages, pipe->micro_batches, pipe->chunks, steps);
    for (int i = 0; i < n; i++) {
        const struct dtx_step *s = (struct dtx_step *)steps + i;
        if (s->kind == DTX_STEP_BACKWARD_WEIGHT || (s->kind == DTX_STEP_FORWARD) != is_forward)
            continue;
        int unit = receiving_unit(pipe, sender, s, is_forward);
        if (unit >= 0)
            (*out)[unit] = k++;
    }
    dtx_mem_free(steps);
    return DTX_OK;
}

static enum dtx_status make_steps(struct dtx_pipe *pipe, const struct dtx_schedule *schedule)
{
    void *steps = NULL;
    int n = schedule->steps(pipe->stage, pipe->stages, pipe->micro_batches, pipe->chunks, NULL);
    DTX_TRY(pipe->ctx, dtx_mem_alloc(pipe->ctx, n, sizeof(struct dtx_step), &steps));
    pipe->steps = steps;
    pipe->n_steps = schedule->steps(pipe->stage, pipe->stages, pipe->micro_batches, pipe->chunks, pipe->steps);
    pipe->slots = schedule->peak(pipe->stage, pipe->stages, pipe->micro_batches, pipe->chunks);
    pipe->kept = dtx_schedule_kept(schedule, pipe->stage, pipe->stages, pipe->micro_batches, pipe->chunks);
    DTX_TRY(pipe->ctx, number_messages(pipe, schedule, true, &pipe->forward_index));
    return number_messages(pipe, schedule, false, &pipe->backward_index);
}

static enum dtx_status make_lanes(struct dtx_pipe *pipe, const struct dtx_mesh *mesh, const struct dtx_tensor *boundary)
{
    bool swapped = DTX_MUTANT(channels_swapped) && mesh->forward_out, first = pipe->stage == 0;
    bool last = pipe->stage == pipe->stages - 1;
    struct dtx_comm *wrap_forward = pipe->chunks > 1 ? mesh->wrap_forward : NULL;
    struct dtx_comm *wrap_backward = pipe->chunks > 1 ? mesh->wrap_backward : NULL;
    struct dtx_comm *out = last ? wrap_forward : mesh->forward_out, *dout = last ? wrap_backward : mesh->backward_in;
    DTX_TRY(pipe->ctx, make_lane(pipe, first ? wrap_forward : mesh->forward_in, boundary, &pipe->in));
    DTX_TRY(pipe->ctx, make_lane(pipe, swapped ? dout : out, boundary, &pipe->out));
    DTX_TRY(pipe->ctx, make_lane(pipe, first ? wrap_backward : mesh->backward_out, boundary, &pipe->din));
    return make_lane(pipe, swapped ? out : dout, boundary, &pipe->dout);
}

/* A lane each way to the part before and to the part after, where a part of another stage is there (make_lanes). */
size_t dtx_pipe_bytes(int stage, int stages, int chunks, const struct dtx_tensor *boundary)
{
    bool before = stage > 0 || (stages > 1 && chunks > 1);
    bool after = stage < stages - 1 || (stages > 1 && chunks > 1 && !DTX_MUTANT(plan_wrap_lanes_forgotten));
    return (size_t)(2 * before + 2 * after) * DTX_PIPE_BUFFERS * dtx_tensor_alloc_bytes(boundary);
}

static enum dtx_status check_arguments(struct dtx_ctx *ctx, const struct dtx_schedule *schedule, int stages,
                                       int micro_batches, int chunks)
{
    double bubble;
    if (stages == 1 && chunks > 1)
        return dtx_fail(ctx, DTX_E_RANGE, "%d chunks on one pipeline stage: chunks need at least 2 stages", chunks);
    return dtx_schedule_simulate(ctx, schedule, stages, micro_batches, chunks, &bubble);
}

enum dtx_status dtx_pipe_create(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_queue *queue,
                                const struct dtx_schedule *schedule, int micro_batches, int chunks,
                                const struct dtx_tensor *boundary, struct dtx_pipe **out)
{
    int stages = mesh->size[DTX_AXIS_PP];
    DTX_TRY(ctx, check_arguments(ctx, schedule, stages, micro_batches, chunks));
    void *p = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_pipe), &p));
    struct dtx_pipe *pipe = p;
    pipe->ctx = ctx;
    pipe->queue = queue;
    pipe->stage = mesh->rank[DTX_AXIS_PP];
    pipe->stages = stages;
    pipe->micro_batches = micro_batches;
    pipe->chunks = chunks;
    pipe->absent = *boundary;
    pipe->absent.data = NULL;
    enum dtx_status status = make_steps(pipe, schedule);
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

int dtx_pipe_kept(const struct dtx_pipe *pipe)
{
    return pipe->kept;
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
