/* test: label=train timeout=60 */
/*
 * Logits with the key/value cache are those without it, in f64: token by token, in pieces of any size, and again from
 * an earlier position; they give the loss that evaluation reports. Training after generating is undisturbed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/engine.h"

enum { VOCAB = 67, LENGTH = 12 };

static void feed(struct dtx_test_engine *o, const int32_t *tokens, int64_t first, int64_t n, double *logits)
{
    if (dtx_engine_logits(o->engine, tokens + first, first, n, logits) != DTX_OK)
        fail_msg("%s", o->ctx.error.text);
}

static void same(const double *got, const double *expected, const char *what, int64_t at)
{
    double difference = dtx_test_relative(got, expected, VOCAB);
    if (!(difference <= 1e-12))
        fail_msg("%s: logits after token %lld differ by %g", what, (long long)at, difference);
}

/* whole[k]: logits after token k, each from an empty cache. */
static void all_logits(struct dtx_test_engine *o, const int32_t *tokens, double whole[LENGTH][VOCAB])
{
    for (int64_t k = 0; k < LENGTH; k++)
        feed(o, tokens, 0, k + 1, whole[k]);
}

static double loss_of(const double *logits, int32_t target)
{
    double largest = -INFINITY, sum = 0;
    for (int v = 0; v < VOCAB; v++)
        largest = fmax(largest, logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp(logits[v] - largest);
    return log(sum) + largest - logits[target];
}

static void check_model(struct dtx_test_model m)
{
    struct dtx_test_engine o;
    static double whole[LENGTH][VOCAB], got[VOCAB];
    static const int64_t pieces[] = {3, 1, 5, 2, 1};
    m.global_batch = 1;
    m.length = LENGTH;
    dtx_test_engine_open_model(&o, &m);
    assert_int_equal(dtx_test_train(o.engine, &m, 5, 1e-2, NULL, NULL), DTX_OK); /* away from the first weights */
    int32_t tokens[LENGTH], targets[LENGTH];
    dtx_test_batch(&m, 7, 0, tokens, targets, NULL);
    all_logits(&o, tokens, whole);
    for (int64_t k = 0; k < LENGTH; k++) {
        feed(&o, tokens, k, 1, got);
        same(got, whole[k], "one by one", k);
    }
    for (int64_t first = 0, p = 0; first < LENGTH; first += pieces[p++]) {
        feed(&o, tokens, first, pieces[p], got);
        same(got, whole[first + pieces[p] - 1], "in pieces", first);
    }
    feed(&o, tokens, 4, 3, got); /* what the cache holds behind the piece must not matter */
    same(got, whole[6], "again", 6);
    double sum = 0, expected = 0;
    int64_t n = 0, count;
    for (int64_t k = 0; k < LENGTH; k++)
        if (targets[k] >= 0) {
            expected += loss_of(whole[k], targets[k]);
            n++;
        }
    struct dtx_engine_batch batch = {tokens, targets, NULL};
    assert_int_equal(dtx_engine_evaluate(o.engine, &batch, &sum, &count), DTX_OK);
    assert_true(n > 0 && count == n);
    assert_true(fabs(sum - expected) <= 1e-11 * expected);
    /* a context that is full, and one too many */
    assert_int_equal(dtx_engine_logits(o.engine, tokens, LENGTH, 1, got), DTX_E_RANGE);
    dtx_error_clear(&o.ctx);
    dtx_test_engine_close(&o);
}

static void test_cache(void **state)
{
    (void)state;
    struct dtx_test_model m = dtx_test_model_default();
    check_model(m);
    m.gqa = true;
    m.tied = false;
    check_model(m);
    m.attention = "softmax";
    check_model(m);
}

static void test_training_goes_on(void **state)
{
    (void)state;
    struct dtx_test_engine plain, generating;
    struct dtx_test_model m = dtx_test_model_default();
    double losses[2][3], logits[VOCAB];
    int32_t tokens[LENGTH] = {1, 2, 3, 4};
    dtx_test_engine_open_model(&plain, &m);
    dtx_test_engine_open_model(&generating, &m);
    assert_int_equal(dtx_test_train(plain.engine, &m, 3, 1e-3, losses[0], NULL), DTX_OK);
    for (int i = 0; i < 2; i++)
        feed(&generating, tokens, 0, 4, logits);
    assert_int_equal(dtx_test_train(generating.engine, &m, 3, 1e-3, losses[1], NULL), DTX_OK);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    dtx_test_engine_close(&plain);
    dtx_test_engine_close(&generating);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cache), cmocka_unit_test(test_training_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
