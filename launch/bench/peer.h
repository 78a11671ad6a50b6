/*
 * The kernels of `dtx bench attention` once more by cuDNN: differential attention as two calls, one for each map, and
 * as one call over the heads of both; softmax attention as one call. A call's outputs lie where the next one finds
 * them; what cuDNN leaves to its caller (o1 − λ·o2, −λ·do, the sum of the two dv) is done once, outside the times.
 */
#ifndef DTX_LAUNCH_BENCH_PEER_H
#define DTX_LAUNCH_BENCH_PEER_H

#include "launch/bench/cudnn.h"
#include "launch/bench/tap.h"

enum { DTX_PEER_CALLS = 2 };

/* Largest differences between cuDNN's results and ours that are taken for rounding to bf16: |cuDNN − ours| / |ours|,
 * Euclidean norms of whole tensors. */
#define DTX_PEER_BOUND_OUTPUT   1e-2
#define DTX_PEER_BOUND_GRADIENT 2e-2

/* Our kernel whose results are compared. */
struct dtx_peer_ours {
    const struct dtx_attn_fwd_args *forward;
    const struct dtx_attn_bwd_args *backward;
};

struct dtx_peer {
    const char *name;
    int calls;
    bool ready;
    char why[512]; /* not ready: what cuDNN refused */
    struct dtx_cudnn_plan forward[DTX_PEER_CALLS], backward[DTX_PEER_CALLS];
    struct dtx_tensor o, stats, do_, dq, dk, dv[DTX_PEER_CALLS], work;
    double output, gradient; /* differences from ours; gradient: the largest of dq, dk, dv */
};

/* Tensors and plans for `calls` calls that do what `ours` does. cuDNN's refusal leaves `ready` false. */
enum dtx_status dtx_peer_make(struct dtx_queue *queue, const struct dtx_cudnn *cudnn, const struct dtx_peer_ours *ours,
                              int calls, struct dtx_peer *out);
void dtx_peer_free(struct dtx_backend *backend, struct dtx_peer *peer);
enum dtx_status dtx_peer_forward(struct dtx_queue *queue, struct dtx_peer *peer);
enum dtx_status dtx_peer_backward(struct dtx_queue *queue, struct dtx_peer *peer);
/* After a pass of both: sets output and gradient. */
enum dtx_status dtx_peer_compare(struct dtx_queue *queue, const struct dtx_peer_ours *ours, struct dtx_peer *peer);
/* DTX_E_LIBRARY when one of them is beyond its bound. */
enum dtx_status dtx_peer_judge(struct dtx_ctx *ctx, const struct dtx_peer *peer);

#endif
