/*
 * One row of a sweep's table: a training with everything resolved, and what it counts. Its id is the hash of what
 * decides its numbers: options that differ from their defaults, and where it starts and stops. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_TRIAL_H
#define DTX_LAUNCH_SWEEP_TRIAL_H

#include "launch/sweep/spec.h"

enum { DTX_SWEEP_ID = 17, DTX_SWEEP_LABEL = 128 };

struct dtx_sweep_trial {
    char id[DTX_SWEEP_ID]; /* 16 hexadecimal digits */
    char label[DTX_SWEEP_LABEL], variant[32];
    int64_t layers, width, heads, kv_heads, head_dim, ffn, vocab;
    int64_t length, batch, steps, seed; /* batch: sequences a step */
    double lr, lr_scale, budget;        /* budget: FLOPs asked for, 0 in a grid */
    int64_t n[DTX_SWEEP_COUNTS];        /* weights by each convention */
    int64_t tokens;                     /* batch · length · steps: D */
    double flops[DTX_SWEEP_FLOPS];      /* of the training from its first step: C */
    int start;                          /* the trial from whose last checkpoint it goes on; −1: from nothing */
    int64_t start_step, until;          /* its first step is start_step + 1; until 0: to the end */
    bool stem;                          /* the stable part that other trials start from: no point of a law */
    char *config;                       /* YAML, all options that are stored; owned; NULL in a table that was read */
};

/* The last step of this trial; exact FLOPs of its own steps. */
static inline int64_t dtx_sweep_last_step(const struct dtx_sweep_trial *t)
{
    return t->until ? t->until : t->steps;
}
static inline double dtx_sweep_cost(const struct dtx_sweep_trial *t)
{
    return t->flops[DTX_SWEEP_EXACT] / (double)t->steps * (double)(dtx_sweep_last_step(t) - t->start_step);
}

struct dtx_sweep_trials {
    struct dtx_sweep_trial *item;
    int n;
    int64_t capacity;
};
/* A zeroed row more. */
enum dtx_status dtx_sweep_trials_add(struct dtx_ctx *ctx, struct dtx_sweep_trials *trials,
                                     struct dtx_sweep_trial **out);
void dtx_sweep_trials_free(struct dtx_sweep_trials *trials);

/* All trials of the spec, small models first, each after the one it starts from. Faults are the spec's. */
enum dtx_status dtx_sweep_expand(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec, struct dtx_sweep_trials *out);

/* The id of a configuration (YAML) that starts at start_step of trial `start` ("": from nothing). Keys that no table
 * knows are passed over, those that change no number (threads, logs, when to save) do not count. */
enum dtx_status dtx_sweep_identify(struct dtx_ctx *ctx, const char *config, const char *start, int64_t start_step,
                                   int64_t until, char id[DTX_SWEEP_ID]);

/* Does this option decide numbers of a training? (Threads, logs, when to save do not.) */
bool dtx_sweep_counts(const char *key);

/* The model of a shape with attention `variant`, and what it counts. Faults of the configuration are a fault of
 * spec->opt; then *good is false. */
struct dtx_sweep_model {
    struct dtx_model_config config;
    int64_t n[DTX_SWEEP_COUNTS];
    double flops_per_token[2]; /* training: exact, PaLM's */
};
enum dtx_status dtx_sweep_model_make(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec,
                                     const struct dtx_sweep_shape *shape, const struct dtx_attn_variant *variant,
                                     struct dtx_sweep_model *out, bool *good);
/* FLOPs of a token by a convention. */
double dtx_sweep_token_flops(const struct dtx_sweep_model *model, enum dtx_sweep_flops convention);
/* Widths in ascending order, each with layers by the aspect: what isoFLOP designs choose from. Zeroed to begin with;
 * grows as budgets need it. */
enum { DTX_SWEEP_CANDIDATES = 2048 };
struct dtx_sweep_candidates {
    int n;
    struct dtx_sweep_candidate {
        struct dtx_sweep_shape shape;
        double n, token_flops; /* by the spec's conventions */
    } item[DTX_SWEEP_CANDIDATES];
};
/* Shapes for one budget of an isoFLOP design: spec->sizes of them, fewer where widths are too far apart; out has room
 * for DTX_SWEEP_LIST. */
enum dtx_status dtx_sweep_choose_shapes(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec,
                                        struct dtx_sweep_candidates *candidates, double budget,
                                        struct dtx_sweep_shape *out, int *n);

#endif
