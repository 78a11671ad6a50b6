/* test: label=ranks ranks=4 timeout=120 */
/*
 * Reduce-scatter on 1 to 4 ranks: exactly summable inputs bit for bit in every dtype, inputs whose sum depends on the
 * order equal to the loop over ranks and to all_reduce_sum bit for bit, odd and prime counts, in place and not, with
 * pieces of a few bytes; and that nothing but `out` is written.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "parallel/comm_impl.h"
#include "tests/harness/rank_check.h"

static const int64_t counts[] = {0, 1, 2, 3, 5, 7, 13, 64, 97, 1009, 2048, 2049, 20011};
static const enum dtx_dtype dtypes[] = {DTX_F32, DTX_F64, DTX_I64};

/* Whole numbers: every order gives the same bits. */
static double exact(int rank, int64_t i)
{
    return (double)((i * 7 + rank * 31) % 1001 - 500);
}

/* Large and small values of both signs: the sum depends on the order. */
static double rough(int rank, int64_t i)
{
    uint64_t key[2] = {(uint64_t)rank, (uint64_t)i}, h = dtx_hash(key, sizeof key, 5);
    return ldexp((double)(int64_t)h / 4611686018427387904.0, (int)(h % 29) - 14);
}

static void put(enum dtx_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == DTX_F32)
        ((float *)data)[i] = (float)value;
    else if (dtype == DTX_F64)
        ((double *)data)[i] = value;
    else
        ((int64_t *)data)[i] = (int64_t)value;
}

static void add(enum dtx_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == DTX_F32)
        ((float *)data)[i] += (float)value;
    else if (dtype == DTX_F64)
        ((double *)data)[i] += value;
    else
        ((int64_t *)data)[i] += (int64_t)value;
}

/* n elements on each rank. */
static void check_sums(struct dtx_comm *comm, double (*value)(int, int64_t), enum dtx_dtype dtype, int64_t n)
{
    int64_t all = n * comm->size, element = (int64_t)dtx_dtype_bytes(dtype), mine = n * comm->rank;
    char *in = malloc((size_t)(all + 1) * 8), *copy = malloc((size_t)(all + 1) * 8);
    char *sum = malloc((size_t)(all + 1) * 8), *got = malloc((size_t)(n + 1) * 8), *want = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < all; i++)
        put(dtype, in, i, value(comm->rank, i));
    put(dtype, in, all, 12345);
    memcpy(copy, in, (size_t)((all + 1) * element));
    memcpy(sum, in, (size_t)((all + 1) * element));
    for (int64_t i = 0; i < n; i++) {
        put(dtype, want, i, value(0, mine + i));
        for (int r = 1; r < comm->size; r++)
            add(dtype, want, i, value(r, mine + i));
    }
    put(dtype, got, n, 54321); /* a sentinel */
    put(dtype, want, n, 54321);
    struct dtx_tensor t = dtx_tensor_1d(in, dtype, all), out = dtx_tensor_1d(got, dtype, n);
    CHECK_OK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &t, &out));
    CHECK_THAT(comm, memcmp(got, want, (size_t)((n + 1) * element)) == 0, "%s, %lld elements on each of %d ranks",
               dtx_dtype_name(dtype), (long long)n, comm->size);
    CHECK_THAT(comm, memcmp(in, copy, (size_t)((all + 1) * element)) == 0, "%s, %lld elements: `in` was written",
               dtx_dtype_name(dtype), (long long)n);

    struct dtx_tensor whole = dtx_tensor_1d(sum, dtype, all);
    CHECK_OK(comm, dtx_comm_all_reduce_sum(comm, NULL, &whole));
    CHECK_THAT(comm, memcmp(got, sum + mine * element, (size_t)(n * element)) == 0, "%s, %lld: not as all_reduce_sum",
               dtx_dtype_name(dtype), (long long)n);

    struct dtx_tensor part = dtx_tensor_1d(in + mine * element, dtype, n);
    CHECK_OK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &t, &part));
    memcpy(copy + mine * element, want, (size_t)(n * element));
    CHECK_THAT(comm, memcmp(in, copy, (size_t)((all + 1) * element)) == 0, "%s, %lld elements, in place, %d ranks",
               dtx_dtype_name(dtype), (long long)n, comm->size);
    free(in), free(copy), free(sum), free(got), free(want);
}

static void check_all(struct dtx_comm *comm, const struct dtx_comm_options *options)
{
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            if (counts[c] > 97 && options->piece_bytes < 1000)
                continue; /* thousands of calls */
            check_sums(comm, exact, dtypes[d], counts[c]);
            if (dtypes[d] != DTX_I64)
                check_sums(comm, rough, dtypes[d], counts[c]);
        }
    /* Bytes sent, by the formula of parallel/README.md. */
    float x[4 * 6] = {0}, y[6];
    struct dtx_tensor in = dtx_tensor_1d(x, DTX_F32, 6 * comm->size), out = dtx_tensor_1d(y, DTX_F32, 6);
    int64_t before = comm->sent_bytes;
    CHECK_OK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &in, &out));
    CHECK(comm, comm->sent_bytes - before == (int64_t)sizeof y * (comm->size - 1));
}

static void check_refusals(struct dtx_comm *comm)
{
    float x[8] = {0}, y[4];
    struct dtx_tensor in = dtx_tensor_1d(x, DTX_F32, 2 * comm->size), out = dtx_tensor_1d(y, DTX_F32, 3);
    CHECK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &in, &out) == DTX_E_RANGE);
    out = dtx_tensor_1d(y, DTX_I64, 2);
    CHECK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &in, &out) == DTX_E_RANGE);
    in.dtype = out.dtype = DTX_BF16;
    CHECK(comm, dtx_comm_reduce_scatter_sum(comm, NULL, &in, &out) == DTX_E_RANGE);
    dtx_error_clear(comm->ctx);
}

static void with_options(struct dtx_comm *world, const struct dtx_comm_options *options)
{
    dtx_comm_mpi_set_options(world, options);
    for (int size = 1; size <= world->size; size++) {
        struct dtx_comm *part = NULL;
        CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &part));
        if (part) {
            check_all(part, options);
            dtx_comm_free(part);
        }
    }
    struct dtx_comm *self;
    CHECK_OK(world, dtx_comm_self(world->ctx, &self));
    check_all(self, options);
    dtx_comm_free(self);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    dtx_ctx_init(&ctx);
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK) {
        dtx_error_print(&ctx);
        return 1;
    }
    struct dtx_comm_options defaults = dtx_comm_options_default();
    const struct dtx_comm_options rows[] = {
        defaults,
        {true, defaults.piece_bytes, 0}, /* the all-reduce to compare with: always all-to-all */
        {true, 1000, 0},                 /* pieces that divide nothing */
        {true, 24, 0},                   /* an element or two at a time */
    };
    CHECK(world, world->size == 4);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        with_options(world, &rows[i]);
    check_refusals(world);
    dtx_comm_close_world(world);
    return 0;
}
