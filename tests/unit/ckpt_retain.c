/* test: label=unit ranks=1 timeout=60 */
/* Which checkpoints stay: the newest, every n-th, those with the lowest held-out loss of their own step; what is
 * damaged counts for nothing and stays. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoints/disk.h"
#include "checkpoints/retain.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

struct run {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256];
};

static void start(struct run *run)
{
    dtx_ctx_init(&run->ctx);
    run->ctx.log_level = DTX_LOG_ERROR;
    assert_int_equal(dtx_comm_self(&run->ctx, &run->self), DTX_OK);
    ckpt_temp_make(run->dir);
}

static void finish(struct run *run)
{
    dtx_comm_free(run->self);
    ckpt_temp_remove(run->dir);
}

static void save(struct run *run, int64_t step, double loss, struct dtx_ckpt_save_options options)
{
    struct ckpt_state state = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, (struct ckpt_mesh){1, 1, 1});
    struct dtx_ckpt_saved saved;
    meta.heldout = loss;
    options.saved = &saved;
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
    assert_int_equal(dtx_ckpt_save(&run->ctx, run->self, run->dir, state.items, 3, &meta, &options), DTX_OK);
    assert_int_equal(saved.step, step);
    assert_string_equal(saved.warning, "");
    ckpt_state_free(&state);
}

/* The steps that are there, "3 5 12". */
static void expect(struct run *run, const char *steps)
{
    struct dtx_ckpt_place *places;
    int n;
    char there[256] = "";
    assert_int_equal(dtx_ckpt_list(&run->ctx, run->dir, &places, &n), DTX_OK);
    for (int64_t step = 0; step < 100; step++)
        for (int i = 0; i < n; i++)
            if (places[i].step == step)
                snprintf(there + strlen(there), sizeof there - strlen(there), "%s%d", there[0] ? " " : "", (int)step);
    dtx_mem_free(places);
    assert_string_equal(there, steps);
}

static void test_rules(void **unused)
{
    (void)unused;
    struct run run;
    const double loss[] = {NAN, 9, 8, 3, 7, 6.5, 5, 3, NAN, 4, 4.5, 4.75, NAN};
    start(&run);
    struct dtx_ckpt_save_options options = {.keep = 2, .keep_every = 5, .keep_best = 2};
    for (int step = 1; step <= 12; step++)
        save(&run, step, loss[step], options);
    expect(&run, "3 5 7 10 11 12");
    /* of equal losses the newer; others give way */
    save(&run, 13, 3, options);
    expect(&run, "5 7 10 12 13");
    options.keep_best = 1;
    save(&run, 14, 2.5, options);
    expect(&run, "5 10 13 14");
    options.keep_best = options.keep_every = 0;
    save(&run, 16, 8, options);
    expect(&run, "14 16");
    options.keep = 0;
    save(&run, 17, 8, options);
    expect(&run, "14 16 17");
    finish(&run);
}

static void test_damaged(void **unused)
{
    (void)unused;
    struct run run;
    char path[512];
    start(&run);
    struct dtx_ckpt_save_options options = {.keep = 1, .keep_best = 1};
    save(&run, 1, 1, options);
    save(&run, 2, 3, options);
    expect(&run, "1 2");
    snprintf(path, sizeof path, "%s/step-00000001/checkpoint.h5", run.dir);
    assert_int_equal(truncate(path, 1000), 0);
    save(&run, 3, 4, options);
    expect(&run, "1 2 3"); /* 2 is the best of those that are whole; the damaged one is left alone */
    save(&run, 4, 5, options);
    expect(&run, "1 2 4");
    finish(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
