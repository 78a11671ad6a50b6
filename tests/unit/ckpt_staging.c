/* test: label=unit ranks=1 timeout=60 */
/* A save from the staging buffer, by the thread and inline: the file is what lay in the buffer, whatever becomes of the
 * arrays meanwhile; a failure is told once and the next save goes well; nothing is logged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoints/disk.h"
#include "checkpoints/staging.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

static const struct ckpt_mesh one = {1, 1, 1};

struct run {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_ckpt_staging *staging;
    struct ckpt_state live;      /* what training changes */
    struct dtx_ckpt_item *items; /* of the save */
    char dir[256];
};

static void start(struct run *run, bool thread)
{
    dtx_ctx_init(&run->ctx);
    run->live = (struct ckpt_state){0};
    assert_int_equal(dtx_comm_self(&run->ctx, &run->self), DTX_OK);
    ckpt_temp_make(run->dir);
    ckpt_state_add(&run->live, one, 0, 1);
    run->items = malloc((size_t)run->live.n * sizeof *run->items);
    memcpy(run->items, run->live.items, (size_t)run->live.n * sizeof *run->items);
    size_t bytes = dtx_ckpt_staging_bytes(run->items, run->live.n);
    assert_int_equal(dtx_ckpt_staging_open(&run->ctx, run->self, NULL, bytes, thread, 0, &run->staging), DTX_OK);
}

static void finish(struct run *run)
{
    dtx_ckpt_staging_close(run->staging);
    ckpt_state_free(&run->live);
    free(run->items);
    dtx_comm_free(run->self);
    ckpt_temp_remove(run->dir);
}

/* Training changes the live arrays. */
static void train(struct run *run)
{
    for (int i = 0; i < run->live.n; i++)
        memset(run->live.items[i].data, 99, dtx_dtype_bytes(run->live.items[i].dtype));
}

static void copy(struct run *run)
{
    assert_int_equal(dtx_ckpt_staging_place(run->staging, run->items, run->live.n), DTX_OK);
    for (int i = 0; i < run->live.n; i++) {
        int64_t bytes = (int64_t)dtx_dtype_bytes(run->items[i].dtype);
        for (int d = 0; d < run->items[i].ndim; d++)
            bytes *= run->items[i].local[d];
        memcpy(run->items[i].data, run->live.items[i].data, (size_t)bytes);
    }
}

static void check_file(struct run *run, const char *name, uint64_t salt)
{
    char path[512];
    struct ckpt_state loaded = {0};
    snprintf(path, sizeof path, "%s/%s", run->dir, name);
    ckpt_state_add(&loaded, one, 0, salt);
    ckpt_state_clear(&loaded);
    assert_int_equal(dtx_ckpt_load(&run->ctx, run->self, path, loaded.items, loaded.n), DTX_OK);
    assert_int_equal(ckpt_state_differences(&loaded, salt), 0);
    ckpt_state_free(&loaded);
}

static void check(bool thread)
{
    struct run run;
    struct dtx_ckpt_saved saved = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(1, one);
    char dir[512];
    start(&run, thread);
    assert_true(dtx_ckpt_staging_done(run.staging));
    copy(&run);
    dtx_ckpt_staging_start(run.staging, run.dir, NULL, run.items, run.live.n, &meta, NULL);
    assert_true(dtx_ckpt_staging_busy(run.staging));
    assert_int_equal(dtx_ckpt_staging_place(run.staging, run.items, run.live.n), DTX_E_INTERNAL);
    dtx_error_clear(&run.ctx);
    meta.step = 77; /* was copied */
    train(&run);
    assert_int_equal(dtx_ckpt_staging_finish(run.staging, &saved), DTX_OK);
    assert_int_equal(saved.step, 1);
    assert_true(saved.bytes > 1000 && saved.shards == 1 && saved.sequence == 1 &&
                strstr(saved.folder, "step-00000001"));
    assert_false(dtx_ckpt_staging_busy(run.staging));
    check_file(&run, "step-00000001", 1);

    /* where a file stands in the way; then again */
    snprintf(dir, sizeof dir, "%s/step-00000001/checkpoint.h5", run.dir);
    copy(&run);
    dtx_ckpt_staging_start(run.staging, dir, NULL, run.items, run.live.n, &meta, NULL);
    assert_int_not_equal(dtx_ckpt_staging_finish(run.staging, &saved), DTX_OK);
    assert_non_null(strstr(run.ctx.error.text, "checkpoint.h5"));
    dtx_error_clear(&run.ctx);
    ckpt_state_free(&run.live);
    run.live = (struct ckpt_state){0};
    ckpt_state_add(&run.live, one, 0, 3);
    copy(&run);
    dtx_ckpt_staging_start(run.staging, run.dir, NULL, run.items, run.live.n, &meta, NULL);
    assert_int_equal(dtx_ckpt_staging_finish(run.staging, &saved), DTX_OK);
    check_file(&run, "step-00000077", 3);

    /* what is under way at the end is finished */
    meta.step = 78;
    copy(&run);
    dtx_ckpt_staging_start(run.staging, run.dir, NULL, run.items, run.live.n, &meta, NULL);
    assert_true(dtx_ckpt_staging_halt(run.staging, 0));
    run.staging = NULL;
    check_file(&run, "step-00000078", 3);
    finish(&run);
}

static void test_thread(void **unused)
{
    (void)unused;
    check(true);
}

static void test_inline(void **unused)
{
    (void)unused;
    check(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_thread), cmocka_unit_test(test_inline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
