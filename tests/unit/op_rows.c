/* test: label=unit timeout=120 */
/* Operations on rows: rmsnorm, rope and its table, embed. */
#include <string.h>

#include "kernels/rope_table.h"
#include "tests/harness/op_case.h"

struct norm {
    int64_t n, w;
    bool gain, residual, dgain;
    double out_scale;
};

static void norm_forward(struct op_env *e, const void *data)
{
    const struct norm *s = data;
    struct op_array x = op_random(e, "x", e->act, 2, OP_DIMS(s->n, s->w));
    struct op_array gain = op_random(e, "gain", e->master, 1, OP_DIMS(s->w));
    struct op_array y = op_output(e, e->act, OP_DIMS(s->n, s->w)), rstd = op_output(e, e->master, OP_DIMS(s->n));
    struct op_expect xy = op_expect(e, "y", y.n), xr = op_expect(e, "rstd", s->n);
    if (e->fresh) {
        double *g = s->gain ? gain.value : NULL;
        e->exact->rmsnorm_fwd(s->n, s->w, x.value, g, 1e-5, s->out_scale, xy.ref, xr.ref);
        e->naive->rmsnorm_fwd(s->n, s->w, x.value, g, 1e-5, s->out_scale, xy.naive, xr.naive);
    }
    struct dtx_rmsnorm_fwd_args args = {.x = x.t, .y = y.t, .rstd = rstd.t, .eps = 1e-5, .out_scale = s->out_scale};
    if (s->gain)
        args.gain = gain.t;
    op_ok(e, dtx_rmsnorm_fwd(e->queue, &args));
    op_compare(e, "y", &y, 2);
    op_compare(e, "rstd", &rstd, 2);
}

static void norm_backward(struct op_env *e, const void *data)
{
    const struct norm *s = data;
    struct op_array x = op_random(e, "x", e->act, 2, OP_DIMS(s->n, s->w));
    struct op_array dy = op_random(e, "dy", e->act, 1, OP_DIMS(s->n, s->w));
    /* dx is the residual too, as in a block's backward pass */
    struct op_array dx = op_inout(e, "residual", e->act, 1, OP_DIMS(s->n, s->w));
    struct op_array gain = op_random(e, "gain", e->master, 1, OP_DIMS(s->w));
    struct op_array dgain = op_inout(e, "dgain", e->master, 1, OP_DIMS(s->w));
    double *f = op_doubles(e, s->n), *y = op_doubles(e, x.n), *g = s->gain ? gain.value : NULL;
    e->exact->rmsnorm_fwd(s->n, s->w, x.value, g, 1e-5, s->out_scale, y, f);
    struct op_array rstd = op_values(e, e->master, f, OP_DIMS(s->n));
    struct op_expect xx = op_expect(e, "dx", dx.n), xg = op_expect(e, "dgain", s->w);
    if (e->fresh) {
        double *r = s->residual ? dx.value : NULL;
        for (int64_t i = 0; i < s->w; i++)
            xg.ref[i] = xg.naive[i] = dgain.value[i];
        e->exact->rmsnorm_bwd(s->n, s->w, dy.value, x.value, g, rstd.value, r, s->out_scale, xx.ref, xg.ref);
        e->naive->rmsnorm_bwd(s->n, s->w, dy.value, x.value, g, rstd.value, r, s->out_scale, xx.naive, xg.naive);
    }
    struct dtx_rmsnorm_bwd_args args = {.dy = dy.t, .x = x.t, .rstd = rstd.t, .dx = dx.t, .out_scale = s->out_scale};
    if (s->gain)
        args.gain = gain.t;
    if (s->residual)
        args.residual = dx.t;
    if (s->dgain) {
        args.work = op_work(e, dtx_rmsnorm_bwd_work_bytes(e->queue, &args));
        args.dgain = dgain.t;
    }
    op_ok(e, dtx_rmsnorm_bwd(e->queue, &args));
    op_compare(e, "dx", &dx, 3);
    if (s->dgain)
        op_compare(e, "dgain", &dgain, 3);
}

static void norms(void **state)
{
    (void)state;
    static const struct norm list[] = {{1, 1, true, true, true, 1},      {3, 7, true, false, true, 0.8},
                                       {65, 128, true, true, true, 0.8}, {200, 33, false, true, false, 1},
                                       {129, 768, true, true, true, 1},  {0, 16, true, false, true, 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++) {
            op_run(act, norm_forward, &list[i]);
            op_run(act, norm_backward, &list[i]);
        }
}

struct rope {
    int64_t b, t, heads, d, first;
    bool positions, inverse;
};

static void rope_case(struct op_env *e, const void *data)
{
    const struct rope *s = data;
    enum { POSITIONS = 300 };
    double *angles = op_doubles(e, POSITIONS * s->d);
    op_ok(e, dtx_rope_table(&e->ctx, 10000, s->d, POSITIONS, DTX_F64, angles));
    struct op_array table = op_values(e, e->master, angles, OP_DIMS(POSITIONS, s->d));
    struct op_array x = op_inout(e, "x", e->act, 1, OP_DIMS(s->b, s->t, s->heads, s->d));
    int32_t list[512];
    for (int64_t r = 0; r < s->b * s->t; r++)
        list[r] = (int32_t)(s->positions ? (r * 37 + 11) % POSITIONS : s->first + r % s->t);
    struct op_array positions = op_indices(e, list, OP_DIMS(s->b, s->t));
    struct op_expect xy = op_expect(e, "y", x.n);
    if (e->fresh) {
        e->exact->rope(s->b * s->t, s->heads, s->d, x.value, table.value, list, s->inverse, xy.ref);
        e->naive->rope(s->b * s->t, s->heads, s->d, x.value, table.value, list, s->inverse, xy.naive);
    }
    struct dtx_rope_args args = {.x = x.t, .y = x.t, .table = table.t, .first = s->first, .inverse = s->inverse};
    if (s->positions)
        args.positions = positions.t;
    op_ok(e, dtx_rope(e->queue, &args));
    op_compare(e, "y", &x, 2);
}

static void ropes(void **state)
{
    (void)state;
    static const struct rope list[] = {{1, 1, 1, 2, 0, false, false},
                                       {2, 7, 3, 6, 0, false, false},
                                       {2, 33, 4, 64, 250, false, true},
                                       {1, 19, 2, 34, 0, true, false},
                                       {2, 100, 2, 16, 5, true, true}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, rope_case, &list[i]);
}

/* A vector (1, 0) turned at each position is (cos, sin) of the angle in double, rounded to the dtype of the result. */
static void angle_case(struct op_env *e, const void *data)
{
    (void)data;
    enum { D = 64, LAST = 131071 };
    static const int32_t positions[] = {0, 255, 256, 257, 4095, LAST};
    enum { N = sizeof positions / sizeof *positions };
    struct dtx_tensor table = dtx_tensor_2d(NULL, e->master, LAST + 1, D);
    op_ok(e, dtx_tensor_alloc(e->backend, &table));
    op_ok(e, dtx_rope_table(&e->ctx, 10000, D, LAST + 1, e->master, table.data));
    double unit[N * D];
    for (int i = 0; i < N * D; i++)
        unit[i] = i % 2 == 0;
    struct op_array x = op_values(e, e->act, unit, OP_DIMS(1, N, 1, D));
    struct op_array y = op_output(e, e->act, OP_DIMS(1, N, 1, D)), at = op_indices(e, positions, OP_DIMS(1, N));
    struct dtx_rope_args args = {.x = x.t, .y = y.t, .table = table, .positions = at.t};
    op_ok(e, dtx_rope(e->queue, &args));
    op_read(e, &y);
    for (int r = 0; r < N; r++)
        for (int i = 0; i < D / 2; i++) {
            double angle = (double)positions[r] * pow(10000, -2.0 * i / D);
            assert_true(y.value[r * D + 2 * i] == ref_round(cos(angle), e->act));
            assert_true(y.value[r * D + 2 * i + 1] == ref_round(sin(angle), e->act));
        }
    dtx_tensor_free(e->backend, &table);
}

static void angles(void **state)
{
    (void)state;
    for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
        op_run_once(act, 1, dtx_isa_detect(), angle_case, NULL);
}

struct embed {
    int64_t n, rows, width, first;
    bool master;
};

static void embed_case(struct op_env *e, const void *data)
{
    const struct embed *s = data;
    int32_t list[256];
    for (int64_t i = 0; i < s->n; i++)
        list[i] = (int32_t)(i * i * 7 % (s->rows + 5));
    struct op_array tokens = op_indices(e, list, OP_DIMS(s->n));
    struct op_array table = op_random(e, "table", e->act, 1, OP_DIMS(s->rows, s->width));
    enum dtx_dtype dtype = s->master ? e->master : e->act;
    struct op_array out = op_output(e, dtype, OP_DIMS(s->n, s->width));
    struct op_array dout = op_random(e, "dout", dtype, 1, OP_DIMS(s->n, s->width));
    struct op_array dtable = op_inout(e, "dtable", e->master, 1, OP_DIMS(s->rows, s->width));
    struct op_expect xo = op_expect(e, "out", out.n), xt = op_expect(e, "dtable", dtable.n);
    if (e->fresh) {
        for (int64_t i = 0; i < dtable.n; i++)
            xt.ref[i] = dtable.value[i];
        for (int64_t i = 0; i < out.n; i++) {
            int64_t row = list[i / s->width] - s->first;
            bool here = row >= 0 && row < s->rows;
            xo.ref[i] = xo.naive[i] = here ? table.value[row * s->width + i % s->width] : 0;
            if (here) {
                double *to = &xt.ref[row * s->width + i % s->width];
                *to = ref_round(*to + dout.value[i], e->master);
            }
        }
        for (int64_t i = 0; i < dtable.n; i++)
            xt.naive[i] = xt.ref[i];
    }
    struct dtx_embed_fwd_args forward = {tokens.t, table.t, out.t, s->first};
    op_ok(e, dtx_embed_fwd(e->queue, &forward));
    struct dtx_embed_bwd_args backward = {tokens.t, dout.t, dtable.t, s->first};
    op_ok(e, dtx_embed_bwd(e->queue, &backward));
    op_compare(e, "out", &out, 0);
    op_compare(e, "dtable", &dtable, 0);
    for (int64_t i = 0; i < out.n; i++)
        assert_true(out.value[i] == xo.ref[i]);
    for (int64_t i = 0; i < dtable.n; i++) /* the order of additions is a promise: exactly this value */
        assert_true(dtable.value[i] == xt.ref[i]);
}

static void embeds(void **state)
{
    (void)state;
    static const struct embed list[] = {{1, 1, 1, 0, false},    {50, 13, 70, 0, false}, {50, 13, 70, 6, true},
                                        {200, 7, 33, 2, false}, {9, 5, 130, 100, true}, {0, 3, 4, 0, false}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (enum dtx_dtype act = DTX_F64; act <= DTX_BF16; act++)
            op_run(act, embed_case, &list[i]);
}

static void refusal_case(struct op_env *e, const void *data)
{
    (void)data;
    struct op_array x = op_random(e, "x", DTX_F32, 1, OP_DIMS(2, 3, 2, 4)),
                    y = op_output(e, DTX_F32, OP_DIMS(2, 3, 2, 4));
    struct op_array table = op_random(e, "t", DTX_F32, 1, OP_DIMS(5, 4));
    struct dtx_rope_args rope = {.x = x.t, .y = y.t, .table = table.t, .first = 3};
    op_refused(e, dtx_rope(e->queue, &rope), "rope", "positions 3 to 5", "5 rows", NULL);
    struct op_array positions = op_indices(e, (int32_t[]){0, 1, 2, 3, 4, 5}, OP_DIMS(2, 3));
    rope.positions = positions.t;
    if (strcmp(op_device(), "cpu") == 0) {
        op_refused(e, dtx_rope(e->queue, &rope), "rope", "position 5", "5 rows", NULL);
    } else { /* a device does not read back */
        op_ok(e, dtx_rope(e->queue, &rope));
        op_read(e, &y);
        for (int64_t i = 0; i < y.n; i++)
            assert_true(isnan(y.value[i]) == (i >= 5 * 2 * 4));
    }
    rope.x.dim[3] = 3;
    op_refused(e, dtx_rope(e->queue, &rope), "rope", "head width 3 is odd", NULL);
    struct dtx_rmsnorm_fwd_args norm = {.x = dtx_tensor_2d(x.t.data, DTX_F32, 12, 4),
                                        .y = dtx_tensor_2d(y.t.data, DTX_F32, 12, 4)};
    norm.rstd = dtx_tensor_1d(y.t.data, DTX_F64, 12);
    op_refused(e, dtx_rmsnorm_fwd(e->queue, &norm), "rmsnorm_fwd", "tensor rstd", "f64 [12]", "f32 [12]", NULL);
    struct op_array tokens = op_indices(e, (int32_t[]){0, 1}, OP_DIMS(2));
    struct dtx_embed_fwd_args embed = {
        .tokens = tokens.t, .table = table.t, .out = dtx_tensor_2d(y.t.data, DTX_F32, 2, 5)};
    op_refused(e, dtx_embed_fwd(e->queue, &embed), "embed_fwd", "tensor out", "[2,5]", "[2,4]", NULL);
    embed.tokens.dtype = DTX_F32;
    op_refused(e, dtx_embed_fwd(e->queue, &embed), "embed_fwd", "tensor tokens", "f32 [2]", "i32 [2]", NULL);
}

static void refusals(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, 0, refusal_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(ropes), cmocka_unit_test(angles),
                                       cmocka_unit_test(embeds), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
