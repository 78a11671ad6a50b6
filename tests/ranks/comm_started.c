/* test: label=ranks ranks=4 timeout=120 */
/*
 * Collectives that are started: the bits of plain ones, with a progress thread and without, more of them than the ring
 * holds, small and large, in pieces; waited for in any order; a plain collective comes after all that were started;
 * bytes are counted; a failure in the thread comes to every waiter with its report; halt leaves a collective that the
 * other ranks never join.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "parallel/comm_impl.h"
#include "tests/harness/rank_check.h"

enum { TASKS = 9, RING = 3, N = 6000 };

/* Large and small values of both signs: a sum depends on the order. */
static float rough(int rank, int task, int64_t i)
{
    uint64_t key[3] = {(uint64_t)rank, (uint64_t)task, (uint64_t)i}, h = dtx_hash(key, sizeof key, 9);
    return (float)ldexp((double)(int64_t)h / 4611686018427387904.0, (int)(h % 29) - 14);
}

/* Elements on each rank: a few, an odd number, many. */
static int64_t count_of(int task)
{
    return task % 3 == 0 ? 5 : task % 3 == 1 ? 1009 : N;
}

/* Task t into out[t]: all-reduce, reduce-scatter or all-gather in turn; plain ones with events NULL. */
static void begin(struct dtx_comm *comm, int t, float *in, float *out, struct dtx_event *event)
{
    int64_t n = count_of(t);
    struct dtx_tensor whole = dtx_tensor_1d(out, DTX_F32, n * comm->size), part = dtx_tensor_1d(in, DTX_F32, n);
    struct dtx_tensor all = dtx_tensor_1d(in, DTX_F32, n * comm->size), own = dtx_tensor_1d(out, DTX_F32, n);
    if (t % 3 == 0) {
        memcpy(out, in, (size_t)(n * comm->size) * sizeof *in);
        CHECK_OK(comm, event ? dtx_comm_start_all_reduce_sum(comm, NULL, &whole, event)
                             : dtx_comm_all_reduce_sum(comm, NULL, &whole));
    } else if (t % 3 == 1) {
        CHECK_OK(comm, event ? dtx_comm_start_reduce_scatter_sum(comm, NULL, &all, &own, event)
                             : dtx_comm_reduce_scatter_sum(comm, NULL, &all, &own));
    } else {
        CHECK_OK(comm, event ? dtx_comm_start_all_gather(comm, NULL, &part, &whole, event)
                             : dtx_comm_all_gather(comm, NULL, &part, &whole));
    }
}

static void check_bits(struct dtx_comm *world, const struct dtx_comm_options *options, bool thread)
{
    struct dtx_comm *comm;
    struct dtx_event event[TASKS];
    float *in[TASKS], *plain[TASKS], *started[TASKS];
    CHECK_OK(world, dtx_comm_split(world, 0, world->rank, "started", &comm));
    dtx_comm_mpi_set_options(comm, options);
    for (int t = 0; t < TASKS; t++) {
        in[t] = malloc(sizeof(float) * N * 4);
        plain[t] = calloc(N * 4, sizeof(float));
        started[t] = calloc(N * 4, sizeof(float));
        for (int64_t i = 0; i < count_of(t) * comm->size; i++)
            in[t][i] = rough(comm->rank, t, i);
        begin(comm, t, in[t], plain[t], NULL);
    }
    int64_t sent = comm->sent_bytes;
    if (thread)
        CHECK_OK(comm, dtx_comm_async(comm, RING));
    for (int round = 0; round < 3; round++) {
        for (int t = 0; t < TASKS; t++)
            begin(comm, t, in[t], started[t], &event[t]);
        if (round == 1) /* plain: after all others */
            CHECK_OK(comm, dtx_comm_barrier(comm));
        for (int k = 0; k < TASKS; k++) {
            int t = round == 2 ? k * 4 % TASKS : k;
            CHECK_OK(comm, dtx_event_wait(&event[t]));
            CHECK_THAT(comm, memcmp(plain[t], started[t], sizeof(float) * N * 4) == 0, "round %d, collective %d", round,
                       t);
        }
        CHECK_THAT(comm, comm->sent_bytes == (round + 2) * sent, "%lld bytes sent, a round is %lld",
                   (long long)comm->sent_bytes, (long long)sent);
        for (int t = 0; t < TASKS; t++)
            memset(started[t], 0, sizeof(float) * N * 4);
    }
    dtx_comm_free(comm);
    for (int t = 0; t < TASKS; t++) {
        free(in[t]);
        free(plain[t]);
        free(started[t]);
    }
}

static enum dtx_status broken(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *in,
                              const struct dtx_tensor *out)
{
    (void)queue, (void)in, (void)out;
    return dtx_fail(comm->ctx, DTX_E_LIBRARY, "the cable of '%s' is cut", comm->name);
}

/* The third of five fails: the two before are good, the others are not done, and everybody who waits is told. */
static void check_failure(struct dtx_comm *world)
{
    struct dtx_comm *comm;
    struct dtx_event event[5];
    float x[5][64], y[64];
    CHECK_OK(world, dtx_comm_split(world, 0, world->rank, "started", &comm));
    struct dtx_comm_table table = *comm->table;
    const struct dtx_comm_table *good = comm->table;
    table.reduce_scatter_sum = broken;
    comm->table = &table;
    CHECK_OK(comm, dtx_comm_async(comm, RING));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 64; k++)
            x[i][k] = (float)(i + 1);
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < 5 && status == DTX_OK; i++) {
        struct dtx_tensor t = dtx_tensor_1d(x[i], DTX_F32, 64), part = dtx_tensor_1d(y, DTX_F32, 64 / comm->size);
        status = i == 2 ? dtx_comm_start_reduce_scatter_sum(comm, NULL, &t, &part, &event[i])
                        : dtx_comm_start_all_reduce_sum(comm, NULL, &t, &event[i]);
    }
    CHECK(comm, status == DTX_OK || status == DTX_E_LIBRARY); /* the ring is short: a start may be told */
    CHECK(comm, dtx_comm_idle(comm) == DTX_E_LIBRARY && dtx_event_wait(&event[2]) == DTX_E_LIBRARY);
    CHECK(comm, strstr(comm->ctx->error.text, "the cable of 'started' is cut") != NULL);
    CHECK(comm, x[0][5] == (float)comm->size && x[1][5] == (float)(2 * comm->size) && x[3][5] == 4 && x[4][5] == 5);
    struct dtx_tensor t = dtx_tensor_1d(y, DTX_F32, 64);
    CHECK(comm, dtx_comm_all_reduce_sum(comm, NULL, &t) == DTX_E_LIBRARY);
    dtx_error_clear(comm->ctx);
    comm->table = good;
    dtx_comm_free(comm);
    dtx_error_clear(world->ctx);
}

/* Rank 0 never comes. */
static void check_halt(struct dtx_comm *world)
{
    struct dtx_comm *comm;
    struct dtx_event event;
    static float x[1 << 20];
    CHECK_OK(world, dtx_comm_split(world, 0, world->rank, "started", &comm));
    if (comm->rank > 0) {
        struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 1 << 20);
        CHECK_OK(comm, dtx_comm_async(comm, RING));
        CHECK_OK(comm, dtx_comm_start_all_reduce_sum(comm, NULL, &t, &event));
        dtx_clock_sleep(0.05);
        double start = dtx_clock_now();
        dtx_comm_halt(comm);
        CHECK_THAT(comm, dtx_clock_now() - start < 5, "it took %.1f s", dtx_clock_now() - start);
    }
    CHECK_OK(world, dtx_comm_barrier(world)); /* comm is left as it is */
}

static int test(struct dtx_comm *world)
{
    struct dtx_comm_options whole = dtx_comm_options_default(), pieces = whole;
    pieces.piece_bytes = 1000;
    pieces.small_bytes = 100;
    for (int thread = 0; thread < 2; thread++) {
        check_bits(world, &whole, thread);
        check_bits(world, &pieces, thread);
    }
    check_failure(world);
    check_halt(world);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
