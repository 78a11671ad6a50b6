/*
 * What a sweep is to vary: the group `sweep` of a SPEC.yaml, beside the options of dtx train that all trials share.
 * Every fault of the file names key and line. Not collective.
 */
#ifndef DTX_LAUNCH_SWEEP_SPEC_H
#define DTX_LAUNCH_SWEEP_SPEC_H

#include "kernels/base/opt.h"
#include "launch/sweep/rules.h"
#include "trainer/attn.h"

enum { DTX_SWEEP_LIST = 256, DTX_SWEEP_NAME = 64 };

enum dtx_sweep_design { DTX_SWEEP_GRID, DTX_SWEEP_ISOFLOP };
/* Which weights N counts: all (tied ones once); without embedding and head; those of matrices that multiply a token
 * (layers and head), C = 6·N·D but for attention. */
enum dtx_sweep_count { DTX_SWEEP_TOTAL, DTX_SWEEP_NONEMBEDDING, DTX_SWEEP_MATMUL, DTX_SWEEP_COUNTS };
/* Training FLOPs: causal attention as computed, (length + 1)/2 keys a query; PaLM's, length keys; 6·(all weights)·D. */
enum dtx_sweep_flops { DTX_SWEEP_EXACT, DTX_SWEEP_PALM, DTX_SWEEP_6ND, DTX_SWEEP_FLOPS };

struct dtx_sweep_shape {
    int64_t width, layers, heads, ffn; /* heads as model.attention counts them; 0: derived, and ffn: 8/3 of the width */
    double lr;                         /* the fixed rule's; 0: lr.peak */
};

struct dtx_sweep_numbers {
    int n;
    double value[DTX_SWEEP_LIST];
};

struct dtx_sweep_spec {
    struct dtx_opt *opt; /* all options, resolved; owned */
    char *base;          /* the same as YAML */
    enum dtx_sweep_design design;
    int n_shapes, n_variants;
    struct dtx_sweep_shape shape[DTX_SWEEP_LIST];
    const struct dtx_attn_variant *variant[8];
    struct dtx_sweep_numbers tokens, ratios, budgets, seeds, lr_scales;
    enum dtx_sweep_count count;
    enum dtx_sweep_flops flops;
    const struct dtx_sweep_rule *lr_rule, *batch_rule;
    int64_t sizes, width_step;
    double aspect, spread, centre;
    double warmup_share, lr_min_share, decay_share; /* below 0: as configured */
    bool branch;
    int ranks;
};

extern const struct dtx_opt_row dtx_sweep_options[]; /* the group `sweep`, and `preset` */

/* Adds a fault for each option that each trial has its own of. Before a preset is loaded: its may stay. */
void dtx_sweep_spec_refuse(struct dtx_opt *opt);
/* Lists and names from spec->opt; faults are added to it for dtx_opt_check. */
void dtx_sweep_spec_read(struct dtx_sweep_spec *spec);
void dtx_sweep_spec_free(struct dtx_sweep_spec *spec);

#endif
