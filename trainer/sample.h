/* Choosing the next token from logits. Not collective. */
#ifndef DTX_TRAINER_SAMPLE_H
#define DTX_TRAINER_SAMPLE_H

#include "kernels/base/status.h"

struct dtx_sampler {
    double temperature; /* 0: the most likely token */
    double top_p;       /* of the most likely tokens that together have this probability (nucleus sampling) */
    uint64_t seed;
    int64_t vocab;
    double *probability; /* [vocab] */
    int32_t *order;      /* [vocab] */
};

enum dtx_status dtx_sampler_create(struct dtx_ctx *ctx, double temperature, double top_p, uint64_t seed, int64_t vocab,
                                   struct dtx_sampler *out);
void dtx_sampler_free(struct dtx_sampler *sampler);
/* The i-th draw: a pure function of (seed, i, logits). Ties go to the lower id. */
int32_t dtx_sampler_draw(struct dtx_sampler *sampler, const double *logits, int64_t i);

#endif
