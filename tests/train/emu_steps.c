/* test: label=train timeout=120 */
/*
 * Two layers trained with the operations of the CUDA backend, in the emulator, against the CPU backend: losses, norms
 * and weights. In f64 they are the same to the bounds of meshes; in fp32 and bf16 the losses follow. With memory from
 * an arena they are, bit for bit, what they are with an allocation for each buffer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <math.h>
#include <cmocka.h>

#include "tests/harness/mesh_run.h"

enum { STEPS = 3 };

struct variant {
    const char *attention, *recompute;
    enum dtx_dtype dtype;
    bool tied, gqa, documents;
};

static double *numbers(const struct variant *v, const char *device, int64_t *count)
{
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_test_model m = dtx_test_model_default();
    m.layers = 2;
    m.global_batch = 4;
    m.attention = v->attention;
    m.dtype = v->dtype;
    m.tied = v->tied;
    m.gqa = v->gqa;
    m.documents = v->documents;
    m.recompute = v->recompute;
    m.device = device;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_comm_self(&ctx, &self), DTX_OK);
    double *values = dtx_test_numbers(self, &m, STEPS, count);
    dtx_comm_free(self);
    return values;
}

static void compare(const struct variant *v, double loss_bound, double value_bound)
{
    int64_t count, again;
    double *cpu = numbers(v, NULL, &count), *emu = numbers(v, "emu", &again);
    assert_int_equal(count, again);
    for (int s = 0; s < STEPS; s++)
        if (!(fabs(emu[s] - cpu[s]) <= loss_bound * fabs(cpu[s])))
            fail_msg("step %d: loss %.12g in the emulator, %.12g on the CPU", s + 1, emu[s], cpu[s]);
    double apart = dtx_test_relative(emu + STEPS, cpu + STEPS, STEPS);
    if (!(apart <= value_bound))
        fail_msg("gradient norms are apart by %.3g", apart);
    apart = dtx_test_relative(emu + 2 * STEPS, cpu + 2 * STEPS, count - 2 * STEPS);
    if (!(apart <= value_bound))
        fail_msg("weights are apart by %.3g", apart);
    free(cpu);
    free(emu);
}

static void f64(void **state)
{
    (void)state;
    compare(&(struct variant){"diff", NULL, DTX_F64, false, false, false}, DTX_MESH_F64_LOSS, DTX_MESH_F64_VALUE);
    compare(&(struct variant){"diff", "block", DTX_F64, true, true, true}, DTX_MESH_F64_LOSS, DTX_MESH_F64_VALUE);
    compare(&(struct variant){"softmax", NULL, DTX_F64, false, false, true}, DTX_MESH_F64_LOSS, DTX_MESH_F64_VALUE);
}

static void f32(void **state)
{
    (void)state;
    compare(&(struct variant){"diff", NULL, DTX_F32, false, true, false}, DTX_MESH_F32_LOSS, 1e-3);
}

static void bf16(void **state)
{
    (void)state;
    compare(&(struct variant){"diff", NULL, DTX_BF16, false, false, false}, 5e-3, 2e-2);
}

/* Work runs as late as streams and events allow: the host waits wherever it must. */
static void late(void **state)
{
    (void)state;
    setenv("DTX_EMU_STREAMS", "late", 1);
    compare(&(struct variant){"diff", NULL, DTX_F64, false, false, true}, DTX_MESH_F64_LOSS, DTX_MESH_F64_VALUE);
    unsetenv("DTX_EMU_STREAMS");
}

/* Where memory lies changes no bit. */
static void arenas(void **state)
{
    (void)state;
    const struct variant v = {"diff", "block", DTX_BF16, true, false, true};
    int64_t count, again;
    double *with = numbers(&v, "emu", &count);
    setenv("DTX_ARENA", "0", 1);
    double *without = numbers(&v, "emu", &again);
    unsetenv("DTX_ARENA");
    assert_int_equal(count, again);
    assert_int_equal(dtx_test_different(with, without, count), 0);
    free(with);
    free(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f64), cmocka_unit_test(f32), cmocka_unit_test(bf16),
                                       cmocka_unit_test(late), cmocka_unit_test(arenas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
