/* test: label=train timeout=60 */
/*
 * bf16 training keeps masters and gradient sums in fp32: updates far below a bf16 weight's spacing add up, and so do
 * gradients of many micro-batches. Weight decay and zero gradients leave norms, λ and sub-norm gains alone.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/round.h"
#include "tests/harness/engine.h"
#include "trainer/optim.h"

struct open {
    struct dtx_test_engine one;
    struct dtx_engine *engine; /* one.engine */
    struct dtx_engine_config config;
    struct dtx_test_model model;
    int32_t *buffer;
    struct dtx_engine_batch batch; /* of step 0 */
};

static void open_engine(struct open *o, const struct dtx_test_model *model, double decay, bool decay_embeddings,
                        bool stochastic)
{
    o->model = *model;
    dtx_test_config(model, &o->config);
    o->config.optim.decay = decay;
    o->config.optim.decay_embeddings = decay_embeddings;
    o->config.optim.stochastic = stochastic;
    dtx_test_engine_open(&o->one, &o->config, dtx_isa_detect());
    o->engine = o->one.engine;
    int64_t n = model->global_batch * model->length;
    o->buffer = malloc((size_t)(2 * n) * sizeof *o->buffer);
    dtx_test_batch(model, 0, 0, o->buffer, o->buffer + n, NULL);
    o->batch = (struct dtx_engine_batch){o->buffer, o->buffer + n, NULL};
}

static void close_engine(struct open *o)
{
    dtx_test_engine_close(&o->one);
    free(o->buffer);
}

/* Masters rounded stochastically: the same function of the master after a step and when weights are made anew. */
static void test_stochastic_rounding(void **state)
{
    (void)state;
    struct open o;
    struct dtx_step_result result;
    struct dtx_test_model model = dtx_test_model_default();
    model.dtype = DTX_BF16;
    open_engine(&o, &model, 0.1, true, true);
    struct dtx_params *p = dtx_engine_params(o.engine);
    int64_t otherwise = 0, all = 0;
    for (int again = 0; again < 2; again++) {
        if (again)
            assert_int_equal(dtx_params_refresh(p, dtx_engine_queue(o.engine)), DTX_OK);
        else
            assert_int_equal(dtx_engine_step(o.engine, &o.batch, 1, 1e-2, &result), DTX_OK);
        for (int r = 0; r < p->n; r++) {
            const struct dtx_param *item = &p->item[r];
            const float *master = item->master.data;
            for (int64_t i = 0; i < item->count && item->weight.dtype == DTX_BF16; i++) {
                uint32_t bits;
                memcpy(&bits, &master[i], sizeof bits);
                uint16_t weight = ((uint16_t *)item->weight.data)[i];
                assert_int_equal(weight, dtx_round_bits(bits) >> 16);
                otherwise += weight != dtx_f32_to_bf16(master[i]);
                all++;
            }
        }
    }
    assert_true(otherwise > all / 8 && otherwise < all * 3 / 8); /* a quarter */
    close_engine(&o);
}

/* A weight of 1 is moved by 1e-3 a step, an eighth of its bf16 spacing. */
static void test_small_updates_add_up(void **state)
{
    (void)state;
    struct open o;
    struct dtx_test_model model = dtx_test_model_default();
    model.dtype = DTX_BF16;
    open_engine(&o, &model, 0.0, true, false);
    struct dtx_queue *queue = dtx_engine_queue(o.engine);
    struct dtx_params *p = dtx_engine_params(o.engine);
    struct dtx_param *item = dtx_params_find(p, "layers.01.ffn.up");
    float *master = item->master.data, *gradient = item->grad.data;
    for (int64_t i = 0; i < item->count; i++) {
        master[i] = 1.0f;
        gradient[i] = i % 2 ? -3.0f : 3.0f;
    }
    assert_int_equal(dtx_params_refresh(p, queue), DTX_OK);
    double values[4];
    struct dtx_tensor hyper = dtx_tensor_1d(NULL, DTX_F64, 4);
    assert_int_equal(dtx_tensor_alloc(o.one.backend, &hyper), DTX_OK);
    for (int step = 1; step <= 20; step++) {
        o.config.optim.variant->hyper(&o.config.optim, step, 1e-3, 1.0, values);
        assert_int_equal(dtx_tensor_set(queue, &hyper, values), DTX_OK);
        assert_int_equal(o.config.optim.variant->update(queue, &o.config.optim, item, &hyper), DTX_OK);
    }
    for (int64_t i = 0; i < item->count; i++) {
        double moved = i % 2 ? 0.02 : -0.02;
        assert_true(fabs(master[i] - 1.0 - moved) < 1e-5);
        float weight = dtx_bf16_to_f32(((uint16_t *)item->weight.data)[i]);
        assert_true(weight == dtx_bf16_to_f32(dtx_f32_to_bf16(master[i])) && weight != 1.0f);
    }
    dtx_tensor_free(o.one.backend, &hyper);
    close_engine(&o);
}

/* 64 equal micro-batches: each gradient is a 64th, the sum must be that of one. In bf16 sums it would stop half way. */
static void test_gradients_add_up(void **state)
{
    (void)state;
    enum { TIMES = 64 };
    struct open one, many;
    struct dtx_step_result a, b;
    struct dtx_test_model model = dtx_test_model_default();
    model.dtype = DTX_BF16;
    model.global_batch = 1;
    open_engine(&one, &model, 0.0, true, false);
    model.global_batch = TIMES;
    open_engine(&many, &model, 0.0, true, false);
    for (int64_t i = 0; i < model.length; i++) /* targets: a power of two of them divides without rounding */
        one.buffer[model.length + i] = i < 8 ? (int32_t)i : -1;
    for (int k = 0; k < TIMES; k++) {
        size_t row = (size_t)model.length * sizeof *many.buffer;
        memcpy(many.buffer + k * model.length, one.buffer, row);
        memcpy(many.buffer + (TIMES + k) * model.length, one.buffer + model.length, row);
    }
    assert_int_equal(dtx_engine_gradients(one.engine, &one.batch, &a), DTX_OK);
    assert_int_equal(dtx_engine_gradients(many.engine, &many.batch, &b), DTX_OK);
    struct dtx_params *p = dtx_engine_params(one.engine), *q = dtx_engine_params(many.engine);
    for (int i = 0; i < p->n; i++) {
        int64_t n = p->item[i].count;
        double *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
        assert_int_equal(p->item[i].grad.dtype, DTX_F32);
        assert_int_equal(dtx_test_gather(one.engine, i, 'g', x), DTX_OK);
        assert_int_equal(dtx_test_gather(many.engine, i, 'g', y), DTX_OK);
        double difference = dtx_test_relative(y, x, n);
        if (difference > 1e-5)
            fail_msg("gradient of %s: %g", q->item[i].row.name, difference);
        free(x);
        free(y);
    }
    close_engine(&one);
    close_engine(&many);
}

static bool is_matrix(const struct dtx_param *item)
{
    return item->row.ndim == 2;
}

static bool same_bits(const struct dtx_param *a, const struct dtx_param *b)
{
    return memcmp(a->master.data, b->master.data, dtx_tensor_bytes(&a->master)) == 0;
}

/* The first step with and without decay: the same update but for the matrices. */
static void test_decay_touches_matrices_only(void **state)
{
    (void)state;
    for (int embeddings = 0; embeddings < 2; embeddings++) {
        struct open plain, decayed;
        struct dtx_step_result result;
        struct dtx_test_model model = dtx_test_model_default();
        model.dtype = DTX_F32;
        open_engine(&plain, &model, 0.0, embeddings, false);
        open_engine(&decayed, &model, 0.9, embeddings, false);
        assert_int_equal(dtx_engine_step(plain.engine, &plain.batch, 1, 1e-2, &result), DTX_OK);
        assert_int_equal(dtx_engine_step(decayed.engine, &decayed.batch, 1, 1e-2, &result), DTX_OK);
        struct dtx_params *p = dtx_engine_params(plain.engine), *q = dtx_engine_params(decayed.engine);
        for (int i = 0; i < p->n; i++) {
            const char *name = p->item[i].row.name;
            bool decays = is_matrix(&p->item[i]) && (embeddings || strcmp(name, "embed.tokens") != 0);
            if (same_bits(&p->item[i], &q->item[i]) == decays)
                fail_msg("weight decay %s %s", decays ? "forgets" : "touches", name);
        }
        close_engine(&plain);
        close_engine(&decayed);
    }
}

/* No target, so no gradient: matrices shrink by lr·decay, everything else keeps its bits. */
static void test_zero_gradients(void **state)
{
    (void)state;
    struct open before, after;
    struct dtx_step_result result;
    struct dtx_test_model model = dtx_test_model_default();
    model.dtype = DTX_F32;
    open_engine(&before, &model, 0.5, true, false);
    open_engine(&after, &model, 0.5, true, false);
    int64_t n = model.global_batch * model.length;
    memset(after.buffer + n, 0xff, (size_t)n * sizeof *after.buffer);
    for (int step = 1; step <= 3; step++)
        assert_int_equal(dtx_engine_step(after.engine, &after.batch, step, 1e-2, &result), DTX_OK);
    struct dtx_params *p = dtx_engine_params(before.engine), *q = dtx_engine_params(after.engine);
    for (int i = 0; i < p->n; i++) {
        if (!is_matrix(&p->item[i])) {
            if (!same_bits(&p->item[i], &q->item[i]))
                fail_msg("%s moves without a gradient", p->item[i].row.name);
            continue;
        }
        const float *x = p->item[i].master.data, *y = q->item[i].master.data;
        for (int64_t k = 0; k < p->item[i].count; k++)
            assert_true(fabs(y[k] - x[k] * 0.995 * 0.995 * 0.995) <= 1e-6 * fabs(x[k]));
    }
    close_engine(&before);
    close_engine(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stochastic_rounding), cmocka_unit_test(test_small_updates_add_up),
        cmocka_unit_test(test_gradients_add_up), cmocka_unit_test(test_decay_touches_matrices_only),
        cmocka_unit_test(test_zero_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
