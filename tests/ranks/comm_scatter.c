/* test: label=ranks ranks=4 timeout=120 */
/*
 * Reduce-scatter on 1 to 4 ranks: exactly summable inputs bit for bit in every dtype, inputs whose sum depends on the
 * order equal to the loop over ranks and to all_reduce_sum bit for bit, odd and prime counts, in place and not, with
 * pieces of a few bytes; and that nothing but `out` is written.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/harness/sum_case.h"

static const int64_t counts[] = {0, 1, 2, 3, 5, 7, 13, 64, 97, 1009, 2048, 2049, 20011};
static const enum dtx_dtype dtypes[] = {DTX_F32, DTX_F64, DTX_I64};

/* n elements on each rank. */
static void check_sums(struct dtx_comm *comm, double (*value)(int, int64_t), enum dtx_dtype dtype, int64_t n)
{
    int64_t all = n * comm->size, element = (int64_t)dtx_dtype_bytes(dtype), mine = n * comm->rank;
    char *in = malloc((size_t)(all + 1) * 8), *copy = malloc((size_t)(all + 1) * 8);
    char *sum = malloc((size_t)(all + 1) * 8), *got = malloc((size_t)(n + 1) * 8), *want = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < all; i++)
        sum_put(dtype, in, i, value(comm->rank, i));
    sum_put(dtype, in, all, 12345);
    memcpy(copy, in, (size_t)((all + 1) * element));
    memcpy(sum, in, (size_t)((all + 1) * element));
    for (int64_t i = 0; i < n; i++) {
        sum_put(dtype, want, i, value(0, mine + i));
        for (int r = 1; r < comm->size; r++)
            sum_add(dtype, want, i, value(r, mine + i));
    }
    sum_put(dtype, got, n, 54321); /* a sentinel */
    sum_put(dtype, want, n, 54321);
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
            check_sums(comm, sum_exact, dtypes[d], counts[c]);
            if (dtypes[d] != DTX_I64)
                check_sums(comm, sum_rough, dtypes[d], counts[c]);
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

int main(void)
{
    struct dtx_comm_options defaults = dtx_comm_options_default();
    const struct dtx_comm_options rows[] = {
        defaults,
        {true, defaults.piece_bytes, 0}, /* the all-reduce to compare with: always all-to-all */
        {true, 1000, 0},                 /* pieces that divide nothing */
        {true, 24, 0},                   /* an element or two at a time */
    };
    return sum_main(rows, (int)(sizeof rows / sizeof *rows), check_all, check_refusals);
}
