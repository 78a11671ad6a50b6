/*
 * Communicators between GPUs over NCCL. Each stands on an MPI communicator of the same ranks: what has a queue of the
 * device's backend goes through NCCL in the queue's order, without the host waiting; what has none is host memory and
 * goes through MPI. Sums are made in rank order (exchange, then additions on the device), so their bits are those of
 * MPI's.
 *
 * Nothing here needs a progress thread. Collectives that are started (comm_queue.h) go on an urgent stream of their
 * communicator, behind the queue's work so far; waiting makes the queue wait. Messages have a stream of their own, too.
 * The ledger holds an operation as waiting until the device has done it; the watch's thread looks at events for that,
 * and at NCCL's asynchronous errors, which raise the alarm. Whoever leaves in an alarm aborts NCCL's communicators.
 */
#ifndef DTX_PARALLEL_COMM_NCCL_H
#define DTX_PARALLEL_COMM_NCCL_H

#include "parallel/comm.h"

/* Over `base`, which stays its owner's and must live longer. For a backend without collectives (the CPU), or one rank,
 * *out = base; else free it with dtx_comm_free before base. What is split from it works alike. Collective. */
enum dtx_status dtx_comm_nccl_create(struct dtx_comm *base, struct dtx_backend *backend, struct dtx_comm **out);
/* Memory on the device that a communicator of so many ranks keeps for sums of n elements; 0 for a backend without
 * collectives, and for one rank. The largest sum decides. */
size_t dtx_comm_nccl_work_bytes(const struct dtx_backend *backend, int ranks, int64_t n, enum dtx_dtype dtype);
/* Takes so much of it, before the first sum; a larger sum takes more by then. Nothing for another communicator. Not
 * collective. */
enum dtx_status dtx_comm_nccl_prepare(struct dtx_comm *comm, size_t bytes);
/* What NCCL itself takes of the device at most for a communicator of so many ranks whose links are all in use
 * (comm_nccl_memory.c); 0 as above. Honours NCCL's variables for the sizes of buffers and the number of channels. */
size_t dtx_comm_nccl_own_bytes(const struct dtx_backend *backend, int ranks);

#endif
