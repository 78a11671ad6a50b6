/*
 * What happens to gradients between the last micro-batch and the optimizer, in this order on every mesh:
 *   1. a tied weight's gradient becomes embedding + head (two buffers on one rank, first and last stage otherwise),
 *   2. rows whose gradient is partial (λ, sub-norm gain: each tensor rank saw only its heads) are summed over tp,
 *   3. the flat buffer is summed over the data ranks, in rank order for every element: a bucket that ZeRO cuts is
 *      reduce-scattered, so that each rank has the sum of its own piece only; others are all-reduced.
 * All three go bucket by bucket, the last one first, as backward makes them. Bits do not depend on buckets or pieces.
 * Loss and gradients are already divided by the number of target tokens of the whole global batch.
 *
 * The norm counts each weight of the model once on every mesh: sums of squares in fp64 over fixed blocks of 1,024
 * elements of each row (rows and pieces begin at multiples of 1,024), gathered over the data ranks where cut, added
 * block by block within a row, then over tp and pp, then row by row in table order.
 */
#ifndef DTX_PARALLEL_GRAD_H
#define DTX_PARALLEL_GRAD_H

#include "parallel/param.h"

struct dtx_grads {
    struct dtx_params *params;
    /* f64. Blocks of the cut buckets' pieces, all data ranks' one after another, then of the other buckets; one sum per
     * row of the table; scratch [1]. */
    struct dtx_tensor blocks, sums, sum;
    int64_t cut_blocks; /* of one data rank's pieces */
    double *host_blocks, *host_sums;
};

/* After dtx_params_allocate. Not collective. */
enum dtx_status dtx_grads_create(struct dtx_params *params, struct dtx_grads *out);
/* Bytes that it takes from the backend; after dtx_params_layout. */
size_t dtx_grads_bytes(const struct dtx_params *params);
void dtx_grads_free(struct dtx_grads *grads);
/* All gradients to zero. Not collective. */
enum dtx_status dtx_grads_zero(struct dtx_grads *grads, struct dtx_queue *queue);
/* Steps 1 to 3. Collective over the mesh. */
enum dtx_status dtx_grads_reduce(struct dtx_grads *grads, struct dtx_queue *queue);
/* The global L2 norm, the same bits on every rank. Waits for the queue. Collective over the mesh. */
enum dtx_status dtx_grads_norm(struct dtx_grads *grads, struct dtx_queue *queue, double *norm);

/* Σ x² of one tensor of the master dtype that is no larger than the largest row held. Waits. Not collective. */
enum dtx_status dtx_grads_square_sum(struct dtx_grads *grads, struct dtx_queue *queue, const struct dtx_tensor *x,
                                     double *sum);

#endif
