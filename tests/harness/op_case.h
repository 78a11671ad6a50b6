/*
 * One case of an operation test: inputs, the call, and outputs compared with the references of tests/ref.
 *
 * op_run() calls the case's function for every instruction set of this processor with 1, 2 and 3 threads. Inputs are
 * the same each time; outputs must keep the bound of the design (DESIGN.md 8), and their bits must not depend on the
 * number of threads. All memory has sentinels around it; inputs must stay unchanged. Everything is freed by op_run().
 */
#ifndef DTX_TESTS_HARNESS_OP_CASE_H
#define DTX_TESTS_HARNESS_OP_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kernels/backend.h"
#include "tests/ref/ref.h"

struct op_array {
    struct dtx_tensor t;
    double *value;  /* inputs: the exact values; outputs: filled by op_compare and op_read */
    int32_t *index; /* i32 arrays */
    int64_t n;
};

struct op_expect {
    double *ref, *naive; /* fill both when env->fresh */
};

struct op_env {
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    enum dtx_dtype act, master;
    const struct ref_ops *exact, *naive;
    bool fresh; /* the first run of this case: references must be filled */
    struct op_memory *memory;
    struct op_stored *stored;
};

typedef void op_function(struct op_env *env, const void *data);
/* The backend under test: the environment's DTX_TEST_DEVICE, else "cpu". */
const char *op_device(void);
/* cpu: every instruction set and 1 to 3 threads; emu: threads of a block first to last, last to first, at random.
 * With DTX_TEST_SHORT: bf16 alone, in two orders. */
void op_run(enum dtx_dtype act, op_function *function, const void *data);
/* One run, for tests that compare by themselves. */
void op_run_once(enum dtx_dtype act, int threads, int isa, op_function *function, const void *data);

#define OP_DIMS(...)                                                                                                   \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
/* Normal values × scale, rounded to dtype, a stream of their own by name. */
struct op_array op_random(struct op_env *env, const char *name, enum dtx_dtype dtype, double scale, int ndim,
                          const int64_t *dim);
/* Given values, rounded to dtype. */
struct op_array op_values(struct op_env *env, enum dtx_dtype dtype, const double *values, int ndim, const int64_t *dim);
struct op_array op_indices(struct op_env *env, const int32_t *values, int ndim, const int64_t *dim);
/* Filled with NaN patterns. */
struct op_array op_output(struct op_env *env, enum dtx_dtype dtype, int ndim, const int64_t *dim);
/* A random input that the operation may change; op_read gives the result. */
struct op_array op_inout(struct op_env *env, const char *name, enum dtx_dtype dtype, double scale, int ndim,
                         const int64_t *dim);
struct dtx_tensor op_work(struct op_env *env, size_t bytes);
double *op_doubles(struct op_env *env, int64_t n); /* scratch, zeroed */
/* Fills value from memory. */
void op_read(struct op_env *env, struct op_array *array);

struct op_expect op_expect(struct op_env *env, const char *name, int64_t n);
/* max |got − ref| ≤ k·max |naive − ref| + 2 ulp of max |ref| in the array's dtype; naive is rounded here. Also: the
 * same bits as at one thread on this instruction set. */
void op_compare(struct op_env *env, const char *name, struct op_array *array, double k);
/* The same, and element i may be off by slack[i] more: what the operation may round on its way (NULL: nothing). */
void op_compare_slack(struct op_env *env, const char *name, struct op_array *array, double k, const double *slack);
/* Only the bits. */
void op_compare_bits(struct op_env *env, const char *name, struct op_array *array);
void op_ok(struct op_env *env, enum dtx_status status);
/* The call must fail with DTX_E_RANGE and a message that contains every given text (NULL ends). */
void op_refused(struct op_env *env, enum dtx_status status, ...);

#endif
