/* test: label=ranks ranks=4 timeout=120 */
/*
 * Sums and maxima on 1 to 4 ranks: exactly summable inputs bit for bit in every dtype, sums whose value depends on the
 * order equal to the loop over ranks bit for bit, counts around every edge, both ways (all-gather, all-to-all) and with
 * pieces of a few bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/sum_case.h"

enum { MOST = 20011 };
static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 13, 31, 64, 65, 97, 1009, 2047, 2048, 2049, 4099, MOST};
static const enum dtx_dtype dtypes[] = {DTX_F32, DTX_F64, DTX_I64};

static void check_sums(struct dtx_comm *comm, double (*value)(int, int64_t), enum dtx_dtype dtype, int64_t n)
{
    /* One element more than is summed: a sentinel. */
    static const double sentinel = 12345;
    void *got = malloc((size_t)(n + 1) * 8), *want = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < n; i++) {
        sum_put(dtype, got, i, value(comm->rank, i));
        sum_put(dtype, want, i, value(0, i));
        for (int r = 1; r < comm->size; r++)
            sum_add(dtype, want, i, value(r, i));
    }
    sum_put(dtype, got, n, sentinel);
    sum_put(dtype, want, n, sentinel);
    struct dtx_tensor t = dtx_tensor_1d(got, dtype, n);
    CHECK_OK(comm, dtx_comm_all_reduce_sum(comm, NULL, &t));
    CHECK_THAT(comm, memcmp(got, want, (size_t)(n + 1) * dtx_dtype_bytes(dtype)) == 0, "%s, %lld elements, %d ranks",
               dtx_dtype_name(dtype), (long long)n, comm->size);
    free(got);
    free(want);
}

static void check_max(struct dtx_comm *comm, enum dtx_dtype dtype, int64_t n)
{
    void *got = malloc((size_t)(n + 1) * 8), *want = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < n; i++) {
        double most = sum_exact(0, i);
        for (int r = 1; r < comm->size; r++)
            most = fmax(most, sum_exact(r, i));
        sum_put(dtype, got, i, sum_exact(comm->rank, i));
        sum_put(dtype, want, i, most);
    }
    struct dtx_tensor t = dtx_tensor_1d(got, dtype, n);
    CHECK_OK(comm, dtx_comm_all_reduce_max(comm, NULL, &t));
    CHECK_THAT(comm, memcmp(got, want, (size_t)n * dtx_dtype_bytes(dtype)) == 0, "%s, %lld elements, %d ranks",
               dtx_dtype_name(dtype), (long long)n, comm->size);
    free(got);
    free(want);
}

/* A NaN of any rank is seen by all; −inf is a value like any other. */
static void check_max_specials(struct dtx_comm *comm)
{
    for (int from = 0; from < comm->size; from++) {
        float x[2] = {comm->rank == from ? NAN : (float)comm->rank, -INFINITY};
        struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 2);
        CHECK_OK(comm, dtx_comm_all_reduce_max(comm, NULL, &t));
        CHECK(comm, isnan(x[0]));
        CHECK(comm, x[1] == -INFINITY);
    }
}

/* Bytes sent, by the formulas of parallel/README.md. */
static void check_bytes(struct dtx_comm *comm, const struct dtx_comm_options *options)
{
    float x[24] = {0};
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 24);
    int64_t before = comm->sent_bytes, bytes = sizeof x, p = comm->size;
    CHECK_OK(comm, dtx_comm_all_reduce_sum(comm, NULL, &t));
    int64_t small = bytes * (p - 1), large = 2 * bytes * (p - 1) / p;
    if (24 % p == 0 && options->piece_bytes >= bytes)
        CHECK(comm, comm->sent_bytes - before == (bytes * p <= options->small_bytes ? small : large));
}

static void check_all(struct dtx_comm *comm, const struct dtx_comm_options *options)
{
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        if (counts[c] > 97 && options->piece_bytes < 1000)
            continue; /* thousands of calls */
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            check_sums(comm, sum_exact, dtypes[d], counts[c]);
            if (dtypes[d] != DTX_I64)
                check_sums(comm, sum_rough, dtypes[d], counts[c]);
            check_max(comm, dtypes[d], counts[c]);
        }
    }
    check_max_specials(comm);
    check_bytes(comm, options);
}

static void check_refusals(struct dtx_comm *comm)
{
    uint16_t x[2] = {0};
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_BF16, 2);
    CHECK(comm, dtx_comm_all_reduce_sum(comm, NULL, &t) == DTX_E_RANGE);
    dtx_error_clear(comm->ctx);
    CHECK(comm, dtx_comm_all_reduce_max(comm, NULL, &t) == DTX_E_RANGE);
    dtx_error_clear(comm->ctx);
}

int main(void)
{
    struct dtx_comm_options defaults = dtx_comm_options_default();
    const struct dtx_comm_options rows[] = {
        defaults,
        {true, defaults.piece_bytes, 0},       /* always all-to-all */
        {true, defaults.piece_bytes, 1 << 30}, /* always all-gather */
        {true, 1000, 0},                       /* pieces that divide nothing */
        {true, 24, 0},                         /* three or six elements at a time */
    };
    return sum_main(rows, (int)(sizeof rows / sizeof *rows), check_all, check_refusals);
}
