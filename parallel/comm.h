/*
 * Communicators: ranks that exchange tensors: self (one rank, no MPI), MPI, and NCCL (comm_nccl.h). Collectives are
 * ordered like operations: after all work submitted to `queue` before, and before all work submitted after.
 *
 * Sums are added in rank order for every element (comm_mpi: all-to-all, or all-gather for small counts, then additions
 * in fp32, f64 or i64), so their bits do not depend on counts, buckets or transport. Counts over INT_MAX are cut into
 * pieces. Every function is collective over the communicator unless it says otherwise. Errors inside MPI are converted
 * to DTX_E_LIBRARY with the operation, bytes and peer. `queue` may be NULL for host memory that no queue writes.
 *
 * A communicator belongs to one thread at a time; different communicators may be used by different threads. Collectives
 * that are started and waited for later: parallel/comm_queue.h. A plain collective comes after all that were started.
 */
#ifndef DTX_PARALLEL_COMM_H
#define DTX_PARALLEL_COMM_H

#include "kernels/backend.h"
#include "parallel/ledger.h"

struct dtx_comm;
struct dtx_watch;
struct dtx_comm_thread;
struct dtx_comm_pace;

/* A started send or receive; plain, lives in the caller, must be waited for. */
struct dtx_request {
    void *handle;
    struct dtx_comm *comm;
    struct dtx_ledger_mark mark;
};

struct dtx_comm_table {
    enum dtx_status (*all_reduce_sum)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *);
    enum dtx_status (*all_reduce_max)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *);
    enum dtx_status (*reduce_scatter_sum)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *in,
                                          const struct dtx_tensor *out);
    enum dtx_status (*all_gather)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out);
    enum dtx_status (*broadcast)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *, int root);
    enum dtx_status (*send_start)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *, int peer,
                                  struct dtx_request *);
    enum dtx_status (*recv_start)(struct dtx_comm *, struct dtx_queue *, const struct dtx_tensor *, int peer,
                                  struct dtx_request *);
    enum dtx_status (*wait)(struct dtx_request *);
    enum dtx_status (*barrier)(struct dtx_comm *);
    enum dtx_status (*split)(struct dtx_comm *, int color, int key, const char *name, struct dtx_comm **out);
    void (*abort)(struct dtx_comm *, int exit_code);
    void (*free)(struct dtx_comm *);
    /* Only where work runs beside the host by itself (NCCL), else NULL. async: comm_queue.h is going to start up to
     * `capacity` collectives. fork: a queue for the next one, behind all of `queue`; NULL: it is done on `queue`.
     * forked: the number of what that queue got since, 1, 2, … join: the forking queue goes on after that number, 0:
     * after all. */
    enum dtx_status (*async)(struct dtx_comm *, int capacity);
    enum dtx_status (*fork)(struct dtx_comm *, struct dtx_queue *, struct dtx_queue **side);
    enum dtx_status (*forked)(struct dtx_comm *, int64_t *number);
    enum dtx_status (*join)(struct dtx_comm *, int64_t number);
};

struct dtx_comm {
    const struct dtx_comm_table *table;
    struct dtx_ctx *ctx;
    char name[16]; /* "world", "tp", … for messages */
    int rank, size;
    int64_t sent_bytes; /* payload this rank has sent, by formula of the operation; of what was waited for */
    int64_t calls;      /* collectives so far: their numbers in a trace */
    struct dtx_comm_thread *thread; /* does what was started; NULL: it is done at once */
    struct dtx_comm_pace *pace;     /* how to wait inside a collective; NULL: as MPI does */
    void *impl;
    struct dtx_watch *watch;      /* NULL: none (parallel/watch.h); owned by the world */
    struct dtx_ledger_page *page; /* where collectives are recorded, or NULL */
    struct dtx_ledger_mark mark;  /* of the collective in progress; a transport that will end it later takes it away */
    void *said;                   /* debug mode: what the ranks say that they are about to do */
    const char *file;             /* who called last, for the ledger */
    int line;
};

/* What a world and all that is split from it use. */
struct dtx_comm_options {
    bool synchronous_sends; /* a send completes only when its receive was posted: shows deadlocks that buffers hide */
    int64_t piece_bytes;    /* the most bytes of one MPI call and of the work memory of a sum; at most INT_MAX */
    int64_t small_bytes;    /* sums of up to this many bytes over all ranks go by all-gather */
};
/* 64 MiB, 64 KiB; synchronous when the variable DTX_SYNCHRONOUS_SENDS is "true" or "1". */
struct dtx_comm_options dtx_comm_options_default(void);

/* One rank, no MPI. */
enum dtx_status dtx_comm_self(struct dtx_ctx *ctx, struct dtx_comm **out);
/* Starts MPI (MPI_THREAD_MULTIPLE) and gives the world; sets ctx->rank and ctx->size. Without a launcher's variables
 * (OMPI_COMM_WORLD_SIZE, PMIX_RANK, …) MPI is not started and the world is a self communicator. Refuses
 * (DTX_E_CONFIG) a world of one rank when the scheduler or launcher says there are several tasks, unless
 * `mpirun -n 1` says that one is meant. options: NULL for the defaults. */
enum dtx_status dtx_comm_open_world(struct dtx_ctx *ctx, struct dtx_comm **out);
enum dtx_status dtx_comm_open_world_with(struct dtx_ctx *ctx, const struct dtx_comm_options *options,
                                         struct dtx_comm **out);
/* The end of every command that opened a world. Free other communicators first when `status` is DTX_OK.
 * All ranks: they agree on the status, the one rank whose report it is prints it, all pass a barrier, MPI_Finalize, and
 * return the agreed status to exit with. Errors are then printed: ctx->error is cleared.
 * A rank on which something failed calls this at once, wherever the others are. If they don't come within `grace`
 * seconds (DTX_COMM_GRACE is a good value) it prints its report and aborts the job with the status' exit code. A rank
 * with DTX_OK or DTX_E_REQUEUE waits for the others as long as it takes. Accepts NULL. */
enum { DTX_COMM_GRACE = 3 };
enum dtx_status dtx_comm_finish(struct dtx_comm *world, enum dtx_status status, double grace);
/* Frees the world; a barrier and MPI_Finalize when MPI was started. Only when all ranks come here. Accepts NULL. */
void dtx_comm_close_world(struct dtx_comm *world);

/* In place: the sum (maximum) of the ranks' tensors, folded in rank order. f64, f32 or i64. A NaN anywhere gives a NaN
 * maximum; i64 sums wrap. */
enum dtx_status dtx_comm_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                        const struct dtx_tensor *tensor);
enum dtx_status dtx_comm_all_reduce_max(struct dtx_comm *comm, struct dtx_queue *queue,
                                        const struct dtx_tensor *tensor);
/* out = part `rank` of the sum of the ranks' `in`, which is `size` equal parts; the same bits as in all_reduce_sum. out
 * may be that part of `in`; nothing else of `in` is written. f64, f32 or i64. */
enum dtx_status dtx_comm_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                            const struct dtx_tensor *out);
/* out = the ranks' `in` one after another; equal counts; any dtype. `in` may be this rank's part of out. */
enum dtx_status dtx_comm_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                    const struct dtx_tensor *out);
enum dtx_status dtx_comm_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                   int root);
/* Messages between two ranks arrive in the order started. Not collective. The tensor stays untouched until waited;
 * every request must be waited for. A received size other than the tensor's is an error. */
enum dtx_status dtx_comm_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request);
enum dtx_status dtx_comm_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request);
enum dtx_status dtx_comm_wait(struct dtx_request *request);
enum dtx_status dtx_comm_barrier(struct dtx_comm *comm);
/* Ranks of equal color form a communicator, ordered by key. A negative color: in none, *out = NULL. */
enum dtx_status dtx_comm_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out);
void dtx_comm_free(struct dtx_comm *comm); /* accepts NULL */
/* Not collective: ends all ranks of the job at once, without a word of its own. Does not return. */
void dtx_comm_abort(struct dtx_comm *comm, int exit_code);

/* Host-side control plane: plain memory, no queue. */
enum dtx_status dtx_comm_broadcast_bytes(struct dtx_comm *comm, void *data, int64_t bytes, int root);
enum dtx_status dtx_comm_gather_bytes(struct dtx_comm *comm, const void *data, int64_t bytes,
                                      void *all /* every rank */);
/* Lists of as many elements as each rank has, one behind the other in the order of ranks, on every rank: *all (free
 * with dtx_mem_free), *total elements. A rank that has no memory for it fails on all. */
enum dtx_status dtx_comm_gather_lists(struct dtx_comm *comm, const void *mine, int64_t n, size_t element_bytes,
                                      void **all, int64_t *total);
/* A text of any length from root; out is allocated on the other ranks (free with dtx_mem_free). */
enum dtx_status dtx_comm_broadcast_text(struct dtx_comm *comm, char **text, int root);
/* All ranks learn whether one failed. With `status` DTX_OK everywhere: DTX_OK. Else every rank returns the same status:
 * that of the lowest failing rank (DTX_E_REQUEUE counts only when nothing else failed). That rank keeps its report; the
 * others' ctx->error becomes DTX_E_PEER "rank N (HOST): <its text>", so that only one report is printed.
 * Called before any collective whose inputs one rank may have failed to make. */
enum dtx_status dtx_comm_agree(struct dtx_comm *comm, enum dtx_status status);

/* Every call of a collective notes where it stands. (comm.c, where the functions are, does without.) */
static inline struct dtx_comm *dtx_comm_at(struct dtx_comm *comm, const char *file, int line)
{
    if (comm) {
        comm->file = file;
        comm->line = line;
    }
    return comm;
}
#ifndef DTX_COMM_FUNCTIONS
#define DTX_COMM_HERE(comm)                    dtx_comm_at(comm, DTX_HERE_FILE, __LINE__)
#define dtx_comm_finish(comm, ...)             dtx_comm_finish(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_all_reduce_sum(comm, ...)     dtx_comm_all_reduce_sum(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_all_reduce_max(comm, ...)     dtx_comm_all_reduce_max(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_reduce_scatter_sum(comm, ...) dtx_comm_reduce_scatter_sum(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_all_gather(comm, ...)         dtx_comm_all_gather(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_broadcast(comm, ...)          dtx_comm_broadcast(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_send_start(comm, ...)         dtx_comm_send_start(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_recv_start(comm, ...)         dtx_comm_recv_start(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_barrier(comm)                 dtx_comm_barrier(DTX_COMM_HERE(comm))
#define dtx_comm_split(comm, ...)              dtx_comm_split(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_broadcast_bytes(comm, ...)    dtx_comm_broadcast_bytes(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_gather_bytes(comm, ...)       dtx_comm_gather_bytes(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_gather_lists(comm, ...)       dtx_comm_gather_lists(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_broadcast_text(comm, ...)     dtx_comm_broadcast_text(DTX_COMM_HERE(comm), __VA_ARGS__)
#define dtx_comm_agree(comm, ...)              dtx_comm_agree(DTX_COMM_HERE(comm), __VA_ARGS__)
#endif

#endif
