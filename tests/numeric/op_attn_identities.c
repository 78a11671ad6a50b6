/* test: label=numeric timeout=120 */
/* Identities of attention: λ = 0 is softmax attention; o is linear in v; the future changes no bit; pieces of keys
 * merge to the whole; gradients agree with central differences; GQA equals repeated heads. */
#include <string.h>

#include "tests/harness/op_case.h"

enum { B = 2, TQ = 75, H = 4, HKV = 2, D = 16, DV = 32, OUT = B * TQ * H * DV };

struct call {
    struct op_array q, k, v, lambda, o, o2, lse;
    struct dtx_attn_fwd_args args;
};

static struct call make_call(struct op_env *e, int64_t tq, int64_t tk, int64_t hkv, bool parts)
{
    struct call c;
    enum dtx_dtype out = parts ? e->master : e->act;
    c.q = op_inout(e, "q", e->act, 1, OP_DIMS(B, tq, 2 * H, D));
    c.k = op_inout(e, "k", e->act, 1, OP_DIMS(B, tk, 2 * hkv, D));
    c.v = op_inout(e, "v", e->act, 1, OP_DIMS(B, tk, hkv, DV));
    c.lambda = op_inout(e, "lambda", e->master, 0.5, OP_DIMS(1));
    c.o = op_output(e, out, OP_DIMS(B, tq, H, DV));
    c.o2 = op_output(e, out, OP_DIMS(B, tq, H, DV));
    c.lse = op_output(e, e->master, OP_DIMS(B, 2 * H, tq));
    c.args = (struct dtx_attn_fwd_args){.q = c.q.t,
                                        .k = c.k.t,
                                        .v = c.v.t,
                                        .lambda = c.lambda.t,
                                        .maps = 2,
                                        .parts = parts,
                                        .scale = 0.25,
                                        .o = c.o.t,
                                        .o2 = c.o2.t,
                                        .lse = c.lse.t};
    return c;
}

static void forward(struct op_env *e, struct call *c)
{
    c->args.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &c->args));
    op_ok(e, dtx_attn_fwd(e->queue, &c->args));
    op_read(e, &c->o);
    op_read(e, &c->lse);
}

static void set(struct op_env *e, struct op_array *array, const double *values)
{
    struct op_array source = op_values(e, array->t.dtype, values, array->t.ndim, array->t.dim);
    op_ok(e, e->backend->memory->copy(e->queue, array->t.data, source.t.data, dtx_tensor_bytes(&array->t)));
    memcpy(array->value, source.value, (size_t)array->n * sizeof(double));
}

static double tolerance(const struct op_env *e)
{
    return e->act == DTX_F64 ? 1e-13 : e->act == DTX_F32 ? 4e-6 : 3e-2;
}

/* With λ = 0, o is softmax attention on map 1, and o2 is softmax attention on map 2. */
static void lambda_zero(struct op_env *e, const void *data)
{
    (void)data;
    struct call c = make_call(e, TQ, TQ, HKV, false);
    set(e, &c.lambda, (double[]){0});
    forward(e, &c);
    op_read(e, &c.o2);
    for (int m = 0; m < 2; m++) {
        double *q = op_doubles(e, c.q.n / 2), *k = op_doubles(e, c.k.n / 2);
        for (int64_t i = 0; i < c.q.n / 2; i++)
            q[i] = c.q.value[i / D * 2 * D + m * D + i % D];
        for (int64_t i = 0; i < c.k.n / 2; i++)
            k[i] = c.k.value[i / D * 2 * D + m * D + i % D];
        struct op_array q1 = op_values(e, e->act, q, OP_DIMS(B, TQ, H, D)),
                        k1 = op_values(e, e->act, k, OP_DIMS(B, TQ, HKV, D));
        struct op_array o = op_output(e, e->act, OP_DIMS(B, TQ, H, DV)),
                        lse = op_output(e, e->master, OP_DIMS(B, H, TQ));
        struct dtx_attn_fwd_args plain = {
            .q = q1.t, .k = k1.t, .v = c.v.t, .maps = 1, .scale = 0.25, .o = o.t, .lse = lse.t};
        plain.work = op_work(e, dtx_attn_fwd_work_bytes(e->queue, &plain));
        op_ok(e, dtx_attn_fwd(e->queue, &plain));
        op_read(e, &o);
        const double *ours = m ? c.o2.value : c.o.value;
        for (int64_t i = 0; i < OUT; i++)
            assert_true(ours[i] == o.value[i]);
    }
}

static void linear_in_v(struct op_env *e, const void *data)
{
    (void)data;
    struct call c = make_call(e, TQ, TQ, HKV, false);
    double *v1 = op_doubles(e, c.v.n), *v2 = op_doubles(e, c.v.n), *sum = op_doubles(e, c.v.n),
           *expect = op_doubles(e, OUT);
    for (int64_t i = 0; i < c.v.n; i++) {
        v1[i] = c.v.value[i];
        v2[i] = ref_round((double)(i % 13) / 8 - 0.75, DTX_BF16);
        sum[i] = 2 * v1[i] - v2[i];
    }
    forward(e, &c);
    for (int64_t i = 0; i < OUT; i++)
        expect[i] = 2 * c.o.value[i];
    set(e, &c.v, v2);
    forward(e, &c);
    for (int64_t i = 0; i < OUT; i++)
        expect[i] -= c.o.value[i];
    set(e, &c.v, sum);
    forward(e, &c);
    for (int64_t i = 0; i < OUT; i++)
        assert_true(fabs(c.o.value[i] - expect[i]) <= 4 * tolerance(e));
}

/* Other keys, values and queries behind a position change no bit of the rows before it; nor do more rows. */
static void causal(struct op_env *e, const void *data)
{
    (void)data;
    struct call c = make_call(e, TQ, TQ, HKV, false);
    forward(e, &c);
    double *before = op_doubles(e, OUT), *k = op_doubles(e, c.k.n), *v = op_doubles(e, c.v.n);
    memcpy(before, c.o.value, OUT * sizeof(double));
    int64_t cut = *(const int64_t *)data;
    for (int64_t i = 0; i < c.k.n; i++)
        k[i] = i / (2 * HKV * D) % TQ < cut ? c.k.value[i] : 50 - c.k.value[i];
    for (int64_t i = 0; i < c.v.n; i++)
        v[i] = i / (HKV * DV) % TQ < cut ? c.v.value[i] : 1e30;
    set(e, &c.k, k);
    set(e, &c.v, v);
    forward(e, &c);
    for (int64_t i = 0; i < OUT; i++)
        if (i / (H * DV) % TQ < cut)
            assert_true(c.o.value[i] == before[i]);
    /* One query behind a cache has the bits of the same query among all. */
    struct call one = make_call(e, 1, TQ, HKV, false);
    set(e, &one.k, k);
    set(e, &one.v, v);
    double *q = op_doubles(e, one.q.n);
    for (int64_t b = 0; b < B; b++)
        memcpy(q + b * 2 * H * D, c.q.value + (b * TQ + cut - 1) * 2 * H * D, 2 * H * D * sizeof(double));
    set(e, &one.q, q);
    one.args.q_first = cut - 1;
    forward(e, &one);
    for (int64_t i = 0; i < B * H * DV; i++)
        assert_true(one.o.value[i] == before[(i / (H * DV) * TQ + cut - 1) * H * DV + i % (H * DV)]);
}

/* Two pieces of the keys with `parts`, merged by their log-sum-exps, give the whole. */
static void merge(struct op_env *e, const void *data)
{
    int64_t cut = *(const int64_t *)data;
    struct call whole = make_call(e, TQ, TQ, HKV, true);
    forward(e, &whole);
    op_read(e, &whole.o2);
    double *merged[2] = {op_doubles(e, OUT), op_doubles(e, OUT)};
    for (int piece = 0; piece < 2; piece++) {
        int64_t first = piece ? cut : 0, n = piece ? TQ - cut : cut;
        struct call c = make_call(e, TQ, n, HKV, true);
        double *k = op_doubles(e, c.k.n), *v = op_doubles(e, c.v.n);
        for (int64_t i = 0; i < c.k.n; i++)
            k[i] = whole.k.value[(i / (2 * HKV * D * n) * TQ + first) * 2 * HKV * D + i % (2 * HKV * D * n)];
        for (int64_t i = 0; i < c.v.n; i++)
            v[i] = whole.v.value[(i / (HKV * DV * n) * TQ + first) * HKV * DV + i % (HKV * DV * n)];
        set(e, &c.k, k);
        set(e, &c.v, v);
        c.args.k_first = first;
        forward(e, &c);
        op_read(e, &c.o2);
        for (int64_t i = 0; i < OUT; i++)
            for (int m = 0; m < 2; m++) {
                int64_t b = i / DV / H / TQ, row = i / DV / H % TQ, head = i / DV % H;
                int64_t stat = ((b * H + head) * 2 + m) * TQ + row;
                merged[m][i] += (m ? c.o2 : c.o).value[i] * exp(c.lse.value[stat] - whole.lse.value[stat]);
            }
    }
    double bound = e->act == DTX_F64 ? 1e-13 : 4e-6;
    for (int64_t i = 0; i < OUT; i++) {
        assert_true(fabs(merged[0][i] - whole.o.value[i]) <= bound);
        assert_true(fabs(merged[1][i] - whole.o2.value[i]) <= bound);
    }
}

/* Repeating each kv head for its group is GQA. */
static void repeated(struct op_env *e, const void *data)
{
    (void)data;
    struct call grouped = make_call(e, TQ, TQ, HKV, false), full = make_call(e, TQ, TQ, H, false);
    double *k = op_doubles(e, full.k.n), *v = op_doubles(e, full.v.n);
    for (int64_t i = 0; i < full.k.n; i++)
        k[i] = grouped.k.value[(i / (2 * H * D) * HKV + i / (2 * D) % H / (H / HKV)) * 2 * D + i % (2 * D)];
    for (int64_t i = 0; i < full.v.n; i++)
        v[i] = grouped.v.value[(i / (H * DV) * HKV + i / DV % H / (H / HKV)) * DV + i % DV];
    set(e, &full.k, k);
    set(e, &full.v, v);
    forward(e, &grouped);
    forward(e, &full);
    for (int64_t i = 0; i < OUT; i++)
        assert_true(grouped.o.value[i] == full.o.value[i]);
}

/* loss = Σ w·o. Every gradient, λ's too, against central differences in f64. */
static double loss(struct op_env *e, struct call *c, const double *w)
{
    double sum = 0;
    forward(e, c);
    for (int64_t i = 0; i < c->o.n; i++)
        sum += w[i] * c->o.value[i];
    return sum;
}

static void differences(struct op_env *e, const void *data)
{
    (void)data;
    enum { T = 6 };
    struct call c = make_call(e, T, T, HKV, false);
    struct op_array w = op_random(e, "w", DTX_F64, 1, OP_DIMS(B, T, H, DV));
    loss(e, &c, w.value);
    struct op_array dsum = op_output(e, DTX_F64, OP_DIMS(B, 2 * H, T)),
                    dl = op_values(e, DTX_F64, (double[H]){0}, OP_DIMS(H));
    struct op_array dlambda = op_output(e, DTX_F64, OP_DIMS(H));
    op_ok(e, e->backend->memory->copy(e->queue, dlambda.t.data, dl.t.data, H * sizeof(double)));
    struct dtx_attn_dots_args dots = {w.t, c.o.t, c.o2.t, c.lambda.t, dsum.t, dlambda.t, 2};
    op_ok(e, dtx_attn_dots(e->queue, &dots));
    struct op_array dq = op_output(e, DTX_F64, OP_DIMS(B, T, 2 * H, D)),
                    dk = op_output(e, DTX_F64, OP_DIMS(B, T, 2 * HKV, D));
    struct op_array dv = op_output(e, DTX_F64, OP_DIMS(B, T, HKV, DV));
    struct dtx_attn_bwd_args backward = {
        .q = c.q.t, .k = c.k.t, .v = c.v.t, .lambda = c.lambda.t, .maps = 2, .scale = 0.25};
    backward.do_ = w.t;
    backward.lse = c.lse.t;
    backward.dsum = dsum.t;
    backward.dq = dq.t;
    backward.dk = dk.t;
    backward.dv = dv.t;
    backward.work = op_work(e, dtx_attn_bwd_work_bytes(e->queue, &backward));
    op_ok(e, dtx_attn_bwd(e->queue, &backward));
    op_read(e, &dlambda);
    double total = 0;
    for (int i = 0; i < H; i++)
        total += dlambda.value[i];
    struct op_array sum = op_values(e, DTX_F64, &total, OP_DIMS(1));
    struct op_array *inputs[] = {&c.q, &c.k, &c.v, &c.lambda}, *grads[] = {&dq, &dk, &dv, &sum};
    for (int g = 0; g < 4; g++) {
        op_read(e, grads[g]);
        for (int64_t i = 0; i < inputs[g]->n; i += inputs[g]->n / 7 + 1) {
            double *element = (double *)inputs[g]->t.data + i, saved = *element, step = 1e-5;
            *element = saved + step;
            double up = loss(e, &c, w.value);
            *element = saved - step;
            double down = loss(e, &c, w.value);
            *element = saved;
            double want = (up - down) / (2 * step);
            if (!(fabs(grads[g]->value[i] - want) <= 1e-8 * fmax(1, fabs(want))))
                fail_msg("gradient %d element %lld is %g, differences give %g", g, (long long)i, grads[g]->value[i],
                         want);
        }
    }
}

/* `cuts`: how many positions to cut at. */
static void every(op_function *function, int cuts)
{
    static const int64_t cut[] = {20, 1, 64, 74};
    for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
        for (int isa = 0; isa <= dtx_isa_detect(); isa++)
            for (int i = 0; i < cuts; i++)
                op_run_once(act, 2, isa, function, &cut[i]);
}

static void lambda_zero_test(void **state)
{
    (void)state;
    every(lambda_zero, 1);
}

static void linear_in_v_test(void **state)
{
    (void)state;
    every(linear_in_v, 1);
}

static void causal_test(void **state)
{
    (void)state;
    every(causal, 4);
}

static void merge_test(void **state)
{
    (void)state;
    every(merge, 4);
}

static void repeated_test(void **state)
{
    (void)state;
    every(repeated, 1);
}

static void differences_test(void **state)
{
    (void)state;
    op_run_once(DTX_F64, 2, dtx_isa_detect(), differences, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lambda_zero_test), cmocka_unit_test(linear_in_v_test),
                                       cmocka_unit_test(causal_test),      cmocka_unit_test(merge_test),
                                       cmocka_unit_test(repeated_test),    cmocka_unit_test(differences_test)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
