/* ZB-H1 (Qi et al. 2023): 1F1B with the backward pass in two parts. The input part, which the stage before waits for,
 * comes at once; stage s does weight parts s micro-batches later, where 1F1B would be idle. Every stage has at most
 * `stages` micro-batches alive, as the first one of 1F1B, and the bubble falls to a third. */
#include "kernels/base/mutant.h"
#include "parallel/schedule.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int peak(int stage, int stages, int micro_batches, int chunks)
{
    (void)stage, (void)chunks;
    return least(stages, micro_batches) + DTX_MUTANT(zb_peak_too_high);
}

static int kept(int stage, int stages, int micro_batches, int chunks)
{
    (void)stages, (void)chunks;
    return least(stage + 1, micro_batches);
}

/* Planted faults: two neighbouring weight parts in the other order; the last weight part before its input part. */
static void plant_fault(int micro_batches, struct dtx_step *out)
{
    struct dtx_step *end = out + 3 * micro_batches - 1;
    if (DTX_MUTANT(zb_weights_out_of_order))
        for (struct dtx_step *s = end; s > out; s--)
            if (s->kind == DTX_STEP_BACKWARD_WEIGHT && s->micro_batch == micro_batches - 2) {
                struct dtx_step last = *end;
                *end = *s;
                *s = last;
                return;
            }
    if (DTX_MUTANT(zb_weight_before_input) && end[-1].kind == DTX_STEP_BACKWARD_INPUT) {
        struct dtx_step last = *end;
        *end = end[-1];
        end[-1] = last;
    }
}

static int steps(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    int warm = stages - stage, n = 0; /* forwards ahead of input parts; those are `stage` ahead of weight parts */
    int slots = least(stages, micro_batches), keeps = kept(stage, stages, micro_batches, chunks);
    for (int m = 0; out && m < micro_batches + stages; m++) {
        int input = m - warm, weight = m - stages;
        if (input >= 0 && input < micro_batches)
            out[n++] = (struct dtx_step){DTX_STEP_BACKWARD_INPUT, input, 0, input % slots, input % keeps};
        if (weight >= 0)
            out[n++] = (struct dtx_step){DTX_STEP_BACKWARD_WEIGHT, weight, 0, weight % slots, weight % keeps};
        if (m < micro_batches)
            out[n++] = (struct dtx_step){DTX_STEP_FORWARD, m, 0, m % slots, 0};
    }
    if (out)
        plant_fault(micro_batches, out);
    return 3 * micro_batches;
}

/* From the first forward to the last weight part: 3 per micro-batch and one way through the stages; with fewer
 * micro-batches than stages both ways count. */
static double bubble(int stages, int micro_batches, int chunks)
{
    (void)chunks;
    double busy = 3.0 * micro_batches, full = busy + stages - 1, short_of = 2.0 * micro_batches + 2.0 * stages - 1;
    return 1 - busy / (full > short_of ? full : short_of);
}

extern const struct dtx_schedule dtx_schedule_zb_h1;
const struct dtx_schedule dtx_schedule_zb_h1 = {
    .name = "zb_h1", .steps = steps, .peak = peak, .kept = kept, .bubble = bubble, .max_chunks = 1};
