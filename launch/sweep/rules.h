/*
 * Learning rate and batch of a trial from its size. A rule is one row of a table; "fixed" takes what is configured.
 * Pure functions.
 */
#ifndef DTX_LAUNCH_SWEEP_RULES_H
#define DTX_LAUNCH_SWEEP_RULES_H

#include <stdint.h>

/* What a rule knows of a trial; both variants of one shape are given the same. */
struct dtx_sweep_point {
    double n_total, n_nonembedding; /* weights */
    double tokens, flops;           /* of the whole training; flops exact (REFERENCE: causal attention) */
};

struct dtx_sweep_rule {
    const char *name;
    double (*lr)(const struct dtx_sweep_point *point);           /* peak; NULL: lr.peak, or the shape's own */
    double (*batch_tokens)(const struct dtx_sweep_point *point); /* tokens a step; NULL: train.batch */
    const char *transfer; /* model.transfer: lr.peak is that of the model of model.base_width; NULL: as configured */
};

/* NULL when there is none of that name. */
const struct dtx_sweep_rule *dtx_sweep_rule_find(const char *name);

#define DTX_SWEEP_BATCH_RULES "fixed|step_law|deepseek"
#define DTX_SWEEP_LR_RULES    DTX_SWEEP_BATCH_RULES "|mup|completep"

#endif
