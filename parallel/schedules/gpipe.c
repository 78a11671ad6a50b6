/* GPipe (Huang et al. 2019): all forwards, then all backwards; every micro-batch is alive at once. */
#include "parallel/schedule.h"

static int steps(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    (void)stage, (void)stages, (void)chunks;
    for (int m = 0; out && m < micro_batches; m++) {
        out[m] = (struct dtx_step){DTX_STEP_FORWARD, m, 0, m, 0};
        out[micro_batches + m] = (struct dtx_step){DTX_STEP_BACKWARD, m, 0, m, 0};
    }
    return 2 * micro_batches;
}

static int peak(int stage, int stages, int micro_batches, int chunks)
{
    (void)stage, (void)stages, (void)chunks;
    return micro_batches;
}

static double bubble(int stages, int micro_batches, int chunks)
{
    (void)chunks;
    return (stages - 1.0) / (micro_batches + stages - 1.0);
}

extern const struct dtx_schedule dtx_schedule_gpipe;
const struct dtx_schedule dtx_schedule_gpipe = {
    .name = "gpipe", .steps = steps, .peak = peak, .bubble = bubble, .max_chunks = 1};
