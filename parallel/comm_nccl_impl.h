/* Between the files of the communicators over NCCL. */
#ifndef DTX_PARALLEL_COMM_NCCL_IMPL_H
#define DTX_PARALLEL_COMM_NCCL_IMPL_H

#include <pthread.h>

#include "kernels/cuda/collectives.h"
#include "parallel/comm_impl.h"
#include "parallel/watch.h"

/* What all communicators of a run share; the first one owns it. */
struct dtx_nccl_run {
    struct dtx_nccl nccl;
    const struct dtx_collectives *device;
    struct dtx_backend *backend;
    struct dtx_watch_beside beside;
    atomic_bool stopped;   /* by the watch: nothing can be begun any more */
    pthread_mutex_t mutex; /* of the list */
    struct dtx_comm *list;
};

/* A started send or receive. The event: its queue is so far that it may begin; once issued, that it is done. */
struct dtx_nccl_message {
    struct dtx_nccl_message *older; /* all that were made, to free them */
    struct dtx_nccl_message *next;  /* of the pending or the spare ones */
    struct dtx_queue *queue;
    void *event, *data;
    size_t bytes;
    int peer;
    bool receive, issued;
};

/* The last operations that were issued, for the ledger: fewer than it keeps. */
enum { DTX_NCCL_FLIGHTS = DTX_LEDGER_RING / 2 };
struct dtx_nccl_flights {
    pthread_mutex_t mutex;
    int64_t issued, ended; /* flight n lies at n mod DTX_NCCL_FLIGHTS, n from 0 */
    struct {
        void *event;
        struct dtx_ledger_mark mark;
    } ring[DTX_NCCL_FLIGHTS];
};

struct dtx_nccl_comm {
    struct dtx_comm *base; /* the same ranks over MPI */
    bool base_owned, run_owned;
    struct dtx_nccl_run *run;
    struct dtx_comm *next; /* of run->list */
    void *handle;
    void *stream; /* of messages, which must not hold up the queue */
    void *work;   /* on the device */
    int64_t work_bytes;
    struct dtx_nccl_message *made, *pending, *spare;
    struct dtx_nccl_flights flights;
    /* What is started (comm_queue.h): on `side`, forked from the queue `from`. */
    struct dtx_queue *side, *from;
    void *fork_event, **done; /* done[n mod capacity]: collective n has been */
    int capacity;
    int64_t forks, joined; /* begun; how many of them `from` comes after */
};

static inline struct dtx_nccl_comm *dtx_nccl_of(const struct dtx_comm *comm)
{
    return comm->impl;
}
static inline const struct dtx_cuda_runtime *dtx_nccl_runtime(const struct dtx_comm *comm)
{
    const struct dtx_nccl_run *run = dtx_nccl_of(comm)->run;
    return run->device->runtime(run->backend);
}
static inline void *dtx_nccl_stream(const struct dtx_comm *comm, struct dtx_queue *queue)
{
    return dtx_nccl_of(comm)->run->device->stream(queue);
}
/* Host memory goes over MPI. */
static inline bool dtx_nccl_on_host(const struct dtx_comm *comm, const struct dtx_queue *queue)
{
    return !queue || queue->backend != dtx_nccl_of(comm)->run->backend;
}
/* Reports of NCCL's and the runtime's codes; DTX_OK for 0. */
enum dtx_status dtx_nccl_check(struct dtx_comm *comm, int code, const char *what);
enum dtx_status dtx_nccl_check_cuda(struct dtx_comm *comm, int code, const char *what);

/* comm_nccl_message.c */
enum dtx_status dtx_nccl_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request);
enum dtx_status dtx_nccl_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request);
enum dtx_status dtx_nccl_wait(struct dtx_request *request);
void dtx_nccl_messages_free(struct dtx_comm *comm);

/* comm_nccl_flight.c. Before anything is issued: DTX_E_LIBRARY when NCCL has failed meanwhile or the watch ended it. */
enum dtx_status dtx_nccl_ready(struct dtx_comm *comm);
/* The mark is the transport's from now on: it ends when what was issued to the stream so far has ended. */
enum dtx_status dtx_nccl_track(struct dtx_comm *comm, struct dtx_ledger_mark *mark, void *stream);
enum dtx_status dtx_nccl_flights_create(struct dtx_comm *comm);
void dtx_nccl_flights_free(struct dtx_comm *comm);
/* For the watch: of all communicators of a run. */
bool dtx_nccl_look(void *run, char *why, size_t size);
void dtx_nccl_stop(void *run);

#endif
