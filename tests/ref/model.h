/*
 * A whole differential Transformer in double precision, from the references of the operations: losses, gradients and
 * AdamW steps, plain loops, one rank. It shares nothing with trainer/ but the names of weights, whose initial values
 * are drawn by them, rounded to fp32.
 */
#ifndef DTX_TESTS_REF_MODEL_H
#define DTX_TESTS_REF_MODEL_H

#include <stdint.h>

enum { REF_MODEL_ROWS = 14 }; /* weights of a block */

struct ref_model {
    int64_t layers, heads, kv_heads, head_dim, ffn, vocab; /* tied; width 2·heads·head_dim */
    int64_t sequences, length;
    const int32_t *tokens, *targets; /* [sequences·length], −1: no target */
    uint64_t seed;
    double theta, norm_eps, beta1, beta2, eps, decay, clip;
};

/* `steps` steps of the same batch. losses, norms [steps]: before the step's update, before clipping; rows: norms of the
 * gradients of step 1, 14·layers + 2 of them: embedding, blocks, final norm. */
void ref_model_steps(const struct ref_model *model, int steps, const double *lr, double *losses, double *norms,
                     double *rows);

#endif
