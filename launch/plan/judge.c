/*
 * One row of the plan. Memory and bytes sent are the trainer's own counts; time is a simple model, stated in
 * launch/README.md: FLOPs at an assumed share of the peak, collectives of the tensor and context axes beside them, the
 * schedule's idle share, and once a step the pipeline's first and last messages, the data axis and the update, none of
 * which is hidden behind the others.
 */
#include <math.h>
#include <stdio.h>

#include "kernels/base/mutant.h"
#include "launch/plan/plan.h"
#include "parallel/schedule.h"

/* Does every group of `extent` consecutive ranks lie on one node? */
static bool in_node(const struct dtx_plan *plan, int extent)
{
    int64_t node = plan->machine->devices_per_node;
    return extent == 1 || plan->ranks <= node || node % extent == 0;
}

struct link {
    double speed, latency;
};

static struct link link_of(const struct dtx_plan *plan, const struct dtx_plan_row *row, enum dtx_axis axis)
{
    const struct dtx_machine *m = plan->machine;
    int extent = row->mesh[DTX_AXIS_TP] * (axis == DTX_AXIS_TP ? 1 : row->mesh[DTX_AXIS_CP]);
    if (axis == DTX_AXIS_DP)
        extent *= row->mesh[DTX_AXIS_DP];
    if (axis == DTX_AXIS_PP)
        extent = plan->ranks;
    return in_node(plan, extent) ? (struct link){m->node_link, m->node_latency}
                                 : (struct link){m->network_link, m->network_latency};
}

double dtx_plan_bytes(const struct dtx_plan *plan, const struct dtx_estimate *e)
{
    return (double)dtx_memory_total(&e->memory) + plan->machine->overhead_bytes +
           (plan->machine->host_memory ? (double)dtx_estimate_host(e) : 0);
}

/* Seconds of the context axis in a step: what is gathered is waited for; a ring's messages are on their way while their
 * share of the layers is computed. */
static double context_time(const struct dtx_plan *plan, const struct dtx_plan_row *row, const struct dtx_estimate *e,
                           double compute)
{
    struct link cp = link_of(plan, row, DTX_AXIS_CP);
    double sent = row->micro_batches * (e->cp_sent_micro / cp.speed + e->cp_calls * cp.latency);
    double hidden = row->ring ? compute * e->attention_flops / (e->flops_micro + e->flops_again) : 0;
    return row->mesh[DTX_AXIS_CP] == 1 ? 0 : fmax(0, sent - hidden);
}

/* Adds one stage to the row: the highest of each is what the step waits for. */
static void add_stage(const struct dtx_plan *plan, struct dtx_plan_row *row, const struct dtx_engine_config *config,
                      int stage, const struct dtx_estimate *e)
{
    const struct dtx_machine *m = plan->machine;
    struct link tp = link_of(plan, row, DTX_AXIS_TP), dp = link_of(plan, row, DTX_AXIS_DP),
                pp = link_of(plan, row, DTX_AXIS_PP);
    double total = dtx_plan_bytes(plan, e);
    if (stage == 0 || total > row->bytes) {
        row->bytes = total;
        row->worst = stage;
        row->stage = *e;
    }
    for (int a = 0; a < DTX_AXES; a++)
        row->sent[a] = fmax(row->sent[a], e->sent[a]);
    double rate = dtx_machine_flops(m, config->dtype) * plan->efficiency, micro_batches = row->micro_batches;
    double compute = micro_batches * (e->flops_micro + e->flops_again) / rate;
    double tensor =
        row->mesh[DTX_AXIS_TP] > 1 ? micro_batches * (e->tp_sent_micro / tp.speed + e->tp_calls * tp.latency) : 0;
    double context = context_time(plan, row, e, compute);
    row->idle += compute + tensor + context; /* a sum over the stages until all are there */
    if (compute + tensor + context > row->compute + row->tensor + row->context) {
        row->compute = compute;
        row->tensor = tensor;
        row->context = context;
    }
    double data = row->mesh[DTX_AXIS_DP] * row->mesh[DTX_AXIS_CP] > 1
                      ? e->sent[DTX_AXIS_DP] / dp.speed + e->dp_calls * dp.latency
                      : 0;
    row->data = fmax(row->data, data + e->tied / pp.speed);
    const struct dtx_memory *b = &e->memory;
    row->update = fmax(row->update,
                       (2.0 * (double)(b->weights + b->masters + b->states) + (double)b->gradients) / m->memory_speed);
    if (row->mesh[DTX_AXIS_PP] > 1)
        row->pipe =
            fmax(row->pipe, 2.0 * (row->mesh[DTX_AXIS_PP] * row->chunks - 1) * (e->boundary / pp.speed + pp.latency));
}

static void explain_memory(const struct dtx_plan *plan, struct dtx_plan_row *row)
{
    const double gib = 1073741824.0;
    char causes[DTX_MEMORY_TEXT];
    dtx_memory_text(&row->stage.memory, causes);
    snprintf(row->reason, sizeof row->reason, "stage %d needs %.1f GiB of %.1f: %s, overhead %.1f", row->worst,
             row->bytes / gib, plan->machine->memory_bytes / gib, causes, plan->machine->overhead_bytes / gib);
}

enum dtx_status dtx_plan_judge(struct dtx_plan *plan, struct dtx_plan_row *row, const struct dtx_engine_config *config)
{
    const struct dtx_schedule *schedule = dtx_schedule_find(row->schedule);
    int stages = row->mesh[DTX_AXIS_PP];
    row->micro_batch = config->batch.micro_batch;
    row->micro_batches = config->batch.micro_batches;
    for (int stage = 0; stage < stages; stage++) {
        struct dtx_estimate e;
        int rank[DTX_AXES] = {[DTX_AXIS_PP] = stage};
        DTX_TRY(plan->ctx, dtx_estimate_rank(plan->ctx, config, plan->queue, rank, &e));
        add_stage(plan, row, config, stage, &e);
    }
    if (schedule->bubble) /* what the simulator holds it to; the command plays what it shows */
        row->bubble = schedule->bubble(stages, row->micro_batches, row->chunks);
    else
        DTX_TRY(plan->ctx,
                dtx_schedule_simulate(plan->ctx, schedule, stages, row->micro_batches, row->chunks, &row->bubble));
    row->idle *= row->bubble / (1 - row->bubble) / stages; /* filling and draining take a mean stage's time each */
    row->step = row->compute + row->tensor + row->context + row->idle + row->pipe + row->data + row->update;
    row->mfu =
        dtx_engine_step_flops(config) / (plan->ranks * dtx_machine_flops(plan->machine, config->dtype)) / row->step;
    row->verdict = row->bytes <= plan->machine->memory_bytes || DTX_MUTANT(plan_memory_unchecked) ? DTX_PLAN_FITS
                                                                                                  : DTX_PLAN_TOO_BIG;
    if (row->verdict == DTX_PLAN_TOO_BIG)
        explain_memory(plan, row);
    return DTX_OK;
}
