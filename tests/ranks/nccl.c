/* test: label=ranks ranks=4 timeout=120 */
/*
 * Communicators over NCCL, on its stand-in: every collective and message gives the bits of MPI's, whenever the streams'
 * work runs; a model on tensor, data, pipeline and context ranks trains as on one CPU rank.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/comm_nccl.h"
#include "parallel/comm_nccl_impl.h"
#include "parallel/comm_queue.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { MOST = 5003 };

/* The emulator's, or where there are four GPUs theirs. */
static const char *device(void)
{
    const char *name = getenv("DTX_TEST_DEVICE");
    return name ? name : "emu";
}

struct place {
    struct dtx_comm *mpi, *nccl;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
};

static void fill(enum dtx_dtype dtype, int64_t n, int rank, void *out)
{
    for (int64_t i = 0; i < n; i++) {
        double value = sin((double)(i * 7 + rank * 1000));
        if (dtype == DTX_F64)
            ((double *)out)[i] = value;
        else if (dtype == DTX_F32)
            ((float *)out)[i] = (float)value;
        else
            ((int64_t *)out)[i] = (int64_t)(value * 1e18) * 16; /* sums wrap */
    }
    if (dtype == DTX_F32 && n > 3 && rank == 2)
        ((float *)out)[3] = NAN;
}

static struct dtx_tensor on_device(struct place *p, enum dtx_dtype dtype, int64_t n, const void *host)
{
    struct dtx_tensor t = dtx_tensor_1d(NULL, dtype, n);
    CHECK_OK(p->mpi, dtx_tensor_alloc(p->backend, &t));
    CHECK_OK(p->mpi, dtx_tensor_set(p->queue, &t, host));
    return t;
}

/* What is on the device must be `must`. */
static void compare(struct place *p, struct dtx_tensor *t, const void *must, const char *what)
{
    void *got = malloc(dtx_tensor_bytes(t) + 1);
    CHECK_OK(p->mpi, dtx_tensor_get(p->queue, t, got));
    CHECK_THAT(p->mpi, memcmp(got, must, dtx_tensor_bytes(t)) == 0, "%s of %lld %s differs from MPI's", what,
               (long long)dtx_tensor_count(t), dtx_dtype_name(t->dtype));
    free(got);
    dtx_tensor_free(p->backend, t);
}

static void collectives(struct place *p, enum dtx_dtype dtype, int64_t n)
{
    static int64_t mine[MOST], host[MOST], gathered[4 * MOST];
    struct dtx_tensor h = dtx_tensor_1d(host, dtype, n), all = dtx_tensor_1d(gathered, dtype, 4 * n);
    fill(dtype, n, p->mpi->rank, mine);
    for (int maximum = 0; maximum < 2; maximum++) {
        struct dtx_tensor d = on_device(p, dtype, n, mine);
        memcpy(host, mine, sizeof host);
        if (maximum) {
            CHECK_OK(p->mpi, dtx_comm_all_reduce_max(p->nccl, p->queue, &d));
            CHECK_OK(p->mpi, dtx_comm_all_reduce_max(p->mpi, NULL, &h));
        } else {
            CHECK_OK(p->mpi, dtx_comm_all_reduce_sum(p->nccl, p->queue, &d));
            CHECK_OK(p->mpi, dtx_comm_all_reduce_sum(p->mpi, NULL, &h));
        }
        compare(p, &d, host, maximum ? "maximum" : "sum");
    }
    struct dtx_tensor in = on_device(p, dtype, n, mine), out = on_device(p, dtype, 4 * n, gathered);
    memcpy(host, mine, sizeof host);
    CHECK_OK(p->mpi, dtx_comm_all_gather(p->nccl, p->queue, &in, &out));
    CHECK_OK(p->mpi, dtx_comm_all_gather(p->mpi, NULL, &h, &all));
    compare(p, &out, gathered, "all-gather");
    CHECK_OK(p->mpi, dtx_comm_broadcast(p->nccl, p->queue, &in, 3));
    CHECK_OK(p->mpi, dtx_comm_broadcast(p->mpi, NULL, &h, 3));
    compare(p, &in, host, "broadcast");
    int64_t part = n / 4;
    struct dtx_tensor whole = dtx_tensor_1d(host, dtype, 4 * part), piece = dtx_tensor_1d(gathered, dtype, part);
    struct dtx_tensor from = on_device(p, dtype, 4 * part, mine), to = on_device(p, dtype, part, mine);
    memcpy(host, mine, sizeof host);
    CHECK_OK(p->mpi, dtx_comm_reduce_scatter_sum(p->nccl, p->queue, &from, &to));
    CHECK_OK(p->mpi, dtx_comm_reduce_scatter_sum(p->mpi, NULL, &whole, &piece));
    compare(p, &to, gathered, "reduce-scatter");
    dtx_tensor_free(p->backend, &from);
}

/* Around the ring: what is sent is made on the queue just before, what arrives is used just after. */
static void ring(struct place *p)
{
    float host[64], got[64];
    int next = (p->mpi->rank + 1) % p->mpi->size, before = (p->mpi->rank + p->mpi->size - 1) % p->mpi->size;
    for (int i = 0; i < 64; i++)
        host[i] = (float)(p->mpi->rank * 100 + i);
    struct dtx_tensor x = on_device(p, DTX_F32, 64, host), y = on_device(p, DTX_F32, 64, host);
    struct dtx_request send, receive;
    struct dtx_add_args twice = {.x = x, .y = x, .z = x, .alpha = 1}, again = {.x = y, .y = y, .z = y, .alpha = 1};
    CHECK_OK(p->mpi, dtx_add(p->queue, &twice));
    CHECK_OK(p->mpi, dtx_comm_recv_start(p->nccl, p->queue, &y, before, &receive));
    CHECK_OK(p->mpi, dtx_comm_send_start(p->nccl, p->queue, &x, next, &send));
    CHECK_OK(p->mpi, dtx_comm_wait(&receive));
    CHECK_OK(p->mpi, dtx_add(p->queue, &again));
    CHECK_OK(p->mpi, dtx_comm_wait(&send));
    CHECK_OK(p->mpi, dtx_tensor_get(p->queue, &y, got));
    for (int i = 0; i < 64; i++)
        CHECK_THAT(p->mpi, got[i] == 4 * (float)(before * 100 + i), "message: element %d is %g", i, (double)got[i]);
    dtx_tensor_free(p->backend, &x);
    dtx_tensor_free(p->backend, &y);
}

/* Sums that are started, and what the queue does before, meanwhile and after. */
static void started(struct place *p, struct dtx_comm *comm, bool late)
{
    enum { N = 1000, ROUNDS = 6 };
    float mine[N], must[N], got[N];
    struct dtx_tensor x[ROUNDS], plain;
    struct dtx_event event[ROUNDS];
    for (int i = 0; i < N; i++)
        mine[i] = (float)(comm->rank + 1) * (float)i;
    plain = on_device(p, DTX_F32, N, mine);
    for (int r = 0; r < ROUNDS; r++)
        x[r] = on_device(p, DTX_F32, N, mine);
    for (int r = 0; r < ROUNDS; r++) {
        struct dtx_add_args twice = {.x = x[r], .y = x[r], .z = x[r], .alpha = 1};
        CHECK_OK(p->mpi, dtx_add(p->queue, &twice)); /* what is started comes after it */
        CHECK_OK(p->mpi, dtx_comm_start_all_reduce_sum(comm, p->queue, &x[r], &event[r]));
    }
    CHECK_OK(p->mpi, p->backend->queues->wait(p->queue));
    if (late) /* device memory of the emulator is host memory: the queue has gone on without it */
        CHECK_THAT(p->mpi, ((float *)x[ROUNDS - 1].data)[5] == 2 * mine[5],
                   "the queue has waited for what was started");
    CHECK_OK(p->mpi, dtx_comm_all_reduce_sum(comm, p->queue, &plain)); /* after all that was started */
    float ranks = (float)(comm->size * (comm->size + 1) / 2);
    for (int r = 0; r < ROUNDS; r++) {
        CHECK_OK(p->mpi, dtx_event_wait(&event[r]));
        struct dtx_add_args twice = {.x = x[r], .y = x[r], .z = x[r], .alpha = 1};
        CHECK_OK(p->mpi, dtx_add(p->queue, &twice));
        CHECK_OK(p->mpi, dtx_tensor_get(p->queue, &x[r], got));
        for (int i = 0; i < N; i++)
            CHECK_THAT(p->mpi, got[i] == 4 * ranks * (float)i, "started sum %d: element %d is %g", r, i,
                       (double)got[i]);
        dtx_tensor_free(p->backend, &x[r]);
    }
    for (int i = 0; i < N; i++)
        must[i] = ranks * (float)i;
    compare(p, &plain, must, "a plain sum beside started ones");
    struct dtx_tensor part = on_device(p, DTX_F32, N / 4, mine), in = on_device(p, DTX_F32, N, mine),
                      out = on_device(p, DTX_F32, N, mine);
    CHECK_OK(p->mpi, dtx_comm_start_reduce_scatter_sum(comm, p->queue, &in, &part, &event[0]));
    CHECK_OK(p->mpi, dtx_comm_start_all_gather(comm, p->queue, &part, &out, &event[1]));
    CHECK_OK(p->mpi, dtx_event_wait(&event[1])); /* with all before it */
    compare(p, &out, must, "started reduce-scatter and all-gather");
    dtx_tensor_free(p->backend, &part);
    dtx_tensor_free(p->backend, &in);
}

static void exchanges(struct dtx_comm *world, const char *streams)
{
    static const int64_t counts[] = {1, 3, 4, 1000, MOST};
    struct place p = {.mpi = world};
    struct dtx_comm *pairs, *nccl;
    setenv("DTX_EMU_STREAMS", streams, 1);
    CHECK_OK(world, dtx_backend_open(world->ctx, device(), 1, 0, &p.backend));
    CHECK_OK(world, p.backend->queues->create(p.backend, &p.queue));
    CHECK_OK(world, dtx_comm_nccl_create(world, p.backend, &nccl));
    p.nccl = nccl;
    for (int i = 0; i < 5; i++) {
        collectives(&p, DTX_F64, counts[i]);
        collectives(&p, DTX_F32, counts[i]);
        collectives(&p, DTX_I64, counts[i]);
    }
    ring(&p);
    struct dtx_comm *overlapping;
    CHECK_OK(world, dtx_comm_split(nccl, 0, world->rank, "grads", &overlapping));
    started(&p, overlapping, false);
    CHECK_OK(world, dtx_comm_async(overlapping, 4));
    started(&p, overlapping, strcmp(streams, "late") == 0 && strcmp(device(), "emu") == 0);
    dtx_comm_free(overlapping);
    CHECK_OK(world, dtx_comm_split(nccl, world->rank % 2, world->rank, "pairs", &pairs));
    CHECK_THAT(world, pairs->size == 2 && pairs->rank == world->rank / 2, "split: rank %d of %d", pairs->rank,
               pairs->size);
    double one = world->rank, sum;
    struct dtx_tensor t = on_device(&p, DTX_F64, 1, &one);
    CHECK_OK(world, dtx_comm_all_reduce_sum(pairs, p.queue, &t));
    CHECK_OK(world, dtx_tensor_get(p.queue, &t, &sum));
    CHECK_THAT(world, sum == 2 * (world->rank % 2) + 2, "sum of a pair is %g", sum);
    dtx_tensor_free(p.backend, &t);
    dtx_comm_free(pairs);
    dtx_comm_free(nccl);
    p.backend->queues->free(p.queue);
    dtx_backend_close(p.backend);
    unsetenv("DTX_EMU_STREAMS");
}

/* NCCL frees what it aborts: the watch does not look at it again, nor is it destroyed. */
static void ended(struct dtx_comm *world)
{
    struct dtx_backend *backend;
    struct dtx_comm *nccl;
    char why[512] = "";
    CHECK_OK(world, dtx_backend_open(world->ctx, device(), 1, 0, &backend));
    CHECK_OK(world, dtx_comm_nccl_create(world, backend, &nccl));
    struct dtx_nccl_run *run = dtx_nccl_of(nccl)->run;
    CHECK_THAT(world, dtx_nccl_look(run, why, sizeof why), "%s", why);
    dtx_nccl_stop(run);
    CHECK_THAT(world, dtx_nccl_look(run, why, sizeof why), "%s", why);
    CHECK_THAT(world, dtx_nccl_ready(nccl) == DTX_E_LIBRARY, "a communicator that was ended takes work");
    dtx_error_clear(world->ctx);
    dtx_comm_free(nccl);
    dtx_backend_close(backend);
}

/* cp > 2: as a ring. */
static void training(struct dtx_comm *world, int tp, int pp, int dp, int cp, int zero, const char *streams)
{
    enum { STEPS = 2 };
    int64_t count, again;
    struct dtx_test_model m = dtx_test_model_default();
    m.dtype = DTX_F64;
    m.global_batch = 4;
    m.length = 16;
    double *one = dtx_test_numbers(world, &m, STEPS, &count);
    m.tp = tp;
    m.pp = pp;
    m.dp = dp;
    m.cp = cp;
    m.ring = cp > 2;
    m.zero = zero;
    m.device = device();
    setenv("DTX_EMU_STREAMS", streams, 1);
    double *many = dtx_test_numbers(world, &m, STEPS, &again);
    unsetenv("DTX_EMU_STREAMS");
    if (world->rank == 0) {
        CHECK_THAT(world, count == again, "%lld numbers, not %lld", (long long)again, (long long)count);
        for (int i = 0; i < STEPS; i++)
            CHECK_THAT(world, fabs(many[i] - one[i]) <= DTX_MESH_F64_LOSS * fabs(one[i]),
                       "tp %d pp %d dp %d cp %d zero %d, %s: loss %.15g, not %.15g", tp, pp, dp, cp, zero, streams,
                       many[i], one[i]);
        double apart = dtx_test_relative(many + STEPS, one + STEPS, count - STEPS);
        CHECK_THAT(world, apart <= DTX_MESH_F64_VALUE, "tp %d pp %d dp %d cp %d zero %d, %s: apart by %g", tp, pp, dp,
                   cp, zero, streams, apart);
    }
    free(one);
    free(many);
}

static int run(struct dtx_comm *world)
{
    exchanges(world, "now");
    exchanges(world, "late");
    exchanges(world, "random");
    training(world, 2, 1, 2, 1, 1, "late");
    training(world, 1, 2, 2, 1, 0, "random");
    training(world, 2, 2, 1, 1, 0, "late");
    training(world, 1, 1, 2, 2, 1, "now");
    training(world, 1, 1, 1, 4, 1, "late");
    ended(world);
    return 0;
}

int main(void)
{
    return rank_main(run);
}
