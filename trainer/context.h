/*
 * Context parallelism: attention over sequences that are cut over the context axis. Rank r of cp has chunks r and
 * 2·cp − 1 − r of 2·cp equal ones (layer.h), one near the head and one near the tail, so that under the causal mask
 * every rank has the same work: 2·cp + 1 pairs of a chunk of queries and one of keys, two of which are half masked.
 *
 * gather: keys and values of all ranks are gathered, in forward and again in backward; a chunk of queries meets all
 *   keys up to its last position in one operation. dk and dv of all positions are made in the master dtype and
 *   reduce-scattered, added in rank order. Memory grows with the whole sequence.
 * ring: keys and values go round in cp − 1 steps, the next ones on their way while a pair is computed. Parts of both
 * maps are merged from (output, log-sum-exp) in the master dtype, first a rank's own, then those of the ranks before it
 * in descending order; λ's difference comes after the last part. dk and dv travel with their keys in the master dtype
 * and make one step more, home: of rank r's keys the addends of ranks r, r + 1, …, r − 1 are added in this order.
 *
 * Everything lives in a scratch tensor of the layer (core->context). Every function that sends is collective over cp.
 */
#ifndef DTX_TRAINER_CONTEXT_H
#define DTX_TRAINER_CONTEXT_H

#include "trainer/attn.h"

/* Of core->context. largest: dtx_attn_largest. */
int64_t dtx_context_bytes(const struct dtx_env *env, const struct dtx_attn_core *largest);
/* attn_fwd and attn_bwd of this rank's queries with the keys of all ranks. The arguments are those of this rank alone:
 * outputs and statistics are its own, dk and dv those of its keys from all ranks' queries. */
enum dtx_status dtx_context_forward(struct dtx_env *env, const struct dtx_attn_core *core,
                                    const struct dtx_attn_fwd_args *args);
enum dtx_status dtx_context_backward(struct dtx_env *env, const struct dtx_attn_core *core,
                                     const struct dtx_attn_bwd_args *args);
/* The same on every context rank. */
size_t dtx_context_work_bytes(const struct dtx_env *env, const struct dtx_attn_fwd_args *forward,
                              const struct dtx_attn_bwd_args *backward);

/* Bytes one rank sends, and messages or collectives, for one call of a layer whose keys and values have `elements`
 * elements on each rank. */
struct dtx_context_traffic {
    double forward, backward;
    int forward_calls, backward_calls;
};
struct dtx_context_traffic dtx_context_traffic(const struct dtx_env *env, int64_t elements);

#endif
