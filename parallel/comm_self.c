/* One rank without MPI: collectives copy at most, and there is nobody to send to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "parallel/comm.h"

static enum dtx_status self_reduce(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor)
{
    (void)comm, (void)queue, (void)tensor;
    return DTX_OK;
}

/* All-gather and reduce-scatter of one rank. */
static enum dtx_status self_copy(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                                 const struct dtx_tensor *out)
{
    (void)comm;
    if (in->data == out->data)
        return DTX_OK;
    if (queue)
        return queue->backend->memory->copy(queue, out->data, in->data, dtx_tensor_bytes(in));
    memcpy(out->data, in->data, dtx_tensor_bytes(in));
    return DTX_OK;
}

static enum dtx_status self_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                      int root)
{
    (void)comm, (void)queue, (void)tensor, (void)root;
    return DTX_OK;
}

static enum dtx_status self_message(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                    int peer, struct dtx_request *request)
{
    (void)queue, (void)tensor, (void)peer, (void)request;
    return dtx_fail(comm->ctx, DTX_E_UNSUPPORTED, "communicator '%s' has one rank: no messages", comm->name);
}

static enum dtx_status self_wait(struct dtx_request *request)
{
    (void)request;
    return DTX_OK;
}

static enum dtx_status self_barrier(struct dtx_comm *comm)
{
    (void)comm;
    return DTX_OK;
}

static enum dtx_status self_split(struct dtx_comm *comm, int color, int key, const char *name, struct dtx_comm **out)
{
    (void)key;
    struct dtx_comm *part = NULL;
    if (color >= 0) {
        DTX_TRY(comm->ctx, dtx_comm_self(comm->ctx, &part));
        snprintf(part->name, sizeof part->name, "%s", name);
    }
    *out = part;
    return DTX_OK;
}

static void self_abort(struct dtx_comm *comm, int exit_code)
{
    (void)comm;
    fflush(stdout);
    _Exit(exit_code);
}

static void self_free(struct dtx_comm *comm)
{
    dtx_mem_free(comm);
}

static const struct dtx_comm_table self_table = {
    .all_reduce_sum = self_reduce,
    .all_reduce_max = self_reduce,
    .reduce_scatter_sum = self_copy,
    .all_gather = self_copy,
    .broadcast = self_broadcast,
    .send_start = self_message,
    .recv_start = self_message,
    .wait = self_wait,
    .barrier = self_barrier,
    .split = self_split,
    .abort = self_abort,
    .free = self_free,
};

enum dtx_status dtx_comm_self(struct dtx_ctx *ctx, struct dtx_comm **out)
{
    void *p = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_comm), &p));
    struct dtx_comm *comm = p;
    *comm = (struct dtx_comm){.table = &self_table, .ctx = ctx, .name = "self", .size = 1};
    *out = comm;
    return DTX_OK;
}
