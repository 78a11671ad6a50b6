/* test: label=train timeout=60 */
/*
 * Training with products in 8-bit floats: gradients of every matrix of attention and FFN are near those of fp32, as
 * near as 2 and 3 bits of mantissa let them be and no nearer, the losses of some steps too; the workspace that the plan
 * counts is enough (else products refuse).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/engine.h"

enum { STEPS = 40 };

static void open_engine(struct dtx_test_engine *o, const struct dtx_test_model *m, bool fp8)
{
    struct dtx_engine_config config;
    dtx_test_config(m, &config);
    config.fp8 = fp8;
    dtx_test_engine_open(o, &config, dtx_isa_detect());
}

/* ‖a − b‖ / ‖b‖ of fp32 numbers. */
static double distance(const float *a, const float *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

static void test_gradients(void **state)
{
    (void)state;
    struct dtx_test_engine plain, eight;
    struct dtx_test_model m = dtx_test_model_default();
    m.dtype = DTX_F32;
    open_engine(&plain, &m, false);
    open_engine(&eight, &m, true);
    double loss[2], norm[2];
    assert_int_equal(dtx_test_train(plain.engine, &m, 1, 0, loss, norm), DTX_OK);
    assert_int_equal(dtx_test_train(eight.engine, &m, 1, 0, loss + 1, norm + 1), DTX_OK);
    assert_true(loss[1] != loss[0] && fabs(loss[1] - loss[0]) < 0.01 * loss[0]);
    struct dtx_params *p = dtx_engine_params(plain.engine), *q = dtx_engine_params(eight.engine);
    int matrices = 0;
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        if (item->row.ndim != 2)
            continue;
        matrices++;
        double d = distance(q->item[i].grad.data, item->grad.data, item->count);
        /* attn.out has the least noise of forward: without rounded gradients it would be below 0.09. */
        assert_true(d > (strstr(item->row.name, "attn.out") ? 0.095 : 0.05) && d < 0.25);
    }
    assert_int_equal(matrices, 1 + 4 * 7);
    dtx_test_engine_close(&plain);
    dtx_test_engine_close(&eight);
}

static void test_curve(void **state)
{
    (void)state;
    struct dtx_test_model m = dtx_test_model_default();
    double loss[2][STEPS], norm[STEPS];
    for (enum dtx_dtype act = DTX_F32; act <= DTX_BF16; act++) {
        m.dtype = act;
        for (int fp8 = 0; fp8 < 2; fp8++) {
            struct dtx_test_engine o;
            open_engine(&o, &m, fp8);
            assert_int_equal(dtx_test_train(o.engine, &m, STEPS, 2e-3, loss[fp8], norm), DTX_OK);
            dtx_test_engine_close(&o);
        }
        for (int s = 0; s < STEPS; s++)
            assert_true(fabs(loss[1][s] - loss[0][s]) < 0.02 * loss[0][s]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_curve)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
