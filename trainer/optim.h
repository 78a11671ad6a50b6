/* Optimizers: one file each in trainer/optim, exporting dtx_optim_<name>. */
#ifndef DTX_TRAINER_OPTIM_H
#define DTX_TRAINER_OPTIM_H

#include "parallel/param.h"
#include "trainer/config.h"

struct dtx_optim_variant {
    const char *name;
    int n_states;
    const char *states[DTX_PARAM_STATES]; /* names in checkpoints: /optimizer/<state>/<weight> */
    /* What the step needs in memory, as f64: filled on the host from step (from 1), learning rate and clip factor. */
    void (*hyper)(const struct dtx_optim_config *config, int64_t step, double lr, double clip, double out[4]);
    /* Updates this rank's part of one row from its gradient, element by element. hyper: f64 [4]. */
    enum dtx_status (*update)(struct dtx_queue *queue, const struct dtx_optim_config *config, struct dtx_param *item,
                              const struct dtx_tensor *hyper);
};

const struct dtx_optim_variant *dtx_optim_find(const char *name); /* NULL when there is none */

#endif
