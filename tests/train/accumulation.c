/* test: label=train timeout=60 */
/*
 * Micro-batches change nothing beyond rounding: 8 of 1 sequence, 4 of 2, 2 of 4 and 1 of 8 give the same losses, norms
 * and weights after three steps in f64, with unequal numbers of targets and sequences without any. A global batch
 * without a single target is harmless.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/engine.h"

enum { STEPS = 3 };
#define BOUND 1e-12

struct run {
    double losses[STEPS], norms[STEPS], *weights;
    int64_t n, targets;
};

static void open_engine(struct dtx_test_engine *o, const struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    dtx_test_config(m, &config);
    config.optim.eps = 1e-3; /* so that weights with tiny gradients do not turn rounding into whole steps */
    dtx_test_engine_open(o, &config, dtx_isa_detect());
}

static void run(int64_t micro_batch, bool documents, struct run *out)
{
    struct dtx_test_engine o;
    struct dtx_test_model m = dtx_test_model_default();
    m.micro_batch = micro_batch;
    m.documents = documents;
    open_engine(&o, &m);
    assert_int_equal(dtx_test_train(o.engine, &m, STEPS, 2e-3, out->losses, out->norms), DTX_OK);
    struct dtx_params *p = dtx_engine_params(o.engine);
    out->n = p->flat_master.dim[0];
    out->weights = malloc((size_t)out->n * sizeof(double));
    memcpy(out->weights, p->flat_master.data, (size_t)out->n * sizeof(double));
    dtx_test_engine_close(&o);
}

static void compare(bool documents)
{
    struct run one, other;
    run(8, documents, &one);
    for (int64_t micro_batch = 4; micro_batch >= 1; micro_batch /= 2) {
        run(micro_batch, documents, &other);
        for (int s = 0; s < STEPS; s++) {
            assert_true(fabs(other.losses[s] - one.losses[s]) <= BOUND * one.losses[s]);
            assert_true(fabs(other.norms[s] - one.norms[s]) <= BOUND * one.norms[s]);
        }
        assert_int_equal(other.n, one.n);
        assert_true(dtx_test_relative(other.weights, one.weights, one.n) <= BOUND);
        free(other.weights);
    }
    free(one.weights);
}

static void test_micro_batches(void **state)
{
    (void)state;
    compare(false);
    compare(true);
}

/* The loss is the mean over all targets, not a mean of means. */
static void test_loss_is_weighted_by_targets(void **state)
{
    (void)state;
    struct dtx_test_engine o;
    struct dtx_test_model m = dtx_test_model_default();
    open_engine(&o, &m);
    enum { SEQUENCES = 8 };
    int64_t n = SEQUENCES * m.length, count = 0;
    int32_t *tokens = malloc((size_t)(3 * n) * sizeof *tokens), *targets = tokens + n, *masked = targets + n;
    dtx_test_batch(&m, 0, 0, tokens, targets, NULL);
    double sum = 0, part;
    int64_t targets_of_part;
    for (int i = 0; i < SEQUENCES; i++) { /* one sequence's targets at a time */
        memset(masked, 0xff, (size_t)n * sizeof *masked);
        memcpy(masked + i * m.length, targets + i * m.length, (size_t)m.length * sizeof *masked);
        struct dtx_engine_batch batch = {tokens, masked, NULL};
        assert_int_equal(dtx_engine_evaluate(o.engine, &batch, &part, &targets_of_part), DTX_OK);
        assert_true(i != 2 || (targets_of_part == 0 && part == 0));
        sum += part;
        count += targets_of_part;
    }
    struct dtx_engine_batch whole = {tokens, targets, NULL};
    struct dtx_step_result result;
    assert_int_equal(dtx_engine_gradients(o.engine, &whole, &result), DTX_OK);
    assert_int_equal(result.targets, count);
    assert_true(fabs(result.loss - sum / (double)count) <= BOUND * result.loss);
    free(tokens);
    dtx_test_engine_close(&o);
}

static void test_no_target_at_all(void **state)
{
    (void)state;
    struct dtx_test_engine o;
    struct dtx_test_model m = dtx_test_model_default();
    open_engine(&o, &m);
    int64_t n = 8 * m.length;
    int32_t *tokens = malloc((size_t)(2 * n) * sizeof *tokens), *targets = tokens + n;
    dtx_test_batch(&m, 0, 0, tokens, targets, NULL);
    memset(targets, 0xff, (size_t)n * sizeof *targets);
    struct dtx_engine_batch batch = {tokens, targets, NULL};
    struct dtx_step_result result;
    assert_int_equal(dtx_engine_step(o.engine, &batch, 1, 1e-3, &result), DTX_OK);
    assert_int_equal(result.targets, 0);
    assert_true(result.loss == 0 && result.grad_norm == 0 && result.clip == 1 && !result.skipped);
    struct dtx_params *p = dtx_engine_params(o.engine);
    for (int64_t i = 0; i < p->flat_master.dim[0]; i++)
        assert_true(isfinite(((double *)p->flat_master.data)[i]));
    free(tokens);
    dtx_test_engine_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_micro_batches),
                                       cmocka_unit_test(test_loss_is_weighted_by_targets),
                                       cmocka_unit_test(test_no_target_at_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
