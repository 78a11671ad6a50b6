/*
 * Three fp32 steps of a small fixed model on the mesh, schedule, device and transport of a run. Losses, global gradient
 * norms and the first step's gradient norm of every weight, λ vectors included, are compared with figures that are part
 * of the program (selfcheck_figures.c): those of numeric.selfcheck_reference, in double precision.
 *
 * A few models serve every mesh. The batch repeats four sequences, and positions behind the 32nd have no target, so the
 * same means come out however many data ranks, micro-batches and context chunks there are. Heads must be cut evenly
 * over the tensor ranks and every part of the pipeline needs a block: the models differ in heads and layers alone.
 */
#ifndef DTX_TRAINER_SELFCHECK_H
#define DTX_TRAINER_SELFCHECK_H

#include "trainer/engine.h"

enum {
    DTX_SELFCHECK_STEPS = 3,
    DTX_SELFCHECK_SEQUENCES = 4, /* different ones */
    DTX_SELFCHECK_LENGTH = 32,   /* positions that may have a target */
    DTX_SELFCHECK_VOCAB = 131,
    DTX_SELFCHECK_FFN = 192,
    DTX_SELFCHECK_TEXT = 2048
};

/* Relative bounds of fp32 against the figures, about five times what single ranks (numeric.selfcheck_long) and meshes
 * (ranks.selfcheck) reach. A sum that lacks one of 1,000 ranks is beyond them. */
#define DTX_SELFCHECK_LOSS   2e-6
#define DTX_SELFCHECK_NORM   2e-5
#define DTX_SELFCHECK_GRAD   1e-5
#define DTX_SELFCHECK_LAMBDA 3e-4 /* of λ vectors, whose sums cancel: by the mean of all layers where that is more */

struct dtx_selfcheck_model {
    int heads, kv_heads, head_dim, layers;
    double loss[DTX_SELFCHECK_STEPS], norm[DTX_SELFCHECK_STEPS];
    const double *gradient; /* norms of the first step, in the order of the table of weights */
};

/* Those that are shipped. */
const struct dtx_selfcheck_model *dtx_selfcheck_models(int *n);
/* The smallest model for a run's mesh; NULL: there is none, `why` says what for. */
const struct dtx_selfcheck_model *dtx_selfcheck_choose(const struct dtx_engine_config *run, char *why, size_t bytes);
/* The model on the run's mesh, with the run's schedule, ZeRO, overlap, recomputation, sequence parallelism. */
void dtx_selfcheck_config(const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                          struct dtx_engine_config *out);
/* The learning rate of a step that counts from 1. */
double dtx_selfcheck_lr(int64_t step);
/* Sequences [first, first + n) of any step's batch; arrays of n·length, length ≥ DTX_SELFCHECK_LENGTH. */
void dtx_selfcheck_batch(int64_t first, int64_t n, int64_t length, int32_t *tokens, int32_t *targets);

/* What ranks made of it, the same on all of them but for `here`. */
struct dtx_selfcheck_result {
    int figures, wrong;            /* all, and those beyond the bounds */
    bool here;                     /* this rank's own part of some gradient is wrong */
    double worst[4];               /* the largest relative differences: losses, norms, gradients, λ vectors' */
    char text[DTX_SELFCHECK_TEXT]; /* what is wrong, the worst first; "" */
};

/* whole: gradients of step 1 by a rank alone (dtx_selfcheck_alone), or NULL; `here` needs it. Collective over ranks. */
enum dtx_status dtx_selfcheck_run(struct dtx_comm *ranks, struct dtx_backend *backend,
                                  const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                  const double *whole, struct dtx_selfcheck_result *result);
/* The same on this rank alone. *whole: its gradients, row after row; free with dtx_mem_free; may be NULL. Not
 * collective. */
enum dtx_status dtx_selfcheck_alone(struct dtx_ctx *ctx, struct dtx_backend *backend,
                                    const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                    double **whole, struct dtx_selfcheck_result *result);

/* Every rank alone; if all are right, the mesh; if that is wrong, the fewest axes on which it is wrong, with those
 * settings that make it right when they are switched off. */
struct dtx_selfcheck_verdict {
    bool wrong;
    char text[2 * DTX_SELFCHECK_TEXT]; /* what differs and where; lines; "" when all is right */
    double worst[4];                   /* of a result, over all ranks: by themselves or on the mesh */
};
/* suspect [ranks of world]: the fault lies with these ranks and not with others; none when nobody can tell. The same on
 * every rank. Collective over world, whose ranks are those of the run's mesh. */
enum dtx_status dtx_selfcheck_world(struct dtx_comm *world, struct dtx_backend *backend,
                                    const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                    struct dtx_selfcheck_verdict *verdict, bool *suspect);

#endif
