/* A progress thread per communicator that wants one, and its ring of collectives. */
#define DTX_COMM_FUNCTIONS /* callers stay those outside */
#include "parallel/comm_queue.h"

#include <pthread.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"

struct task {
    enum dtx_ledger_op kind;
    struct dtx_tensor in, out;
    int64_t number;   /* among the communicator's collectives */
    const char *file; /* who started it */
    int line;
};

struct dtx_comm_thread {
    pthread_t thread;
    struct dtx_comm *owner;
    struct dtx_comm comm; /* the owner with the thread's context: what the collectives are called on */
    struct dtx_ctx ctx;
    struct dtx_comm_pace pace;
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t work, finished;
    struct task *ring; /* collective n lies at n mod capacity, n from 0 */
    int capacity;
    int64_t started, done;
    int64_t sent, taken; /* bytes that were sent; that the owner has counted */
    enum dtx_status status;
    bool quit;
};

static enum dtx_status call(struct dtx_comm *comm, struct dtx_queue *queue, const struct task *task)
{
    switch (task->kind) {
    case DTX_LEDGER_ALL_REDUCE_SUM:
        return comm->table->all_reduce_sum(comm, queue, &task->in);
    case DTX_LEDGER_REDUCE_SCATTER:
        return comm->table->reduce_scatter_sum(comm, queue, &task->in, &task->out);
    default:
        return comm->table->all_gather(comm, queue, &task->in, &task->out);
    }
}

/* A collective with its place in the ledger and its span in the trace. */
static enum dtx_status perform(struct dtx_comm *comm, struct dtx_queue *queue, const struct task *task,
                               enum dtx_span_kind kind)
{
    struct dtx_comm_call record;
    comm->calls = task->number;
    comm->file = task->file;
    comm->line = task->line;
    DTX_TRY(comm->ctx, dtx_comm_begin(comm, task->kind, &task->in, -1, &record));
    return dtx_comm_end(comm, &record, kind, call(comm, queue, task));
}

static void *run_thread(void *argument)
{
    struct dtx_comm_thread *t = argument;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (t->done == t->started && !t->quit)
            pthread_cond_wait(&t->work, &t->mutex);
        if (t->quit)
            break;
        enum dtx_status status = t->status;
        struct task task = t->ring[t->done % t->capacity];
        t->ctx.trace = t->owner->ctx->trace;
        t->comm.table = t->owner->table;
        pthread_mutex_unlock(&t->mutex);
        if (status == DTX_OK)
            status = perform(&t->comm, NULL, &task, DTX_SPAN_STARTED);
        pthread_mutex_lock(&t->mutex);
        t->status = status;
        t->sent = t->comm.sent_bytes;
        t->done++;
        pthread_cond_signal(&t->finished);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

enum dtx_status dtx_comm_async(struct dtx_comm *comm, int capacity)
{
    if (comm->size == 1 || comm->thread)
        return DTX_OK;
    if (comm->table->async)
        return comm->table->async(comm, capacity);
    void *p, *ring;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 1, sizeof(struct dtx_comm_thread), &p));
    struct dtx_comm_thread *t = p;
    enum dtx_status status = dtx_mem_alloc(comm->ctx, capacity, sizeof *t->ring, &ring);
    if (status != DTX_OK) {
        dtx_mem_free(t);
        return status;
    }
    t->owner = comm;
    t->ring = ring;
    t->capacity = capacity;
    dtx_ctx_init_child(&t->ctx, comm->ctx);
    t->comm = *comm;
    t->comm.ctx = &t->ctx;
    t->comm.pace = &t->pace;
    t->comm.sent_bytes = 0;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->finished, NULL);
    int code = pthread_create(&t->thread, NULL, run_thread, t);
    if (code != 0) {
        dtx_mem_free(t->ring);
        dtx_mem_free(t);
        return dtx_fail(comm->ctx, DTX_E_IO,
                        "communicator '%s': the system gives no further thread (error %d); raise the limit of "
                        "processes, or set comm.overlap false",
                        comm->name, code);
    }
    comm->thread = t;
    return DTX_OK;
}

/* With the mutex held: until `number` collectives are done. */
static enum dtx_status wait_for(struct dtx_comm_thread *t, int64_t number)
{
    struct dtx_comm *comm = t->owner;
    if (t->done < number) {
        double begin = dtx_trace_begin(comm->ctx, "wait"), since = dtx_clock_now();
        atomic_store(&t->pace.hurry, true);
        while (t->done < number)
            pthread_cond_wait(&t->finished, &t->mutex);
        atomic_store(&t->pace.hurry, false);
        comm->ctx->waited += dtx_clock_now() - since;
        dtx_trace_end(comm->ctx, begin, DTX_SPAN_WAIT, "compute", "wait", number - 1, 0);
    }
    comm->sent_bytes += t->sent - t->taken;
    t->taken = t->sent;
    if (t->status != DTX_OK && comm->ctx->error.status == DTX_OK)
        comm->ctx->error = t->ctx.error; /* the thread does nothing more, so its report stays as it is */
    return t->status;
}

/* Without a thread: beside the queue where the transport can, else on it. */
static enum dtx_status submit(struct dtx_comm *comm, struct dtx_queue *queue, const struct task *task,
                              struct dtx_event *event)
{
    struct dtx_queue *side = NULL;
    int64_t number;
    if (comm->table->fork)
        DTX_TRY(comm->ctx, comm->table->fork(comm, queue, &side));
    if (!side)
        return perform(comm, queue, task, DTX_SPAN_COMM);
    DTX_TRY(comm->ctx, perform(comm, side, task, DTX_SPAN_STARTED));
    DTX_TRY(comm->ctx, comm->table->forked(comm, &number));
    *event = (struct dtx_event){comm, number};
    return DTX_OK;
}

/* Room for one more, then the task is the thread's. */
static enum dtx_status start(struct dtx_comm *comm, struct dtx_queue *queue, struct task task, struct dtx_event *event)
{
    struct dtx_comm_thread *t = comm->thread;
    *event = (struct dtx_event){0};
    task.number = comm->calls;
    task.file = comm->file;
    task.line = comm->line;
    if (!t)
        return submit(comm, queue, &task, event);
    comm->calls++;
    if (queue)
        DTX_TRY(comm->ctx, queue->backend->queues->wait(queue));
    pthread_mutex_lock(&t->mutex);
    enum dtx_status status = wait_for(t, t->started - t->capacity + 1);
    if (status == DTX_OK) {
        t->ring[t->started++ % t->capacity] = task;
        *event = (struct dtx_event){comm, t->started};
        pthread_cond_signal(&t->work);
    }
    pthread_mutex_unlock(&t->mutex);
    return status;
}

enum dtx_status dtx_comm_start_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                              const struct dtx_tensor *tensor, struct dtx_event *event)
{
    DTX_TRY(comm->ctx, dtx_comm_check_foldable(comm, tensor, "all-reduce sum"));
    return start(comm, queue, (struct task){.kind = DTX_LEDGER_ALL_REDUCE_SUM, .in = *tensor, .out = *tensor}, event);
}

enum dtx_status dtx_comm_start_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue,
                                                  const struct dtx_tensor *in, const struct dtx_tensor *out,
                                                  struct dtx_event *event)
{
    DTX_TRY(comm->ctx, dtx_comm_check_scatter(comm, in, out));
    return start(comm, queue, (struct task){.kind = DTX_LEDGER_REDUCE_SCATTER, .in = *in, .out = *out}, event);
}

enum dtx_status dtx_comm_start_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                          const struct dtx_tensor *out, struct dtx_event *event)
{
    DTX_TRY(comm->ctx, dtx_comm_check_gather(comm, in, out));
    return start(comm, queue, (struct task){.kind = DTX_LEDGER_ALL_GATHER, .in = *in, .out = *out}, event);
}

enum dtx_status dtx_event_wait(const struct dtx_event *event)
{
    if (!event->comm || DTX_MUTANT(event_not_waited))
        return DTX_OK;
    struct dtx_comm_thread *t = event->comm->thread;
    if (!t)
        return event->comm->table->join(event->comm, event->number);
    pthread_mutex_lock(&t->mutex);
    enum dtx_status status = wait_for(t, event->number);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

enum dtx_status dtx_comm_idle(struct dtx_comm *comm)
{
    struct dtx_comm_thread *t = comm->thread;
    if (!t)
        return comm->table->join ? comm->table->join(comm, 0) : DTX_OK;
    pthread_mutex_lock(&t->mutex);
    enum dtx_status status = wait_for(t, t->started);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

enum dtx_status dtx_comm_lend(struct dtx_comm *comm, struct dtx_ctx *helper)
{
    void *pace;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 1, sizeof *comm->pace, &pace));
    comm->pace = pace;
    comm->pace->lent = true;
    comm->ctx = helper;
    return DTX_OK;
}

void dtx_comm_park(struct dtx_comm_pace *pace)
{
    while (atomic_load(&pace->lent)) {
        atomic_store(&pace->parked, true);
        dtx_clock_sleep(1);
    }
}

/* A helper that is not in MPI just now, but at a disk, is left there. */
static void stop_helper(struct dtx_comm_pace *pace)
{
    atomic_store(&pace->stop, true);
    for (int i = 0; i < 100 && !atomic_load(&pace->parked); i++)
        dtx_clock_sleep(1e-3);
}

void dtx_comm_halt(struct dtx_comm *comm)
{
    if (comm && comm->pace)
        stop_helper(comm->pace);
    struct dtx_comm_thread *t = comm ? comm->thread : NULL;
    if (!t)
        return;
    atomic_store(&t->pace.stop, true);
    pthread_mutex_lock(&t->mutex);
    t->quit = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->mutex);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->finished);
    dtx_mem_free(t->ring);
    dtx_mem_free(t);
    comm->thread = NULL;
}
