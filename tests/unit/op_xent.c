/* test: label=unit timeout=120 */
/* xent_max, xent_sum, xent_bwd: padded columns, missing targets, a vocabulary cut in two, in place. */
#include "tests/harness/op_case.h"

struct shape {
    int64_t n, columns, valid, first;
    bool in_place;
};

static void xent_case(struct op_env *e, const void *data)
{
    const struct shape *s = data;
    int64_t n = s->n, size = n * s->columns;
    struct op_array logits = op_inout(e, "logits", e->master, 3, OP_DIMS(n, s->columns));
    int32_t *list = calloc((size_t)n + 1, sizeof *list);
    for (int64_t i = 0; i < n; i++)
        list[i] = i % 5 == 3 ? -1 : (int32_t)(i * 31 % (s->first + s->valid + 3));
    struct op_array targets = op_indices(e, list, OP_DIMS(n));
    free(list);
    struct op_array scale = op_values(e, e->master, (double[]){0.0625}, OP_DIMS(1));
    struct op_array max = op_output(e, e->master, OP_DIMS(n)), sums = op_output(e, e->master, OP_DIMS(n, 2));
    struct op_array loss = op_output(e, DTX_F64, OP_DIMS(n));
    struct op_array dlogits = s->in_place ? logits : op_output(e, e->act, OP_DIMS(n, s->columns));
    struct op_expect xm = op_expect(e, "max", n), xs = op_expect(e, "sums", 2 * n), xl = op_expect(e, "loss", n);
    struct op_expect xd = op_expect(e, "dlogits", size);
    if (e->fresh) {
        e->exact->xent(n, s->columns, s->valid, s->first, logits.value, targets.index, 0.0625, xm.ref, xs.ref, xl.ref,
                       xd.ref);
        e->naive->xent(n, s->columns, s->valid, s->first, logits.value, targets.index, 0.0625, xm.naive, xs.naive,
                       xl.naive, xd.naive);
    }
    struct dtx_xent_max_args a = {logits.t, max.t, s->valid};
    op_ok(e, dtx_xent_max(e->queue, &a));
    struct dtx_xent_sum_args b = {logits.t, max.t, targets.t, sums.t, s->first, s->valid};
    op_ok(e, dtx_xent_sum(e->queue, &b));
    op_compare(e, "max", &max, 0);
    op_compare(e, "sums", &sums, 2);
    struct dtx_xent_bwd_args c = {logits.t, max.t, sums.t, targets.t, scale.t, loss.t, dlogits.t, s->first, s->valid};
    op_ok(e, dtx_xent_bwd(e->queue, &c));
    op_compare(e, "dlogits", &dlogits, 3);
    op_read(e, &loss);
    op_compare_bits(e, "loss", &loss);
    double largest = 0, naive_error = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(xl.ref[i]));
        naive_error = fmax(naive_error, fabs(xl.naive[i] - xl.ref[i]));
    }
    /* the loss is f64, made of sums of the master dtype: its ulp */
    double ulp = largest * (e->master == DTX_F64 ? 2.3e-16 : 1.2e-7);
    for (int64_t i = 0; i < n; i++) {
        assert_true(fabs(loss.value[i] - xl.ref[i]) <= 2 * naive_error + 2 * ulp);
        if (targets.index[i] < 0)
            assert_true(loss.value[i] == 0);
        for (int64_t j = 0; j < s->columns; j++)
            if (targets.index[i] < 0 || j >= s->valid)
                assert_true(dlogits.value[i * s->columns + j] == 0);
    }
}

static void xents(void **state)
{
    (void)state;
    static const struct shape list[] = {{1, 1, 1, 0, false},     {7, 33, 33, 0, false},   {20, 100, 83, 0, false},
                                        {20, 100, 83, 40, true}, {3, 1000, 997, 0, true}, {5, 16, 3, 2, false}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            if (!list[i].in_place || act != DTX_BF16)
                op_run(act, xent_case, &list[i]);
}

/* Two halves of a vocabulary, combined as two ranks do it, give the loss and gradient of the whole. */
static void cut_case(struct op_env *e, const void *data)
{
    (void)data;
    enum { N = 6, V = 40, CUT = 24 };
    double ref[N * V], max[N], sums[2 * N], loss[N];
    struct op_array whole = op_random(e, "logits", e->master, 3, OP_DIMS(N, V));
    const int32_t list[N] = {0, 23, 24, 39, -1, 7};
    ref_exact(e->act)->xent(N, V, V, 0, whole.value, list, 0.5, max, sums, loss, ref);
    struct op_array targets = op_indices(e, list, OP_DIMS(N)),
                    scale = op_values(e, DTX_F64, (double[]){0.5}, OP_DIMS(1));
    struct op_array part[2], most[2], sum[2];
    for (int r = 0; r < 2; r++) {
        int64_t first = r ? CUT : 0, width = r ? V - CUT : CUT;
        double *values = op_doubles(e, N * width);
        for (int64_t i = 0; i < N * width; i++)
            values[i] = whole.value[i / width * V + first + i % width];
        part[r] = op_values(e, DTX_F64, values, OP_DIMS(N, width));
        most[r] = op_output(e, DTX_F64, OP_DIMS(N));
        sum[r] = op_output(e, DTX_F64, OP_DIMS(N, 2));
        op_ok(e, dtx_xent_max(e->queue, &(struct dtx_xent_max_args){part[r].t, most[r].t, width}));
    }
    double *m0 = most[0].t.data, *m1 = most[1].t.data;
    for (int i = 0; i < N; i++)
        m0[i] = m1[i] = fmax(m0[i], m1[i]);
    for (int r = 0; r < 2; r++)
        op_ok(e, dtx_xent_sum(e->queue, &(struct dtx_xent_sum_args){part[r].t, most[r].t, targets.t, sum[r].t,
                                                                    r ? CUT : 0, part[r].t.dim[1]}));
    double *s0 = sum[0].t.data, *s1 = sum[1].t.data;
    for (int i = 0; i < 2 * N; i++)
        s0[i] = s1[i] = s0[i] + s1[i];
    for (int r = 0; r < 2; r++) {
        int64_t first = r ? CUT : 0, width = part[r].t.dim[1];
        struct op_array out = op_output(e, DTX_F64, OP_DIMS(N)), d = op_output(e, DTX_F64, OP_DIMS(N, width));
        struct dtx_xent_bwd_args args = {part[r].t, most[r].t, sum[r].t, targets.t, scale.t, out.t, d.t, first, width};
        op_ok(e, dtx_xent_bwd(e->queue, &args));
        op_read(e, &out);
        op_read(e, &d);
        for (int i = 0; i < N; i++)
            assert_true(fabs(out.value[i] - loss[i]) < 1e-13);
        for (int64_t i = 0; i < N * width; i++)
            assert_true(fabs(d.value[i] - ref[i / width * V + first + i % width]) < 1e-14);
    }
}

static void cut(void **state)
{
    (void)state;
    op_run_once(DTX_F64, 2, 0, cut_case, NULL);
}

/* A NaN logit makes its row's loss NaN, and no other's. */
static void nan_case(struct op_env *e, const void *data)
{
    (void)data;
    enum { N = 3, V = 70 };
    double x[N * V];
    for (int i = 0; i < N * V; i++)
        x[i] = i % 11;
    x[V + 20] = NAN;
    struct op_array logits = op_values(e, e->master, x, OP_DIMS(N, V)),
                    scale = op_values(e, e->master, (double[]){1}, OP_DIMS(1));
    struct op_array targets = op_indices(e, (int32_t[]){1, 2, 3}, OP_DIMS(N)),
                    max = op_output(e, e->master, OP_DIMS(N));
    struct op_array sums = op_output(e, e->master, OP_DIMS(N, 2)), loss = op_output(e, DTX_F64, OP_DIMS(N));
    op_ok(e, dtx_xent_max(e->queue, &(struct dtx_xent_max_args){logits.t, max.t, V}));
    op_ok(e, dtx_xent_sum(e->queue, &(struct dtx_xent_sum_args){logits.t, max.t, targets.t, sums.t, 0, V}));
    struct dtx_xent_bwd_args args = {.logits = logits.t, .max = max.t, .sums = sums.t, .targets = targets.t};
    args.scale = scale.t;
    args.loss = loss.t;
    args.valid = V;
    op_ok(e, dtx_xent_bwd(e->queue, &args));
    op_read(e, &loss);
    for (int i = 0; i < N; i++)
        assert_true(isnan(loss.value[i]) == (i == 1));
}

static void nans(void **state)
{
    (void)state;
    op_run(DTX_F64, nan_case, NULL);
    op_run(DTX_F32, nan_case, NULL);
}

static void refusal_case(struct op_env *e, const void *data)
{
    (void)data;
    struct op_array logits = op_random(e, "x", DTX_F32, 1, OP_DIMS(2, 3)), max = op_output(e, DTX_F32, OP_DIMS(2));
    struct dtx_xent_max_args args = {logits.t, max.t, 4};
    op_refused(e, dtx_xent_max(e->queue, &args), "xent_max", "4 valid of 3 columns", NULL);
    args.max.dim[0] = 3;
    op_refused(e, dtx_xent_max(e->queue, &args), "xent_max", "tensor max", "f32 [3]", "f32 [2]", NULL);
}

static void refusals(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, 0, refusal_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(xents), cmocka_unit_test(cut), cmocka_unit_test(nans),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
