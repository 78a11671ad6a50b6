/*
 * What one rank of a mesh will take, before anything is started: memory by cause, bytes sent by axis, FLOPs. Made from
 * the same declarations, sizes and cuts as the engine's own (the table of weights, layers' saved tensors, a schedule's
 * slots); nothing is allocated but the table. Not collective.
 */
#ifndef DTX_TRAINER_ESTIMATE_H
#define DTX_TRAINER_ESTIMATE_H

#include "trainer/engine.h"

/* Bytes that the engine takes from the backend; their sum is what the backend counts (an
 * allocation as its dtx_piece_bytes), and what an arena for them needs. */
struct dtx_memory {
    size_t weights, gradients, masters, states; /* dtx_params_memory */
    size_t activations;                         /* activation slots, all of them */
    size_t kept;                                /* gradient slots of a split backward */
    size_t work, shared; /* workspace of operations; buffers of all micro-batches (recomputation, sums, rope) */
    size_t pipe;         /* boundary buffers */
    size_t batch;        /* a step's tokens and losses, small results, sums for the norm */
    size_t sums;         /* on a device: work of the communicators' sums */
};

struct dtx_estimate {
    struct dtx_memory memory;
    size_t staging;   /* host memory: the copy of the state that a checkpoint is written from */
    size_t snapshot;  /* host memory: the copy that a rollback goes back to, where an option asks for it */
    size_t allowance; /* device memory besides: what NCCL's own buffers take at most (parallel/comm_nccl.h); not
                         measured yet */
    size_t host;     /* host memory besides, at most at once: initial values, work of sums over ranks, a step's batch */
    int slots, kept; /* of activations and of gradients */
    double sent[DTX_AXES]; /* bytes a step; dp: over dp × cp, what mesh->data sends; pp includes the tied embedding's
                              gradient, */
    double tied;           /* which is this much */
    double tp_sent_micro, tp_calls; /* bytes and collectives over tp of one micro-batch, forward and backward; an
                                       all-reduce counts as two */
    double cp_sent_micro, cp_calls; /* the same over cp: keys, values and their gradients */
    double boundary, dp_calls;      /* bytes of one message between stages; collectives over the data ranks of a step */
    double attention_flops;         /* of flops_micro: scores and values, behind which a ring's messages hide */
    double flops_micro, flops_again; /* of one micro-batch on this rank: model FLOPs; what recomputation adds */
};

size_t dtx_memory_total(const struct dtx_memory *memory);
enum { DTX_MEMORY_TEXT = 160 };
/* "weights 1.2, gradients 2.4, masters and states 7.1, activations 3.0, other 0.2": GiB. */
void dtx_memory_text(const struct dtx_memory *memory, char text[DTX_MEMORY_TEXT]);
/* Host memory of a rank that trains besides its backend's. */
static inline size_t dtx_estimate_host(const struct dtx_estimate *e)
{
    return e->host + e->staging + e->snapshot;
}
/* rank: the rank's coordinates in config->mesh. queue: of a backend whose operations say what workspace they need. */
enum dtx_status dtx_estimate_rank(struct dtx_ctx *ctx, const struct dtx_engine_config *config, struct dtx_queue *queue,
                                  const int rank[DTX_AXES], struct dtx_estimate *out);

#endif
