/*
 * Width and depth transfer: what follows a model's shape so that hyperparameters tuned on a small base model hold for a
 * larger one. μP (Yang et al., arXiv 2203.03466) for width, CompleteP (Dey et al., arXiv 2505.01618, α = 1) for width
 * and depth. Learning rate, decay, epsilon and initial spread go by the class of a weight, the scales of the forward
 * pass are functions below; trainer/transfer.md has the table with its reasons. With rule none and at the base shape
 * every factor is exactly 1. Pure arithmetic.
 */
#ifndef DTX_PARALLEL_TRANSFER_H
#define DTX_PARALLEL_TRANSFER_H

#include "kernels/base/opt.h"
#include "parallel/param.h"

enum dtx_transfer_rule { DTX_TRANSFER_NONE, DTX_TRANSFER_MUP, DTX_TRANSFER_COMPLETEP };
#define DTX_TRANSFER_CHOICES "none|mup|completep"

/* All zero: rule none. */
struct dtx_transfer {
    enum dtx_transfer_rule rule;
    double width, depth, head_dim; /* this model's over the base model's; read only where the rule is not none */
    double embed, output;          /* tuned factors of embedding and logits, with any rule; 0 counts as 1 */
};

enum dtx_weight_class {
    DTX_WEIGHT_VOCABULARY, /* embedding and head: one of its sides does not grow */
    DTX_WEIGHT_HIDDEN,     /* matrices of a block */
    DTX_WEIGHT_BRANCH_END, /* those that a block adds to the stream: out, down */
    DTX_WEIGHT_GAIN,       /* of a block's norms, one per column of the stream */
    DTX_WEIGHT_FINAL_GAIN,
    DTX_WEIGHT_HEAD_GAIN, /* sub-norm: one per column of a head, shared by all heads */
    DTX_WEIGHT_LAMBDA     /* λ vectors: head_dim long, shared by all heads */
};

/* From the options model.transfer, model.base_width, base_layers, base_head_dim, embed_mult, output_mult of any table
 * that has them. What is missing for the rule becomes a fault. */
struct dtx_transfer dtx_transfer_read(struct dtx_opt *opt, int64_t width, int64_t layers, int64_t head_dim);
/* Multiplies the row's initial spread, learning rate, epsilon and decay. */
void dtx_transfer_row(const struct dtx_transfer *transfer, enum dtx_weight_class class, struct dtx_param_row *row);

/* Factors of the forward pass: of the embedding's output; of what each half of a block adds to the stream; of attention
 * scores, beside 1/√head_dim; of logits. */
double dtx_transfer_embed(const struct dtx_transfer *transfer);
double dtx_transfer_branch(const struct dtx_transfer *transfer);
double dtx_transfer_scores(const struct dtx_transfer *transfer);
double dtx_transfer_output(const struct dtx_transfer *transfer);

/* Says in one line what the rule makes of the base model's numbers; nothing with rule none. */
void dtx_transfer_log(const struct dtx_ctx *ctx, const struct dtx_transfer *transfer);

#endif
