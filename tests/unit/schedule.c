/* test: label=unit ranks=1 timeout=60 */
/* Every schedule on many shapes, its bubble and peak; and broken schedules, each caught with its own message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/schedule.h"

/* Idle shares by their papers' formulas, with forward, input part and weight part equally long. */
static double ideal(const char *name, int p, int m, int v)
{
    if (strcmp(name, "zb_h1") == 0) /* of (p − 1)(F + B − W) where there are enough micro-batches to hide it */
        return m >= p ? (p - 1.0) / (3.0 * m + p - 1.0) : 1 - 3.0 * m / (2.0 * m + 2.0 * p - 1);
    return (p - 1.0) / ((double)m * v + p - 1.0);
}

static void all_shapes(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    int n, played = 0, refused = 0;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    assert_true(n >= 4);
    for (int i = 0; i < n; i++)
        for (int stages = 1; stages <= 16; stages++)
            for (int chunks = 1; chunks <= 4 && chunks <= list[i]->max_chunks; chunks++)
                for (int m = 1; m <= 64; m++) {
                    double bubble = -1;
                    enum dtx_status status = dtx_schedule_simulate(&ctx, list[i], stages, m, chunks, &bubble);
                    if (m % dtx_schedule_multiple(list[i], stages, chunks) == 0) {
                        if (status != DTX_OK)
                            fail_msg("%s", ctx.error.text);
                        double wanted = ideal(list[i]->name, stages, m, chunks);
                        assert_true(bubble >= wanted - 1e-12);
                        assert_true(bubble <= wanted + 1e-12);
                        played++;
                    } else {
                        assert_int_equal(status, DTX_E_RANGE);
                        assert_non_null(strstr(ctx.error.text, "in multiples of"));
                        dtx_error_clear(&ctx);
                        refused++;
                    }
                }
    /* 1,024 shapes of one chunk each; of the interleaved ones those with a multiple of the stages. */
    assert_int_equal(played, 4 * 1024 + 3 * 211);
    assert_int_equal(refused, 3 * (1024 - 211));
}

static void peaks(void **state)
{
    (void)state;
    const struct dtx_schedule *gpipe = dtx_schedule_find("gpipe"), *one = dtx_schedule_find("1f1b");
    const struct dtx_schedule *interleaved = dtx_schedule_find("interleaved"), *zb = dtx_schedule_find("zb_h1");
    assert_non_null(gpipe);
    assert_non_null(one);
    assert_non_null(interleaved);
    assert_non_null(zb);
    assert_null(dtx_schedule_find("2f2b"));
    assert_int_equal(gpipe->peak(0, 4, 8, 1), 8);
    assert_int_equal(one->peak(0, 4, 8, 1), 4);
    assert_int_equal(one->peak(3, 4, 8, 1), 1);
    assert_int_equal(one->peak(0, 4, 3, 1), 3);
    assert_int_equal(interleaved->peak(0, 4, 8, 1), 4);
    assert_int_equal(interleaved->peak(0, 4, 8, 2), 11); /* 2(p − 1) + (v − 1)p + 1 */
    assert_int_equal(interleaved->peak(3, 4, 8, 2), 5);
    assert_int_equal(interleaved->peak(0, 4, 4, 2), 8);
    /* No stage of ZB-H1 has more alive than the first one of 1F1B. */
    assert_int_equal(zb->peak(0, 4, 8, 1), 4);
    assert_int_equal(zb->peak(3, 4, 8, 1), 4);
    assert_int_equal(zb->peak(3, 4, 2, 1), 2);
    assert_int_equal(dtx_schedule_kept(zb, 0, 4, 8, 1), 1);
    assert_int_equal(dtx_schedule_kept(zb, 3, 4, 8, 1), 4);
    assert_int_equal(dtx_schedule_kept(one, 3, 4, 8, 1), 0);
}

/* Weight gradients are added in the same order in every schedule: on every stage, in every chunk, both parts of the
 * backwards ascend. */
static void backward_ascends(void **state)
{
    (void)state;
    int n;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    for (int i = 0; i < n; i++)
        for (int stage = 0; stage < 4; stage++) {
            struct dtx_step steps[128];
            int chunks = list[i]->max_chunks > 1 ? 2 : 1;
            int count = list[i]->steps(stage, 4, 8, chunks, steps), inputs[2] = {0}, weights[2] = {0};
            for (int k = 0; k < count; k++) {
                const struct dtx_step *s = &steps[k];
                if (s->kind == DTX_STEP_BACKWARD || s->kind == DTX_STEP_BACKWARD_INPUT)
                    assert_int_equal(s->micro_batch, inputs[s->chunk]++);
                if (s->kind == DTX_STEP_BACKWARD || s->kind == DTX_STEP_BACKWARD_WEIGHT)
                    assert_int_equal(s->micro_batch, weights[s->chunk]++);
            }
            for (int c = 0; c < chunks; c++) {
                assert_int_equal(inputs[c], 8);
                assert_int_equal(weights[c], 8);
            }
        }
}

/* Broken schedules: tables for 2 stages, some micro-batches. Steps are written "F0.0": kind, micro-batch, slot; the
 * gradient slot of I and W is the same. */
static int parse(const char *text, struct dtx_step *out)
{
    int n = 0;
    for (const char *p = text; *p; p += p[4] ? 5 : 4, n++) {
        enum dtx_step_kind kind = p[0] == 'F'   ? DTX_STEP_FORWARD
                                  : p[0] == 'B' ? DTX_STEP_BACKWARD
                                  : p[0] == 'I' ? DTX_STEP_BACKWARD_INPUT
                                                : DTX_STEP_BACKWARD_WEIGHT;
        if (out)
            out[n] = (struct dtx_step){kind, p[1] - '0', 0, p[3] - '0', p[3] - '0'};
    }
    return n;
}

#define BROKEN(name, stage0, stage1, peak0, peak1)                                                                     \
    static int steps_##name(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)                \
    {                                                                                                                  \
        (void)stages, (void)micro_batches, (void)chunks;                                                               \
        return parse(stage ? stage1 : stage0, out);                                                                    \
    }                                                                                                                  \
    static int peak_##name(int stage, int stages, int micro_batches, int chunks)                                       \
    {                                                                                                                  \
        (void)stages, (void)micro_batches, (void)chunks;                                                               \
        return stage ? peak1 : peak0;                                                                                  \
    }
#define GOOD0 "F0.0 F1.1 B0.0 B1.1"
#define GOOD1 "F0.0 B0.0 F1.0 B1.0"
BROKEN(good, GOOD0, GOOD1, 2, 1)
BROKEN(split, GOOD0, "F0.0 I0.0 W0.0 F1.0 I1.0 W1.0", 2, 1)
BROKEN(missing_forward, GOOD0, "F0.0 B0.0", 2, 1)
BROKEN(missing_backward, "F0.0 F1.1 B0.0", GOOD1, 2, 1)
BROKEN(missing_weight, GOOD0, "F0.0 I0.0 W0.0 F1.1 I1.1", 2, 2)
BROKEN(forward_twice, "F0.0 F0.1 B0.0 F1.1 B1.1", GOOD1, 2, 1)
BROKEN(backward_twice, "F0.0 F1.1 B0.0 B0.0 B1.1", GOOD1, 2, 1)
BROKEN(dependency, "F0.0 B1.1 F1.1 B0.0", GOOD1, 2, 1)
BROKEN(weight_first, GOOD0, "F0.0 W0.0 I0.0 F1.0 B1.0", 2, 1)
BROKEN(out_of_order, GOOD0, "F0.0 F1.1 B1.1 B0.0", 2, 2)
BROKEN(slot_in_use, "F0.0 F1.0 B0.0 B1.0", GOOD1, 2, 1)
BROKEN(slot_beyond, GOOD0, "F0.0 F1.1 B0.0 B1.1", 2, 1)
BROKEN(slot_other, GOOD0, "F0.0 F1.1 B0.1 B1.0", 2, 2)
BROKEN(peak_unused, GOOD0, GOOD1, 2, 2)
BROKEN(input_order, GOOD0, "F0.0 F1.1 I1.1 I0.0 W0.0 W1.1", 2, 2)
BROKEN(weight_order, GOOD0, "F0.0 F1.1 I0.0 I1.1 W1.1 W0.0", 2, 2)
BROKEN(both_kept, GOOD0, "F0.0 F1.1 I0.0 I1.1 W0.0 W1.1", 2, 2)
BROKEN(no_such, GOOD0, "F0.0 B0.0 F7.0 B7.0", 2, 1)
/* Stage 0 wants gradient 0 before it sends activation 1, stage 1 wants activation 1 before it makes gradient 0. */
BROKEN(deadlock_cross, "F0.0 B0.0 F1.0 B1.0", "F0.0 F1.1 B0.0 B1.1", 1, 2)
/* Four activations before the first is wanted: the third has no buffer on the other side. */
BROKEN(deadlock_buffers, "F0.0 F1.1 F2.2 F3.3 F4.4 B0.0 B1.1 B2.2 B3.3 B4.4",
       "F4.0 F0.1 F1.2 F2.3 F3.4 B0.1 B1.2 B2.3 B3.4 B4.0", 5, 5)

static int last_keeps_1(int stage, int stages, int micro_batches, int chunks)
{
    (void)stages, (void)micro_batches, (void)chunks;
    return stage == 1;
}

static int last_keeps_2(int stage, int stages, int micro_batches, int chunks)
{
    return 2 * last_keeps_1(stage, stages, micro_batches, chunks);
}

static void broken_schedules(void **state)
{
    (void)state;
#define ROW_SPLIT(title, micro_batches, keeps, text)                                                                   \
    {                                                                                                                  \
        {.name = #title, .steps = steps_##title, .peak = peak_##title, .kept = keeps, .max_chunks = 1}, micro_batches, \
            text                                                                                                       \
    }
#define ROW(title, micro_batches, text) ROW_SPLIT(title, micro_batches, NULL, text)
    const struct {
        struct dtx_schedule schedule;
        int micro_batches;
        const char *text; /* NULL: nothing wrong */
    } rows[] = {
        ROW(good, 2, NULL),
        ROW_SPLIT(split, 2, last_keeps_1, NULL),
        ROW(split, 2, "the gradient slot is beyond the promised number"),
        ROW_SPLIT(split, 2, last_keeps_2, "promises a peak of 2 gradient slots and uses 1"),
        ROW_SPLIT(both_kept, 2, last_keeps_2, NULL),
        ROW_SPLIT(input_order, 2, last_keeps_2,
                  "(backward-input of micro-batch 1, chunk 0, slot 1): backward out of order"),
        ROW_SPLIT(weight_order, 2, last_keeps_2,
                  "(backward-weight of micro-batch 1, chunk 0, slot 1): backward out of order"),
        ROW(missing_forward, 2, "a forward is missing"),
        ROW(missing_backward, 2, "a backward is missing"),
        ROW_SPLIT(missing_weight, 2, last_keeps_2, "a backward is missing"),
        ROW(forward_twice, 2, "step 1 (forward of micro-batch 0, chunk 0, slot 1): done twice"),
        ROW(backward_twice, 2, "step 3 (backward of micro-batch 0, chunk 0, slot 0): done twice"),
        ROW(dependency, 2, "backward before its forward"),
        ROW_SPLIT(weight_first, 2, last_keeps_1, "weight gradient before the input gradient"),
        ROW(out_of_order, 2, "backward out of order"),
        ROW(slot_in_use, 2, "the slot is in use"),
        ROW(slot_beyond, 2, "the slot is beyond the promised peak"),
        ROW(slot_other, 2, "not the slot of its forward"),
        ROW(peak_unused, 2, "promises a peak of 2 slots and uses 1"),
        ROW(no_such, 2, "there is no such step"),
        ROW(deadlock_cross, 2, "deadlock: it waits for ever for its message"),
        ROW(deadlock_buffers, 5, "deadlock"),
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtx_ctx ctx;
        dtx_ctx_init(&ctx);
        double bubble = -1;
        enum dtx_status status = dtx_schedule_simulate(&ctx, &rows[i].schedule, 2, rows[i].micro_batches, 1, &bubble);
        assert_int_equal(status, rows[i].text ? DTX_E_INTERNAL : DTX_OK);
        if (rows[i].text && !strstr(ctx.error.text, rows[i].text))
            fail_msg("%s: got \"%s\"", rows[i].schedule.name, ctx.error.text);
        assert_true((bubble == -1) == (rows[i].text != NULL));
    }
}

static double no_bubble(int stages, int micro_batches, int chunks)
{
    (void)stages, (void)micro_batches, (void)chunks;
    return 0;
}

/* A gradient slot taken twice, or given up by another step than the one that took it; a bubble that is not kept. */
static int keep_in_use(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    int n = steps_both_kept(stage, stages, micro_batches, chunks, out);
    if (out && stage)
        out[3].keep = 0;
    return n;
}

static int keep_of_other(int stage, int stages, int micro_batches, int chunks, struct dtx_step *out)
{
    int n = steps_both_kept(stage, stages, micro_batches, chunks, out);
    if (out && stage)
        out[4].keep = 1;
    return n;
}

static void broken_promises(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    double bubble;
    struct dtx_schedule s = {
        .name = "wrong", .steps = keep_in_use, .peak = peak_both_kept, .kept = last_keeps_2, .max_chunks = 1};
    assert_int_equal(dtx_schedule_simulate(&ctx, &s, 2, 2, 1, &bubble), DTX_E_INTERNAL);
    assert_non_null(strstr(ctx.error.text, "the gradient slot is in use"));
    dtx_error_clear(&ctx);
    s.steps = keep_of_other;
    assert_int_equal(dtx_schedule_simulate(&ctx, &s, 2, 2, 1, &bubble), DTX_E_INTERNAL);
    assert_non_null(strstr(ctx.error.text, "not the gradient slot of its input part"));
    dtx_error_clear(&ctx);
    s = *dtx_schedule_find("1f1b");
    s.bubble = no_bubble;
    assert_int_equal(dtx_schedule_simulate(&ctx, &s, 4, 4, 1, &bubble), DTX_E_INTERNAL);
    assert_non_null(strstr(ctx.error.text, "promises a bubble of 0.000000 and has 0.428571"));
}

static void refuses_sizes(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    double bubble;
    assert_int_equal(dtx_schedule_simulate(&ctx, dtx_schedule_find("gpipe"), 2, 0, 1, &bubble), DTX_E_RANGE);
    dtx_error_clear(&ctx);
    assert_int_equal(dtx_schedule_simulate(&ctx, dtx_schedule_find("gpipe"), 2, 4, 2, &bubble), DTX_E_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_shapes),       cmocka_unit_test(peaks),
                                       cmocka_unit_test(backward_ascends), cmocka_unit_test(broken_schedules),
                                       cmocka_unit_test(broken_promises),  cmocka_unit_test(refuses_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
