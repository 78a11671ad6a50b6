/* test: label=unit timeout=120 */
/* add, swiglu, adamw, sqnorm, lambda. */
#include <string.h>

#include "kernels/base/rng.h"
#include "tests/harness/op_case.h"

static const int64_t counts[] = {1, 5, 16, 63, 1000, 1024, 1025, 70001};
enum { COUNTS = sizeof counts / sizeof *counts };

/* x, y, z of act or master, by bits; y may be absent; z may be y. */
struct add {
    int64_t n;
    int masters;
    bool y, in_place;
    double alpha;
};

static void add_case(struct op_env *e, const void *data)
{
    const struct add *s = data;
    struct op_array x = op_random(e, "x", s->masters & 1 ? e->master : e->act, 1, OP_DIMS(s->n));
    struct op_array y = op_inout(e, "y", s->masters & 2 ? e->master : e->act, 1, OP_DIMS(s->n));
    struct op_array z = s->in_place ? y : op_output(e, s->masters & 4 ? e->master : e->act, OP_DIMS(s->n));
    struct op_expect xz = op_expect(e, "z", s->n);
    for (int64_t i = 0; e->fresh && i < s->n; i++) {
        xz.ref[i] = s->alpha * x.value[i] + (s->y ? y.value[i] : 0);
        xz.naive[i] = ref_round(ref_round(s->alpha * x.value[i], e->master) + (s->y ? y.value[i] : 0), e->master);
    }
    struct dtx_add_args args = {.x = x.t, .z = z.t, .alpha = s->alpha};
    if (s->y)
        args.y = y.t;
    op_ok(e, dtx_add(e->queue, &args));
    op_compare(e, "z", &z, 2);
}

static void adds(void **state)
{
    (void)state;
    for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
        for (int masters = 0; masters < 8; masters++) {
            int64_t n = counts[masters];
            op_run(act, add_case, &(struct add){n, masters, true, false, 1});
            op_run(act, add_case, &(struct add){n, masters, true, true, -0.375});
            op_run(act, add_case, &(struct add){n, masters, false, false, 1});
        }
}

/* A cast to bf16 rounds to nearest, ties to even; NaN and infinities stay. */
static void cast_case(struct op_env *e, const void *data)
{
    (void)data;
    enum { N = 70 };
    double values[N] = {1,        1.00390625, 1.01171875, -1.00390625, 3.4e38, 1e-40,
                        INFINITY, -INFINITY,  0,          -0.0,        256.5,  257};
    for (int i = 12; i < N; i++)
        values[i] = 1 + i * 0.001953125;
    values[20] = NAN;
    struct op_array x = op_values(e, DTX_F32, values, OP_DIMS(N)), z = op_output(e, DTX_BF16, OP_DIMS(N));
    struct dtx_add_args args = {.x = x.t, .z = z.t, .alpha = 1};
    op_ok(e, dtx_add(e->queue, &args));
    op_read(e, &z);
    for (int i = 0; i < N; i++) {
        double must = ref_round(values[i], DTX_BF16);
        if (!(z.value[i] == must || (isnan(must) && isnan(z.value[i]))))
            fail_msg("%g became %g, must be %g (%s)", values[i], z.value[i], must, dtx_isa_name(e->backend->isa));
    }
}

static void casts(void **state)
{
    (void)state;
    op_run(DTX_BF16, cast_case, NULL);
}

static void swiglu_case(struct op_env *e, const void *data)
{
    int64_t n = *(const int64_t *)data;
    double scale = n % 2 ? 3 : 40; /* the large ones saturate the sigmoid */
    struct op_array g = op_inout(e, "g", e->act, scale, OP_DIMS(n)), u = op_inout(e, "u", e->act, 1, OP_DIMS(n));
    struct op_array dh = op_random(e, "dh", e->act, 1, OP_DIMS(n)), h = op_output(e, e->act, OP_DIMS(n));
    struct op_expect xh = op_expect(e, "h", n), xg = op_expect(e, "dg", n), xu = op_expect(e, "du", n);
    if (e->fresh) {
        e->exact->swiglu_fwd(n, g.value, u.value, xh.ref);
        e->naive->swiglu_fwd(n, g.value, u.value, xh.naive);
        e->exact->swiglu_bwd(n, dh.value, g.value, u.value, xg.ref, xu.ref);
        e->naive->swiglu_bwd(n, dh.value, g.value, u.value, xg.naive, xu.naive);
    }
    struct dtx_swiglu_fwd_args forward = {g.t, u.t, h.t};
    op_ok(e, dtx_swiglu_fwd(e->queue, &forward));
    op_compare(e, "h", &h, 2);
    struct dtx_swiglu_bwd_args backward = {.dh = dh.t, .g = g.t, .u = u.t, .dg = g.t, .du = u.t};
    op_ok(e, dtx_swiglu_bwd(e->queue, &backward));
    op_compare(e, "dg", &g, 3);
    op_compare(e, "du", &u, 3);
}

/* Written apart from kernels/round.h: the neighbour that a hash of the bits chooses. */
static uint16_t rounded(float x)
{
    uint32_t u, mixed;
    memcpy(&u, &x, sizeof u);
    mixed = (u ^ (u >> 16)) * 2146121005U;
    mixed = (mixed ^ (mixed >> 15)) * 2221713035U;
    mixed = (mixed ^ (mixed >> 16)) % 65536;
    return isfinite(x) ? (uint16_t)(((uint64_t)u + mixed) / 65536) : dtx_f32_to_bf16(x);
}

/* Stochastic rounding: one of the two neighbours, the value itself where bf16 has it, up as often as the part between
 * them says; the same from add and adamw. */
static void stochastic_case(struct op_env *e, const void *data)
{
    (void)data;
    enum { N = 100003, BINS = 8 };
    double *values = op_doubles(e, N), hyper[4] = {0, 1, 1, 1};
    int n[BINS] = {0}, up[BINS] = {0};
    for (int i = 0; i < N; i++)
        values[i] = i < 256 ? (i % 2 ? -1 : 1) * (1 + (i / 2) / 128.0)
                            : (float)ldexp(dtx_rng_uniform(5, (uint64_t)i) + 1, i % 9 - 4);
    values[600] = INFINITY;
    values[601] = NAN;
    struct op_array x = op_values(e, DTX_F32, values, OP_DIMS(N)), z = op_output(e, DTX_BF16, OP_DIMS(N));
    struct op_array weight = op_output(e, DTX_BF16, OP_DIMS(N));
    struct dtx_add_args add = {.x = x.t, .z = z.t, .alpha = 1, .stochastic = true};
    op_ok(e, dtx_add(e->queue, &add));
    struct op_array none = op_values(e, DTX_F32, op_doubles(e, N), OP_DIMS(N));
    struct op_array h = op_values(e, DTX_F64, hyper, OP_DIMS(4));
    struct dtx_adamw_args adamw = {.grad = none.t, .weight = weight.t, .hyper = h.t, .eps = 1, .stochastic = true};
    struct dtx_tensor *const state[] = {&adamw.master, &adamw.m, &adamw.v};
    for (int s = 0; s < 3; s++) {
        *state[s] = op_output(e, DTX_F32, OP_DIMS(N)).t;
        op_ok(e,
              e->backend->memory->copy(e->queue, state[s]->data, s ? none.t.data : x.t.data, dtx_tensor_bytes(&x.t)));
    }
    op_ok(e, dtx_adamw(e->queue, &adamw));
    op_read(e, &z);
    op_read(e, &weight);
    for (int i = 0; i < N; i++) {
        assert_true(i == 601 ? isnan(z.value[i]) : z.value[i] == (double)dtx_bf16_to_f32(rounded((float)values[i])));
        assert_true(i == 600 || i == 601 || weight.value[i] == z.value[i]);
        if (i < 256)
            assert_true(z.value[i] == values[i]);
        if (i < 602)
            continue;
        uint32_t bits;
        float single = (float)values[i];
        memcpy(&bits, &single, sizeof bits);
        int bin = (int)(bits % 65536 * BINS / 65536);
        n[bin]++;
        up[bin] += z.value[i] > values[i];
    }
    for (int b = 0; b < BINS; b++) { /* five standard deviations */
        double p = (b + 0.5) / BINS, bound = 5 * sqrt(p * (1 - p) * n[b]);
        assert_true(n[b] > N / BINS / 2 && fabs(up[b] - p * n[b]) < bound);
    }
}

static void stochastic(void **state)
{
    (void)state;
    op_run_once(DTX_BF16, 1, dtx_isa_detect(), stochastic_case, NULL);
    op_run_once(DTX_BF16, 3, DTX_ISA_PLAIN, stochastic_case, NULL);
}

static void swiglus(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, swiglu_case, &counts[i]);
}

static void adamw_case(struct op_env *e, const void *data)
{
    int64_t n = *(const int64_t *)data;
    struct op_array w = op_inout(e, "w", e->master, 1, OP_DIMS(n)), m = op_inout(e, "m", e->master, 0.1, OP_DIMS(n));
    double *squares = op_doubles(e, n);
    for (int64_t i = 0; i < n; i++)
        squares[i] = m.value[i] * m.value[i] + (double)(i % 7) * 1e-3;
    struct op_array v0 = op_values(e, e->master, squares, OP_DIMS(n)), v = op_output(e, e->master, OP_DIMS(n));
    op_ok(e, e->backend->memory->copy(e->queue, v.t.data, v0.t.data, dtx_tensor_bytes(&v.t)));
    struct op_array grad = op_random(e, "grad", e->master, 1, OP_DIMS(n)), weight = op_output(e, e->act, OP_DIMS(n));
    double hyper[4] = {1e-2, 0.7, 1 - pow(0.9, 3), 1 - pow(0.95, 3)};
    struct op_array h = op_values(e, DTX_F64, hyper, OP_DIMS(4));
    struct op_expect xw = op_expect(e, "w", n), xm = op_expect(e, "m", n), xv = op_expect(e, "v", n);
    struct op_expect xa = op_expect(e, "weight", n);
    if (e->fresh) {
        for (int64_t i = 0; i < n; i++) {
            xw.ref[i] = xw.naive[i] = w.value[i];
            xm.ref[i] = xm.naive[i] = m.value[i];
            xv.ref[i] = xv.naive[i] = v0.value[i];
        }
        e->exact->adamw(n, xw.ref, xm.ref, xv.ref, grad.value, hyper, 0.9, 0.95, 1e-8, 0.1, 0.5);
        e->naive->adamw(n, xw.naive, xm.naive, xv.naive, grad.value, hyper, 0.9, 0.95, 1e-8, 0.1, 0.5);
        for (int64_t i = 0; i < n; i++) {
            xa.ref[i] = xw.ref[i];
            xa.naive[i] = xw.naive[i];
        }
    }
    struct dtx_adamw_args args = {.master = w.t, .m = m.t, .v = v.t, .grad = grad.t, .hyper = h.t};
    args.beta1 = 0.9;
    args.beta2 = 0.95;
    args.eps = 1e-8;
    args.decay = 0.1;
    args.lr_mult = 0.5;
    if (n % 2)
        args.weight = weight.t;
    op_ok(e, dtx_adamw(e->queue, &args));
    op_compare(e, "w", &w, 2);
    op_compare(e, "m", &m, 2);
    op_compare(e, "v", &v, 2);
    if (n % 2)
        op_compare(e, "weight", &weight, 2);
}

static void adamws(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, adamw_case, &counts[i]);
}

/* An update of 1e-3 of a weight moves a bf16 weight's master. */
static void master_case(struct op_env *e, const void *data)
{
    (void)data;
    struct op_array one = op_values(e, DTX_F32, (double[]){1}, OP_DIMS(1));
    struct op_array zero = op_values(e, DTX_F32, (double[]){0}, OP_DIMS(1));
    struct op_array w = op_output(e, DTX_F32, OP_DIMS(1)), weight = op_output(e, DTX_BF16, OP_DIMS(1));
    struct op_array m = op_output(e, DTX_F32, OP_DIMS(1)), v = op_output(e, DTX_F32, OP_DIMS(1));
    op_ok(e, dtx_add(e->queue, &(struct dtx_add_args){.x = one.t, .z = w.t, .alpha = 1}));
    op_ok(e, dtx_add(e->queue, &(struct dtx_add_args){.x = zero.t, .z = m.t, .alpha = 1}));
    op_ok(e, dtx_add(e->queue, &(struct dtx_add_args){.x = zero.t, .z = v.t, .alpha = 1}));
    struct dtx_adamw_args args = {.master = w.t,
                                  .m = m.t,
                                  .v = v.t,
                                  .grad = one.t,
                                  .weight = weight.t,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .lr_mult = 1};
    for (int step = 1; step <= 8; step++) {
        double hyper[4] = {1e-3, 1, 1 - pow(0.9, step), 1 - pow(0.95, step)};
        args.hyper = op_values(e, DTX_F64, hyper, OP_DIMS(4)).t;
        op_ok(e, dtx_adamw(e->queue, &args));
    }
    op_read(e, &w);
    op_read(e, &weight);
    assert_true(fabs(w.value[0] - 0.992) < 1e-6);
    assert_true(weight.value[0] == ref_round(0.992, DTX_BF16));
}

static void masters(void **state)
{
    (void)state;
    op_run_once(DTX_BF16, 1, dtx_isa_detect(), master_case, NULL);
}

static void sqnorm_case(struct op_env *e, const void *data)
{
    int64_t n = *(const int64_t *)data, count = (n + 1023) / 1024;
    struct op_array x = op_random(e, "x", e->master, 1, OP_DIMS(n));
    struct op_array blocks = op_output(e, DTX_F64, OP_DIMS(count)), sum = op_output(e, DTX_F64, OP_DIMS(1));
    struct dtx_sqnorm_args args = {x.t, blocks.t, sum.t};
    op_ok(e, dtx_sqnorm(e->queue, &args));
    op_read(e, &blocks);
    op_read(e, &sum);
    op_compare_bits(e, "blocks", &blocks);
    op_compare_bits(e, "sum", &sum);
    /* The promise is exact: fp64 in index order within a block, the blocks in order. */
    double total = 0;
    for (int64_t block = 0; block < count; block++) {
        double part = 0;
        for (int64_t i = block * 1024; i < n && i < (block + 1) * 1024; i++) {
            double square = x.value[i] * x.value[i];
            part += square;
        }
        if (e->master == DTX_F32) /* squares of fp32 are exact in fp64, so fused or not is the same */
            assert_true(blocks.value[block] == part);
        else
            assert_true(fabs(blocks.value[block] - part) <= 1e-14 * part);
        total += blocks.value[block];
    }
    assert_true(sum.value[0] == total);
}

static void sqnorms(void **state)
{
    (void)state;
    for (int i = 0; i < COUNTS; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_F32; act++)
            op_run(act, sqnorm_case, &counts[i]);
    op_run(DTX_F32, sqnorm_case, &(int64_t){0});
    op_run(DTX_F32, sqnorm_case, &(int64_t){300000});
}

static double lambda_of(const double *q1, const double *k1, const double *q2, const double *k2, int64_t d, double init)
{
    double a = 0, b = 0;
    for (int64_t i = 0; i < d; i++) {
        a += q1[i] * k1[i];
        b += q2[i] * k2[i];
    }
    return exp(a) - exp(b) + init;
}

/* The value, and the gradients by central differences of the value in double. */
static void lambda_case(struct op_env *e, const void *data)
{
    int64_t d = *(const int64_t *)data, h = 5;
    static const char *const names[] = {"q1", "k1", "q2", "k2"};
    struct op_array in[4], grad[4];
    for (int i = 0; i < 4; i++) {
        in[i] = op_random(e, names[i], e->master, 0.1, OP_DIMS(d));
        grad[i] = op_inout(e, "grad", e->master, 1, OP_DIMS(d));
    }
    struct op_array lambda = op_output(e, e->master, OP_DIMS(1)), dl = op_random(e, "dl", e->master, 1, OP_DIMS(h));
    struct dtx_lambda_fwd_args forward = {in[0].t, in[1].t, in[2].t, in[3].t, lambda.t, 0.3555};
    op_ok(e, dtx_lambda_fwd(e->queue, &forward));
    op_read(e, &lambda);
    double must = lambda_of(in[0].value, in[1].value, in[2].value, in[3].value, d, 0.3555);
    double ulp2 = e->master == DTX_F64 ? 1e-15 : 2.4e-7;
    assert_true(fabs(lambda.value[0] - must) <= ulp2 * fmax(1, fabs(must)));
    struct dtx_lambda_bwd_args backward = {in[0].t,   in[1].t,   in[2].t,   in[3].t,  dl.t,
                                           grad[0].t, grad[1].t, grad[2].t, grad[3].t};
    op_ok(e, dtx_lambda_bwd(e->queue, &backward));
    double total = 0;
    for (int64_t i = 0; i < h; i++)
        total += dl.value[i];
    for (int g = 0; g < 4; g++) {
        double *before = op_doubles(e, d);
        for (int64_t i = 0; i < d; i++)
            before[i] = grad[g].value[i];
        op_read(e, &grad[g]);
        for (int64_t i = 0; i < d; i++) {
            double step = 1e-5, saved = in[g].value[i];
            in[g].value[i] = saved + step;
            double up = lambda_of(in[0].value, in[1].value, in[2].value, in[3].value, d, 0);
            in[g].value[i] = saved - step;
            double down = lambda_of(in[0].value, in[1].value, in[2].value, in[3].value, d, 0);
            in[g].value[i] = saved;
            double want = before[i] + total * (up - down) / (2 * step);
            assert_true(fabs(grad[g].value[i] - want) <= 1e-9 + ulp2 * fmax(1, fabs(want)));
        }
    }
}

static void lambdas(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 7, 64, 128};
    for (int i = 0; i < 4; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_F32; act++)
            op_run(act, lambda_case, &widths[i]);
}

static void refusal_case(struct op_env *e, const void *data)
{
    (void)data;
    struct op_array x = op_random(e, "x", DTX_F32, 1, OP_DIMS(6)), y = op_output(e, DTX_F32, OP_DIMS(5));
    struct dtx_add_args add = {.x = x.t, .z = y.t, .alpha = 1};
    op_refused(e, dtx_add(e->queue, &add), "add", "tensor z", "f32 [5]", "6 elements", NULL);
    add.z = dtx_tensor_1d(y.t.data, DTX_F64, 6);
    op_refused(e, dtx_add(e->queue, &add), "add", "tensor z", "f64 [6]", "f32 or bf16", NULL);
    struct dtx_swiglu_fwd_args swiglu = {x.t, y.t, x.t};
    op_refused(e, dtx_swiglu_fwd(e->queue, &swiglu), "swiglu_fwd", "tensor u", "f32 [5]", "6 elements", NULL);
    struct dtx_sqnorm_args norm = {x.t, dtx_tensor_1d(y.t.data, DTX_F64, 2), dtx_tensor_1d(y.t.data, DTX_F64, 1)};
    op_refused(e, dtx_sqnorm(e->queue, &norm), "sqnorm", "tensor blocks", "f64 [2]", "f64 [1]", NULL);
    struct dtx_adamw_args adamw = {.master = x.t, .m = x.t, .v = y.t, .grad = x.t};
    op_refused(e, dtx_adamw(e->queue, &adamw), "adamw", "tensor v", "f32 [5]", "f32 [6]", NULL);
    struct dtx_lambda_fwd_args lambda = {.q1 = x.t, .k1 = y.t};
    op_refused(e, dtx_lambda_fwd(e->queue, &lambda), "lambda_fwd", "tensor k1", "f32 [5]", "f32 [6]", NULL);
}

static void refusals(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, 0, refusal_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds),    cmocka_unit_test(casts),      cmocka_unit_test(swiglus),
        cmocka_unit_test(adamws),  cmocka_unit_test(stochastic), cmocka_unit_test(masters),
        cmocka_unit_test(sqnorms), cmocka_unit_test(lambdas),    cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
