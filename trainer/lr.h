/*
 * The learning rate of a step: linear warm-up to the peak, then the variant's way down to the minimum.
 *
 * A pure function of the step, so that a resumed run continues it exactly. Steps count from 1 (the first update). Step
 * `warmup` has exactly the peak and step `steps` exactly the minimum; with warmup >= steps the warm-up wins.
 *
 * To add a schedule: one file trainer/lr/<name>.c that exports dtx_lr_<name>.
 */
#ifndef DTX_TRAINER_LR_H
#define DTX_TRAINER_LR_H

#include <stdint.h>

struct dtx_lr_variant {
    const char *name;
    /* The share of the way from minimum to peak, 1 at done = 0 and 0 at done = total: `done` of `total` > 0 updates
     * after the warm-up, of which the last `decay` make the descent (for variants that have a plateau). */
    double (*factor)(int64_t done, int64_t total, int64_t decay);
};

struct dtx_lr {
    const struct dtx_lr_variant *variant;
    double peak, min;
    int64_t warmup, steps; /* updates; steps is the run's last one */
    int64_t decay_steps;   /* wsd alone; more than steps - warmup means all of them */
};

double dtx_lr_at(const struct dtx_lr *lr, int64_t step);
/* NULL when there is none of that name. */
const struct dtx_lr_variant *dtx_lr_find(const char *name);

extern const char dtx_lr_names[];         /* "|a|b|c" */
#define DTX_LR_CHOICES (dtx_lr_names + 1) /* "a|b|c", the range of the option's row */

#endif
