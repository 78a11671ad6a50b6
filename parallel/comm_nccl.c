#include "parallel/comm_nccl.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl_impl.h"

enum dtx_status dtx_nccl_check(struct dtx_comm *comm, int code, const char *what)
{
    if (code == 0)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_LIBRARY, "NCCL: communicator '%s', rank %d: %s: %s (%d)", comm->name, comm->rank,
                    what, dtx_nccl_of(comm)->run->nccl.error_text(code), code);
}

enum dtx_status dtx_nccl_check_cuda(struct dtx_comm *comm, int code, const char *what)
{
    if (code == 0)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_LIBRARY, "CUDA: communicator '%s', rank %d: %s: %s (%d)", comm->name, comm->rank,
                    what, dtx_nccl_runtime(comm)->error_text(code), code);
}

static enum dtx_status copy(struct dtx_queue *queue, void *to, const void *from, int64_t bytes)
{
    return to == from ? DTX_OK : queue->backend->memory->copy(queue, to, from, (size_t)bytes);
}

static enum dtx_status take_work(struct dtx_comm *comm, int64_t bytes)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_backend *backend = impl->run->backend;
    backend->memory->free(backend, impl->work);
    impl->work = NULL;
    impl->work_bytes = 0;
    DTX_TRY(comm->ctx, backend->memory->alloc(backend, (size_t)bytes, &impl->work));
    impl->work_bytes = bytes;
    return DTX_OK;
}

static enum dtx_status need_work(struct dtx_comm *comm, struct dtx_queue *queue, int64_t bytes)
{
    if (dtx_nccl_of(comm)->work_bytes >= bytes)
        return DTX_OK;
    DTX_TRY(comm->ctx, queue->backend->queues->wait(queue)); /* the old one may be in use */
    return take_work(comm, bytes);
}

size_t dtx_comm_nccl_work_bytes(const struct dtx_backend *backend, int ranks, int64_t n, enum dtx_dtype dtype)
{
    if (ranks == 1 || !dtx_backend_collectives(backend))
        return 0;
    return (size_t)(ranks * dtx_div_up(n, ranks)) * dtx_dtype_bytes(dtype);
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
    const struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_nccl *nccl = &impl->run->nccl;
    int code = out_bytes ? nccl->send(out, (size_t)out_bytes, NCCL_BYTES, r, impl->handle, stream) : 0;
    if (in_bytes && !code)
        code = nccl->receive(in, (size_t)in_bytes, NCCL_BYTES, r, impl->handle, stream);
    return code;
}

/* Every rank's part `rank` of `from` (n elements) into work, one after another, then folded into `to`. */
static enum dtx_status fold_part(struct dtx_comm *comm, struct dtx_queue *queue, bool maximum, enum dtx_dtype dtype,
                                 int64_t n, const char *from, char *to)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_nccl *nccl = &impl->run->nccl;
    int64_t size = (int64_t)dtx_dtype_bytes(dtype), first = part_first(comm, n, comm->rank);
    int64_t mine = part_first(comm, n, comm->rank + 1) - first;
    void *stream = dtx_nccl_stream(comm, queue);
    DTX_TRY(comm->ctx,
            need_work(comm, queue, (int64_t)dtx_comm_nccl_work_bytes(impl->run->backend, comm->size, n, dtype)));
    char *work = impl->work;
    DTX_TRY(comm->ctx, copy(queue, work + comm->rank * mine * size, from + first * size, mine * size));
    int code = nccl->group_start();
    for (int r = 0; r < comm->size && !code; r++) {
        int64_t theirs = part_first(comm, n, r), count = part_first(comm, n, r + 1) - theirs;
        if (r != comm->rank)
            code = swap(comm, stream, r, from + theirs * size, count * size, work + r * mine * size, mine * size);
    }
    int end = nccl->group_end();
    DTX_TRY(comm->ctx, dtx_nccl_check(comm, code ? code : end, "exchange of parts"));
    comm->sent_bytes += (n - mine) * size;
    if (!mine)
        return DTX_OK;
    int rows = DTX_MUTANT(nccl_last_rank_lost) ? comm->size - 1 : comm->size;
    return impl->run->device->fold(queue, maximum, dtype, rows, mine, work, to);
}

/* Every rank's part to all, in place. */
static enum dtx_status share_parts(struct dtx_comm *comm, struct dtx_queue *queue, int64_t n, int64_t size, char *data)
{
    const struct dtx_nccl *nccl = &dtx_nccl_of(comm)->run->nccl;
    int64_t first = part_first(comm, n, comm->rank), mine = part_first(comm, n, comm->rank + 1) - first;
    void *stream = dtx_nccl_stream(comm, queue);
    int code = nccl->group_start();
    for (int r = 0; r < comm->size && !code; r++) {
        int64_t theirs = part_first(comm, n, r), count = part_first(comm, n, r + 1) - theirs;
        if (r != comm->rank)
            code = swap(comm, stream, r, data + first * size, mine * size, data + theirs * size, count * size);
    }
    int end = nccl->group_end();
    comm->sent_bytes += mine * size * (comm->size - 1);
    return dtx_nccl_check(comm, code ? code : end, "sharing parts");
}

static enum dtx_status reduce(struct dtx_comm *comm, bool maximum, struct dtx_queue *queue,
                              const struct dtx_tensor *tensor)
{
    int64_t n = dtx_tensor_count(tensor), size = (int64_t)dtx_dtype_bytes(tensor->dtype);
    if (n == 0 || comm->size == 1)
        return DTX_OK;
    char *data = tensor->data, *mine = data + part_first(comm, n, comm->rank) * size;
    DTX_TRY(comm->ctx, fold_part(comm, queue, maximum, tensor->dtype, n, data, mine));
    return share_parts(comm, queue, n, size, data);
}

/* What every collective between devices begins with, and ends with: the ledger's mark follows the stream. */
static enum dtx_status issued(struct dtx_comm *comm, struct dtx_queue *queue)
{
    return comm->size > 1 ? dtx_nccl_track(comm, &comm->mark, dtx_nccl_stream(comm, queue)) : DTX_OK;
}

static enum dtx_status nccl_all_reduce(struct dtx_comm *comm, bool maximum, struct dtx_queue *queue,
                                       const struct dtx_tensor *tensor)
{
    DTX_TRY(comm->ctx, dtx_nccl_ready(comm));
    DTX_TRY(comm->ctx, reduce(comm, maximum, queue, tensor));
    return issued(comm, queue);
}

static enum dtx_status nccl_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                           const struct dtx_tensor *tensor)
{
    if (dtx_nccl_on_host(comm, queue))
        return dtx_nccl_of(comm)->base->table->all_reduce_sum(dtx_nccl_of(comm)->base, queue, tensor);
    return nccl_all_reduce(comm, false, queue, tensor);
}

static enum dtx_status nccl_all_reduce_max(struct dtx_comm *comm, struct dtx_queue *queue,
                                           const struct dtx_tensor *tensor)
{
    if (dtx_nccl_on_host(comm, queue))
        return dtx_nccl_of(comm)->base->table->all_reduce_max(dtx_nccl_of(comm)->base, queue, tensor);
    return nccl_all_reduce(comm, true, queue, tensor);
}

static enum dtx_status nccl_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                               const struct dtx_tensor *in, const struct dtx_tensor *out)
{
    int64_t n = dtx_tensor_count(in);
    if (dtx_nccl_on_host(comm, queue))
        return dtx_nccl_of(comm)->base->table->reduce_scatter_sum(dtx_nccl_of(comm)->base, queue, in, out);
    DTX_TRY(comm->ctx, dtx_nccl_ready(comm));
    if (comm->size == 1)
        return copy(queue, out->data, in->data, (int64_t)dtx_tensor_bytes(in));
    if (n)
        DTX_TRY(comm->ctx, fold_part(comm, queue, false, in->dtype, n, in->data, out->data));
    return issued(comm, queue);
}

static enum dtx_status nccl_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                       const struct dtx_tensor *out)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    if (dtx_nccl_on_host(comm, queue))
        return impl->base->table->all_gather(impl->base, queue, in, out);
    int64_t bytes = (int64_t)dtx_tensor_bytes(in);
    if (bytes == 0)
        return DTX_OK;
    DTX_TRY(comm->ctx, dtx_nccl_ready(comm));
    comm->sent_bytes += bytes * (comm->size - 1);
    if (comm->size == 1)
        return copy(queue, out->data, in->data, bytes);
    int code = impl->run->nccl.all_gather(in->data, out->data, (size_t)bytes, NCCL_BYTES, impl->handle,
                                          dtx_nccl_stream(comm, queue));
    DTX_TRY(comm->ctx, dtx_nccl_check(comm, code, "all-gather"));
    return issued(comm, queue);
}

static enum dtx_status nccl_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                      int root)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    if (dtx_nccl_on_host(comm, queue))
        return impl->base->table->broadcast(impl->base, queue, tensor, root);
    size_t bytes = dtx_tensor_bytes(tensor);
    if (bytes == 0 || comm->size == 1)
        return DTX_OK;
    DTX_TRY(comm->ctx, dtx_nccl_ready(comm));
    comm->sent_bytes += comm->rank == root ? (int64_t)bytes * (comm->size - 1) : 0;
    int code = impl->run->nccl.broadcast(tensor->data, tensor->data, bytes, NCCL_BYTES, root, impl->handle,
                                         dtx_nccl_stream(comm, queue));
    DTX_TRY(comm->ctx, dtx_nccl_check(comm, code, "broadcast"));
    return issued(comm, queue);
}

static enum dtx_status nccl_async(struct dtx_comm *comm, int capacity)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_cuda_runtime *runtime = dtx_nccl_runtime(comm);
    void *events;
    if (impl->side)
        return DTX_OK;
    capacity = capacity > 0 ? capacity : 1;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, capacity, sizeof *impl->done, &events));
    impl->done = events;
    for (; impl->capacity < capacity; impl->capacity++)
        DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, runtime->event_create(&impl->done[impl->capacity], false),
                                               "creating an event"));
    DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, runtime->event_create(&impl->fork_event, false), "creating an event"));
    return impl->run->device->urgent_queue(impl->run->backend, &impl->side);
}

static enum dtx_status nccl_fork(struct dtx_comm *comm, struct dtx_queue *queue, struct dtx_queue **side)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_cuda_runtime *runtime = dtx_nccl_runtime(comm);
    *side = NULL;
    if (!impl->side || dtx_nccl_on_host(comm, queue))
        return DTX_OK;
    int code = runtime->event_record(impl->fork_event, dtx_nccl_stream(comm, queue));
    if (!code && !DTX_MUTANT(nccl_started_before_queue))
        code = runtime->event_await(dtx_nccl_stream(comm, impl->side), impl->fork_event);
    DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, code, "starting beside the queue"));
    impl->from = queue;
    *side = impl->side;
    return DTX_OK;
}

static enum dtx_status nccl_forked(struct dtx_comm *comm, int64_t *number)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    int code = dtx_nccl_runtime(comm)->event_record(impl->done[impl->forks % impl->capacity],
                                                    dtx_nccl_stream(comm, impl->side));
    *number = ++impl->forks;
    return dtx_nccl_check_cuda(comm, code, "starting beside the queue");
}

/* The queue waits, not the host. An event that was recorded again since is later than needed, which does no harm. */
static enum dtx_status nccl_join(struct dtx_comm *comm, int64_t number)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    bool all = number == 0;
    number = all ? impl->forks : number;
    if (number <= impl->joined || (all && DTX_MUTANT(nccl_plain_beside_started)))
        return DTX_OK;
    impl->joined = number;
    if (DTX_MUTANT(nccl_started_not_awaited))
        return DTX_OK;
    int code = dtx_nccl_runtime(comm)->event_await(dtx_nccl_stream(comm, impl->from),
                                                   impl->done[(number - 1) % impl->capacity]);
    return dtx_nccl_check_cuda(comm, code, "waiting for what was started");
}

static enum dtx_status nccl_barrier(struct dtx_comm *comm)
{
    return dtx_nccl_of(comm)->base->table->barrier(dtx_nccl_of(comm)->base);
}

static void nccl_abort(struct dtx_comm *comm, int exit_code)
{
    dtx_nccl_of(comm)->base->table->abort(dtx_nccl_of(comm)->base, exit_code);
}

static void leave_run(struct dtx_comm *comm)
{
    struct dtx_nccl_run *run = dtx_nccl_of(comm)->run;
    pthread_mutex_lock(&run->mutex);
    struct dtx_comm **at = &run->list;
    while (*at && *at != comm)
        at = &dtx_nccl_of(*at)->next;
    if (*at)
        *at = dtx_nccl_of(comm)->next;
    pthread_mutex_unlock(&run->mutex);
}

static void release_run(struct dtx_comm *comm, struct dtx_nccl_run *run)
{
    dtx_watch_beside_end(comm->watch, &run->beside);
    pthread_mutex_destroy(&run->mutex);
    dtx_mem_free(run);
}

/* NCCL's abort has freed the handle already. */
static void nccl_free(struct dtx_comm *comm)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_nccl_run *run = impl->run;
    const struct dtx_cuda_runtime *runtime = dtx_nccl_runtime(comm);
    leave_run(comm);
    run->backend->queues->free(impl->side);
    dtx_nccl_messages_free(comm);
    dtx_nccl_flights_free(comm);
    while (impl->capacity > 0)
        runtime->event_free(impl->done[--impl->capacity]);
    if (impl->fork_event)
        runtime->event_free(impl->fork_event);
    dtx_mem_free(impl->done);
    run->backend->memory->free(run->backend, impl->work);
    if (impl->handle && (!atomic_load(&run->stopped) || DTX_MUTANT(nccl_destroyed_after_abort)))
        run->nccl.destroy(impl->handle);
    if (impl->base_owned)
        impl->base->table->free(impl->base);
    if (impl->run_owned)
        release_run(comm, run);
    dtx_mem_free(impl);
    dtx_mem_free(comm);
}

static const struct dtx_comm_table nccl_table;

/* NCCL's own communicator for the ranks of base: rank 0 makes the id, MPI carries it. Collective. */
static enum dtx_status join(struct dtx_comm *comm)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_nccl_run *run = impl->run;
    struct nccl_id id = {{0}};
    struct nccl_config config = {sizeof config, (unsigned)NCCL_MAGIC, NCCL_CONFIG_VERSION, NCCL_UNSET,
                                 NCCL_UNSET,    NCCL_UNSET,           NCCL_CHANNELS,       NULL,
                                 NCCL_UNSET};
    struct dtx_tensor bytes = dtx_tensor_1d(&id, DTX_U8, sizeof id);
    int code = comm->rank == 0 ? run->nccl.unique_id(&id) : 0;
    DTX_TRY(comm->ctx, dtx_comm_agree(impl->base, dtx_nccl_check(comm, code, "making an id")));
    DTX_TRY(comm->ctx, impl->base->table->broadcast(impl->base, NULL, &bytes, 0));
    code = run->nccl.init(&impl->handle, comm->size, id, comm->rank, &config);
    DTX_TRY(comm->ctx, dtx_nccl_check(comm, code, "joining"));
    DTX_TRY(comm->ctx, dtx_nccl_flights_create(comm));
    DTX_TRY(comm->ctx,
            dtx_nccl_check_cuda(comm, dtx_nccl_runtime(comm)->stream_create(&impl->stream, true), "creating a stream"));
    pthread_mutex_lock(&run->mutex);
    impl->next = run->list;
    run->list = comm;
    pthread_mutex_unlock(&run->mutex);
    return DTX_OK;
}

/* Over base, whose ranks and name it takes. Collective. */
static enum dtx_status create(struct dtx_comm *base, struct dtx_nccl_run *run, struct dtx_comm **out)
{
    void *memory, *impl;
    DTX_TRY(base->ctx, dtx_mem_alloc(base->ctx, 1, sizeof(struct dtx_comm), &memory));
    enum dtx_status status = dtx_mem_alloc(base->ctx, 1, sizeof(struct dtx_nccl_comm), &impl);
    if (status != DTX_OK) {
        dtx_mem_free(memory);
        return status;
    }
    struct dtx_comm *comm = memory;
    *(struct dtx_nccl_comm *)impl = (struct dtx_nccl_comm){.base = base, .run = run};
    *comm = (struct dtx_comm){.table = &nccl_table,
                              .ctx = base->ctx,
                              .rank = base->rank,
                              .size = base->size,
                              .impl = impl,
                              .watch = base->watch,
                              .file = base->file,
                              .line = base->line};
    memcpy(comm->name, base->name, sizeof comm->name);
    pthread_mutex_init(&dtx_nccl_of(comm)->flights.mutex, NULL);
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
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_comm *base = NULL, *part = NULL;
    DTX_TRY(comm->ctx, impl->base->table->split(impl->base, color, key, name, &base));
    if (base) {
        enum dtx_status status = create(base, impl->run, &part);
        if (status != DTX_OK) {
            base->table->free(base);
            return status;
        }
        dtx_nccl_of(part)->base_owned = true;
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
    .send_start = dtx_nccl_send_start,
    .recv_start = dtx_nccl_recv_start,
    .wait = dtx_nccl_wait,
    .barrier = nccl_barrier,
    .split = nccl_split,
    .abort = nccl_abort,
    .free = nccl_free,
    .async = nccl_async,
    .fork = nccl_fork,
    .forked = nccl_forked,
    .join = nccl_join,
};

enum dtx_status dtx_comm_nccl_prepare(struct dtx_comm *comm, size_t bytes)
{
    if (comm->table != &nccl_table || dtx_nccl_of(comm)->work_bytes >= (int64_t)bytes)
        return DTX_OK;
    return take_work(comm, (int64_t)bytes);
}

const struct dtx_comm *dtx_comm_nccl_base(const struct dtx_comm *comm)
{
    return comm->table == &nccl_table ? dtx_nccl_of(comm)->base : comm;
}

/* With its place in the ledger: a rank that does not come is missed. */
static enum dtx_status create_first(struct dtx_comm *base, struct dtx_nccl_run *run, struct dtx_comm **out)
{
    struct dtx_comm_call call;
    DTX_TRY(base->ctx, dtx_comm_begin(dtx_comm_at(base, DTX_HERE_FILE, __LINE__), DTX_LEDGER_SPLIT, NULL, -1, &call));
    struct dtx_ledger_mark mark = base->mark; /* create agrees over base */
    enum dtx_status status = create(base, run, out);
    base->mark = mark;
    return dtx_comm_end(base, &call, DTX_SPAN_COMM, status);
}

enum dtx_status dtx_comm_nccl_create(struct dtx_comm *base, struct dtx_backend *backend, struct dtx_comm **out)
{
    char why[256];
    void *memory;
    const struct dtx_collectives *device = dtx_backend_collectives(backend);
    *out = base;
    if (!device || base->size == 1)
        return DTX_OK;
    enum dtx_status status = dtx_mem_alloc(base->ctx, 1, sizeof(struct dtx_nccl_run), &memory);
    bool made = status == DTX_OK;
    status = dtx_comm_agree(base, status);
    if (status != DTX_OK) {
        dtx_mem_free(made ? memory : NULL);
        return status;
    }
    struct dtx_nccl_run *run = memory;
    run->device = device;
    run->backend = backend;
    run->beside = (struct dtx_watch_beside){.self = run, .look = dtx_nccl_look, .stop = dtx_nccl_stop};
    pthread_mutex_init(&run->mutex, NULL);
    if (!device->load(&run->nccl, why, sizeof why))
        status = dtx_fail(base->ctx, DTX_E_UNSUPPORTED,
                          "%d ranks on GPUs need NCCL: %s; install it, or use --device cpu", base->size, why);
    status = dtx_comm_agree(base, status);
    if (status == DTX_OK)
        status = create_first(base, run, out);
    if (status != DTX_OK) {
        pthread_mutex_destroy(&run->mutex);
        dtx_mem_free(run);
        return status;
    }
    dtx_nccl_of(*out)->run_owned = true;
    dtx_watch_join(*out, base, 0);
    dtx_watch_beside(base->watch, &run->beside);
    return DTX_OK;
}
