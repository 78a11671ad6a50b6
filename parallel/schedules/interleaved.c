/* Interleaved 1F1B (Narayanan et al. 2021): a stage has several chunks of the model, so a micro-batch passes it several
 * times and the bubble shrinks by the number of chunks, for more messages and more micro-batches alive. Groups of
 * `stages` micro-batches go through one chunk after another; so micro-batches must be a multiple of the stages when
 * there are several chunks. With one chunk it is 1F1B. */
#include "kernels/base/mutant.h"
#include "parallel/schedule.h"

/* The k-th forward of a stage, or its k-th backward, which takes the chunks from the last to the first. */
static struct dtx_step unit(enum dtx_step_kind kind, int k, int stages, int chunks)
{
    int group = chunks > 1 ? stages : 1, in_group = k % (group * chunks);
    int chunk = in_group / group;
    if (kind == DTX_STEP_BACKWARD && !DTX_MUTANT(chunks_not_turned_round))
        chunk = chunks - 1 - chunk;
    return (struct dtx_step){kind, k / (group * chunks) * group + in_group % group, chunk, 0, 0};
}

/* The inverse: which forward of the stage a unit is. */
static int forward_number(const struct dtx_step *s, int stages, int chunks)
{
    int group = chunks > 1 ? stages : 1;
    return s->micro_batch / group * group * chunks + s->chunk * group + s->micro_batch % group;
}

/* Forwards before the first backward's forward: the way to the last stage and back, and the other chunks. */
static int warm_up(int stage, int stages, int micro_batches, int chunks)
{
    int ahead = chunks > 1 ? 2 * (stages - 1 - stage) + (chunks - 1) * stages : stages - 1 - stage;
    int all = micro_batches * chunks;
    return ahead < all - 1 ? ahead : all - 1;
}

static int peak(int stage, int stages, int micro_batches, int chunks)
{
    return warm_up(stage, stages, micro_batches, chunks) + 1 - DTX_MUTANT(interleaved_peak_too_low);
}

static int steps(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    int all = micro_batches * chunks, warm = warm_up(stage, stages, micro_batches, chunks), n = 0;
    if (!out)
        return 2 * all;
    for (int k = 0; k < warm; k++, n++) {
        out[n] = unit(DTX_STEP_FORWARD, k, stages, chunks);
        out[n].slot = k;
    }
    /* A forward, a backward, …: after the first, a forward takes the slot that the backward before it freed. */
    for (int k = 0, free = warm; k < all; k++) {
        if (warm + k < all) {
            out[n] = unit(DTX_STEP_FORWARD, warm + k, stages, chunks);
            out[n++].slot = free;
        }
        out[n] = unit(DTX_STEP_BACKWARD, k, stages, chunks);
        int made = forward_number(&out[n], stages, chunks); /* its forward stands at warm + 2·(made − warm) */
        free = out[n].slot = made < warm ? made : out[2 * made - warm].slot;
        n++;
    }
    return 2 * all;
}

static double bubble(int stages, int micro_batches, int chunks)
{
    return (stages - 1.0) / ((double)micro_batches * chunks + stages - 1.0);
}

static int multiple(int stages, int chunks)
{
    return chunks > 1 && !DTX_MUTANT(interleaved_remainder_taken) ? stages : 1;
}

extern const struct dtx_schedule dtx_schedule_interleaved;
const struct dtx_schedule dtx_schedule_interleaved = {.name = "interleaved",
                                                      .steps = steps,
                                                      .peak = peak,
                                                      .bubble = bubble,
                                                      .multiple = multiple,
                                                      .max_chunks = DTX_SCHEDULE_CHUNKS};
