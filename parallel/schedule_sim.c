/*
 * Checks a schedule and plays it: all stages' lists, without MPI and without tensors, under the rules of pipe.c.
 * First every stage's list by itself (order, slots, each step once), then all together on a clock.
 */
#include <math.h>
#include <stdio.h>

#include "kernels/base/mem.h"
#include "parallel/schedule.h"

struct stage {
    struct dtx_step *steps;
    int n;
};

/* One direction into one stage. Message k is the k-th that the sender's list makes; −1: has not happened. */
struct channel {
    int *index;       /* [chunks·micro_batches] of the receiving step → k */
    double *sent;     /* [k] the sender started it */
    double *consumed; /* [k] the receiving step ended: its buffer is free */
    double *posted;   /* [k] the receive was posted: in order, as soon as a buffer is free */
    int next;         /* receive to post */
};

struct sim {
    struct dtx_ctx *ctx;
    const struct dtx_schedule *schedule;
    int stages, micro_batches, chunks, units; /* units = chunks·micro_batches: the steps of one kind on a stage */
    struct stage *stage;                      /* [stages] */
    struct channel *forward, *backward;       /* [stages], by receiver */
    double *clock;                            /* [stages] */
    int *at;                                  /* [stages] next step */
    int *sent_forward, *sent_backward;        /* [stages] messages started, by sender */
};

static const char *kind_name(enum dtx_step_kind kind)
{
    static const char *const names[] = {"forward", "backward", "backward-input", "backward-weight"};
    return names[kind];
}

static bool gives_input_gradient(enum dtx_step_kind kind)
{
    return kind == DTX_STEP_BACKWARD || kind == DTX_STEP_BACKWARD_INPUT;
}

static bool gives_weight_gradient(enum dtx_step_kind kind)
{
    return kind == DTX_STEP_BACKWARD || kind == DTX_STEP_BACKWARD_WEIGHT;
}

static int unit(const struct sim *sim, const struct dtx_step *step)
{
    return step->chunk * sim->micro_batches + step->micro_batch;
}

/* The report of a fault at one step. */
static enum dtx_status fault(const struct sim *sim, int stage, int i, const char *what)
{
    const struct dtx_step *s = &sim->stage[stage].steps[i];
    return dtx_fail(sim->ctx, DTX_E_INTERNAL,
                    "schedule %s, %d stages, %d micro-batches: stage %d, step %d (%s of micro-batch %d, chunk %d, slot "
                    "%d): %s",
                    sim->schedule->name, sim->stages, sim->micro_batches, stage, i,
                    s->kind <= DTX_STEP_BACKWARD_WEIGHT ? kind_name(s->kind) : "unknown step", s->micro_batch, s->chunk,
                    s->slot, what);
}

static enum dtx_status list_fault(const struct sim *sim, int stage, const char *what, int chunk, int micro_batch)
{
    return dtx_fail(sim->ctx, DTX_E_INTERNAL,
                    "schedule %s, %d stages, %d micro-batches: stage %d: %s (micro-batch %d, chunk %d)",
                    sim->schedule->name, sim->stages, sim->micro_batches, stage, what, micro_batch, chunk);
}

/* What one stage has done with a unit so far. */
struct done {
    bool forward, input, weight;
    int slot, keep;
};

/* The slots of a stage: how many, and the unit alive in each (−1: free). */
struct slots {
    int n, *holder;
};

/* A gradient slot is taken by the input part of a split backward and freed by the weight part. */
static enum dtx_status check_keep(struct sim *sim, int stage, int i, struct done *d, struct slots *keep)
{
    const struct dtx_step *s = &sim->stage[stage].steps[i];
    if (s->kind == DTX_STEP_BACKWARD)
        return DTX_OK;
    if (s->keep < 0 || s->keep >= keep->n)
        return fault(sim, stage, i, "the gradient slot is beyond the promised number");
    if (s->kind == DTX_STEP_BACKWARD_INPUT) {
        if (keep->holder[s->keep] >= 0)
            return fault(sim, stage, i, "the gradient slot is in use");
        keep->holder[s->keep] = unit(sim, s);
        d->keep = s->keep;
        return DTX_OK;
    }
    if (d->keep != s->keep)
        return fault(sim, stage, i, "not the gradient slot of its input part");
    keep->holder[s->keep] = -1;
    return DTX_OK;
}

/* Order, repetition and slots of one step, given what came before it. */
static enum dtx_status check_step(struct sim *sim, int stage, int i, struct done *done, struct slots *slots,
                                  struct slots *keep)
{
    int peak = slots->n, *holder = slots->holder;
    const struct dtx_step *s = &sim->stage[stage].steps[i];
    if (s->kind > DTX_STEP_BACKWARD_WEIGHT || s->micro_batch < 0 || s->micro_batch >= sim->micro_batches ||
        s->chunk < 0 || s->chunk >= sim->chunks)
        return fault(sim, stage, i, "there is no such step");
    if (s->slot < 0 || s->slot >= peak)
        return fault(sim, stage, i, "the slot is beyond the promised peak");
    struct done *d = &done[unit(sim, s)];
    if (s->kind == DTX_STEP_FORWARD) {
        if (d->forward)
            return fault(sim, stage, i, "done twice");
        if (holder[s->slot] >= 0)
            return fault(sim, stage, i, "the slot is in use");
        *d = (struct done){.forward = true, .slot = s->slot};
        holder[s->slot] = unit(sim, s);
        return DTX_OK;
    }
    if (!d->forward)
        return fault(sim, stage, i, "backward before its forward");
    if ((gives_input_gradient(s->kind) && d->input) || (gives_weight_gradient(s->kind) && d->weight))
        return fault(sim, stage, i, "done twice");
    if (s->kind == DTX_STEP_BACKWARD_WEIGHT && !d->input)
        return fault(sim, stage, i, "weight gradient before the input gradient");
    if (d->slot != s->slot)
        return fault(sim, stage, i, "not the slot of its forward");
    /* The input part adds gradients too: of gains, λ and the head. */
    const struct done *before = s->micro_batch > 0 ? d - 1 : NULL;
    if (before && (!before->input || (gives_weight_gradient(s->kind) && !before->weight)))
        return fault(sim, stage, i, "backward out of order: weight gradients are added in ascending micro-batch order");
    DTX_TRY(sim->ctx, check_keep(sim, stage, i, d, keep));
    d->input = true;
    if (!gives_weight_gradient(s->kind))
        return DTX_OK;
    d->weight = true;
    holder[s->slot] = -1;
    return DTX_OK;
}

/* A promise that no step needs would waste memory. */
static enum dtx_status check_used(struct sim *sim, int stage, const char *what, int promised, int used)
{
    if (used == promised)
        return DTX_OK;
    return dtx_fail(sim->ctx, DTX_E_INTERNAL,
                    "schedule %s, %d stages, %d micro-batches: stage %d promises a peak of %d %s and uses %d",
                    sim->schedule->name, sim->stages, sim->micro_batches, stage, promised, what, used);
}

static enum dtx_status check_stage(struct sim *sim, int stage, struct done *done, struct slots *slots,
                                   struct slots *keep)
{
    for (int i = 0; i < sim->units; i++)
        done[i] = (struct done){0};
    int used = 0, kept = 0;
    for (int i = 0; i < sim->stage[stage].n; i++) {
        const struct dtx_step *s = &sim->stage[stage].steps[i];
        DTX_TRY(sim->ctx, check_step(sim, stage, i, done, slots, keep));
        used = s->slot >= used ? s->slot + 1 : used;
        if (s->kind == DTX_STEP_BACKWARD_INPUT)
            kept = s->keep >= kept ? s->keep + 1 : kept;
    }
    for (int u = 0; u < sim->units; u++)
        if (!done[u].forward || !done[u].weight)
            return list_fault(sim, stage, done[u].forward ? "a backward is missing" : "a forward is missing",
                              u / sim->micro_batches, u % sim->micro_batches);
    DTX_TRY(sim->ctx, check_used(sim, stage, "slots", slots->n, used));
    return check_used(sim, stage, "gradient slots", keep->n, kept);
}

/* The stage and unit that a step's result goes to; false when it goes nowhere. Chunk c of stage s is the model's part
 * c·stages + s: from the last stage the next chunk begins on the first. */
static bool successor(const struct sim *sim, int stage, const struct dtx_step *s, int *to, int *to_unit)
{
    int part = s->chunk * sim->stages + stage;
    if (s->kind == DTX_STEP_FORWARD)
        part++;
    else if (gives_input_gradient(s->kind))
        part--;
    else
        return false;
    if (part < 0 || part >= sim->stages * sim->chunks)
        return false;
    *to = part % sim->stages;
    *to_unit = part / sim->stages * sim->micro_batches + s->micro_batch;
    return true;
}

/* Whether a step needs the result of another stage or chunk. */
static bool has_predecessor(const struct sim *sim, int stage, const struct dtx_step *s)
{
    int part = s->chunk * sim->stages + stage;
    if (s->kind == DTX_STEP_FORWARD)
        return part > 0;
    return gives_input_gradient(s->kind) && part < sim->stages * sim->chunks - 1;
}

static struct channel *channel_to(struct sim *sim, enum dtx_step_kind kind, int to)
{
    return kind == DTX_STEP_FORWARD ? &sim->forward[to] : &sim->backward[to];
}

/* Numbers the messages in the senders' order. */
static void number_messages(struct sim *sim)
{
    for (int stage = 0; stage < sim->stages; stage++) {
        int forward = 0, backward = 0, to, to_unit;
        for (int i = 0; i < sim->stage[stage].n; i++) {
            const struct dtx_step *s = &sim->stage[stage].steps[i];
            if (successor(sim, stage, s, &to, &to_unit))
                channel_to(sim, s->kind, to)->index[to_unit] = s->kind == DTX_STEP_FORWARD ? forward++ : backward++;
        }
    }
}

/* Posts the receives that have a buffer by now. */
static void post_receives(struct channel *c, int units)
{
    for (; c->next < units; c->next++) {
        int k = c->next;
        double free = k < DTX_PIPE_BUFFERS ? 0 : c->consumed[k - DTX_PIPE_BUFFERS];
        if (free < 0)
            return;
        c->posted[k] = k && c->posted[k - 1] > free ? c->posted[k - 1] : free;
    }
}

/* When message k has arrived and its send is complete; −1: not yet. */
static double arrival(const struct channel *c, int k)
{
    if (c->sent[k] < 0 || c->posted[k] < 0)
        return -1;
    return c->sent[k] > c->posted[k] ? c->sent[k] : c->posted[k];
}

static int *messages_sent(struct sim *sim, enum dtx_step_kind kind, int stage)
{
    return kind == DTX_STEP_FORWARD ? &sim->sent_forward[stage] : &sim->sent_backward[stage];
}

/* When the stage's next step can start; −1 and why when it must wait for something that has not happened. Results pass
 * between chunks of one stage, when it is alone, as messages to itself. */
static double ready(struct sim *sim, int stage, const char **why)
{
    const struct dtx_step *s = &sim->stage[stage].steps[sim->at[stage]];
    double start = sim->clock[stage];
    if (has_predecessor(sim, stage, s)) {
        const struct channel *in = channel_to(sim, s->kind, stage);
        double arrived = arrival(in, in->index[unit(sim, s)]);
        *why = "waits for ever for its message";
        if (arrived < 0)
            return -1;
        start = arrived > start ? arrived : start;
    }
    int to, to_unit;
    if (successor(sim, stage, s, &to, &to_unit)) {
        int k = *messages_sent(sim, s->kind, stage) - DTX_PIPE_BUFFERS;
        double taken = k < 0 ? 0 : arrival(channel_to(sim, s->kind, to), k);
        *why = "waits for ever for a send buffer";
        if (taken < 0)
            return -1;
        start = taken > start ? taken : start;
    }
    return start;
}

static void do_step(struct sim *sim, int stage, double start)
{
    const struct dtx_step *s = &sim->stage[stage].steps[sim->at[stage]++];
    double end = sim->clock[stage] = start + (s->kind == DTX_STEP_BACKWARD ? 2 : 1);
    if (has_predecessor(sim, stage, s)) {
        struct channel *in = channel_to(sim, s->kind, stage);
        in->consumed[in->index[unit(sim, s)]] = end;
        post_receives(in, sim->units);
    }
    int to, to_unit;
    if (successor(sim, stage, s, &to, &to_unit))
        channel_to(sim, s->kind, to)->sent[(*messages_sent(sim, s->kind, stage))++] = end;
}

static enum dtx_status play(struct sim *sim, double *bubble)
{
    int left = 0;
    for (int stage = 0; stage < sim->stages; stage++) {
        post_receives(&sim->forward[stage], sim->units);
        post_receives(&sim->backward[stage], sim->units);
        left += sim->stage[stage].n;
    }
    const char *why = "";
    while (left > 0) {
        int before = left, waiting = -1;
        for (int stage = 0; stage < sim->stages; stage++)
            while (sim->at[stage] < sim->stage[stage].n) {
                double start = ready(sim, stage, &why);
                if (start < 0) {
                    waiting = stage;
                    break;
                }
                do_step(sim, stage, start);
                left--;
            }
        if (left == before) {
            char text[96];
            ready(sim, waiting, &why);
            snprintf(text, sizeof text, "deadlock: it %s", why);
            return fault(sim, waiting, sim->at[waiting], text);
        }
    }
    double makespan = 0;
    for (int stage = 0; stage < sim->stages; stage++)
        makespan = sim->clock[stage] > makespan ? sim->clock[stage] : makespan;
    *bubble = 1 - 3.0 * sim->units / makespan;
    return DTX_OK;
}

/* One zeroed array of n elements (and one, so that none is empty). */
static enum dtx_status array(struct sim *sim, int64_t n, size_t size, void *out)
{
    void *p = NULL;
    DTX_TRY(sim->ctx, dtx_mem_alloc(sim->ctx, n + 1, size, &p));
    *(void **)out = p;
    return DTX_OK;
}

static enum dtx_status make_channel(struct sim *sim, struct channel *c)
{
    DTX_TRY(sim->ctx, array(sim, sim->units, sizeof *c->index, &c->index));
    DTX_TRY(sim->ctx, array(sim, sim->units, sizeof *c->sent, &c->sent));
    DTX_TRY(sim->ctx, array(sim, sim->units, sizeof *c->consumed, &c->consumed));
    DTX_TRY(sim->ctx, array(sim, sim->units, sizeof *c->posted, &c->posted));
    for (int k = 0; k < sim->units; k++)
        c->sent[k] = c->consumed[k] = c->posted[k] = -1;
    return DTX_OK;
}

static enum dtx_status make_sim(struct sim *sim)
{
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->stage, &sim->stage));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->forward, &sim->forward));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->backward, &sim->backward));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->clock, &sim->clock));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->at, &sim->at));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->sent_forward, &sim->sent_forward));
    DTX_TRY(sim->ctx, array(sim, sim->stages, sizeof *sim->sent_backward, &sim->sent_backward));
    for (int stage = 0; stage < sim->stages; stage++) {
        struct stage *s = &sim->stage[stage];
        int n = sim->schedule->steps(stage, sim->stages, sim->micro_batches, sim->chunks, NULL);
        DTX_TRY(sim->ctx, array(sim, n, sizeof *s->steps, &s->steps));
        s->n = sim->schedule->steps(stage, sim->stages, sim->micro_batches, sim->chunks, s->steps);
        if (s->n != n)
            return list_fault(sim, stage, "the number of steps differs between two calls", 0, 0);
        DTX_TRY(sim->ctx, make_channel(sim, &sim->forward[stage]));
        DTX_TRY(sim->ctx, make_channel(sim, &sim->backward[stage]));
    }
    return DTX_OK;
}

static void free_channel(struct channel *c)
{
    dtx_mem_free(c->index);
    dtx_mem_free(c->sent);
    dtx_mem_free(c->consumed);
    dtx_mem_free(c->posted);
}

static void free_sim(struct sim *sim)
{
    for (int stage = 0; stage < sim->stages; stage++) {
        if (sim->stage)
            dtx_mem_free(sim->stage[stage].steps);
        if (sim->forward)
            free_channel(&sim->forward[stage]);
        if (sim->backward)
            free_channel(&sim->backward[stage]);
    }
    dtx_mem_free(sim->stage);
    dtx_mem_free(sim->forward);
    dtx_mem_free(sim->backward);
    dtx_mem_free(sim->clock);
    dtx_mem_free(sim->at);
    dtx_mem_free(sim->sent_forward);
    dtx_mem_free(sim->sent_backward);
}

/* n free slots. */
static enum dtx_status make_slots(struct sim *sim, int n, struct slots *out)
{
    out->n = n;
    DTX_TRY(sim->ctx, array(sim, n, sizeof *out->holder, &out->holder));
    for (int i = 0; i < n; i++)
        out->holder[i] = -1;
    return DTX_OK;
}

static enum dtx_status check_promises(struct sim *sim, int stage, struct done *done)
{
    struct slots slots = {0}, keep = {0};
    int peak = sim->schedule->peak(stage, sim->stages, sim->micro_batches, sim->chunks);
    if (peak < 1)
        return list_fault(sim, stage, "the promised peak is below one slot", 0, 0);
    enum dtx_status status = make_slots(sim, peak, &slots);
    if (status == DTX_OK)
        status = make_slots(sim, dtx_schedule_kept(sim->schedule, stage, sim->stages, sim->micro_batches, sim->chunks),
                            &keep);
    if (status == DTX_OK)
        status = check_stage(sim, stage, done, &slots, &keep);
    dtx_mem_free(slots.holder);
    dtx_mem_free(keep.holder);
    return status;
}

static enum dtx_status check_stages(struct sim *sim)
{
    struct done *done;
    DTX_TRY(sim->ctx, array(sim, sim->units, sizeof *done, &done));
    enum dtx_status status = DTX_OK;
    for (int stage = 0; stage < sim->stages && status == DTX_OK; stage++)
        status = check_promises(sim, stage, done);
    dtx_mem_free(done);
    return status;
}

static enum dtx_status check_bubble(const struct sim *sim, double bubble)
{
    if (!sim->schedule->bubble)
        return DTX_OK;
    double promised = sim->schedule->bubble(sim->stages, sim->micro_batches, sim->chunks);
    if (fabs(bubble - promised) <= 1e-9)
        return DTX_OK;
    return dtx_fail(sim->ctx, DTX_E_INTERNAL,
                    "schedule %s, %d stages, %d micro-batches, %d chunks: promises a bubble of %.6f and has %.6f",
                    sim->schedule->name, sim->stages, sim->micro_batches, sim->chunks, promised, bubble);
}

enum dtx_status dtx_schedule_simulate(struct dtx_ctx *ctx, const struct dtx_schedule *schedule, int stages,
                                      int micro_batches, int chunks, double *bubble)
{
    if (stages < 1 || micro_batches < 1 || chunks < 1 || chunks > schedule->max_chunks)
        return dtx_fail(ctx, DTX_E_RANGE, "schedule %s: %d stages, %d micro-batches, %d chunks (at most %d)",
                        schedule->name, stages, micro_batches, chunks, schedule->max_chunks);
    int multiple = dtx_schedule_multiple(schedule, stages, chunks);
    if (micro_batches % multiple)
        return dtx_fail(ctx, DTX_E_RANGE,
                        "schedule %s with %d chunks needs micro-batches in multiples of the %d stages, not %d",
                        schedule->name, chunks, multiple, micro_batches);
    struct sim sim = {.ctx = ctx,
                      .schedule = schedule,
                      .stages = stages,
                      .micro_batches = micro_batches,
                      .chunks = chunks,
                      .units = chunks * micro_batches};
    double idle = 0;
    enum dtx_status status = make_sim(&sim);
    if (status == DTX_OK)
        status = check_stages(&sim);
    if (status == DTX_OK) {
        number_messages(&sim);
        status = play(&sim, &idle);
    }
    if (status == DTX_OK)
        status = check_bubble(&sim, idle);
    free_sim(&sim);
    if (status == DTX_OK)
        *bubble = idle;
    return status;
}
