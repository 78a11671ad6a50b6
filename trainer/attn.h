/*
 * The attention layer (attn.c): norm, projections, RoPE, the variant's core, out-projection, residual. A variant is one
 * file in trainer/attn exporting dtx_attn_<name>: it says how many heads of what width there are, declares its own
 * weights, and turns q, k, v into the concatenated heads y.
 */
#ifndef DTX_TRAINER_ATTN_H
#define DTX_TRAINER_ATTN_H

#include "trainer/layer.h"

/* Whole-model numbers; a tensor rank holds 1/tp of each. */
struct dtx_attn_shape {
    int64_t q_heads, k_heads, v_heads, v_width; /* q and k are head_dim wide; y is heads · v_width = D */
};

/* Rows of a layer's param[]: the common ones, then the variant's own from DTX_ATTN_OWN on. */
enum { DTX_ATTN_NORM, DTX_ATTN_Q, DTX_ATTN_K, DTX_ATTN_V, DTX_ATTN_OUT, DTX_ATTN_OWN };

/* One call of a core. Shapes with this rank's heads: q [b,t,qh,d], k [b,T,kh,d], v [b,T,vh,dv], y [b·t, h·dv]; k and v
 * hold the positions 0 … T−1, q the last t of them. In the backward pass dy is given and dq, dk, dv are made. With
 * context parallelism b counts pieces (layer.h), T = t, and the core sees this rank's keys alone: dtx_attn_run and
 * dtx_attn_run_backward bring in the others'. */
struct dtx_attn_core {
    struct dtx_tensor q, k, v, y;
    struct dtx_tensor dy, dq, dk, dv;
    struct dtx_tensor context; /* u8: buffers of context parallelism */
};

struct dtx_attn_variant {
    const char *name;
    int softmax_heads; /* baseline heads that one head replaces: 1, or 2 for diff */
    void (*shape)(const struct dtx_model_config *model, struct dtx_attn_shape *out);
    enum dtx_status (*declare)(struct dtx_env *env, int index, int stage, struct dtx_layer *layer);
    int (*saved)(const struct dtx_layer *layer, struct dtx_saved *out); /* the core's own; returns their number */
    size_t (*work_bytes)(const struct dtx_layer *layer);
    enum dtx_status (*forward)(const struct dtx_layer *layer, struct dtx_tensor *own, const struct dtx_attn_core *core);
    enum dtx_status (*backward)(const struct dtx_layer *layer, struct dtx_tensor *own,
                                const struct dtx_attn_core *core);
    /* The layer's λ into out (master [1]); NULL where the variant has none. */
    enum dtx_status (*lambda)(const struct dtx_layer *layer, const struct dtx_tensor *out);
};

/* NULL when there is none of that name. */
const struct dtx_attn_variant *dtx_attn_find(const char *name);

/* The model with attention `to` of the same size: as many softmax heads, single or in pairs, of the same width. False:
 * its heads, or those of keys, cannot be paired. */
bool dtx_attn_match(const struct dtx_model_config *from, const struct dtx_attn_variant *to,
                    struct dtx_model_config *out);

/* Arguments of attn_fwd and attn_bwd that a variant's core and its workspace query share. */
struct dtx_attn_fwd_args dtx_attn_forward_args(const struct dtx_env *env, const struct dtx_attn_core *core, int maps);
struct dtx_attn_bwd_args dtx_attn_backward_args(const struct dtx_env *env, const struct dtx_attn_core *core, int maps);
/* attn_fwd and attn_bwd with these arguments over the whole sequence, wherever its keys are. What they make (λ's
 * difference is in o, its norm in y) is the same with context parallelism and without. Collective over cp. */
enum dtx_status dtx_attn_run(struct dtx_env *env, const struct dtx_attn_core *core,
                             const struct dtx_attn_fwd_args *args);
enum dtx_status dtx_attn_run_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                      const struct dtx_attn_bwd_args *args);
/* Workspace that the two need. */
size_t dtx_attn_run_work_bytes(struct dtx_env *env, const struct dtx_attn_fwd_args *forward,
                               const struct dtx_attn_bwd_args *backward);
/* The largest core of this layer, shapes only. */
struct dtx_attn_core dtx_attn_largest(const struct dtx_layer *layer);

#endif
