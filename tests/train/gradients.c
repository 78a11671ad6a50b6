/* test: label=train timeout=120 */
/*
 * Gradients of whole models in f64 against central differences of the loss: for every weight one random direction and
 * two single entries, with every kind of sub-norm, λ_init by depth and constant, softmax, grouped queries, documents,
 * and with the factors of CompleteP.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/base/rng.h"
#include "tests/harness/engine.h"

enum { ENTRIES = 2 };

struct model {
    struct dtx_test_engine one;
    struct dtx_engine *engine; /* one.engine */
    struct dtx_test_model test;
    int32_t *buffer;
    struct dtx_engine_batch batch;
};

/* Weights large enough that softmax, SwiGLU and the norms are far from linear, and every gradient is. */
static void scatter_weights(struct model *m)
{
    struct dtx_params *p = dtx_engine_params(m->engine);
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        bool gain = item->row.init == DTX_INIT_ONES, lambda = strstr(item->row.name, "lambda") != NULL;
        uint64_t key = dtx_rng_key(3, item->row.name);
        double *w = item->master.data; /* the CPU backend's memory is host memory; without act copy in f64 */
        for (int64_t k = 0; k < item->count; k++)
            w[k] = (gain ? 1.0 : 0.0) + (lambda ? 0.4 : 0.25) * dtx_rng_normal(key, (uint64_t)k);
    }
}

static void open_model(struct model *m, struct dtx_test_model test, enum dtx_subnorm subnorm, double lambda_init)
{
    struct dtx_engine_config config;
    memset(m, 0, sizeof *m);
    test.layers = 2;
    test.global_batch = 4;
    test.micro_batch = 2;
    m->test = test;
    dtx_test_config(&test, &config);
    config.model.subnorm = subnorm;
    config.model.lambda_init = lambda_init;
    dtx_test_engine_open(&m->one, &config, dtx_isa_detect());
    m->engine = m->one.engine;
    int64_t n = test.global_batch * test.length;
    m->buffer = malloc((size_t)(3 * n) * sizeof *m->buffer);
    dtx_test_batch(&test, 0, 0, m->buffer, m->buffer + n, m->buffer + 2 * n);
    m->batch = (struct dtx_engine_batch){m->buffer, m->buffer + n, test.documents ? m->buffer + 2 * n : NULL};
    scatter_weights(m);
}

static void close_model(struct model *m)
{
    dtx_test_engine_close(&m->one);
    free(m->buffer);
}

static double loss_of(struct model *m)
{
    double sum;
    int64_t targets;
    assert_int_equal(dtx_engine_evaluate(m->engine, &m->batch, &sum, &targets), DTX_OK);
    return sum / (double)targets;
}

/* dL/ds of w + s·v by differences of fourth order. */
static double difference(struct model *m, struct dtx_param *item, const double *v)
{
    static const double at[] = {2, 1, -1, -2}, weight[] = {-1.0 / 12, 8.0 / 12, -8.0 / 12, 1.0 / 12};
    const double h = 5e-4;
    double *w = item->master.data, sum = 0;
    size_t bytes = (size_t)item->count * sizeof *w;
    double *saved = malloc(bytes);
    memcpy(saved, w, bytes);
    for (int i = 0; i < 4; i++) {
        for (int64_t k = 0; k < item->count; k++)
            w[k] = saved[k] + at[i] * h * v[k];
        sum += weight[i] * loss_of(m);
    }
    memcpy(w, saved, bytes);
    free(saved);
    return sum / h;
}

static int check_direction(struct model *m, struct dtx_param *item, const double *g, const double *v, const char *what)
{
    double expected = difference(m, item, v), got = 0, scale = 0;
    for (int64_t k = 0; k < item->count; k++) {
        got += g[k] * v[k];
        scale += g[k] * g[k];
    }
    scale = fmax(sqrt(scale), fabs(expected));
    if (fabs(got - expected) <= 2e-7 * scale)
        return 0;
    printf("%s, %s: gradient %.12g, difference %.12g (norm of the gradient %.3g)\n", item->row.name, what, got,
           expected, scale);
    return 1;
}

static void check_model(struct dtx_test_model test, enum dtx_subnorm subnorm, double lambda_init)
{
    struct model m;
    struct dtx_step_result result;
    int wrong = 0;
    open_model(&m, test, subnorm, lambda_init);
    assert_int_equal(dtx_engine_gradients(m.engine, &m.batch, &result), DTX_OK);
    assert_true(fabs(result.loss - loss_of(&m)) < 1e-12 * result.loss);
    struct dtx_params *p = dtx_engine_params(m.engine);
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        size_t bytes = (size_t)item->count * sizeof(double);
        double *g = malloc(bytes), *v = calloc(1, bytes), norm = 0;
        memcpy(g, item->grad.data, bytes);
        uint64_t key = dtx_rng_key(4, item->row.name);
        for (int64_t k = 0; k < item->count; k++)
            norm += dtx_rng_normal(key, (uint64_t)k) * dtx_rng_normal(key, (uint64_t)k);
        for (int64_t k = 0; k < item->count; k++)
            v[k] = dtx_rng_normal(key, (uint64_t)k) / sqrt(norm);
        wrong += check_direction(&m, item, g, v, "random direction");
        for (int e = 0; e < ENTRIES; e++) {
            int64_t k = (int64_t)(dtx_rng_uniform(key, (uint64_t)(item->count + e)) * (double)item->count);
            memset(v, 0, bytes);
            v[k] = 1;
            char what[32];
            snprintf(what, sizeof what, "entry %lld", (long long)k);
            wrong += check_direction(&m, item, g, v, what);
        }
        free(g);
        free(v);
    }
    close_model(&m);
    assert_int_equal(wrong, 0);
}

static void test_subnorms(void **state)
{
    (void)state;
    struct dtx_test_model test = dtx_test_model_default();
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
    check_model(test, DTX_SUBNORM_PLAIN, NAN);
    check_model(test, DTX_SUBNORM_NONE, NAN);
}

static void test_lambda_constant(void **state)
{
    (void)state;
    check_model(dtx_test_model_default(), DTX_SUBNORM_AFFINE, 0.8);
    check_model(dtx_test_model_default(), DTX_SUBNORM_NONE, 0.0);
}

static void test_grouped_documents_untied(void **state)
{
    (void)state;
    struct dtx_test_model test = dtx_test_model_default();
    test.gqa = test.documents = true;
    test.tied = false;
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
    test.attention = "softmax";
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
}

static void test_softmax(void **state)
{
    (void)state;
    struct dtx_test_model test = dtx_test_model_default();
    test.attention = "softmax";
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
}

/* Every factor of the forward pass is another number than 1. */
static void test_transfer(void **state)
{
    (void)state;
    struct dtx_test_model test = dtx_test_model_default();
    test.transfer = (struct dtx_transfer){DTX_TRANSFER_COMPLETEP, 1.6, 2.5, 3, 1.7, 2.3};
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
    test.tied = false;
    test.attention = "softmax";
    check_model(test, DTX_SUBNORM_AFFINE, NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_subnorms), cmocka_unit_test(test_lambda_constant),
                                       cmocka_unit_test(test_grouped_documents_untied), cmocka_unit_test(test_softmax),
                                       cmocka_unit_test(test_transfer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
