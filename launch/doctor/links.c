/* Clocks and the network: each node's clock beside rank 0's; all-reduce within a node and over all ranks; every node
 * with others in pairs, all pairs of a round at once, so that one bad link stands out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/doctor/preflight.h"

enum { ASKS = 8, PASSES = 3 };
static const int64_t first_bytes = 256 << 10, most_bytes = 32 << 20;

static enum dtx_status send_one(struct dtx_comm *comm, double value, int peer)
{
    struct dtx_tensor t = dtx_tensor_1d(&value, DTX_F64, 1);
    struct dtx_request request;
    DTX_TRY(comm->ctx, dtx_comm_send_start(comm, NULL, &t, peer, &request));
    return dtx_comm_wait(&request);
}

static enum dtx_status receive_one(struct dtx_comm *comm, double *value, int peer)
{
    struct dtx_tensor t = dtx_tensor_1d(value, DTX_F64, 1);
    struct dtx_request request;
    DTX_TRY(comm->ctx, dtx_comm_recv_start(comm, NULL, &t, peer, &request));
    return dtx_comm_wait(&request);
}

static enum dtx_status answer(struct dtx_preflight *p)
{
    double ignored;
    for (int i = 0; i < ASKS; i++) {
        DTX_TRY(p->ctx, receive_one(p->world, &ignored, 0));
        double now = dtx_clock_wall() + (DTX_MUTANT(doctor_clock_offset) && p->node == p->n_nodes - 1 ? 5 : 0);
        DTX_TRY(p->ctx, send_one(p->world, now, 0));
    }
    return DTX_OK;
}

/* The quickest of some questions says most: its answer lies half a round trip before it came. */
static enum dtx_status ask(struct dtx_preflight *p, int rank, double out[2])
{
    out[1] = INFINITY;
    for (int i = 0; i < ASKS; i++) {
        double there, before = dtx_clock_wall();
        DTX_TRY(p->ctx, send_one(p->world, before, rank));
        DTX_TRY(p->ctx, receive_one(p->world, &there, rank));
        double after = dtx_clock_wall();
        if ((after - before) / 2 >= out[1])
            continue;
        out[0] = there - (before + after) / 2;
        out[1] = (after - before) / 2;
    }
    return DTX_OK;
}

enum dtx_status dtx_preflight_clocks(struct dtx_preflight *p)
{
    void *memory;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, p->n_nodes, 2 * sizeof(double), &memory));
    double *all = memory; /* [nodes][2]: ahead of rank 0, error */
    enum dtx_status status = DTX_OK;
    if (p->world->rank == 0)
        for (int n = 1; n < p->n_nodes && status == DTX_OK; n++)
            status = ask(p, p->nodes[n].rank[0], &all[2 * n]);
    else if (p->local == 0)
        status = answer(p);
    if (status == DTX_OK)
        status = dtx_comm_broadcast_bytes(p->world, all, 2 * (int64_t)sizeof *all * p->n_nodes, 0);
    p->mine.clock = all[2 * p->node];
    p->mine.clock_error = all[2 * p->node + 1];
    dtx_mem_free(memory);
    return status;
}

/* Everybody meets everybody else once in n - 1 rounds (n even; one more that does not exist where n is odd). */
int dtx_preflight_partner(const struct dtx_preflight *p, int node, int round)
{
    int even = p->n_nodes + p->n_nodes % 2, turn = even - 1;
    if (even < 2)
        return node;
    int number = (int)((int64_t)round * turn / p->rounds); /* some of all rounds, far and near */
    int other = node == turn ? (int)((int64_t)number * (even / 2) % turn) : ((number - node) % turn + turn) % turn;
    if (node != turn && other == node)
        other = turn;
    return other < p->n_nodes ? other : node;
}

/* Both ways at once. */
static enum dtx_status exchange(struct dtx_preflight *p, const struct dtx_tensor *out, const struct dtx_tensor *in,
                                int peer, double *seconds)
{
    struct dtx_request requests[2];
    double begin = dtx_clock_now();
    DTX_TRY(p->ctx, dtx_comm_recv_start(p->world, NULL, in, peer, &requests[0]));
    DTX_TRY(p->ctx, dtx_comm_send_start(p->world, NULL, out, peer, &requests[1]));
    DTX_TRY(p->ctx, dtx_comm_wait(&requests[0]));
    DTX_TRY(p->ctx, dtx_comm_wait(&requests[1]));
    *seconds = dtx_clock_now() - begin;
    return DTX_OK;
}

/* Data that says who sent it and where it belongs. */
static void fill(unsigned char *data, int64_t bytes, int rank)
{
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((uint64_t)(i + rank) * 2654435761u >> 13);
}

static bool is_from(unsigned char *data, int64_t bytes, int rank)
{
    for (int64_t i = 0; i < bytes; i++)
        if (data[i] != (unsigned char)((uint64_t)(i + rank) * 2654435761u >> 13))
            return false;
    return true;
}

/* Bytes a second each way with a peer. buffers [2·most_bytes]. */
static enum dtx_status measure_link(struct dtx_preflight *p, int peer, unsigned char *buffers, double *speed)
{
    double seconds, theirs, best = INFINITY;
    struct dtx_tensor out = dtx_tensor_1d(buffers, DTX_U8, first_bytes), in = out;
    in.data = buffers + most_bytes;
    for (int i = 0; i < 2; i++) /* the first makes the connection */
        DTX_TRY(p->ctx, exchange(p, &out, &in, peer, &seconds));
    struct dtx_tensor mine = dtx_tensor_1d(&seconds, DTX_F64, 1), other = dtx_tensor_1d(&theirs, DTX_F64, 1);
    double ignored;
    DTX_TRY(p->ctx, exchange(p, &mine, &other, peer, &ignored));
    double wanted = (double)first_bytes / fmax(fmax(seconds, theirs), 1e-6) * p->seconds / 4 / PASSES;
    out.dim[0] = wanted > (double)most_bytes    ? most_bytes
                 : wanted < (double)first_bytes ? first_bytes
                                                : (int64_t)wanted;
    in.dim[0] = out.dim[0];
    for (int i = 0; i < PASSES; i++) {
        DTX_TRY(p->ctx, exchange(p, &out, &in, peer, &seconds));
        best = fmin(best, seconds);
    }
    *speed = (double)out.dim[0] / best;
    if (DTX_MUTANT(doctor_link_damages) && p->node == p->n_nodes - 1)
        buffers[most_bytes + 9] ^= 1;
    if (!is_from(in.data, in.dim[0], peer))
        dtx_preflight_note(p, dtx_fail(p->ctx, DTX_E_LIBRARY, "what rank %d (%s) sends does not arrive as it was sent",
                                       peer, p->ranks[peer].node));
    return DTX_OK;
}

static enum dtx_status measure_rounds(struct dtx_preflight *p, unsigned char *buffers)
{
    fill(buffers, most_bytes, p->world->rank);
    for (int round = 0; round < p->rounds; round++) {
        const struct dtx_preflight_node *other = &p->nodes[dtx_preflight_partner(p, p->node, round)];
        DTX_TRY(p->ctx, dtx_comm_barrier(p->world));
        if (other == &p->nodes[p->node] || p->local >= other->n)
            continue;
        DTX_TRY(p->ctx, measure_link(p, other->rank[p->local], buffers, &p->mine.link[round]));
        if (DTX_MUTANT(doctor_slow_link) && (p->node == p->n_nodes - 1 || other == &p->nodes[p->n_nodes - 1]))
            p->mine.link[round] /= 100;
    }
    return DTX_OK;
}

enum dtx_status dtx_preflight_links(struct dtx_preflight *p)
{
    void *buffers = NULL;
    double latency, speed = NAN;
    if (p->node_ranks->size > 1)
        DTX_TRY(p->ctx, dtx_measure_all_reduce(p->node_ranks, p->backend, p->seconds / 2, &speed, &latency));
    p->mine.value[DTX_PREFLIGHT_REDUCE] = p->local == 0 ? speed : NAN;
    int turns = p->n_nodes + p->n_nodes % 2 - 1;
    p->rounds = turns < DTX_PREFLIGHT_ROUNDS ? turns : DTX_PREFLIGHT_ROUNDS;
    p->rounds = p->n_nodes > 1 ? p->rounds : 0;
    p->reduce = p->reduce_one = NAN;
    if (p->rounds == 0)
        return DTX_OK;
    DTX_TRY(p->ctx, dtx_measure_all_reduce(p->world, p->backend, p->seconds / 2, &p->reduce, &p->reduce_one));
    enum dtx_status status = dtx_mem_alloc(p->ctx, 2 * most_bytes, 1, &buffers);
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    status = measure_rounds(p, buffers);
    dtx_mem_free(buffers);
    return status;
}
