#include "parallel/comm_nccl.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cuda/collectives.h"
#include "parallel/comm_impl.h"

/* What all communicators of a run share; the first one owns it. */
struct library {
    struct dtx_nccl nccl;
    const struct dtx_collectives *device;
    struct dtx_backend *backend;
};

/* A started send or receive. The event: its queue is so far that it may begin; once issued, that it is done. */
struct message {
    struct message *older; /* all that were made, to free them */
    struct message *next;  /* of the pending or the spare ones */
    struct dtx_queue *queue;
    void *event, *data;
    size_t bytes;
    int peer;
    bool receive, issued;
};

struct nccl_comm {
    struct dtx_comm *base; /* the same ranks over MPI */
    bool base_owned, library_owned;
    struct library *library;
    void *handle;
    void *stream; /* of messages, which must not hold up the queue */
    void *work;   /* on the device */
    int64_t work_bytes;
    struct message *made, *pending, *spare;
};

static struct nccl_comm *impl_of(const struct dtx_comm *comm)
{
    return comm->impl;
}

static enum dtx_status check(struct dtx_comm *comm, int code, const char *what)
{
    if (code == 0)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_LIBRARY, "NCCL: communicator '%s', rank %d: %s: %s (%d)", comm->name, comm->rank,
                    what, impl_of(comm)->library->nccl.error_text(code), code);
}

static const struct dtx_cuda_runtime *runtime_of(const struct dtx_comm *comm)
{
    const struct library *library = impl_of(comm)->library;
    return library->device->runtime(library->backend);
}

static enum dtx_status check_cuda(struct dtx_comm *comm, int code, const char *what)
{
    if (code == 0)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_LIBRARY, "CUDA: communicator '%s', rank %d: %s: %s (%d)", comm->name, comm->rank,
                    what, runtime_of(comm)->error_text(code), code);
}

/* Host memory goes over MPI. */
static bool on_host(const struct dtx_comm *comm, const struct dtx_queue *queue)
{
    return !queue || queue->backend != impl_of(comm)->library->backend;
}

static void *stream_of(const struct dtx_comm *comm, struct dtx_queue *queue)
{
    return impl_of(comm)->library->device->stream(queue);
}

static enum dtx_status copy(struct dtx_queue *queue, void *to, const void *from, int64_t bytes)
{
    return to == from ? DTX_OK : queue->backend->memory->copy(queue, to, from, (size_t)bytes);
}

static enum dtx_status need_work(struct dtx_comm *comm, struct dtx_queue *queue, int64_t bytes)
{
    struct nccl_comm *impl = impl_of(comm);
    struct dtx_backend *backend = impl->library->backend;
    if (impl->work_bytes >= bytes)
        return DTX_OK;
    DTX_TRY(comm->ctx, backend->queues->wait(queue)); /* the old one may be in use */
    backend->memory->free(backend, impl->work);
    impl->work = NULL;
    impl->work_bytes = 0;
    DTX_TRY(comm->ctx, backend->memory->alloc(backend, (size_t)bytes, &impl->work));
    impl->work_bytes = bytes;
    return DTX_OK;
}

/* Part r of n elements cut for the ranks: its first element, and the one behind its last. */
static int64_t part_first(const struct dtx_comm *comm, int64_t n, int r)
{
    return dtx_min64(n, r * dtx_div_up(n, comm->size));
}

/* Within a group: what this rank gives to rank r, and what it gets. */
static int swap(struct dtx_comm *comm, void *stream, int r, const char *out, int64_t out_bytes, char *in,
                int64_t in_bytes)
{
    const struct nccl_comm *impl = impl_of(comm);
    const struct dtx_nccl *nccl = &impl->library->nccl;
    int code = out_bytes ? nccl->send(out, (size_t)out_bytes, NCCL_BYTES, r, impl->handle, stream) : 0;
    if (in_bytes && !code)
        code = nccl->receive(in, (size_t)in_bytes, NCCL_BYTES, r, impl->handle, stream);
    return code;
}

/* Every rank's part `rank` of `from` (n elements) into work, one after another, then folded into `to`. */
static enum dtx_status fold_part(struct dtx_comm *comm, struct dtx_queue *queue, bool maximum, enum dtx_dtype dtype,
                                 int64_t n, const char *from, char *to)
{
    struct nccl_comm *impl = impl_of(comm);
    const struct dtx_nccl *nccl = &impl->library->nccl;
    int64_t size = (int64_t)dtx_dtype_bytes(dtype), first = part_first(comm, n, comm->rank);
    int64_t mine = part_first(comm, n, comm->rank + 1) - first;
    void *stream = stream_of(comm, queue);
    DTX_TRY(comm->ctx, need_work(comm, queue, comm->size * dtx_div_up(n, comm->size) * size));
    char *work = impl->work;
    DTX_TRY(comm->ctx, copy(queue, work + comm->rank * mine * size, from + first * size, mine * size));
    int code = nccl->group_start();
    for (int r = 0; r < comm->size && !code; r++) {
        int64_t theirs = part_first(comm, n, r), count = part_first(comm, n, r + 1) - theirs;
        if (r != comm->rank)
            code = swap(comm, stream, r, from + theirs * size, count * size, work + r * mine * size, mine * size);
    }
    int end = nccl->group_end();
    DTX_TRY(comm->ctx, check(comm, code ? code : end, "exchange of parts"));
    comm->sent_bytes += (n - mine) * size;
    if (!mine)
        return DTX_OK;
    int rows = DTX_MUTANT(nccl_last_rank_lost) ? comm->size - 1 : comm->size;
    return impl->library->device->fold(queue, maximum, dtype, rows, mine, work, to);
}

/* Every rank's part to all, in place. */
static enum dtx_status share_parts(struct dtx_comm *comm, struct dtx_queue *queue, int64_t n, int64_t size, char *data)
{
    const struct dtx_nccl *nccl = &impl_of(comm)->library->nccl;
    int64_t first = part_first(comm, n, comm->rank), mine = part_first(comm, n, comm->rank + 1) - first;
    void *stream = stream_of(comm, queue);
    int code = nccl->group_start();
    for (int r = 0; r < comm->size && !code; r++) {
        int64_t theirs = part_first(comm, n, r), count = part_first(comm, n, r + 1) - theirs;
        if (r != comm->rank)
            code = swap(comm, stream, r, data + first * size, mine * size, data + theirs * size, count * size);
    }
    int end = nccl->group_end();
    comm->sent_bytes += mine * size * (comm->size - 1);
    return check(comm, code ? code : end, "sharing parts");
}

static enum dtx_status reduce(struct dtx_comm *comm, bool maximum, struct dtx_queue *queue,
                              const struct dtx_tensor *tensor)
{
    int64_t n = dtx_tensor_count(tensor), size = (int64_t)dtx_dtype_bytes(tensor->dtype);
    if (n == 0)
        return DTX_OK;
    char *data = tensor->data, *mine = data + part_first(comm, n, comm->rank) * size;
    DTX_TRY(comm->ctx, fold_part(comm, queue, maximum, tensor->dtype, n, data, mine));
    return share_parts(comm, queue, n, size, data);
}

static enum dtx_status nccl_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                           const struct dtx_tensor *tensor)
{
    if (on_host(comm, queue))
        return impl_of(comm)->base->table->all_reduce_sum(impl_of(comm)->base, queue, tensor);
    return reduce(comm, false, queue, tensor);
}

static enum dtx_status nccl_all_reduce_max(struct dtx_comm *comm, struct dtx_queue *queue,
                                           const struct dtx_tensor *tensor)
{
    if (on_host(comm, queue))
        return impl_of(comm)->base->table->all_reduce_max(impl_of(comm)->base, queue, tensor);
    return reduce(comm, true, queue, tensor);
}

static enum dtx_status nccl_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                               const struct dtx_tensor *in, const struct dtx_tensor *out)
{
    if (on_host(comm, queue))
        return impl_of(comm)->base->table->reduce_scatter_sum(impl_of(comm)->base, queue, in, out);
    int64_t n = dtx_tensor_count(in);
    return n ? fold_part(comm, queue, false, in->dtype, n, in->data, out->data) : DTX_OK;
}

static enum dtx_status nccl_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                       const struct dtx_tensor *out)
{
    struct nccl_comm *impl = impl_of(comm);
    if (on_host(comm, queue))
        return impl->base->table->all_gather(impl->base, queue, in, out);
    int64_t bytes = (int64_t)dtx_tensor_bytes(in);
    if (bytes == 0)
        return DTX_OK;
    comm->sent_bytes += bytes * (comm->size - 1);
    if (comm->size == 1)
        return copy(queue, out->data, in->data, bytes);
    return check(comm,
                 impl->library->nccl.all_gather(in->data, out->data, (size_t)bytes, NCCL_BYTES, impl->handle,
                                                stream_of(comm, queue)),
                 "all-gather");
}

static enum dtx_status nccl_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                      int root)
{
    struct nccl_comm *impl = impl_of(comm);
    if (on_host(comm, queue))
        return impl->base->table->broadcast(impl->base, queue, tensor, root);
    size_t bytes = dtx_tensor_bytes(tensor);
    if (bytes == 0 || comm->size == 1)
        return DTX_OK;
    comm->sent_bytes += comm->rank == root ? (int64_t)bytes * (comm->size - 1) : 0;
    return check(comm,
                 impl->library->nccl.broadcast(tensor->data, tensor->data, bytes, NCCL_BYTES, root, impl->handle,
                                               stream_of(comm, queue)),
                 "broadcast");
}

static enum dtx_status message_take(struct dtx_comm *comm, struct message **out)
{
    struct nccl_comm *impl = impl_of(comm);
    if (impl->spare) {
        *out = impl->spare;
        impl->spare = (*out)->next;
        return DTX_OK;
    }
    void *memory;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 1, sizeof **out, &memory));
    struct message *m = memory;
    int code = runtime_of(comm)->event_create(&m->event);
    if (code) {
        dtx_mem_free(m);
        return check_cuda(comm, code, "creating an event");
    }
    m->older = impl->made;
    impl->made = m;
    *out = m;
    return DTX_OK;
}

/* All pending messages as one group: on one communicator operations run one after another, so two ranks that each wait
 * for the other's message before they send would never end. */
static enum dtx_status issue(struct dtx_comm *comm)
{
    struct nccl_comm *impl = impl_of(comm);
    const struct dtx_cuda_runtime *runtime = runtime_of(comm);
    const struct dtx_nccl *nccl = &impl->library->nccl;
    struct message *first = impl->pending;
    impl->pending = NULL;
    for (struct message *m = first; m; m = m->next)
        DTX_TRY(comm->ctx, check_cuda(comm, runtime->event_await(impl->stream, m->event), "messages"));
    int code = nccl->group_start();
    for (struct message *m = first; m && !code; m = m->next)
        code = m->receive ? nccl->receive(m->data, m->bytes, NCCL_BYTES, m->peer, impl->handle, impl->stream)
                          : nccl->send(m->data, m->bytes, NCCL_BYTES, m->peer, impl->handle, impl->stream);
    int end = nccl->group_end();
    DTX_TRY(comm->ctx, check(comm, code ? code : end, "messages"));
    for (struct message *m = first; m; m = m->next) {
        m->issued = true;
        DTX_TRY(comm->ctx, check_cuda(comm, runtime->event_record(m->event, impl->stream), "messages"));
    }
    return DTX_OK;
}

/* A send goes at once when no receive is pending, since the other rank may wait for it. Where ranks exchange on one
 * communicator, receives are started first, and all go together when the first is waited for. */
static enum dtx_status start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor, int peer,
                             bool receive, struct dtx_request *request)
{
    struct nccl_comm *impl = impl_of(comm);
    struct message *m, **last = &impl->pending;
    DTX_TRY(comm->ctx, message_take(comm, &m));
    *m = (struct message){.older = m->older,
                          .queue = queue,
                          .event = m->event,
                          .data = tensor->data,
                          .bytes = dtx_tensor_bytes(tensor),
                          .peer = peer,
                          .receive = receive};
    bool alone = !impl->pending;
    while (*last)
        last = &(*last)->next;
    *last = m;
    *request = (struct dtx_request){.handle = m, .comm = comm};
    comm->sent_bytes += receive ? 0 : (int64_t)m->bytes;
    int code =
        DTX_MUTANT(nccl_send_before_queue) ? 0 : runtime_of(comm)->event_record(m->event, stream_of(comm, queue));
    DTX_TRY(comm->ctx, check_cuda(comm, code, receive ? "receive" : "send"));
    return alone && !receive ? issue(comm) : DTX_OK;
}

static enum dtx_status nccl_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                       int peer, struct dtx_request *request)
{
    if (on_host(comm, queue))
        return impl_of(comm)->base->table->send_start(impl_of(comm)->base, queue, tensor, peer, request);
    return start(comm, queue, tensor, peer, false, request);
}

static enum dtx_status nccl_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                       int peer, struct dtx_request *request)
{
    if (on_host(comm, queue))
        return impl_of(comm)->base->table->recv_start(impl_of(comm)->base, queue, tensor, peer, request);
    return start(comm, queue, tensor, peer, true, request);
}

/* The queue waits, not the host. */
static enum dtx_status nccl_wait(struct dtx_request *request)
{
    struct dtx_comm *comm = request->comm;
    struct nccl_comm *impl = impl_of(comm);
    struct message *m = request->handle;
    if (!m->issued)
        DTX_TRY(comm->ctx, issue(comm));
    int code =
        DTX_MUTANT(nccl_message_not_awaited) ? 0 : runtime_of(comm)->event_await(stream_of(comm, m->queue), m->event);
    m->next = impl->spare;
    impl->spare = m;
    request->handle = NULL;
    return check_cuda(comm, code, "wait for a message");
}

static enum dtx_status nccl_barrier(struct dtx_comm *comm)
{
    return impl_of(comm)->base->table->barrier(impl_of(comm)->base);
}

static void nccl_abort(struct dtx_comm *comm, int exit_code)
{
    impl_of(comm)->base->table->abort(impl_of(comm)->base, exit_code);
}

static void nccl_free(struct dtx_comm *comm)
{
    struct nccl_comm *impl = impl_of(comm);
    struct library *library = impl->library;
    const struct dtx_cuda_runtime *runtime = runtime_of(comm);
    if (impl->stream) {
        runtime->stream_wait(impl->stream);
        runtime->stream_free(impl->stream);
    }
    while (impl->made) {
        struct message *m = impl->made;
        impl->made = m->older;
        runtime->event_free(m->event);
        dtx_mem_free(m);
    }
    library->backend->memory->free(library->backend, impl->work);
    if (impl->handle)
        library->nccl.destroy(impl->handle);
    if (impl->base_owned)
        impl->base->table->free(impl->base);
    if (impl->library_owned)
        dtx_mem_free(library);
    dtx_mem_free(impl);
    dtx_mem_free(comm);
}

static const struct dtx_comm_table nccl_table;

/* NCCL's own communicator for the ranks of base: rank 0 makes the id, MPI carries it. Collective. */
static enum dtx_status join(struct dtx_comm *comm)
{
    struct nccl_comm *impl = impl_of(comm);
    const struct library *library = impl->library;
    struct nccl_id id = {{0}};
    struct dtx_tensor bytes = dtx_tensor_1d(&id, DTX_U8, sizeof id);
    int code = comm->rank == 0 ? library->nccl.unique_id(&id) : 0;
    DTX_TRY(comm->ctx, dtx_comm_agree(impl->base, check(comm, code, "making an id")));
    DTX_TRY(comm->ctx, impl->base->table->broadcast(impl->base, NULL, &bytes, 0));
    DTX_TRY(comm->ctx, check(comm, library->nccl.init(&impl->handle, comm->size, id, comm->rank), "joining"));
    return check_cuda(comm, runtime_of(comm)->stream_create(&impl->stream), "creating a stream");
}

/* Over base, whose ranks and name it takes. Collective. */
static enum dtx_status create(struct dtx_comm *base, struct library *library, struct dtx_comm **out)
{
    void *memory, *impl;
    DTX_TRY(base->ctx, dtx_mem_alloc(base->ctx, 1, sizeof(struct dtx_comm), &memory));
    enum dtx_status status = dtx_mem_alloc(base->ctx, 1, sizeof(struct nccl_comm), &impl);
    if (status != DTX_OK) {
        dtx_mem_free(memory);
        return status;
    }
    struct dtx_comm *comm = memory;
    *(struct nccl_comm *)impl = (struct nccl_comm){.base = base, .library = library};
    *comm = (struct dtx_comm){.table = &nccl_table,
                              .ctx = base->ctx,
                              .rank = base->rank,
                              .size = base->size,
                              .impl = impl,
                              .watch = base->watch,
                              .file = base->file,
                              .line = base->line};
    memcpy(comm->name, base->name, sizeof comm->name);
    status = comm->size > 1 ? join(comm) : DTX_OK;
    if (status != DTX_OK) {
        nccl_free(comm);
        return status;
    }
    *out = comm;
    return DTX_OK;
}

static enum dtx_status nccl_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out)
{
    struct nccl_comm *impl = impl_of(comm);
    struct dtx_comm *base = NULL, *part = NULL;
    DTX_TRY(comm->ctx, impl->base->table->split(impl->base, color, key, name, &base));
    if (base) {
        enum dtx_status status = create(base, impl->library, &part);
        if (status != DTX_OK) {
            base->table->free(base);
            return status;
        }
        impl_of(part)->base_owned = true;
    }
    *out = part;
    return DTX_OK;
}

static const struct dtx_comm_table nccl_table = {
    .all_reduce_sum = nccl_all_reduce_sum,
    .all_reduce_max = nccl_all_reduce_max,
    .reduce_scatter_sum = nccl_reduce_scatter_sum,
    .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast,
    .send_start = nccl_send_start,
    .recv_start = nccl_recv_start,
    .wait = nccl_wait,
    .barrier = nccl_barrier,
    .split = nccl_split,
    .abort = nccl_abort,
    .free = nccl_free,
};

const struct dtx_comm *dtx_comm_nccl_base(const struct dtx_comm *comm)
{
    return comm->table == &nccl_table ? impl_of(comm)->base : comm;
}

enum dtx_status dtx_comm_nccl_create(struct dtx_comm *base, struct dtx_backend *backend, struct dtx_comm **out)
{
    char why[256];
    void *memory;
    const struct dtx_collectives *device = dtx_backend_collectives(backend);
    *out = base;
    if (!device || base->size == 1)
        return DTX_OK;
    enum dtx_status status = dtx_mem_alloc(base->ctx, 1, sizeof(struct library), &memory);
    DTX_TRY(base->ctx, dtx_comm_agree(base, status));
    struct library *library = memory;
    library->device = device;
    library->backend = backend;
    if (!device->load(&library->nccl, why, sizeof why))
        status = dtx_fail(base->ctx, DTX_E_UNSUPPORTED,
                          "%d ranks on GPUs need NCCL: %s; install it, or use --device cpu", base->size, why);
    status = dtx_comm_agree(base, status);
    if (status == DTX_OK)
        status = create(base, library, out);
    if (status != DTX_OK) {
        dtx_mem_free(library);
        return status;
    }
    impl_of(*out)->library_owned = true;
    return DTX_OK;
}
