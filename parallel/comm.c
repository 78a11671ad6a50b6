#define DTX_COMM_FUNCTIONS /* callers stay those outside */
#include "parallel/comm.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"
#include "parallel/watch.h"

enum dtx_status dtx_comm_check_foldable(struct dtx_comm *comm, const struct dtx_tensor *tensor, const char *what)
{
    if (tensor->dtype == DTX_F32 || tensor->dtype == DTX_F64 || tensor->dtype == DTX_I64)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_RANGE, "%s on communicator '%s': dtype %s (f32, f64 and i64 can be)", what,
                    comm->name, dtx_dtype_name(tensor->dtype));
}

enum dtx_status dtx_comm_check_scatter(struct dtx_comm *comm, const struct dtx_tensor *in, const struct dtx_tensor *out)
{
    DTX_TRY(comm->ctx, dtx_comm_check_foldable(comm, in, "reduce-scatter sum"));
    if (in->dtype == out->dtype && dtx_tensor_count(in) == comm->size * dtx_tensor_count(out))
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_RANGE,
                    "reduce-scatter sum on communicator '%s': %lld %s into %lld %s on each of %d ranks", comm->name,
                    (long long)dtx_tensor_count(in), dtx_dtype_name(in->dtype), (long long)dtx_tensor_count(out),
                    dtx_dtype_name(out->dtype), comm->size);
}

enum dtx_status dtx_comm_check_gather(struct dtx_comm *comm, const struct dtx_tensor *in, const struct dtx_tensor *out)
{
    if (in->dtype == out->dtype && dtx_tensor_count(out) == comm->size * dtx_tensor_count(in))
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_RANGE, "all-gather on communicator '%s': %lld %s of %d ranks into %lld %s",
                    comm->name, (long long)dtx_tensor_count(in), dtx_dtype_name(in->dtype), comm->size,
                    (long long)dtx_tensor_count(out), dtx_dtype_name(out->dtype));
}

static enum dtx_status check_peer(struct dtx_comm *comm, int peer, const char *what)
{
    if (peer >= 0 && peer < comm->size)
        return DTX_OK;
    return dtx_fail(comm->ctx, DTX_E_RANGE, "%s on communicator '%s': rank %d of %d", what, comm->name, peer,
                    comm->size);
}

/* The ledger's entry of a collective or message, from the call on; none where nobody watches. tensor: NULL without. */
static struct dtx_ledger_mark note(const struct dtx_comm *comm, enum dtx_ledger_op op, const struct dtx_tensor *tensor,
                                   int peer)
{
    return dtx_ledger_begin(comm->page, op, tensor ? tensor->dtype : DTX_U8, tensor ? dtx_tensor_count(tensor) : 0,
                            peer, comm->file, comm->line);
}

enum dtx_status dtx_comm_begin(struct dtx_comm *comm, enum dtx_ledger_op op, const struct dtx_tensor *tensor, int root,
                               struct dtx_comm_call *out)
{
    *out = (struct dtx_comm_call){.op = op, .bytes = tensor ? (int64_t)dtx_tensor_bytes(tensor) : 0};
    out->number = comm->calls++;
    out->time = comm->size > 1 ? dtx_trace_begin(comm->ctx, dtx_ledger_op_name(op)) : 0;
    out->since = comm->size > 1 ? dtx_clock_now() : 0;
    comm->mark = note(comm, op, tensor, root);
    return dtx_watch_compare(comm, comm->mark);
}

enum dtx_status dtx_comm_end(struct dtx_comm *comm, const struct dtx_comm_call *call, enum dtx_span_kind kind,
                             enum dtx_status status)
{
    dtx_ledger_finish(comm->mark, status == DTX_OK);
    comm->mark = (struct dtx_ledger_mark){NULL, 0};
    comm->ctx->waited += comm->size > 1 ? dtx_clock_now() - call->since : 0;
    if (comm->size > 1)
        dtx_trace_end(comm->ctx, call->time, kind, comm->name, dtx_ledger_op_name(call->op), call->number, call->bytes);
    return status;
}

/* A plain collective comes after everything that was started. */
static enum dtx_status begin(struct dtx_comm *comm, enum dtx_ledger_op op, const struct dtx_tensor *tensor, int root,
                             struct dtx_comm_call *out)
{
    DTX_TRY(comm->ctx, dtx_comm_idle(comm));
    if (comm->pace && atomic_load(&comm->pace->stop))
        dtx_comm_park(comm->pace);
    return dtx_comm_begin(comm, op, tensor, root, out);
}

/* What a helper does on a communicator that was lent to it keeps nobody from computing. */
static enum dtx_span_kind own_span(const struct dtx_comm *comm)
{
    return comm->pace ? DTX_SPAN_STARTED : DTX_SPAN_COMM;
}

static enum dtx_status end(struct dtx_comm *comm, const struct dtx_comm_call *call, enum dtx_status status)
{
    return dtx_comm_end(comm, call, own_span(comm), status);
}

enum dtx_status dtx_comm_all_reduce_sum(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, dtx_comm_check_foldable(comm, tensor, "all-reduce sum"));
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_ALL_REDUCE_SUM, tensor, -1, &call));
    return end(comm, &call, comm->table->all_reduce_sum(comm, queue, tensor));
}

enum dtx_status dtx_comm_all_reduce_max(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, dtx_comm_check_foldable(comm, tensor, "all-reduce max"));
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_ALL_REDUCE_MAX, tensor, -1, &call));
    if (DTX_MUTANT(all_reduce_max_is_sum))
        return end(comm, &call, comm->table->all_reduce_sum(comm, queue, tensor));
    return end(comm, &call, comm->table->all_reduce_max(comm, queue, tensor));
}

enum dtx_status dtx_comm_reduce_scatter_sum(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                            const struct dtx_tensor *out)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, dtx_comm_check_scatter(comm, in, out));
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_REDUCE_SCATTER, in, -1, &call));
    return end(comm, &call, comm->table->reduce_scatter_sum(comm, queue, in, out));
}

enum dtx_status dtx_comm_all_gather(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                    const struct dtx_tensor *out)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, dtx_comm_check_gather(comm, in, out));
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_ALL_GATHER, in, -1, &call));
    return end(comm, &call, comm->table->all_gather(comm, queue, in, out));
}

enum dtx_status dtx_comm_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                   int root)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, check_peer(comm, root, "broadcast"));
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_BROADCAST, tensor, root, &call));
    return end(comm, &call, comm->table->broadcast(comm, queue, tensor, root));
}

enum dtx_status dtx_comm_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request)
{
    DTX_TRY(comm->ctx, check_peer(comm, peer, "send"));
    struct dtx_ledger_mark mark = note(comm, DTX_LEDGER_SEND, tensor, peer);
    DTX_TRY(comm->ctx, comm->table->send_start(comm, queue, tensor, peer, request));
    request->mark = mark;
    return DTX_OK;
}

enum dtx_status dtx_comm_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request)
{
    DTX_TRY(comm->ctx, check_peer(comm, peer, "receive"));
    struct dtx_ledger_mark mark = note(comm, DTX_LEDGER_RECEIVE, tensor, peer);
    DTX_TRY(comm->ctx, comm->table->recv_start(comm, queue, tensor, peer, request));
    request->mark = mark;
    return DTX_OK;
}

enum dtx_status dtx_comm_wait(struct dtx_request *request)
{
    struct dtx_comm *comm = request->comm; /* the wait takes the request apart */
    double time = dtx_trace_begin(comm->ctx, "wait for message"), since = dtx_clock_now();
    dtx_ledger_wait(request->mark);
    enum dtx_status status = comm->table->wait(request);
    dtx_ledger_finish(request->mark, status == DTX_OK);
    comm->ctx->waited += dtx_clock_now() - since;
    dtx_trace_end(comm->ctx, time, own_span(comm), comm->name, "wait for message", comm->calls - 1, 0);
    return status;
}

enum dtx_status dtx_comm_barrier(struct dtx_comm *comm)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_BARRIER, NULL, -1, &call));
    return end(comm, &call, comm->table->barrier(comm));
}

enum dtx_status dtx_comm_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out)
{
    struct dtx_comm_call call;
    DTX_TRY(comm->ctx, begin(comm, DTX_LEDGER_SPLIT, NULL, -1, &call));
    DTX_TRY(comm->ctx, end(comm, &call, comm->table->split(comm, color, key, name, out)));
    dtx_watch_join(*out, comm, color);
    return DTX_OK;
}

void dtx_comm_free(struct dtx_comm *comm)
{
    if (!comm)
        return;
    dtx_comm_idle(comm); /* a failure was somebody's who waited */
    dtx_comm_halt(comm);
    dtx_ledger_close_page(comm->page);
    dtx_mem_free(comm->said);
    dtx_mem_free(comm->pace);
    comm->table->free(comm);
}

void dtx_comm_abort(struct dtx_comm *comm, int exit_code)
{
    dtx_watch_leave(comm);
    comm->table->abort(comm, exit_code);
}

enum dtx_status dtx_comm_broadcast_bytes(struct dtx_comm *comm, void *data, int64_t bytes, int root)
{
    struct dtx_tensor t = dtx_tensor_1d(data, DTX_U8, bytes);
    return dtx_comm_broadcast(comm, NULL, &t, root);
}

enum dtx_status dtx_comm_gather_bytes(struct dtx_comm *comm, const void *data, int64_t bytes, void *all)
{
    struct dtx_tensor in = dtx_tensor_1d((void *)data, DTX_U8, bytes),
                      out = dtx_tensor_1d(all, DTX_U8, comm->size * bytes);
    return dtx_comm_all_gather(comm, NULL, &in, &out);
}

/* Each list with as much room as the longest needs, then moved together. */
enum dtx_status dtx_comm_gather_lists(struct dtx_comm *comm, const void *mine, int64_t n, size_t element_bytes,
                                      void **all, int64_t *total)
{
    struct dtx_ctx *ctx = comm->ctx;
    int64_t most = 0, filled = 0, bytes = (int64_t)element_bytes;
    void *counts = NULL, *padded = NULL, *lists = NULL;
    enum dtx_status status = dtx_mem_alloc(ctx, comm->size, sizeof(int64_t), &counts);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(comm, status), done);
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(comm, &n, sizeof n, counts), done);
    for (int r = 0; r < comm->size; r++)
        most = dtx_max64(most, ((int64_t *)counts)[r]);
    status = dtx_mem_alloc(ctx, most, element_bytes, &padded);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, most * comm->size, element_bytes, &lists);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(comm, status), done);
    if (n)
        memcpy(padded, mine, (size_t)n * element_bytes);
    DTX_TRY_GOTO(ctx, status, dtx_comm_gather_bytes(comm, padded, most * bytes, lists), done);
    for (int r = 0; r < comm->size; r++) {
        int64_t count = ((int64_t *)counts)[r];
        if (count)
            memmove((char *)lists + filled * bytes, (char *)lists + r * most * bytes, (size_t)(count * bytes));
        filled += count;
    }
    *all = lists;
    *total = filled;
    lists = NULL;
done:
    dtx_mem_free(counts);
    dtx_mem_free(padded);
    dtx_mem_free(lists);
    return status;
}

enum dtx_status dtx_comm_broadcast_text(struct dtx_comm *comm, char **text, int root)
{
    int64_t bytes = comm->rank == root ? (int64_t)strlen(*text) + 1 : 0;
    DTX_TRY(comm->ctx, dtx_comm_broadcast_bytes(comm, &bytes, sizeof bytes, root));
    void *copy = *text;
    if (comm->rank != root)
        DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, bytes, 1, &copy));
    enum dtx_status status = dtx_comm_broadcast_bytes(comm, copy, bytes, root);
    if (status == DTX_OK)
        *text = copy;
    else if (comm->rank != root)
        dtx_mem_free(copy);
    return status;
}

/* Beside a status: the rank only heard of another's failure, in an agreement before this one. */
enum { SECOND_HAND = 1 << 16 };

/* Which failure counts for more: a rank's own, then one it heard of, then the wish to be requeued. */
static int weight_of(int32_t status)
{
    if (status == DTX_OK)
        return 0;
    if (status == DTX_E_REQUEUE)
        return 1;
    return status & SECOND_HAND ? 2 : 3;
}

/* The lowest rank whose failure counts most, or −1; *failed: ranks with a failure of their own. */
static int failing_rank(const int32_t *statuses, int size, int *failed)
{
    int found = -1, most = 0;
    *failed = 0;
    for (int r = 0; r < size; r++) {
        int weight = weight_of(statuses[r]);
        *failed += weight == 3;
        if (weight > most) {
            most = weight;
            found = r;
        }
    }
    return found;
}

struct report {
    char host[64];
    char text[DTX_ERROR_TEXT];
};

/* Takes over the report of rank `from`; the rank itself notes how many others failed. */
static enum dtx_status share_report(struct dtx_comm *comm, enum dtx_status status, int from, int failed)
{
    struct dtx_ctx *ctx = comm->ctx;
    struct report report = {{0}, {0}};
    if (comm->rank == from) {
        if (ctx->error.status == DTX_OK)
            snprintf(ctx->error.text, sizeof ctx->error.text, "%s", dtx_status_name(status));
        ctx->error.status = status;
        snprintf(report.host, sizeof report.host, "%s", ctx->host);
        snprintf(report.text, sizeof report.text, "%s", ctx->error.text);
    }
    DTX_TRY(ctx, dtx_comm_broadcast_bytes(comm, &report, sizeof report, from));
    if (comm->rank == from) {
        size_t used = strlen(ctx->error.text);
        if (failed > 1)
            snprintf(ctx->error.text + used, sizeof ctx->error.text - used, " (%d of %d ranks failed)", failed,
                     comm->size);
        return status;
    }
    dtx_error_clear(ctx);
    dtx_fail(ctx, DTX_E_PEER, "rank %d (%s): %.*s", from, report.host, DTX_ERROR_TEXT - 128, report.text);
    return status;
}

enum dtx_status dtx_comm_agree(struct dtx_comm *comm, enum dtx_status status)
{
    if (comm->size == 1)
        return status;
    struct dtx_ctx *ctx = comm->ctx;
    int32_t mine = DTX_MUTANT(agree_ignores_failure) ? DTX_OK : (int32_t)status;
    if (mine != DTX_OK && ctx->error.status == DTX_E_PEER)
        mine |= SECOND_HAND;
    void *statuses = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, comm->size, sizeof mine, &statuses));
    enum dtx_status done = dtx_comm_gather_bytes(comm, &mine, sizeof mine, statuses);
    int failed, from = -1;
    if (done == DTX_OK) {
        from = failing_rank(statuses, comm->size, &failed);
        if (from >= 0)
            done = share_report(comm, (enum dtx_status)(((int32_t *)statuses)[from] & ~SECOND_HAND), from, failed);
    }
    dtx_mem_free(statuses);
    return done;
}
