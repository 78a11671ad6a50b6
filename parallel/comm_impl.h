/* Between the files of the communicators; nobody else but their tests includes it. */
#ifndef DTX_PARALLEL_COMM_IMPL_H
#define DTX_PARALLEL_COMM_IMPL_H

#include <stdatomic.h>

#include "kernels/base/trace.h"
#include "parallel/comm_queue.h"

extern const struct dtx_comm_table dtx_comm_mpi_table;

/* MPI_Init_thread and the world's communicator; options are valid. Leaves ctx->rank and size alone. */
enum dtx_status dtx_comm_mpi_open(struct dtx_ctx *ctx, const struct dtx_comm_options *options, struct dtx_comm **out);
/* For `comm` and what is split from it from now on: the same values on all ranks. */
void dtx_comm_mpi_set_options(struct dtx_comm *comm, const struct dtx_comm_options *options);
/* Frees the world and ends MPI. Collective. */
void dtx_comm_mpi_close(struct dtx_comm *world);
/* True when all ranks of the world came here, false when they did not within `seconds` (negative: waits for ever). Uses
 * a communicator of its own, so the others may be in any other operation. */
bool dtx_comm_mpi_meet(struct dtx_comm *world, double seconds);

/* The MPI communicator of the same ranks under one over NCCL; any other is its own. */
const struct dtx_comm *dtx_comm_nccl_base(const struct dtx_comm *comm);
/* The rank in the world of a member of `comm`. Not collective. */
int dtx_comm_mpi_world_rank(const struct dtx_comm *comm, int rank);
/* How a progress thread waits: between looks it sleeps, so that the core computes; while its owner waits for it (hurry)
 * and cores are its own it only yields. stop: it leaves the collective at once, unfinished, with an error. */
struct dtx_comm_pace {
    atomic_bool hurry, stop;
    atomic_bool lent, parked; /* the thread is the caller's own: it does not leave the collective, it stops there */
};
/* Where stop is set: does not return for a thread that the communicator was lent to. */
void dtx_comm_park(struct dtx_comm_pace *pace);

/* One collective: its place in the ledger and its span in the trace. */
struct dtx_comm_call {
    enum dtx_ledger_op op;
    double time, since; /* of the trace; when it began */
    int64_t number, bytes;
};
/* By the thread that executes the collective, around it. With comm.check all members say what they are about to do. */
enum dtx_status dtx_comm_begin(struct dtx_comm *comm, enum dtx_ledger_op op, const struct dtx_tensor *tensor, int root,
                               struct dtx_comm_call *out);
enum dtx_status dtx_comm_end(struct dtx_comm *comm, const struct dtx_comm_call *call, enum dtx_span_kind kind,
                             enum dtx_status status);

/* What every call checks first. */
enum dtx_status dtx_comm_check_foldable(struct dtx_comm *comm, const struct dtx_tensor *tensor, const char *what);
enum dtx_status dtx_comm_check_scatter(struct dtx_comm *comm, const struct dtx_tensor *in,
                                       const struct dtx_tensor *out);
enum dtx_status dtx_comm_check_gather(struct dtx_comm *comm, const struct dtx_tensor *in, const struct dtx_tensor *out);

/* Folds `rows` rows of `count` elements in row order into `to`: sum, or maximum. f64, f32, i64. */
enum dtx_fold { DTX_FOLD_SUM, DTX_FOLD_MAX };
void dtx_comm_fold(enum dtx_fold fold, enum dtx_dtype dtype, int rows, int64_t count, const void *from, void *to);

#endif
