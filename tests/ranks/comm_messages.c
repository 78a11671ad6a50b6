/* test: label=ranks ranks=4 timeout=60 */
/*
 * Gather, broadcast, messages, split, the control plane: every dtype, every root, in whole calls and in small pieces,
 * with synchronous sends; the queue is waited for; sizes that disagree are reported.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "parallel/comm_impl.h"
#include "tests/harness/host_backend.h"
#include "tests/harness/rank_check.h"

static const int64_t counts[] = {0, 1, 3, 5, 64, 97, 1031};
static const enum dtx_dtype dtypes[] = {DTX_F64, DTX_F32, DTX_BF16, DTX_I32, DTX_I64, DTX_U8};
enum { N_COUNTS = sizeof counts / sizeof *counts, N_DTYPES = sizeof dtypes / sizeof *dtypes };

static unsigned char byte_of(int rank, int64_t i)
{
    return (unsigned char)(i * 37 + rank * 101 + 11);
}

static void fill(void *data, int64_t bytes, int rank)
{
    for (int64_t i = 0; i < bytes; i++)
        ((unsigned char *)data)[i] = byte_of(rank, i);
}

static bool holds(const void *data, int64_t bytes, int rank)
{
    for (int64_t i = 0; i < bytes; i++)
        if (((const unsigned char *)data)[i] != byte_of(rank, i))
            return false;
    return true;
}

static void check_gather(struct dtx_comm *comm, struct dtx_queue *queue, enum dtx_dtype dtype, int64_t n)
{
    int64_t bytes = n * (int64_t)dtx_dtype_bytes(dtype), sent = comm->sent_bytes;
    char *in = malloc((size_t)bytes + 1), *out = malloc((size_t)(bytes * comm->size) + 1);
    fill(in, bytes, comm->rank);
    memset(out, 0, (size_t)(bytes * comm->size) + 1);
    struct dtx_tensor a = dtx_tensor_1d(in, dtype, n), b = dtx_tensor_2d(out, dtype, comm->size, n);
    CHECK_OK(comm, dtx_comm_all_gather(comm, queue, &a, &b));
    CHECK(comm, comm->sent_bytes - sent == bytes * (comm->size - 1));
    for (int r = 0; r < comm->size; r++)
        CHECK_THAT(comm, holds(out + r * bytes, bytes, r), "part %d of %lld bytes", r, (long long)bytes);
    CHECK(comm, out[bytes * comm->size] == 0);
    /* In place. */
    memset(out, 0, (size_t)(bytes * comm->size));
    fill(out + comm->rank * bytes, bytes, comm->rank);
    a.data = out + comm->rank * bytes;
    CHECK_OK(comm, dtx_comm_all_gather(comm, queue, &a, &b));
    for (int r = 0; r < comm->size; r++)
        CHECK_THAT(comm, holds(out + r * bytes, bytes, r), "in place, part %d of %lld bytes", r, (long long)bytes);
    free(in);
    free(out);
}

static void check_broadcast(struct dtx_comm *comm, struct dtx_queue *queue, enum dtx_dtype dtype, int64_t n)
{
    int64_t bytes = n * (int64_t)dtx_dtype_bytes(dtype);
    char *data = malloc((size_t)bytes + 1);
    struct dtx_tensor t = dtx_tensor_1d(data, dtype, n);
    for (int root = 0; root < comm->size; root++) {
        fill(data, bytes, comm->rank + 10);
        data[bytes] = 77;
        CHECK_OK(comm, dtx_comm_broadcast(comm, queue, &t, root));
        CHECK_THAT(comm, holds(data, bytes, root + 10), "root %d, %lld bytes", root, (long long)bytes);
        CHECK(comm, data[bytes] == 77);
    }
    free(data);
}

/* Around the ring, both ways at once, three messages under way each: order kept, nothing mixed up. */
static void check_ring(struct dtx_comm *comm, struct dtx_queue *queue, enum dtx_dtype dtype, int64_t n)
{
    enum { MESSAGES = 3 };
    int64_t bytes = n * (int64_t)dtx_dtype_bytes(dtype);
    int next = (comm->rank + 1) % comm->size, before = (comm->rank + comm->size - 1) % comm->size;
    char *out[MESSAGES], *in[MESSAGES];
    struct dtx_request sends[MESSAGES], receives[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        out[m] = malloc((size_t)bytes + 1);
        in[m] = calloc((size_t)bytes + 1, 1);
        fill(out[m], bytes, comm->rank * 10 + m);
        struct dtx_tensor t = dtx_tensor_1d(in[m], dtype, n);
        CHECK_OK(comm, dtx_comm_recv_start(comm, queue, &t, before, &receives[m]));
    }
    int64_t sent = comm->sent_bytes;
    for (int m = 0; m < MESSAGES; m++) {
        struct dtx_tensor t = dtx_tensor_1d(out[m], dtype, n);
        CHECK_OK(comm, dtx_comm_send_start(comm, queue, &t, next, &sends[m]));
    }
    CHECK(comm, comm->sent_bytes - sent == MESSAGES * bytes);
    for (int m = MESSAGES - 1; m >= 0; m--) {
        CHECK_OK(comm, dtx_comm_wait(&receives[m]));
        CHECK_THAT(comm, holds(in[m], bytes, before * 10 + m), "message %d of %lld bytes", m, (long long)bytes);
        CHECK(comm, in[m][bytes] == 0);
        CHECK_OK(comm, dtx_comm_wait(&sends[m]));
        free(out[m]);
        free(in[m]);
    }
}

/* A synchronous send completes no earlier than its receive is posted; waiting for it before would be a deadlock. */
static void check_synchronous(struct dtx_comm *comm)
{
    double pause = 0.2, begin = dtx_clock_now();
    char data = 5;
    struct dtx_tensor t = dtx_tensor_1d(&data, DTX_U8, 1);
    struct dtx_request request;
    CHECK_OK(comm, dtx_comm_barrier(comm));
    if (comm->rank == 0) {
        CHECK_OK(comm, dtx_comm_send_start(comm, NULL, &t, 1, &request));
        CHECK_OK(comm, dtx_comm_wait(&request));
        CHECK(comm, dtx_clock_now() - begin > pause / 2);
    } else if (comm->rank == 1) {
        dtx_clock_sleep(pause);
        CHECK_OK(comm, dtx_comm_recv_start(comm, NULL, &t, 0, &request));
        CHECK_OK(comm, dtx_comm_wait(&request));
    }
}

/* The receiver expects more than is sent: told, not read as whatever was there. */
static void check_disagreement(struct dtx_comm *comm)
{
    float data[8] = {0};
    struct dtx_tensor t = dtx_tensor_1d(data, DTX_F32, comm->rank == 1 ? 8 : 6);
    struct dtx_request request;
    if (comm->rank == 0) {
        CHECK_OK(comm, dtx_comm_send_start(comm, NULL, &t, 1, &request));
        CHECK_OK(comm, dtx_comm_wait(&request));
    } else if (comm->rank == 1) {
        CHECK_OK(comm, dtx_comm_recv_start(comm, NULL, &t, 0, &request));
        CHECK(comm, dtx_comm_wait(&request) == DTX_E_LIBRARY);
        CHECK(comm, strstr(comm->ctx->error.text, "rank 1 expected 32 bytes from rank 0 and got 24"));
        dtx_error_clear(comm->ctx);
    }
}

static void check_arguments(struct dtx_comm *comm)
{
    float data[8] = {0};
    struct dtx_tensor t = dtx_tensor_1d(data, DTX_F32, 8), half = dtx_tensor_1d(data, DTX_F32, 4);
    struct dtx_request request;
    CHECK(comm, dtx_comm_send_start(comm, NULL, &t, comm->size, &request) == DTX_E_RANGE);
    dtx_error_clear(comm->ctx);
    CHECK(comm, dtx_comm_broadcast(comm, NULL, &t, -1) == DTX_E_RANGE);
    dtx_error_clear(comm->ctx);
    CHECK(comm, dtx_comm_all_gather(comm, NULL, &half, &t) == (comm->size == 2 ? DTX_OK : DTX_E_RANGE));
    dtx_error_clear(comm->ctx);
}

static void check_control(struct dtx_comm *comm)
{
    for (int root = 0; root < comm->size; root++) {
        int64_t value = comm->rank == root ? 1234567890123 : 0;
        CHECK_OK(comm, dtx_comm_broadcast_bytes(comm, &value, sizeof value, root));
        CHECK(comm, value == 1234567890123);
        char *text = comm->rank == root ? "a text\nof two lines" : NULL;
        CHECK_OK(comm, dtx_comm_broadcast_text(comm, &text, root));
        CHECK(comm, strcmp(text, "a text\nof two lines") == 0);
        if (comm->rank != root)
            dtx_mem_free(text);
    }
    int mine = comm->rank * comm->rank, all[8];
    CHECK_OK(comm, dtx_comm_gather_bytes(comm, &mine, sizeof mine, all));
    for (int r = 0; r < comm->size; r++)
        CHECK(comm, all[r] == r * r);
}

/* Ranks of equal color, ordered by key. */
static void check_split(struct dtx_comm *world)
{
    struct dtx_comm *part;
    CHECK_OK(world, dtx_comm_split(world, world->rank % 2, -world->rank, "halves", &part));
    CHECK(world, part->size == 2 && part->rank == (world->rank < 2 ? 1 : 0));
    CHECK(world, strcmp(part->name, "halves") == 0 && part->ctx == world->ctx);
    int all[2];
    CHECK_OK(world, dtx_comm_gather_bytes(part, &world->rank, sizeof(int), all));
    CHECK(world, all[0] == world->rank % 2 + 2 && all[1] == world->rank % 2);
    dtx_comm_free(part);
}

static void check_all(struct dtx_comm *comm, struct dtx_queue *queue)
{
    for (int d = 0; d < N_DTYPES; d++)
        for (int c = 0; c < N_COUNTS; c++) {
            check_gather(comm, queue, dtypes[d], counts[c]);
            check_broadcast(comm, queue, dtypes[d], counts[c]);
            check_ring(comm, queue, dtypes[d], counts[c]);
        }
    check_control(comm);
    check_arguments(comm);
}

static int test(struct dtx_comm *world)
{
    struct host_backend host;
    host_backend_init(&host, world->ctx);
    const struct dtx_comm_options rows[] = {dtx_comm_options_default(), {true, 1 << 20, 0}, {true, 50, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dtx_comm_mpi_set_options(world, &rows[i]);
        for (int size = 1; size <= world->size; size++) {
            struct dtx_comm *part;
            CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &part));
            if (part)
                check_all(part, &host.queue);
            dtx_comm_free(part);
        }
    }
    CHECK(world, host.waits > 100);
    check_synchronous(world);
    check_disagreement(world);
    check_split(world);
    return 0;
}

int main(void)
{
    return rank_main(test);
}
