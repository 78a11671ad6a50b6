/*
 * Are the tensors that several ranks hold alike still alike, bit for bit? A broken memory cell, a missing sum or a
 * collective gone wrong on one rank makes copies drift apart without any loss looking wrong for a long time.
 *
 * Every rank hashes (xxh3) what it holds of each row: the weight, the master where it is another tensor, the optimizer
 * states. Hashes are compared
 *   - over the data ranks (dp × cp): of everything but what ZeRO cuts,
 *   - over tp: of rows that are not split,
 *   - between first and last stage: of a tied weight.
 * A row's hash is the wrapping sum of the hashes of its blocks of DTX_PARAM_ALIGN elements, seeded by their number:
 * the pieces that ZeRO makes of a row add up to its hash, however each stage cuts it. So two stages' copies of masters
 * and states are compared too; a difference there names all data ranks of either stage. Padding belongs to a row (it is
 * zero on every rank), gaps between rows do not.
 *
 * What only one rank holds (a master or state cut by ZeRO, of a split row) has no copy to compare with.
 */
#ifndef DTX_PARALLEL_REPLICA_H
#define DTX_PARALLEL_REPLICA_H

#include "parallel/param.h"

enum { DTX_REPLICA_RANKS = 8, DTX_REPLICA_TEXT = 3072 };

/* One tensor whose copies differ. */
struct dtx_replica_difference {
    char tensor[2 * DTX_PARAM_NAME]; /* "layers.01.attn.lambda_q1 (weight)", "(master)", "(exp_avg)" */
    int copies;                      /* ranks that must hold it alike */
    bool majority;                   /* more than half of them agree */
    int n_ranks;                     /* those that are not of the majority; without one: all */
    int ranks[DTX_REPLICA_RANKS];    /* the first of them, of the world */
};

struct dtx_replica_report {
    int64_t tensors; /* that differ, in the whole mesh; 0: all are alike, and the rest is empty */
    struct dtx_replica_difference first;
    char text[DTX_REPLICA_TEXT]; /* for people: the first tensors, with ranks, their place in the mesh and hosts */
};

/* The same report on every rank; a difference is no failure. state_names: [n_states], of the states in use. One gather
 * of 8 bytes a tensor and axis, one sum over the mesh; more only after a difference. Waits for the queue. Collective
 * over the mesh. */
enum dtx_status dtx_replicas_check(struct dtx_params *params, struct dtx_queue *queue, const char *const *state_names,
                                   int n_states, struct dtx_replica_report *report);

#endif
