/*
 * What happens to gradients between their last addition and the optimizer, in this order on every mesh:
 *   1. a tied weight's gradient becomes embedding + head (two buffers on one rank, first and last stage otherwise),
 *   2. rows whose gradient is partial (λ, sub-norm gain: each tensor rank saw only its heads) are summed over tp,
 *   3. the flat buffer is summed over the data ranks, in rank order for every element: a bucket that ZeRO cuts is
 *      reduce-scattered, so that each rank has the sum of its own piece only; others are all-reduced.
 * All three go bucket by bucket. A bucket is ready when the last layer that adds to its rows has done so in the last
 * micro-batch (dtx_grads_done): 1 and 2 are done then, and 3 is started, to go on beside the rest of backward. A weight
 * that is tied to another stage's becomes ready at the end. All data ranks of a stage play one list of steps, so they
 * start buckets in one order. Bits depend neither on buckets and pieces nor on when a reduction runs.
 * Loss and gradients are already divided by the number of target tokens of the whole global batch.
 *
 * With zero 2 a streamed bucket is ready in every micro-batch: the sum over the data ranks of each is added to this
 * rank's piece, in ascending order of micro-batches. So a sum is Σ over micro-batches of Σ over ranks, otherwise Σ over
 * ranks of Σ over micro-batches: the same bits for one micro-batch, the same values to rounding for more; pipeline,
 * schedule, buckets and overlap change no bit of either.
 *
 * The norm counts each weight of the model once on every mesh: sums of squares in fp64 over fixed blocks of 1,024
 * elements of each row (rows and pieces begin at multiples of 1,024), gathered over the data ranks where cut, added
 * block by block within a row, then over tp and pp, then row by row in table order.
 */
#ifndef DTX_PARALLEL_GRAD_H
#define DTX_PARALLEL_GRAD_H

#include "parallel/param.h"

struct dtx_grad_bucket {
    int uses, missing; /* layers' rows that add to it in a micro-batch; those that have not yet */
    bool late;         /* waits for another stage: ready at the end only */
    bool started;      /* the reduction of this step, or of this micro-batch */
    bool summed;       /* streamed: an earlier micro-batch is in flat_sum */
    struct dtx_event event;
};

struct dtx_grads {
    struct dtx_params *params;
    struct dtx_grad_bucket *bucket; /* as params->bucket */
    int in_slot[DTX_PARAM_SLOTS];   /* streamed bucket there, −1: none */
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
/* At set-up: one more layer adds to this row in every micro-batch, and will tell so. Not collective. */
void dtx_grads_expect(struct dtx_grads *grads, int row);

/* A step begins: all gradients to zero. Not collective. */
enum dtx_status dtx_grads_zero(struct dtx_grads *grads, struct dtx_queue *queue);
/* A layer is about to add to a row. Waits for the slot with zero 2. Not collective. */
enum dtx_status dtx_grads_open(struct dtx_grads *grads, struct dtx_queue *queue, int row);
/* A layer has added to a row all that it will in this micro-batch; last: in this step. Collective over tp, started over
 * dp. */
enum dtx_status dtx_grads_done(struct dtx_grads *grads, struct dtx_queue *queue, int row, bool last);
/* Starts what is not, the last bucket first, and waits for all. Collective over the mesh. */
enum dtx_status dtx_grads_reduce(struct dtx_grads *grads, struct dtx_queue *queue);
/* The global L2 norm, the same bits on every rank. Waits for the queue. Collective over the mesh. */
enum dtx_status dtx_grads_norm(struct dtx_grads *grads, struct dtx_queue *queue, double *norm);

/* After dtx_grads_norm, of each row of the table: Σ x² of the whole row, the same on every rank, and of what this rank
 * holds of it once reduced (its part over tp; 0 where it holds nothing). Not collective. */
void dtx_grads_row_squares(const struct dtx_grads *grads, double *whole, double *here);

/* Σ x² of one tensor of the master dtype that is no larger than the largest row held. Waits. Not collective. */
enum dtx_status dtx_grads_square_sum(struct dtx_grads *grads, struct dtx_queue *queue, const struct dtx_tensor *x,
                                     double *sum);

#endif
