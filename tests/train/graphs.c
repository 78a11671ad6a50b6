/* test: label=train timeout=240 */
/*
 * Passes that are recorded and launched as one (cuda.graphs), in the emulator: losses, gradient norms, losses of
 * evaluations between and weights have the bits of passes that run operation by operation. Documents, targets and
 * tokens differ in every micro-batch. Graphs are there and were launched; none is left, and none outlives its memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/harness/mesh_run.h"
#include "trainer/estimate.h"

int dtx_emu_graphs(void); /* kernels/simt/runtime.h: those that are there */

enum { STEPS = 3, FEW = 2, LENGTH = 64, SEQUENCES = 4, MOST = 1 << 20 };

struct counts {
    int64_t made, launched;
};

/* A training step and an evaluation, `rounds` times; documents every second round when `some`. What came out of it. */
static int64_t run(struct dtx_engine *e, const struct dtx_test_model *m, int rounds, bool some, double *out)
{
    int32_t tokens[SEQUENCES * LENGTH], targets[SEQUENCES * LENGTH], starts[SEQUENCES * LENGTH];
    int64_t n = 0, count;
    for (int s = 0; s < rounds; s++) {
        struct dtx_step_result result;
        bool documents = m->documents && !(some && s % 2);
        struct dtx_engine_batch batch = {tokens, targets, documents ? starts : NULL};
        dtx_test_batch(m, s, 0, tokens, targets, starts);
        assert_int_equal(dtx_engine_step(e, &batch, s + 1, 2e-3, &result), DTX_OK);
        out[n++] = result.loss;
        out[n++] = result.grad_norm;
        dtx_test_batch(m, 100 + s, 0, tokens, targets, starts);
        assert_int_equal(dtx_engine_evaluate(e, &batch, &out[n++], &count), DTX_OK);
    }
    return n;
}

/* All of it, malloc'ed, with the weights behind. */
static double *numbers(struct dtx_test_model m, bool graphs, bool some, int64_t *count, struct counts *counts)
{
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_backend *backend;
    struct dtx_engine *e;
    struct dtx_engine_config config;
    m.graphs = graphs;
    dtx_ctx_init(&ctx);
    dtx_test_config(&m, &config);
    config.fp8 = m.dtype == DTX_BF16;
    if (m.length == LENGTH) { /* one head of two maps of 64 */
        config.model.heads = config.model.kv_heads = 1;
        config.model.head_dim = 64;
        config.model.width = 128;
    }
    assert_int_equal(dtx_comm_self(&ctx, &self), DTX_OK);
    if (dtx_backend_open(&ctx, "emu", 1, DTX_ISA_PLAIN, &backend) != DTX_OK ||
        dtx_engine_create(&ctx, &config, self, backend, &e) != DTX_OK)
        fail_msg("%s", ctx.error.text);
    struct dtx_params *p = dtx_engine_params(e);
    double *all = malloc(MOST * sizeof *all);
    *count = run(e, &m, m.length == LENGTH ? FEW : STEPS, some, all);
    for (int i = 0; i < p->n; i++) {
        assert_int_equal(dtx_test_gather(e, i, 'w', all + *count), DTX_OK);
        *count += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
        assert_true(*count < MOST / 2);
    }
    dtx_engine_graphs(e, &counts->made, &counts->launched);
    assert_int_equal(dtx_emu_graphs(), counts->made);
    struct dtx_estimate stated;
    assert_int_equal(dtx_estimate_rank(&ctx, &config, dtx_engine_queue(e), dtx_engine_mesh(e)->rank, &stated), DTX_OK);
    assert_int_equal(dtx_memory_total(&stated.memory), backend->allocated_bytes);
    dtx_engine_free(e);
    assert_int_equal(dtx_emu_graphs(), 0);
    assert_int_equal(backend->allocated_bytes, 0);
    /* A graph that outlives its memory is a fault that whoever uses the device next is told. */
    struct dtx_queue *queue;
    assert_int_equal(backend->queues->create(backend, &queue), DTX_OK);
    if (backend->queues->wait(queue) != DTX_OK)
        fail_msg("%s", ctx.error.text);
    backend->queues->free(queue);
    dtx_backend_close(backend);
    dtx_comm_free(self);
    return all;
}

static void same(const struct dtx_test_model *m, bool some, int64_t made, int64_t launched)
{
    int64_t count, again;
    struct counts without, with;
    double *plain = numbers(*m, false, some, &count, &without), *graphs = numbers(*m, true, some, &again, &with);
    assert_int_equal(count, again);
    int64_t different = dtx_test_different(graphs, plain, count);
    for (int64_t i = 0; i < 3 * STEPS && different; i++)
        print_message("step %d, number %d: %.17g, without graphs %.17g\n", (int)i / 3 + 1, (int)i % 3, graphs[i],
                      plain[i]);
    if (different)
        fail_msg("%lld of %lld numbers differ", (long long)different, (long long)count);
    assert_int_equal(without.made, 0);
    assert_int_equal(with.made, made);
    assert_int_equal(with.launched, launched);
    free(plain);
    free(graphs);
}

static struct dtx_test_model model(enum dtx_dtype dtype)
{
    struct dtx_test_model m = dtx_test_model_default();
    m.dtype = dtype;
    m.layers = 2;
    m.global_batch = SEQUENCES;
    m.documents = true;
    return m;
}

/* Forward, backward, forward of an evaluation: 3 graphs, each pass but the first of its kind. */
static void plain(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_F32);
    same(&m, false, 3, 3 * (STEPS * SEQUENCES - 1));
    m.attention = "softmax";
    m.tied = false;
    m.recompute = "block";
    same(&m, false, 3, 3 * (STEPS * SEQUENCES - 1));
    m = model(DTX_BF16);
    m.gqa = true;
    m.micro_batch = 2;
    same(&m, false, 3, 3 * (STEPS * SEQUENCES / 2 - 1));
}

/* With documents and without them other kernels run. */
static void documents(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_F32);
    same(&m, true, 6, 3 * (STEPS * SEQUENCES - 2));
}

/* All micro-batches forward, then all backward: a slot for each, which is another pass. */
static void slots(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_F32);
    m.schedule = "gpipe";
    same(&m, false, 2 * SEQUENCES + 1, 2 * SEQUENCES * (STEPS - 1) + STEPS * SEQUENCES - 1);
    m.schedule = "zb_h1";
    m.recompute = "attention";
    int64_t count, again;
    struct counts none, some;
    double *a = numbers(m, false, false, &count, &none), *b = numbers(m, true, false, &again, &some);
    assert_int_equal(dtx_test_different(a, b, count), 0);
    assert_true(some.launched > 2 * STEPS * SEQUENCES);
    free(a);
    free(b);
}

/* Work runs as late as it may; in any order: ranks.graphs. */
static void late(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_F32);
    setenv("DTX_EMU_STREAMS", "late", 1);
    same(&m, false, 3, 3 * (STEPS * SEQUENCES - 1));
    unsetenv("DTX_EMU_STREAMS");
}

/* One micro-batch a step, as one GPU takes it: its backward pass is recorded as well. */
static void one_micro_batch(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_F32);
    m.micro_batch = SEQUENCES;
    same(&m, false, 3, 3 * (STEPS - 1));
}

/* Kernels of sm_90a: descriptions of tiles are arguments too. */
static void hopper(void **state)
{
    (void)state;
    struct dtx_test_model m = model(DTX_BF16);
    m.layers = 1;
    m.length = LENGTH;
    m.global_batch = 2;
    setenv("DTX_EMU_ARCH", "90", 1);
    same(&m, false, 3, 3 * (FEW * 2 - 1));
    unsetenv("DTX_EMU_ARCH");
}

static const struct dtx_op_table *real;

static enum dtx_status waiting_swiglu(struct dtx_queue *queue, const struct dtx_swiglu_fwd_args *args)
{
    enum dtx_status status = queue->backend->queues->wait(queue);
    return status == DTX_OK ? real->swiglu_fwd(queue, args) : status;
}

struct one {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_backend *backend;
    struct dtx_engine *e;
};

/* A model with graphs on a device: what the engine says of it. */
static enum dtx_status open_one(struct one *o, const char *device, struct dtx_test_model *m)
{
    struct dtx_engine_config config;
    *m = model(DTX_F32);
    m->graphs = true;
    dtx_ctx_init(&o->ctx);
    dtx_test_config(m, &config);
    assert_int_equal(dtx_comm_self(&o->ctx, &o->self), DTX_OK);
    assert_int_equal(dtx_backend_open(&o->ctx, device, 1, DTX_ISA_PLAIN, &o->backend), DTX_OK);
    return dtx_engine_create(&o->ctx, &config, o->self, o->backend, &o->e);
}

static void close_one(struct one *o)
{
    dtx_backend_close(o->backend);
    dtx_comm_free(o->self);
}

/* A pass that waits cannot be recorded: its own report ends the step, and the queue is none that records. */
static void refused(void **state)
{
    (void)state;
    struct one o;
    struct dtx_step_result result;
    struct dtx_test_model m;
    int32_t tokens[SEQUENCES * LENGTH], targets[SEQUENCES * LENGTH], starts[SEQUENCES * LENGTH];
    assert_int_equal(open_one(&o, "emu", &m), DTX_OK);
    real = o.backend->ops;
    struct dtx_op_table ops = *real;
    ops.swiglu_fwd = waiting_swiglu;
    o.backend->ops = &ops;
    dtx_test_batch(&m, 0, 0, tokens, targets, starts);
    struct dtx_engine_batch batch = {tokens, targets, NULL};
    assert_int_equal(dtx_engine_gradients(o.e, &batch, &result), DTX_E_LIBRARY);
    assert_non_null(strstr(o.ctx.error.text, "operation not permitted when stream is capturing"));
    dtx_error_clear(&o.ctx);
    assert_int_equal(o.backend->queues->wait(dtx_engine_queue(o.e)), DTX_OK);
    dtx_engine_plain(o.e, true);
    assert_int_equal(dtx_engine_gradients(o.e, &batch, &result), DTX_OK);
    o.backend->ops = real;
    dtx_engine_free(o.e);
    assert_int_equal(dtx_emu_graphs(), 0);
    assert_int_equal(o.backend->allocated_bytes, 0);
    close_one(&o);
}

static void on_cpu(void **state)
{
    (void)state;
    struct one o;
    struct dtx_test_model m;
    assert_int_equal(open_one(&o, "cpu", &m), DTX_E_UNSUPPORTED);
    assert_non_null(strstr(o.ctx.error.text, "cuda.graphs"));
    close_one(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain),           cmocka_unit_test(documents),
                                       cmocka_unit_test(slots),           cmocka_unit_test(late),
                                       cmocka_unit_test(one_micro_batch), cmocka_unit_test(hopper),
                                       cmocka_unit_test(refused),         cmocka_unit_test(on_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
