/* 1F1B (PipeDream-flush, Narayanan et al. 2021): as soon as a stage has as many micro-batches alive as there are stages
 * from it on, each forward is preceded by a backward. The bubble of GPipe with at most `stages` micro-batches alive. */
#include "kernels/base/mutant.h"
#include "parallel/schedule.h"

static int peak(int stage, int stages, int micro_batches, int chunks)
{
    (void)chunks;
    int behind = stages - stage;
    return behind < micro_batches ? behind : micro_batches;
}

static int steps(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    int alive = peak(stage, stages, micro_batches, chunks), n = 0;
    for (int m = 0; out && m < micro_batches + alive; m++) {
        if (m >= alive)
            out[n++] = (struct dtx_step){DTX_STEP_BACKWARD, m - alive, 0, (m - alive) % alive, 0};
        if (m < micro_batches)
            out[n++] = (struct dtx_step){DTX_STEP_FORWARD, m, 0, m % alive, 0};
    }
    if (DTX_MUTANT(backward_out_of_order) && out && micro_batches > 1) {
        struct dtx_step last = out[2 * micro_batches - 1];
        out[2 * micro_batches - 1] = out[2 * micro_batches - 2];
        out[2 * micro_batches - 2] = last;
    }
    return 2 * micro_batches;
}

static double bubble(int stages, int micro_batches, int chunks)
{
    (void)chunks;
    return (stages - 1.0) / (micro_batches + stages - 1.0);
}

extern const struct dtx_schedule dtx_schedule_1f1b;
const struct dtx_schedule dtx_schedule_1f1b = {
    .name = "1f1b", .steps = steps, .peak = peak, .bubble = bubble, .max_chunks = 1};
