/* Messages between GPUs: on a stream of their own, behind and before their queue's work by events. */
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl_impl.h"

static enum dtx_status message_take(struct dtx_comm *comm, struct dtx_nccl_message **out)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    if (impl->spare) {
        *out = impl->spare;
        impl->spare = (*out)->next;
        return DTX_OK;
    }
    void *memory;
    DTX_TRY(comm->ctx, dtx_mem_alloc(comm->ctx, 1, sizeof **out, &memory));
    struct dtx_nccl_message *m = memory;
    int code = dtx_nccl_runtime(comm)->event_create(&m->event, false);
    if (code) {
        dtx_mem_free(m);
        return dtx_nccl_check_cuda(comm, code, "creating an event");
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
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_cuda_runtime *runtime = dtx_nccl_runtime(comm);
    const struct dtx_nccl *nccl = &impl->run->nccl;
    struct dtx_nccl_message *first = impl->pending;
    impl->pending = NULL;
    DTX_TRY(comm->ctx, dtx_nccl_ready(comm));
    for (struct dtx_nccl_message *m = first; m; m = m->next)
        DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, runtime->event_await(impl->stream, m->event), "messages"));
    int code = nccl->group_start();
    for (struct dtx_nccl_message *m = first; m && !code; m = m->next)
        code = m->receive ? nccl->receive(m->data, m->bytes, NCCL_BYTES, m->peer, impl->handle, impl->stream)
                          : nccl->send(m->data, m->bytes, NCCL_BYTES, m->peer, impl->handle, impl->stream);
    int end = nccl->group_end();
    DTX_TRY(comm->ctx, dtx_nccl_check(comm, code ? code : end, "messages"));
    for (struct dtx_nccl_message *m = first; m; m = m->next) {
        m->issued = true;
        DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, runtime->event_record(m->event, impl->stream), "messages"));
    }
    return DTX_OK;
}

/* A send goes at once when no receive is pending, since the other rank may wait for it. Where ranks exchange on one
 * communicator, receives are started first, and all go together when the first is waited for. */
static enum dtx_status start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor, int peer,
                             bool receive, struct dtx_request *request)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_nccl_message *m, **last = &impl->pending;
    DTX_TRY(comm->ctx, message_take(comm, &m));
    *m = (struct dtx_nccl_message){.older = m->older,
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
    int code = DTX_MUTANT(nccl_send_before_queue)
                   ? 0
                   : dtx_nccl_runtime(comm)->event_record(m->event, dtx_nccl_stream(comm, queue));
    DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, code, receive ? "receive" : "send"));
    return alone && !receive ? issue(comm) : DTX_OK;
}

enum dtx_status dtx_nccl_send_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request)
{
    if (dtx_nccl_on_host(comm, queue))
        return dtx_nccl_of(comm)->base->table->send_start(dtx_nccl_of(comm)->base, queue, tensor, peer, request);
    return start(comm, queue, tensor, peer, false, request);
}

enum dtx_status dtx_nccl_recv_start(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request)
{
    if (dtx_nccl_on_host(comm, queue))
        return dtx_nccl_of(comm)->base->table->recv_start(dtx_nccl_of(comm)->base, queue, tensor, peer, request);
    return start(comm, queue, tensor, peer, true, request);
}

/* The queue waits, not the host. */
enum dtx_status dtx_nccl_wait(struct dtx_request *request)
{
    struct dtx_comm *comm = request->comm;
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    struct dtx_nccl_message *m = request->handle;
    if (!m->issued)
        DTX_TRY(comm->ctx, issue(comm));
    int code = DTX_MUTANT(nccl_message_not_awaited)
                   ? 0
                   : dtx_nccl_runtime(comm)->event_await(dtx_nccl_stream(comm, m->queue), m->event);
    m->next = impl->spare;
    impl->spare = m;
    request->handle = NULL;
    DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, code, "wait for a message"));
    return dtx_nccl_track(comm, &request->mark, impl->stream);
}

void dtx_nccl_messages_free(struct dtx_comm *comm)
{
    struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    const struct dtx_cuda_runtime *runtime = dtx_nccl_runtime(comm);
    if (impl->stream) {
        runtime->stream_wait(impl->stream);
        runtime->stream_free(impl->stream);
    }
    while (impl->made) {
        struct dtx_nccl_message *m = impl->made;
        impl->made = m->older;
        runtime->event_free(m->event);
        dtx_mem_free(m);
    }
}
