/* What tests of sums over ranks share: values, elements of any dtype, and the program that tries communicators of 1 to
 * 4 ranks with several options. */
#ifndef DTX_TESTS_HARNESS_SUM_CASE_H
#define DTX_TESTS_HARNESS_SUM_CASE_H

#include "parallel/comm_impl.h"
#include "tests/harness/rank_check.h"

/* Element i of a rank: whole numbers, so that every order of a sum gives the same bits. */
double sum_exact(int rank, int64_t i);
/* Large and small values of both signs: the sum depends on the order. */
double sum_rough(int rank, int64_t i);
/* data[i] = value, data[i] += value, in f32, f64 or i64. */
void sum_put(enum dtx_dtype dtype, void *data, int64_t i, double value);
void sum_add(enum dtx_dtype dtype, void *data, int64_t i, double value);

/* The main function: for each row of options `check` on the first 1, 2, 3 and 4 of 4 ranks and on a communicator of the
 * rank alone; then `refusals` on the world. */
int sum_main(const struct dtx_comm_options *rows, int n_rows,
             void (*check)(struct dtx_comm *comm, const struct dtx_comm_options *options),
             void (*refusals)(struct dtx_comm *world));

#endif
