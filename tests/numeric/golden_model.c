/* test: label=numeric timeout=120 */
/*
 * Logits, loss, every gradient and one AdamW step of small models against Hugging Face transformers' DiffLlama and
 * Llama (files made by tests/golden/make_golden.py), in f64; the same in fp32 with wider bounds. With every instruction
 * set of this processor.
 */
#include <hdf5.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/engine.h"
#include "tests/ref/ref.h"
#include "trainer/attn.h"
#include "trainer/optim.h"

enum { LENGTH = 19, BATCH = 2, VOCAB = 67, LAYERS = 3 };

/* dλ = −Σ s over rows and heads cancels: its error is measured by Σ|terms|, the terms as tests/ref counts them. The
 * listener stands between the engine and the backend's operations and sees each layer's terms in the backward pass,
 * which goes from the last layer to the first. */
#define LAMBDA_TERMS 5e-6 /* a hundredth of what DESIGN.md 8 allows; about 40 roundings of fp32 */
struct listener {
    struct dtx_op_table table; /* first: what the backend's `ops` points to */
    const struct dtx_op_table *real;
    int left; /* layers still to come */
    double terms[LAYERS];
};

static enum dtx_status listen_attn_dots(struct dtx_queue *queue, const struct dtx_attn_dots_args *args)
{
    struct listener *l = (struct listener *)queue->backend->ops;
    const int64_t *dim = args->do_.dim;
    struct ref_attn shape = {
        .b = dim[0], .tq = dim[1], .h = dim[2], .dv = dim[3], .maps = 2, .lambda = *(double *)args->lambda.data};
    double *dsum = malloc((size_t)(2 * dim[0] * dim[1] * dim[2]) * sizeof *dsum);
    double *dlambda = calloc((size_t)dim[2], sizeof *dlambda), *terms = malloc((size_t)dim[2] * sizeof *terms);
    ref_exact(DTX_F64)->attn_dots(&shape, args->do_.data, args->o.data, args->o2.data, dsum, dlambda, terms);
    assert_true(l->left > 0);
    l->left--;
    for (int64_t head = 0; head < dim[2]; head++)
        l->terms[l->left] += terms[head];
    free(dsum), free(dlambda), free(terms);
    return l->real->attn_dots(queue, args);
}

static void listen(struct listener *l, struct dtx_backend *backend)
{
    *l = (struct listener){.table = *backend->ops, .real = backend->ops, .left = LAYERS};
    l->table.attn_dots = listen_attn_dots;
    backend->ops = &l->table;
}

static double *read_doubles(hid_t file, const char *folder, const char *name, int64_t n)
{
    char path[128];
    snprintf(path, sizeof path, "/%s/%s", folder, name);
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    if (set < 0)
        fail_msg("no dataset %s", path);
    hid_t space = H5Dget_space(set);
    assert_int_equal(H5Sget_simple_extent_npoints(space), n);
    double *values = malloc((size_t)n * sizeof *values);
    assert_true(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Sclose(space);
    H5Dclose(set);
    return values;
}

static void read_ints(hid_t file, const char *name, int32_t *out)
{
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    assert_true(set >= 0 && H5Dread(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) >= 0);
    H5Dclose(set);
}

static double attribute(hid_t file, const char *name)
{
    double value;
    hid_t a = H5Aopen(file, name, H5P_DEFAULT);
    assert_true(a >= 0 && H5Aread(a, H5T_NATIVE_DOUBLE, &value) >= 0);
    H5Aclose(a);
    return value;
}

static void config_from(hid_t file, const char *attention, enum dtx_dtype dtype, struct dtx_engine_config *c)
{
    struct dtx_test_model m = dtx_test_model_default();
    m.attention = attention;
    m.dtype = dtype;
    m.global_batch = m.micro_batch = BATCH;
    m.length = LENGTH;
    dtx_test_config(&m, c);
    c->model.layers = (int64_t)attribute(file, "layers");
    c->model.width = (int64_t)attribute(file, "D");
    c->model.heads = (int64_t)attribute(file, "heads");
    c->model.kv_heads = (int64_t)attribute(file, "kv_heads");
    c->model.head_dim = (int64_t)attribute(file, "head_dim");
    c->model.ffn = (int64_t)attribute(file, "ffn");
    c->model.vocab = (int64_t)attribute(file, "vocab");
    c->model.rope_theta = attribute(file, "theta");
    c->model.norm_eps = attribute(file, "eps");
    c->model.tied = attribute(file, "tied") != 0;
    c->optim.clip = 1.0;
}

static void set_weights(struct dtx_engine *e, hid_t file)
{
    struct dtx_params *p = dtx_engine_params(e);
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        double *w = read_doubles(file, "weights", item->row.name, item->count);
        if (item->master.dtype == DTX_F32)
            for (int64_t k = 0; k < item->count; k++)
                ((float *)w)[k] = (float)w[k];
        assert_int_equal(dtx_tensor_set(dtx_engine_queue(e), &item->master, w), DTX_OK);
        free(w);
    }
    assert_int_equal(dtx_params_refresh(p, dtx_engine_queue(e)), DTX_OK);
}

/* Each element of a λ vector's gradient keeps LAMBDA_TERMS of its own terms: |∂λ/∂q1| = exp(q1·k1)·|k1|, and so on. */
static void compare_lambda(hid_t file, const char *name, const double terms[LAYERS], int64_t n, const double *got,
                           const double *expected)
{
    int layer;
    char other[DTX_PARAM_NAME];
    assert_int_equal(sscanf(name, "layers.%d.", &layer), 1);
    snprintf(other, sizeof other, "%s", name);
    char *letter = other + strlen(other) - 2; /* of …lambda_q1 */
    *letter = *letter == 'q' ? 'k' : 'q';
    double *own = read_doubles(file, "weights", name, n), *partner = read_doubles(file, "weights", other, n), dot = 0;
    for (int64_t i = 0; i < n; i++)
        dot += own[i] * partner[i];
    for (int64_t i = 0; i < n; i++) {
        double limit = LAMBDA_TERMS * terms[layer] * exp(dot) * fabs(partner[i]);
        if (!(fabs(got[i] - expected[i]) <= limit))
            fail_msg("gradient %lld of %s is %.9g, must be %.9g ± %.3g", (long long)i, name, got[i], expected[i],
                     limit);
    }
    free(own), free(partner);
}

/* what: 'g' gradients, 'w' weights after the step. terms: in fp32, of each layer's dλ. */
static void compare(struct dtx_engine *e, hid_t file, char what, double bound, const double *terms)
{
    struct dtx_params *p = dtx_engine_params(e);
    for (int i = 0; i < p->n; i++) {
        int64_t n = p->item[i].count;
        const char *name = p->item[i].row.name;
        double *expected = read_doubles(file, what == 'g' ? "grads" : "update", name, n);
        double *got = malloc((size_t)n * sizeof *got);
        assert_int_equal(dtx_test_gather(e, i, what, got), DTX_OK);
        double difference = dtx_test_relative(got, expected, n);
        if (what == 'g' && terms && strstr(name, "lambda"))
            compare_lambda(file, name, terms, n, got, expected);
        else if (!(difference <= bound))
            fail_msg("%c of %s differs by %.3g (bound %.3g)", what, name, difference, bound);
        free(expected);
        free(got);
    }
}

/* The last token's logits of a prefix, through the key/value cache in two pieces. */
static void compare_logits(struct dtx_engine *e, hid_t file, const int32_t *tokens, double bound)
{
    double *expected = read_doubles(file, ".", "logits", BATCH * LENGTH * VOCAB), got[VOCAB];
    for (int b = 0; b < BATCH; b++)
        for (int first = 0, n = 7; first < LENGTH; first += n, n = first < 10 ? 3 : 1) {
            assert_int_equal(dtx_engine_logits(e, tokens + b * LENGTH + first, first, n, got), DTX_OK);
            double d = dtx_test_relative(got, expected + ((int64_t)b * LENGTH + first + n - 1) * VOCAB, VOCAB);
            if (!(d <= bound))
                fail_msg("logits of sequence %d after token %d differ by %.3g", b, first + n, d);
        }
    free(expected);
}

static const struct {
    const char *name, *attention;
} files[] = {{"diff_mha", "diff"}, {"diff_gqa", "diff"}, {"softmax_mha", "softmax"}, {"softmax_gqa", "softmax"}};

/* listener: f64 fills its terms, fp32 is measured by them. */
static void check(int f, enum dtx_dtype dtype, int isa, double bound, double update_bound, struct listener *listener)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s.h5", getenv("DTX_SOURCE"), files[f].name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    struct dtx_test_engine o;
    struct dtx_engine_config config;
    bool exact = dtype == DTX_F64, diff = strcmp(files[f].attention, "diff") == 0;
    config_from(file, files[f].attention, dtype, &config);
    assert_int_equal(config.model.layers, LAYERS);
    dtx_test_engine_open(&o, &config, isa);
    set_weights(o.engine, file);
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    read_ints(file, "/tokens", tokens);
    read_ints(file, "/targets", targets);
    struct dtx_engine_batch batch = {tokens, targets, NULL};
    struct dtx_step_result result;
    compare_logits(o.engine, file, tokens, bound);
    const struct dtx_op_table *real = o.backend->ops;
    if (exact && diff)
        listen(listener, o.backend);
    if (dtx_engine_gradients(o.engine, &batch, &result) != DTX_OK)
        fail_msg("%s", o.ctx.error.text);
    o.backend->ops = real;
    assert_true(!exact || !diff || listener->left == 0);
    double *loss = read_doubles(file, ".", "loss", 1);
    assert_true(fabs(result.loss - *loss) <= bound * *loss);
    assert_true(fabs(result.grad_norm - attribute(file, "grad_norm")) <= bound * result.grad_norm);
    compare(o.engine, file, 'g', bound, exact ? NULL : listener->terms);
    assert_int_equal(dtx_engine_step(o.engine, &batch, 1, 1e-2, &result), DTX_OK);
    compare(o.engine, file, 'w', update_bound, NULL);
    double sum;
    int64_t count;
    set_weights(o.engine, file);
    assert_int_equal(dtx_engine_evaluate(o.engine, &batch, &sum, &count), DTX_OK);
    assert_true(fabs(sum / (double)count - *loss) <= bound * *loss);
    free(loss);
    dtx_test_engine_close(&o);
    H5Fclose(file);
}

static void test_isa(void **state)
{
    struct listener listener;
    for (int f = 0; f < 4; f++) {
        check(f, DTX_F64, *(int *)*state, 1e-10, 1e-9, &listener);
        check(f, DTX_F32, *(int *)*state, 2e-5, 1e-3, &listener);
    }
}

int main(void)
{
    int isas[] = {DTX_ISA_PLAIN, DTX_ISA_AVX2, DTX_ISA_AVX512, DTX_ISA_AVX512_BF16};
    struct CMUnitTest tests[sizeof isas / sizeof *isas];
    for (int i = 0; i <= dtx_isa_detect(); i++)
        tests[i] = (struct CMUnitTest){dtx_isa_name(isas[i]), test_isa, NULL, NULL, &isas[i]};
    return _cmocka_run_group_tests("golden_model", tests, (size_t)dtx_isa_detect() + 1, NULL, NULL);
}
