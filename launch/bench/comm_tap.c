#include "launch/bench/comm_tap.h"

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_queue.h"

enum { MOST = DTX_AXES + 10 };

struct tapped {
    struct dtx_comm_table table; /* first: a communicator's pointer to it is the way back here */
    const struct dtx_comm_table *inner;
    struct dtx_comm *comm;
    int64_t sent_before;
    struct dtx_comm_tap_row row;
};

struct dtx_comm_tap {
    int n;
    struct tapped tapped[MOST];
    struct dtx_comm_tap_row rows[MOST];
};

static struct tapped *tapped_of(const struct dtx_comm *comm)
{
    return (struct tapped *)(uintptr_t)comm->table;
}

static enum dtx_status count(struct tapped *t, double start, enum dtx_status status)
{
    t->row.seconds += dtx_clock_now() - start;
    t->row.calls++;
    return status;
}

#define TAP(comm, call)                                                                                                \
    do {                                                                                                               \
        struct tapped *tapped = tapped_of(comm);                                                                       \
        double start = dtx_clock_now();                                                                                \
        enum dtx_status status = tapped->inner->call;                                                                  \
        return count(tapped, start, status);                                                                           \
    } while (0)

static enum dtx_status tap_all_reduce_sum(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *t)
{
    TAP(c, all_reduce_sum(c, q, t));
}

static enum dtx_status tap_all_reduce_max(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *t)
{
    TAP(c, all_reduce_max(c, q, t));
}

static enum dtx_status tap_reduce_scatter_sum(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *in,
                                              const struct dtx_tensor *out)
{
    TAP(c, reduce_scatter_sum(c, q, in, out));
}

static enum dtx_status tap_all_gather(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *in,
                                      const struct dtx_tensor *out)
{
    TAP(c, all_gather(c, q, in, out));
}

static enum dtx_status tap_broadcast(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *t, int root)
{
    TAP(c, broadcast(c, q, t, root));
}

static enum dtx_status tap_send_start(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *t, int peer,
                                      struct dtx_request *request)
{
    TAP(c, send_start(c, q, t, peer, request));
}

static enum dtx_status tap_recv_start(struct dtx_comm *c, struct dtx_queue *q, const struct dtx_tensor *t, int peer,
                                      struct dtx_request *request)
{
    TAP(c, recv_start(c, q, t, peer, request));
}

static enum dtx_status tap_wait(struct dtx_request *request)
{
    TAP(request->comm, wait(request));
}

/* Barriers stay uncounted: a step has none, and those around it are no part of it. */
static void tap(struct dtx_comm_tap *tap, struct dtx_comm *comm)
{
    if (!comm || comm->size == 1)
        return;
    struct tapped *t = &tap->tapped[tap->n++];
    *t = (struct tapped){.table = *comm->table,
                         .inner = comm->table,
                         .comm = comm,
                         .sent_before = comm->sent_bytes,
                         .row.name = comm->name};
    t->table.all_reduce_sum = tap_all_reduce_sum;
    t->table.all_reduce_max = tap_all_reduce_max;
    t->table.reduce_scatter_sum = tap_reduce_scatter_sum;
    t->table.all_gather = tap_all_gather;
    t->table.broadcast = tap_broadcast;
    t->table.send_start = tap_send_start;
    t->table.recv_start = tap_recv_start;
    t->table.wait = tap_wait;
    comm->table = &t->table;
}

enum dtx_status dtx_comm_tap_open(struct dtx_ctx *ctx, const struct dtx_mesh *mesh, struct dtx_comm_tap **out)
{
    struct dtx_comm *const others[] = {mesh->world,       mesh->control,      mesh->forward_in,   mesh->forward_out,
                                       mesh->backward_in, mesh->backward_out, mesh->wrap_forward, mesh->wrap_backward,
                                       mesh->tied,        mesh->grads};
    void *memory;
    _Static_assert(DTX_AXES + sizeof others / sizeof *others == MOST, "room for every communicator of a mesh");
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_comm_tap), &memory));
    struct dtx_comm_tap *all = memory;
    dtx_comm_idle(mesh->grads); /* a failure is told by whoever waits */
    for (int a = 0; a < DTX_AXES; a++)
        tap(all, mesh->axis[a]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        tap(all, others[i]);
    *out = all;
    return DTX_OK;
}

void dtx_comm_tap_close(struct dtx_comm_tap *tap)
{
    for (int i = 0; tap && i < tap->n; i++) {
        dtx_comm_idle(tap->tapped[i].comm);
        tap->tapped[i].comm->table = tap->tapped[i].inner;
    }
    dtx_mem_free(tap);
}

const struct dtx_comm_tap_row *dtx_comm_tap_rows(struct dtx_comm_tap *tap, int *n)
{
    for (int i = 0; i < tap->n; i++) {
        dtx_comm_idle(tap->tapped[i].comm);
        tap->rows[i] = tap->tapped[i].row;
        tap->rows[i].sent_bytes = tap->tapped[i].comm->sent_bytes;
        if (!DTX_MUTANT(bench_bytes_of_all_steps))
            tap->rows[i].sent_bytes -= tap->tapped[i].sent_before;
    }
    *n = tap->n;
    return tap->rows;
}

double dtx_comm_tap_seconds(struct dtx_comm_tap *tap)
{
    double seconds = 0;
    for (int i = 0; i < tap->n; i++)
        if (!tap->tapped[i].comm->thread)
            seconds += tap->tapped[i].row.seconds;
    return seconds;
}
