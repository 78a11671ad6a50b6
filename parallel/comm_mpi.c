/*
 * Communicators over MPI, for tensors in host memory. Every call of MPI moves at most piece_bytes, so counts fit an
 * int. After the first use of a size nothing is allocated.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"
#include "parallel/mpi_error.h"

/* One started send or receive, cut in pieces; kept in a free list after the wait. */
struct message {
    struct message *next;
    MPI_Request *requests; /* capacity, as statuses */
    MPI_Status *statuses;
    int n, capacity;
    int peer;
    int64_t bytes;
    bool receive;
};

struct mpi_comm {
    MPI_Comm handle;
    MPI_Comm meeting; /* the world only, else MPI_COMM_NULL: dtx_comm_mpi_meet */
    struct dtx_comm_options options;
    bool shared_cores; /* a node has more ranks than cores */
    void *work;        /* of work_bytes */
    int64_t work_bytes;
    int *counts, *offsets, *in_counts, *in_offsets; /* [size] each, one allocation at counts */
    struct message *spare;
};

static MPI_Datatype mpi_type(enum dtx_dtype dtype)
{
    switch (dtype) {
    case DTX_F64:
        return MPI_DOUBLE;
    case DTX_F32:
        return MPI_FLOAT;
    case DTX_I64:
        return MPI_INT64_T;
    default:
        return MPI_BYTE;
    }
}

static enum dtx_status wait_for_queue(struct dtx_queue *queue)
{
    return queue ? queue->backend->queues->wait(queue) : DTX_OK;
}

static enum dtx_status need_work(struct dtx_comm *comm, int64_t bytes)
{
    struct mpi_comm *impl = comm->impl;
    if (impl->work_bytes >= bytes)
        return DTX_OK;
    dtx_mem_free(impl->work);
    impl->work = NULL;
    impl->work_bytes = 0;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, bytes, 1, &impl->work));
    impl->work_bytes = bytes;
    return DTX_OK;
}

/* By non-blocking calls: by a progress thread, or where ranks share cores. There MPI's own waiting would be a storm of
 * sched_yield that keeps computing ranks, and the kernel's own threads, from the cores. */
static bool looks_and_sleeps(const struct dtx_comm *comm)
{
    const struct mpi_comm *impl = comm->impl;
    return comm->pace || impl->shared_cores;
}

/* One request's own error is told, not that there is one. */
static int look(int n, MPI_Request *requests, int *done, MPI_Status *statuses)
{
    if (n != 1)
        return MPI_Testall(n, requests, done, statuses);
    return MPI_Test(requests, done, statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : statuses);
}

/* Waits for what has begun: looks, sleeps, looks again; sleeps double from 20 µs to 160 µs. A progress thread that is
 * waited for yields instead where cores are its own. statuses: [n], or MPI_STATUSES_IGNORE. */
static int finish(struct dtx_comm *comm, int code, int n, MPI_Request *requests, MPI_Status *statuses)
{
    const struct mpi_comm *impl = comm->impl;
    int done = 0;
    if (code == MPI_SUCCESS)
        code = look(n, requests, &done, statuses);
    for (double pause = 20e-6; code == MPI_SUCCESS && !done; pause = pause < 100e-6 ? 2 * pause : pause) {
        if (comm->pace && atomic_load(&comm->pace->stop)) {
            dtx_comm_park(comm->pace);
            return MPI_ERR_PENDING;
        }
        if (!impl->shared_cores && atomic_load(&comm->pace->hurry))
            sched_yield();
        else
            dtx_clock_sleep(pause);
        code = look(n, requests, &done, statuses);
    }
    return code;
}

static int finish_one(struct dtx_comm *comm, int code, MPI_Request *request)
{
    return finish(comm, code, 1, request, MPI_STATUSES_IGNORE);
}

/* MPI's collectives, with its own way to wait or ours. */
static int all_gather(struct dtx_comm *comm, const void *in, int64_t n, MPI_Datatype type, void *out)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    if (!looks_and_sleeps(comm))
        return MPI_Allgather(in, (int)n, type, out, (int)n, type, impl->handle);
    return finish_one(comm, MPI_Iallgather(in, (int)n, type, out, (int)n, type, impl->handle, &request), &request);
}

/* Parts of impl->counts at impl->offsets, in place. */
static int all_gather_parts(struct dtx_comm *comm, MPI_Datatype type, void *data)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    if (!looks_and_sleeps(comm))
        return MPI_Allgatherv(MPI_IN_PLACE, 0, type, data, impl->counts, impl->offsets, type, impl->handle);
    return finish_one(
        comm, MPI_Iallgatherv(MPI_IN_PLACE, 0, type, data, impl->counts, impl->offsets, type, impl->handle, &request),
        &request);
}

/* Parts of impl->counts at impl->offsets to the ranks; theirs, impl->in_counts at impl->in_offsets, to impl->work. */
static int exchange_parts(struct dtx_comm *comm, MPI_Datatype type, const void *data)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    if (!looks_and_sleeps(comm))
        return MPI_Alltoallv(data, impl->counts, impl->offsets, type, impl->work, impl->in_counts, impl->in_offsets,
                             type, impl->handle);
    return finish_one(comm,
                      MPI_Ialltoallv(data, impl->counts, impl->offsets, type, impl->work, impl->in_counts,
                                     impl->in_offsets, type, impl->handle, &request),
                      &request);
}

/* One `part` to each rank; n elements of `type` of each to impl->work. */
static int exchange(struct dtx_comm *comm, const void *data, MPI_Datatype part, int64_t n, MPI_Datatype type)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    if (!looks_and_sleeps(comm))
        return MPI_Alltoall(data, 1, part, impl->work, (int)n, type, impl->handle);
    return finish_one(comm, MPI_Ialltoall(data, 1, part, impl->work, (int)n, type, impl->handle, &request), &request);
}

static int broadcast(struct dtx_comm *comm, void *data, int bytes, int root)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    if (!looks_and_sleeps(comm))
        return MPI_Bcast(data, bytes, MPI_BYTE, root, impl->handle);
    return finish_one(comm, MPI_Ibcast(data, bytes, MPI_BYTE, root, impl->handle, &request), &request);
}

/* Few elements: every rank gets all rows and folds them. */
static enum dtx_status reduce_small(struct dtx_comm *comm, enum dtx_fold fold, enum dtx_dtype dtype, void *data,
                                    int64_t count)
{
    struct mpi_comm *impl = comm->impl;
    int64_t bytes = count * (int64_t)dtx_dtype_bytes(dtype);
    DTX_TRY(comm->ctx, need_work(comm, comm->size * bytes));
    int code = all_gather(comm, data, count, mpi_type(dtype), impl->work);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "all-reduce (all-gather)", bytes, -1));
    dtx_comm_fold(fold, dtype, comm->size, count, impl->work, data);
    comm->sent_bytes += bytes * (comm->size - 1);
    return DTX_OK;
}

/* Rank r gets everybody's part r, folds it in rank order, and the results are gathered. count fits an int. */
static enum dtx_status reduce_piece(struct dtx_comm *comm, enum dtx_fold fold, enum dtx_dtype dtype, void *data,
                                    int64_t count)
{
    struct mpi_comm *impl = comm->impl;
    int64_t element = (int64_t)dtx_dtype_bytes(dtype), part = dtx_div_up(count, comm->size);
    for (int r = 0; r < comm->size; r++) {
        impl->offsets[r] = (int)dtx_min64(r * part, count);
        impl->counts[r] = (int)dtx_min64(part, count - impl->offsets[r]);
    }
    int mine = impl->counts[comm->rank];
    for (int r = 0; r < comm->size; r++) {
        impl->in_counts[r] = mine;
        impl->in_offsets[r] = r * mine;
    }
    DTX_TRY(comm->ctx, need_work(comm, comm->size * mine * element));
    MPI_Datatype type = mpi_type(dtype);
    int code = exchange_parts(comm, type, data);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "all-reduce (all-to-all)", count * element, -1));
    dtx_comm_fold(fold, dtype, comm->size, mine, impl->work, (char *)data + impl->offsets[comm->rank] * element);
    code = all_gather_parts(comm, type, data);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "all-reduce (all-gather)", count * element, -1));
    comm->sent_bytes += (count - mine + (int64_t)mine * (comm->size - 1)) * element;
    return DTX_OK;
}

static enum dtx_status reduce(struct dtx_comm *comm, enum dtx_fold fold, struct dtx_queue *queue,
                              const struct dtx_tensor *tensor)
{
    struct mpi_comm *impl = comm->impl;
    DTX_TRY(comm->ctx, wait_for_queue(queue));
    int64_t count = dtx_tensor_count(tensor), element = (int64_t)dtx_dtype_bytes(tensor->dtype);
    if (comm->size == 1 || count == 0)
        return DTX_OK;
    if (count * element * comm->size <= impl->options.small_bytes)
        return reduce_small(comm, fold, tensor->dtype, tensor->data, count);
    int64_t piece = dtx_max64(impl->options.piece_bytes / element, 1);
    for (int64_t first = 0; first < count; first += piece)
        DTX_TRY(comm->ctx, reduce_piece(comm, fold, tensor->dtype, (char *)tensor->data + first * element,
                                        dtx_min64(piece, count - first)));
    return DTX_OK;
}

static enum dtx_status mpi_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                          const struct dtx_tensor *tensor)
{
    return reduce(comm, DTX_FOLD_SUM, queue, tensor);
}

static enum dtx_status mpi_all_reduce_max(struct dtx_comm *comm, struct dtx_queue *queue,
                                          const struct dtx_tensor *tensor)
{
    return reduce(comm, DTX_FOLD_MAX, queue, tensor);
}

/* Elements [first, first + n) of every rank's part `rank`, in parts of `count`: one all-to-all, folded in rank order. A
 * type whose extent is a whole part takes the pieces from their places, however far apart. */
static enum dtx_status scatter_piece(struct dtx_comm *comm, const struct dtx_tensor *in, const struct dtx_tensor *out,
                                     int64_t first, int64_t n)
{
    struct mpi_comm *impl = comm->impl;
    int64_t element = (int64_t)dtx_dtype_bytes(in->dtype), bytes = n * element;
    int64_t extent = DTX_MUTANT(reduce_scatter_pieces_adjacent) ? bytes : (int64_t)dtx_tensor_bytes(out);
    DTX_TRY(comm->ctx, need_work(comm, comm->size * bytes));
    MPI_Datatype piece, part;
    int code = MPI_Type_contiguous((int)n, mpi_type(in->dtype), &piece);
    if (code == MPI_SUCCESS)
        code = MPI_Type_create_resized(piece, 0, (MPI_Aint)extent, &part);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(&part);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "reduce-scatter (type)", bytes, -1));
    code = exchange(comm, (char *)in->data + first * element, part, n, mpi_type(in->dtype));
    MPI_Type_free(&part);
    MPI_Type_free(&piece);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "reduce-scatter (all-to-all)", bytes, -1));
    dtx_comm_fold(DTX_FOLD_SUM, in->dtype, comm->size, n, impl->work, (char *)out->data + first * element);
    return DTX_OK;
}

static enum dtx_status mpi_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                              const struct dtx_tensor *in, const struct dtx_tensor *out)
{
    struct mpi_comm *impl = comm->impl;
    DTX_TRY(comm->ctx, wait_for_queue(queue));
    int64_t count = dtx_tensor_count(out), element = (int64_t)dtx_dtype_bytes(in->dtype);
    int64_t piece = dtx_max64(impl->options.piece_bytes / (element * comm->size), 1);
    for (int64_t first = 0; first < count; first += piece)
        DTX_TRY(comm->ctx, scatter_piece(comm, in, out, first, dtx_min64(piece, count - first)));
    comm->sent_bytes += count * element * (comm->size - 1);
    return DTX_OK;
}

/* More than fits one call: pieces are gathered to work memory and copied to their places. */
static enum dtx_status gather_pieces(struct dtx_comm *comm, const char *in, char *out, int64_t bytes)
{
    struct mpi_comm *impl = comm->impl;
    int64_t piece = dtx_max64(impl->options.piece_bytes / comm->size, 1);
    DTX_TRY(comm->ctx, need_work(comm, piece * comm->size));
    for (int64_t first = 0; first < bytes; first += piece) {
        int64_t n = dtx_min64(piece, bytes - first);
        int code = all_gather(comm, in + first, n, MPI_BYTE, impl->work);
        DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "all-gather", bytes, -1));
        for (int r = 0; r < comm->size; r++)
            memcpy(out + r * bytes + first, (char *)impl->work + r * n, (size_t)n);
    }
    return DTX_OK;
}

static enum dtx_status mpi_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                      const struct dtx_tensor *out)
{
    struct mpi_comm *impl = comm->impl;
    DTX_TRY(comm->ctx, wait_for_queue(queue));
    int64_t bytes = (int64_t)dtx_tensor_bytes(in);
    if (bytes == 0)
        return DTX_OK;
    if (bytes * comm->size > impl->options.piece_bytes) {
        DTX_TRY(comm->ctx, gather_pieces(comm, in->data, out->data, bytes));
    } else {
        bool in_place = in->data == (char *)out->data + comm->rank * bytes;
        int code = all_gather(comm, in_place ? MPI_IN_PLACE : in->data, bytes, MPI_BYTE, out->data);
        DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "all-gather", bytes, -1));
    }
    comm->sent_bytes += bytes * (comm->size - 1);
    return DTX_OK;
}

static enum dtx_status mpi_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                     int root)
{
    struct mpi_comm *impl = comm->impl;
    DTX_TRY(comm->ctx, wait_for_queue(queue));
    int64_t bytes = (int64_t)dtx_tensor_bytes(tensor), piece = impl->options.piece_bytes;
    for (int64_t first = 0; first < bytes; first += piece) {
        int n = (int)dtx_min64(piece, bytes - first);
        int code = broadcast(comm, (char *)tensor->data + first, n, root);
        DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "broadcast", bytes, root));
    }
    if (comm->rank == root)
        comm->sent_bytes += bytes * (comm->size - 1);
    return DTX_OK;
}

static void message_free(struct message *message)
{
    dtx_mem_free(message->requests);
    dtx_mem_free(message->statuses);
    dtx_mem_free(message);
}

/* A message with room for n pieces, from the free list when there is one. */
static enum dtx_status message_get(struct dtx_comm *comm, int n, struct message **out)
{
    struct mpi_comm *impl = comm->impl;
    if (impl->spare && impl->spare->capacity >= n) {
        *out = impl->spare;
        impl->spare = impl->spare->next;
        return DTX_OK;
    }
    void *message = NULL, *requests = NULL, *statuses = NULL;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 1, sizeof(struct message), &message));
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, n, sizeof(MPI_Request), &requests));
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, n, sizeof(MPI_Status), &statuses));
    *(struct message *)message = (struct message){.requests = requests, .statuses = statuses, .capacity = n};
    *out = message;
    return DTX_OK;
}

static enum dtx_status start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor, int peer,
                             bool receive, struct dtx_request *request)
{
    struct mpi_comm *impl = comm->impl;
    DTX_TRY(comm->ctx, wait_for_queue(queue));
    int64_t bytes = (int64_t)dtx_tensor_bytes(tensor), piece = impl->options.piece_bytes;
    int n;
    DTX_TRY(comm->ctx, dtx_narrow_int(comm->ctx, dtx_div_up(bytes, piece), "pieces of a message", &n));
    struct message *message;
    DTX_TRY(comm->ctx, message_get(comm, n, &message));
    message->n = n;
    message->peer = peer;
    message->bytes = bytes;
    message->receive = receive;
    for (int i = 0; i < n; i++) {
        char *data = (char *)tensor->data + i * piece;
        int size = (int)dtx_min64(piece, bytes - i * piece), code;
        if (receive)
            code = MPI_Irecv(data, size, MPI_BYTE, peer, 0, impl->handle, &message->requests[i]);
        else if (impl->options.synchronous_sends)
            code = MPI_Issend(data, size, MPI_BYTE, peer, 0, impl->handle, &message->requests[i]);
        else
            code = MPI_Isend(data, size, MPI_BYTE, peer, 0, impl->handle, &message->requests[i]);
        DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, receive ? "receive" : "send", bytes, peer));
    }
    if (!receive)
        comm->sent_bytes += bytes;
    *request = (struct dtx_request){.handle = message, .comm = comm};
    return DTX_OK;
}

static enum dtx_status mpi_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                      int peer, struct dtx_request *request)
{
    return start(comm, queue, tensor, peer, false, request);
}

static enum dtx_status mpi_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                      int peer, struct dtx_request *request)
{
    return start(comm, queue, tensor, peer, true, request);
}

/* Ranks that disagree about a message's size would otherwise go on with half of it. */
static enum dtx_status check_received(struct dtx_comm *comm, const struct message *message)
{
    int64_t received = 0;
    for (int i = 0; i < message->n; i++) {
        int n = 0;
        MPI_Get_count(&message->statuses[i], MPI_BYTE, &n);
        received += n;
    }
    if (received == message->bytes || DTX_MUTANT(received_size_unchecked))
        return DTX_OK;
    return dtx_fail(
        comm->ctx, DTX_E_LIBRARY,
        "communicator '%s': rank %d expected %lld bytes from rank %d and got %lld: the ranks disagree about "
        "the tensor",
        comm->name, comm->rank, (long long)message->bytes, message->peer, (long long)received);
}

static enum dtx_status mpi_wait(struct dtx_request *request)
{
    struct message *message = request->handle;
    struct dtx_comm *comm = request->comm;
    struct mpi_comm *impl = comm->impl;
    int code = looks_and_sleeps(comm) ? finish(comm, MPI_SUCCESS, message->n, message->requests, message->statuses)
                                      : MPI_Waitall(message->n, message->requests, message->statuses);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < message->n; i++)
        if (message->statuses[i].MPI_ERROR != MPI_SUCCESS)
            code = message->statuses[i].MPI_ERROR;
    DTX_TRY(comm->ctx,
            dtx_mpi_status(comm, code, message->receive ? "receive" : "send", message->bytes, message->peer));
    if (message->receive)
        DTX_TRY(comm->ctx, check_received(comm, message));
    message->next = impl->spare;
    impl->spare = message;
    request->handle = NULL;
    return DTX_OK;
}

static enum dtx_status mpi_barrier(struct dtx_comm *comm)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Request request;
    int code = looks_and_sleeps(comm) ? finish_one(comm, MPI_Ibarrier(impl->handle, &request), &request)
                                      : MPI_Barrier(impl->handle);
    return dtx_mpi_status(comm, code, "barrier", 0, -1);
}

static void mpi_free(struct dtx_comm *comm)
{
    struct mpi_comm *impl = comm->impl;
    if (impl->handle != MPI_COMM_NULL)
        MPI_Comm_free(&impl->handle);
    if (impl->meeting != MPI_COMM_NULL)
        MPI_Comm_free(&impl->meeting);
    while (impl->spare) {
        struct message *next = impl->spare->next;
        message_free(impl->spare);
        impl->spare = next;
    }
    dtx_mem_free(impl->counts);
    dtx_mem_free(impl->work);
    dtx_mem_free(impl);
    dtx_mem_free(comm);
}

/* The object without its MPI communicator. */
static enum dtx_status mpi_new(struct dtx_ctx *ctx, const char *name, const struct dtx_comm_options *options,
                               struct dtx_comm **out)
{
    void *comm = NULL, *impl = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_comm), &comm));
    enum dtx_status status = dtx_mem_alloc(ctx, 1, sizeof(struct mpi_comm), &impl);
    if (status != DTX_OK) {
        dtx_mem_free(comm);
        return status;
    }
    *(struct mpi_comm *)impl =
        (struct mpi_comm){.handle = MPI_COMM_NULL, .meeting = MPI_COMM_NULL, .options = *options};
    *out = comm;
    **out = (struct dtx_comm){
        .table = &dtx_comm_mpi_table, .ctx = ctx, .size = 1, .impl = impl, .file = DTX_HERE_FILE, .line = __LINE__};
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return DTX_OK;
}

/* Takes the handle over: errors return, rank and size, the arrays of counts. */
static enum dtx_status mpi_adopt(struct dtx_comm *comm, MPI_Comm handle)
{
    struct mpi_comm *impl = comm->impl;
    impl->handle = handle;
    int code = MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(handle, &comm->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(handle, &comm->size);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "set-up of a communicator", 0, -1));
    void *arrays = NULL;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 4 * (int64_t)comm->size, sizeof(int), &arrays));
    impl->counts = arrays;
    impl->offsets = impl->counts + comm->size;
    impl->in_counts = impl->offsets + comm->size;
    impl->in_offsets = impl->in_counts + comm->size;
    return DTX_OK;
}

static enum dtx_status mpi_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out)
{
    struct mpi_comm *impl = comm->impl;
    MPI_Comm handle;
    int code = MPI_Comm_split(impl->handle, color < 0 ? MPI_UNDEFINED : color, key, &handle);
    DTX_TRY(comm->ctx, dtx_mpi_status(comm, code, "split", 0, -1));
    struct dtx_comm *part = NULL;
    if (color >= 0) {
        DTX_TRY(comm->ctx, mpi_new(comm->ctx, name, &impl->options, &part));
        ((struct mpi_comm *)part->impl)->shared_cores = impl->shared_cores;
        enum dtx_status status = mpi_adopt(part, handle);
        if (status != DTX_OK) {
            mpi_free(part);
            return status;
        }
    }
    *out = part;
    return DTX_OK;
}

static void mpi_abort(struct dtx_comm *comm, int exit_code)
{
    (void)comm;
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _Exit(exit_code);
}

const struct dtx_comm_table dtx_comm_mpi_table = {
    .all_reduce_sum = mpi_all_reduce_sum,
    .all_reduce_max = mpi_all_reduce_max,
    .reduce_scatter_sum = mpi_reduce_scatter_sum,
    .all_gather = mpi_all_gather,
    .broadcast = mpi_broadcast,
    .send_start = mpi_send_start,
    .recv_start = mpi_recv_start,
    .wait = mpi_wait,
    .barrier = mpi_barrier,
    .split = mpi_split,
    .abort = mpi_abort,
    .free = mpi_free,
};

/* Has a node more ranks than cores that they may run on? All ranks get one answer, since MPI's blocking and
 * non-blocking collectives do not meet. DTX_SHARED_CORES=true says so where MPI cannot see it: several "nodes" on one
 * machine, a CPU quota. Collective over MPI_COMM_WORLD. */
static int find_shared_cores(bool *out)
{
    const char *said = getenv("DTX_SHARED_CORES");
    cpu_set_t mine, all;
    MPI_Comm node;
    int ranks = 1;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        memset(&mine, 0xff, sizeof mine); /* more cores than the set holds */
    all = mine;
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Allreduce(&mine, &all, (int)sizeof mine, MPI_BYTE, MPI_BOR, node);
    MPI_Comm_size(node, &ranks);
    MPI_Comm_free(&node);
    int shared = ranks > CPU_COUNT(&all) || (said && (strcmp(said, "true") == 0 || strcmp(said, "1") == 0));
    if (code == MPI_SUCCESS)
        code = MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    *out = shared;
    return code;
}

enum dtx_status dtx_comm_mpi_open(struct dtx_ctx *ctx, const struct dtx_comm_options *options, struct dtx_comm **out)
{
    struct dtx_comm *world;
    DTX_TRY(ctx, mpi_new(ctx, "world", options, &world));
    struct mpi_comm *impl = world->impl;
    int level = MPI_THREAD_SINGLE;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_mpi_status(world, code, "MPI_Init_thread", 0, -1), failed);
    if (level < MPI_THREAD_MULTIPLE) {
        status = dtx_fail(ctx, DTX_E_UNSUPPORTED,
                          "this MPI library gives thread level %d, dtx needs MPI_THREAD_MULTIPLE (%d): use an Open MPI "
                          "built with thread support",
                          level, MPI_THREAD_MULTIPLE);
        goto failed;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    code = find_shared_cores(&impl->shared_cores);
    DTX_TRY_GOTO(ctx, status, dtx_mpi_status(world, code, "ranks of the node", 0, -1), failed);
    MPI_Comm handle;
    DTX_TRY_GOTO(ctx, status, dtx_mpi_status(world, MPI_Comm_dup(MPI_COMM_WORLD, &handle), "duplicate", 0, -1), failed);
    DTX_TRY_GOTO(ctx, status, mpi_adopt(world, handle), failed);
    code = MPI_Comm_dup(MPI_COMM_WORLD, &impl->meeting);
    DTX_TRY_GOTO(ctx, status, dtx_mpi_status(world, code, "duplicate", 0, -1), failed);
    MPI_Comm_set_errhandler(impl->meeting, MPI_ERRORS_RETURN);
    *out = world;
    return DTX_OK;
failed:
    mpi_free(world);
    return status;
}

void dtx_comm_mpi_set_options(struct dtx_comm *comm, const struct dtx_comm_options *options)
{
    ((struct mpi_comm *)comm->impl)->options = *options;
}

void dtx_comm_mpi_close(struct dtx_comm *world)
{
    mpi_free(world);
    MPI_Finalize();
}

int dtx_comm_mpi_world_rank(const struct dtx_comm *comm, int rank)
{
    const struct mpi_comm *impl = dtx_comm_nccl_base(comm)->impl;
    MPI_Group members, all;
    int world = -1;
    if (MPI_Comm_group(impl->handle, &members) != MPI_SUCCESS)
        return -1;
    if (MPI_Comm_group(MPI_COMM_WORLD, &all) == MPI_SUCCESS) {
        MPI_Group_translate_ranks(members, 1, &rank, all, &world);
        MPI_Group_free(&all);
    }
    MPI_Group_free(&members);
    return world;
}

bool dtx_comm_mpi_meet(struct dtx_comm *world, double seconds)
{
    struct mpi_comm *impl = world->impl;
    MPI_Request request;
    int here = 0;
    if (MPI_Ibarrier(impl->meeting, &request) != MPI_SUCCESS)
        return false;
    double end = dtx_clock_now() + seconds;
    while (MPI_Test(&request, &here, MPI_STATUS_IGNORE) == MPI_SUCCESS && !here) {
        if (seconds >= 0 && dtx_clock_now() > end)
            return false;
        dtx_clock_sleep(1e-3);
    }
    return here;
}
