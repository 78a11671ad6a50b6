/*
 * Collectives that are started now and waited for later. A communicator may own a progress thread that does them in the
 * order in which they were started; without one (dtx_comm_async never called, one rank) each is done inside its start
 * call. Bits are the same either way: they are the same collectives in the same order.
 *
 * Between GPUs there is no thread: what is started goes on a stream beside the queue's, and a wait makes the queue
 * wait, not the host (comm_nccl.h).
 *
 * The thread sleeps between looks at MPI, so it takes no core from the computation; it hurries while somebody waits for
 * an event. A plain collective, a split or a barrier on the same communicator first waits for all that was started.
 * After a failure the rest is not done; every wait gives the failure, and the first one the report.
 */
#ifndef DTX_PARALLEL_COMM_QUEUE_H
#define DTX_PARALLEL_COMM_QUEUE_H

#include "parallel/comm.h"

/* Something that was started. Plain; zeros: nothing to wait for. Waiting twice is harmless. */
struct dtx_event {
    struct dtx_comm *comm;
    int64_t number;
};

/* Gives the communicator its thread and room for `capacity` collectives under way; a start beyond waits. Not
 * collective. Nothing happens with one rank. */
enum dtx_status dtx_comm_async(struct dtx_comm *comm, int capacity);
/* As their namesakes in comm.h; tensors stay untouched until the wait. Everything submitted to `queue` comes first. */
enum dtx_status dtx_comm_start_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                              const struct dtx_tensor *tensor, struct dtx_event *event);
enum dtx_status dtx_comm_start_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                                  const struct dtx_tensor *in, const struct dtx_tensor *out,
                                                  struct dtx_event *event);
enum dtx_status dtx_comm_start_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                          const struct dtx_tensor *out, struct dtx_event *event);
/* Until it is done, with all that was started before on its communicator. Not collective. */
enum dtx_status dtx_event_wait(const struct dtx_event *event);
/* Until all that was started is done. Not collective. */
enum dtx_status dtx_comm_idle(struct dtx_comm *comm);
/* Gives the communicator to a helper thread of the caller's own, whose context is `helper`: reports go there, waits
 * look and sleep as a progress thread's do, and a trace counts its collectives as what goes on beside the computation.
 * All ranks or none: it changes how collectives are made. `helper` must outlive the communicator. Not collective. */
enum dtx_status dtx_comm_lend(struct dtx_comm *comm, struct dtx_ctx *helper);
/* Ends the thread, in the middle of a collective if need be: for a rank that will end the job (dtx_comm_finish). A
 * helper to whom the communicator was lent stops for ever in this or its next collective; the memory that MPI may still
 * write to stays. The communicator can only be left alone then. Not collective. Accepts NULL. */
void dtx_comm_halt(struct dtx_comm *comm);

#ifndef DTX_COMM_FUNCTIONS
#define dtx_comm_start_all_reduce_sum(comm, ...)     dtx_comm_start_all_reduce_sum(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_start_reduce_scatter_sum(comm, ...) dtx_comm_start_reduce_scatter_sum(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_start_all_gather(comm, ...)         dtx_comm_start_all_gather(DTX_COMM_HERE(comm), __VA_ARGS__)
#endif

#endif
