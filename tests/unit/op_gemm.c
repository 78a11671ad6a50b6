/* test: label=unit timeout=120 */
/* matmul: all layouts and dtypes, accumulate, scale, amax; a row of c does not depend on m. */
#include <string.h>

#include "kernels/base/rng.h"
#include "tests/harness/op_case.h"

struct shape {
    int64_t m, n, k;
    bool ta, tb, accumulate, scale, amax, master_c;
    enum dtx_fp8 fp8;
};

/* Written apart from kernels/round.h: the nearest 8-bit float, by the exponents that its `mantissa` bits reach down to.
 */
static double nearest_fp8(double x, int mantissa, int least, double largest)
{
    int exponent;
    frexp(x, &exponent);
    double step = ldexp(1, (exponent - 1 > least ? exponent - 1 : least) - mantissa);
    return fmin(largest, fmax(-largest, nearbyint(x / step) * step)); /* ties to even */
}

/* The numbers that an operand of n values is rounded to, unscaled; returns what they are to be multiplied by. */
static double to_fp8(const double *x, int64_t n, bool e5m2, double *out)
{
    double most = 0, largest = e5m2 ? 57344 : 448;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    float stretch = (float)largest / (most > 1e-30 ? (float)most : 1e-30f);
    for (int64_t i = 0; i < n; i++)
        out[i] = nearest_fp8((double)((float)x[i] * stretch), e5m2 ? 2 : 3, e5m2 ? -14 : -6, largest);
    return 1 / (double)stretch;
}

/* For fp8 of very different sizes, so that subnormal numbers and zeros are among the rounded ones. */
static struct op_array operand(struct op_env *e, const struct shape *s, const char *name, int ndim, const int64_t *dim)
{
    if (!s->fp8)
        return op_random(e, name, e->act, 1, ndim, dim);
    int64_t n = dim[0] * dim[1];
    double *values = op_doubles(e, n);
    uint64_t key = dtx_rng_key(9, name);
    for (int64_t i = 0; i < n; i++)
        values[i] = ref_round(ldexp(dtx_rng_normal(key, (uint64_t)i), -(int)(i % 5) * 4 - 3), e->act);
    return op_values(e, e->act, values, ndim, dim);
}

static void matmul_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    struct op_array a = operand(e, s, "a", OP_DIMS(s->ta ? s->k : s->m, s->ta ? s->m : s->k));
    struct op_array b = operand(e, s, "b", OP_DIMS(s->tb ? s->n : s->k, s->tb ? s->k : s->n));
    struct op_array c = op_inout(e, "c", s->master_c ? e->master : e->act, s->fp8 ? 1e-2 : 1, OP_DIMS(s->m, s->n));
    struct op_array scale = op_random(e, "scale", e->master, 1, OP_DIMS(1));
    struct op_array amax = op_output(e, e->master, OP_DIMS(1));
    struct dtx_matmul_args args = {.a = a.t, .b = b.t, .c = c.t, s->ta, s->tb, .accumulate = s->accumulate};
    args.fp8 = s->fp8;
    if (s->scale)
        args.scale = scale.t;
    if (s->amax)
        args.amax = amax.t;
    struct op_expect x = op_expect(e, "c", s->m * s->n);
    if (e->fresh) {
        double *old = s->accumulate ? c.value : NULL, factor = s->scale ? scale.value[0] : 1;
        double *of_a = a.value, *of_b = b.value;
        if (s->fp8) {
            of_a = op_doubles(e, a.n);
            of_b = op_doubles(e, b.n);
            factor *= to_fp8(a.value, a.n, s->fp8 == DTX_FP8_E5M2, of_a) * to_fp8(b.value, b.n, false, of_b);
        }
        e->exact->matmul(s->m, s->n, s->k, s->ta, s->tb, of_a, of_b, old, factor, x.ref);
        e->naive->matmul(s->m, s->n, s->k, s->ta, s->tb, of_a, of_b, old, factor, x.naive);
    }
    args.work = op_work(e, dtx_matmul_work_bytes(e->queue, &args));
    op_ok(e, dtx_matmul(e->queue, &args));
    op_compare(e, "c", &c, 2);
    if (s->amax) {
        double most = 0;
        for (int64_t i = 0; i < c.n; i++)
            most = fmax(most, fabs(c.value[i]));
        op_read(e, &amax);
        assert_true(amax.value[0] == most);
    }
}

static void shapes(void **state)
{
    (void)state;
    static const struct shape list[] = {{1, 1, 1, .accumulate = true},
                                        {1, 37, 64, .tb = true},
                                        {37, 1, 64, .ta = false},
                                        {5, 3, 7, .ta = true},
                                        {5, 3, 7, .tb = true, .accumulate = true, .master_c = true},
                                        {5, 3, 7, .ta = true, .tb = true, .scale = true, .amax = true},
                                        {17, 31, 129, .scale = true, .accumulate = true},
                                        {64, 64, 8192, .ta = true, .accumulate = true, .master_c = true},
                                        {32, 64, 4096, .tb = true},
                                        {3, 37, 9001, .ta = true},
                                        {5, 3, 4097, .tb = true, .accumulate = true},
                                        {67, 130, 300, .master_c = true, .amax = true},
                                        {3, 5, 0, .accumulate = true},
                                        {0, 5, 3, .ta = false}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, matmul_case, &list[i]);
}

/* Over the blocks into which products are cut. */
static void large(void **state)
{
    (void)state;
    static const struct shape list[] = {{1031, 40, 33, .tb = true}, {33, 2100, 40, .ta = true, .master_c = true}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F32; act <= DTX_BF16; act++)
            op_run(act, matmul_case, &list[i]);
    /* So many blocks of the CPU's that they grow. */
    if (strcmp(op_device(), "cpu") == 0)
        op_run_once(DTX_BF16, 2, dtx_isa_detect(), matmul_case, &(struct shape){520, 15400, 2, .master_c = true});
}

/* The first rows of a product with few rows have the bits that they have among many. */
static void row_case(struct op_env *e, const void *data)
{
    enum { MOST = 600, N = 96, K = 200 };
    static const int64_t rows[] = {1, 2, 3, 7, 16, 33, 64, 100, 511, 513};
    bool transpose_b = *(const bool *)data;
    size_t bytes = N * dtx_dtype_bytes(e->act);
    struct op_array a = op_random(e, "a", e->act, 1, OP_DIMS(MOST, K));
    struct op_array b = op_random(e, "b", e->act, 1, OP_DIMS(transpose_b ? N : K, transpose_b ? K : N));
    struct op_array all = op_output(e, e->act, OP_DIMS(MOST, N));
    struct dtx_matmul_args args = {.a = a.t, .b = b.t, .c = all.t, .transpose_b = transpose_b};
    args.work = op_work(e, dtx_matmul_work_bytes(e->queue, &args));
    op_ok(e, dtx_matmul(e->queue, &args));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct op_array few = op_output(e, e->act, OP_DIMS(rows[i], N));
        args.a = dtx_tensor_rows(&a.t, 0, rows[i]);
        args.c = few.t;
        args.work = op_work(e, dtx_matmul_work_bytes(e->queue, &args));
        op_ok(e, dtx_matmul(e->queue, &args));
        for (int64_t r = 0; r < rows[i]; r++)
            if (memcmp((char *)few.t.data + (size_t)r * bytes, (char *)all.t.data + (size_t)r * bytes, bytes) != 0)
                fail_msg("row %lld has other bits among %lld rows than among %d (%s, %s)", (long long)r,
                         (long long)rows[i], MOST, dtx_dtype_name(e->act), dtx_isa_name(e->backend->isa));
    }
}

static void rows_alone(void **state)
{
    (void)state;
    int last = strcmp(op_device(), "cpu") == 0 ? dtx_isa_detect() : 0;
    for (int transpose_b = 0; transpose_b < 2; transpose_b++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            for (int isa = 0; isa <= last; isa++)
                op_run_once(act, 1, isa, row_case, &(bool){transpose_b});
}

static void fp8(void **state)
{
    (void)state;
    static const struct shape list[] = {
        {48, 64, 96, .tb = true},                                       /* forward, as in a layer */
        {48, 96, 64, .accumulate = true, .master_c = true},             /* for the input */
        {64, 96, 48, .ta = true, .accumulate = true, .master_c = true}, /* for weights */
        {33, 80, 32, .tb = true, .scale = true, .amax = true},
        {5, 7, 19, .tb = true},
        {17, 33, 70, .ta = true, .accumulate = true, .master_c = true},
        {40, 48, 50, .scale = true},
        {32, 16, 6400, .tb = true},
        {0, 16, 16, .tb = true},
        {3, 5, 0, .accumulate = true}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F32; act <= DTX_BF16; act++)
            for (enum dtx_fp8 kind = DTX_FP8_E4M3; kind <= DTX_FP8_E5M2; kind++) {
                struct shape s = list[i];
                s.fp8 = kind;
                op_run(act, matmul_case, &s);
            }
}

/* One infinity or NaN in an operand is not lost. */
static void not_finite_case(struct op_env *e, const void *data)
{
    enum { M = 16, N = 32, K = 48 };
    double values[2][N * K], bad = *(const double *)data;
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < N * K; i++)
            values[0][i] = values[1][i] = 1e-3 * (i % 17);
        values[which][5 * K + 3] = bad;
        struct op_array a = op_values(e, e->act, values[0], OP_DIMS(M, K));
        struct op_array b = op_values(e, e->act, values[1], OP_DIMS(N, K)), c = op_output(e, e->act, OP_DIMS(M, N));
        struct dtx_matmul_args args = {.a = a.t, .b = b.t, .c = c.t, .transpose_b = true, .fp8 = DTX_FP8_E4M3};
        args.work = op_work(e, dtx_matmul_work_bytes(e->queue, &args));
        op_ok(e, dtx_matmul(e->queue, &args));
        op_read(e, &c);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                assert_true(isnan(c.value[i * N + j]) || (isnan(bad) && (which ? j : i) != 5));
    }
}

static void fp8_not_finite(void **state)
{
    (void)state;
    for (enum dtx_dtype act = DTX_F32; act <= DTX_BF16; act++)
        for (int i = 0; i < 3; i++)
            op_run_once(act, 1, strcmp(op_device(), "cpu") == 0 ? dtx_isa_detect() : 0, not_finite_case,
                        &(double){i == 0   ? INFINITY
                                  : i == 1 ? -INFINITY
                                           : NAN});
}

static void refusal_case(struct op_env *e, const void *data)
{
    (void)data;
    struct op_array a = op_random(e, "a", DTX_F32, 1, OP_DIMS(3, 4)), b = op_random(e, "b", DTX_F32, 1, OP_DIMS(5, 6));
    struct op_array c = op_output(e, DTX_F32, OP_DIMS(3, 6));
    struct dtx_matmul_args args = {.a = a.t, .b = b.t, .c = c.t};
    op_refused(e, dtx_matmul(e->queue, &args), "matmul", "tensor b", "f32 [5,6]", "f32 [4,6]", NULL);
    args.b = dtx_tensor_2d(b.t.data, DTX_BF16, 4, 6);
    op_refused(e, dtx_matmul(e->queue, &args), "matmul", "tensor b", "bf16 [4,6]", "f32 [4,6]", NULL);
    args.b = dtx_tensor_2d(b.t.data, DTX_F32, 4, 7);
    op_refused(e, dtx_matmul(e->queue, &args), "matmul", "tensor c", "f32 [3,6]", "f32 [3,7]", NULL);
    args.b = dtx_tensor_2d(NULL, DTX_F32, 4, 6);
    op_refused(e, dtx_matmul(e->queue, &args), "tensor b", "no memory", NULL);
    args.b = dtx_tensor_2d(b.t.data, DTX_F32, 4, 6);
    args.scale = args.amax = dtx_tensor_1d(b.t.data, DTX_F32, 1);
    op_refused(e, dtx_matmul(e->queue, &args), "matmul", "tensor work", "dtx_matmul_work_bytes", NULL);
}

static void refusals(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, 0, refusal_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes),         cmocka_unit_test(large),
                                       cmocka_unit_test(rows_alone),     cmocka_unit_test(fp8),
                                       cmocka_unit_test(fp8_not_finite), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
