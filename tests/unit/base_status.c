/* test: label=unit timeout=60 */
/* Status, error reports with frames, child contexts, exit codes; memory and narrowing checks; clock. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/status.h"

static enum dtx_status deepest(struct dtx_ctx *ctx, bool fail)
{
    return fail ? dtx_fail(ctx, DTX_E_FORMAT, "file %s, offset %d: wrong magic", "x.bin", 8) : DTX_OK;
}

static enum dtx_status middle(struct dtx_ctx *ctx, bool fail, int *out)
{
    DTX_TRY(ctx, deepest(ctx, fail));
    *out = 1;
    return DTX_OK;
}

static enum dtx_status outer(struct dtx_ctx *ctx, bool fail, int *out, int *cleaned)
{
    enum dtx_status status;
    int result = 0;
    DTX_TRY_GOTO(ctx, status, middle(ctx, fail, &result), done);
    *out = result;
done:
    (*cleaned)++;
    return status;
}

static void frames(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    int out = 0, cleaned = 0;
    assert_int_equal(outer(&ctx, false, &out, &cleaned), DTX_OK);
    assert_int_equal(ctx.error.status, DTX_OK);
    assert_int_equal(out, 1);
    out = 7;
    assert_int_equal(outer(&ctx, true, &out, &cleaned), DTX_E_FORMAT);
    assert_int_equal(out, 7);
    assert_int_equal(cleaned, 2);
    assert_string_equal(ctx.error.text, "file x.bin, offset 8: wrong magic");
    assert_int_equal(ctx.error.n_frames, 3);
    static const char *const functions[] = {"deepest", "middle", "outer"};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(ctx.error.frames[i].function, functions[i]);
        assert_true(ctx.error.frames[i].line > 0);
        assert_non_null(strstr(ctx.error.frames[i].file, "base_status.c"));
    }
}

/* The first report stays; clearing makes room for another; frames beyond the room are dropped. */
static void first_report_wins(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_fail(&ctx, DTX_E_IO, "first"), DTX_E_IO);
    assert_int_equal(dtx_fail(&ctx, DTX_E_MEMORY, "second"), DTX_E_MEMORY);
    assert_string_equal(ctx.error.text, "first");
    assert_int_equal(ctx.error.status, DTX_E_IO);
    dtx_error_clear(&ctx);
    assert_int_equal(ctx.error.status, DTX_OK);
    dtx_fail(&ctx, DTX_E_MEMORY, "second");
    assert_string_equal(ctx.error.text, "second");
    assert_int_equal(ctx.error.n_frames, 1);
    for (int i = 0; i < 100; i++)
        dtx_error_frame(&ctx, "f", i, "g");
    assert_int_equal(ctx.error.n_frames, DTX_ERROR_FRAMES);
}

static void long_text(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    char text[2 * DTX_ERROR_TEXT];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    dtx_fail(&ctx, DTX_E_RANGE, "%s", text);
    assert_int_equal(strlen(ctx.error.text), DTX_ERROR_TEXT - 1);
}

static void children(void **state)
{
    (void)state;
    struct dtx_ctx ctx, child;
    dtx_ctx_init(&ctx);
    ctx.rank = 3;
    ctx.size = 8;
    ctx.log_level = DTX_LOG_ERROR;
    dtx_fail(&ctx, DTX_E_IO, "of the parent");
    dtx_ctx_init_child(&child, &ctx);
    assert_int_equal(child.rank, 3);
    assert_int_equal(child.size, 8);
    assert_int_equal(child.log_level, DTX_LOG_ERROR);
    assert_string_equal(child.host, ctx.host);
    assert_int_equal(child.error.status, DTX_OK);
    dtx_error_clear(&ctx);
    assert_int_equal(dtx_error_take_from(&ctx, &child), DTX_OK);
    assert_int_equal(ctx.error.status, DTX_OK);
    dtx_fail(&child, DTX_E_NUMERIC, "of the child");
    assert_int_equal(dtx_error_take_from(&ctx, &child), DTX_E_NUMERIC);
    assert_string_equal(ctx.error.text, "of the child");
    assert_int_equal(ctx.error.n_frames, 1);
    assert_int_equal(child.error.status, DTX_OK);
    /* An error that the parent already has stays. */
    dtx_fail(&child, DTX_E_IO, "later");
    assert_int_equal(dtx_error_take_from(&ctx, &child), DTX_E_IO);
    assert_string_equal(ctx.error.text, "of the child");
}

static void exit_codes(void **state)
{
    (void)state;
    for (int s = DTX_OK; s <= DTX_E_INTERNAL; s++) {
        bool fix = s == DTX_E_CONFIG || s == DTX_E_FORMAT || s == DTX_E_UNSUPPORTED;
        int expected = s == DTX_OK ? 0 : fix ? 78 : s == DTX_E_REQUEUE ? 75 : 1;
        assert_int_equal(dtx_status_exit_code((enum dtx_status)s), expected);
        assert_string_not_equal(dtx_status_name((enum dtx_status)s), "unknown");
    }
    assert_string_equal(dtx_status_name((enum dtx_status)99), "unknown");
    /* A path that is wrong must be changed; a disk that fails may work again. */
    assert_int_equal(dtx_status_of_path(ENOENT), DTX_E_CONFIG);
    assert_int_equal(dtx_status_of_path(EACCES), DTX_E_CONFIG);
    assert_int_equal(dtx_status_of_path(EIO), DTX_E_IO);
    assert_int_equal(dtx_status_of_path(EMFILE), DTX_E_IO);
}

/* What dtx_error_print and dtx_log write on standard error. */
static void printed(struct dtx_ctx *ctx, bool report, enum dtx_log_level level, char *out, size_t size)
{
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    if (report)
        dtx_error_print(ctx);
    else
        dtx_log(ctx, level, "disk %d%% full", 93);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t n = read(ends[0], out, size - 1);
    out[n > 0 ? n : 0] = '\0';
    close(ends[0]);
}

static void messages(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    char text[1024];
    dtx_ctx_init(&ctx);
    assert_true(ctx.host[0] != '\0');
    snprintf(ctx.host, sizeof ctx.host, "node7");
    printed(&ctx, false, DTX_LOG_WARN, text, sizeof text);
    assert_string_equal(text, "dtx: warning: disk 93% full\n");
    printed(&ctx, false, DTX_LOG_DEBUG, text, sizeof text);
    assert_string_equal(text, "");
    dtx_fail(&ctx, DTX_E_IO, "no space");
    printed(&ctx, true, 0, text, sizeof text);
    assert_string_equal(text, "dtx: error: no space\n");
    ctx.rank = 2;
    ctx.size = 4;
    printed(&ctx, true, 0, text, sizeof text);
    assert_string_equal(text, "dtx: error on rank 2 (node7): no space\n");
    printed(&ctx, false, DTX_LOG_INFO, text, sizeof text);
    assert_string_equal(text, "dtx: rank 2: disk 93% full\n");
    ctx.log_level = DTX_LOG_DEBUG;
    printed(&ctx, true, 0, text, sizeof text);
    assert_non_null(strstr(text, "\ndtx:   at messages ("));
}

/* A list that grows keeps its elements, has zeros behind them, and is not moved for what still fits. */
static void lists(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct dtx_ctx ctx;
    int64_t *list = NULL, capacity = 0;
    int moves = 0;
    dtx_ctx_init(&ctx);
    for (int64_t n = 0; n < N; n++) {
        void *grown = NULL;
        assert_int_equal(dtx_mem_grow(&ctx, list, n, sizeof *list, &capacity, &grown), DTX_OK);
        assert_true(capacity > n);
        moves += grown != list;
        list = grown;
        assert_int_equal(list[n], 0);
        list[n] = n + 1;
    }
    for (int64_t n = 0; n < N; n++)
        assert_int_equal(list[n], n + 1);
    assert_true(moves <= 6);
    void *kept = list;
    capacity = INT64_MAX / 4;
    assert_int_equal(dtx_mem_grow(&ctx, list, capacity, sizeof *list, &capacity, &kept), DTX_E_MEMORY);
    assert_ptr_equal(kept, list);
    assert_int_equal(capacity, INT64_MAX / 4);
    dtx_mem_free(list);
}

static void memory(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    static const int64_t counts[] = {0, 1, 63, 64, 65, 100000};
    for (int i = 0; i < 6; i++) {
        void *p = NULL;
        assert_int_equal(dtx_mem_alloc(&ctx, counts[i], 3, &p), DTX_OK);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (int64_t j = 0; j < 3 * counts[i]; j++)
            assert_int_equal(((char *)p)[j], 0);
        dtx_mem_free(p);
    }
    dtx_mem_free(NULL);
    static const struct {
        int64_t n;
        size_t size;
    } wrong[] = {{-1, 1}, {INT64_MAX, 8}, {INT64_MAX, 2}, {2, SIZE_MAX / 2}, {1, SIZE_MAX - 3}};
    for (int i = 0; i < 5; i++) {
        void *p = &ctx;
        assert_int_equal(dtx_mem_alloc(&ctx, wrong[i].n, wrong[i].size, &p), DTX_E_MEMORY);
        assert_ptr_equal(p, &ctx);
        dtx_error_clear(&ctx);
    }
    char *copy = NULL;
    assert_int_equal(dtx_mem_text(&ctx, "", &copy), DTX_OK);
    assert_string_equal(copy, "");
    dtx_mem_free(copy);
}

static void arithmetic(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    int out = 5;
    assert_int_equal(dtx_narrow_int(&ctx, INT_MAX, "n", &out), DTX_OK);
    assert_int_equal(out, INT_MAX);
    assert_int_equal(dtx_narrow_int(&ctx, INT_MIN, "n", &out), DTX_OK);
    assert_int_equal(out, INT_MIN);
    assert_int_equal(dtx_narrow_int(&ctx, (int64_t)INT_MAX + 1, "tokens", &out), DTX_E_RANGE);
    assert_string_equal(ctx.error.text, "tokens = 2147483648 does not fit 32 bits");
    dtx_error_clear(&ctx);
    assert_int_equal(dtx_narrow_int(&ctx, (int64_t)INT_MIN - 1, "n", &out), DTX_E_RANGE);
    assert_int_equal(out, INT_MIN);
    assert_int_equal(dtx_div_up(0, 4), 0);
    assert_int_equal(dtx_div_up(1, 4), 1);
    assert_int_equal(dtx_div_up(8, 4), 2);
    assert_int_equal(dtx_round_up(9, 4), 12);
    assert_int_equal(dtx_min64(-1, 1), -1);
    assert_int_equal(dtx_max64(-1, 1), 1);
}

static void clocks(void **state)
{
    (void)state;
    double start = dtx_clock_now();
    dtx_clock_sleep(0.02);
    double slept = dtx_clock_now() - start;
    assert_true(slept >= 0.02 && slept < 10);
    assert_true(dtx_clock_wall() > 1.7e9);
    start = dtx_clock_now();
    dtx_clock_sleep(0);
    assert_true(dtx_clock_now() >= start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(frames),     cmocka_unit_test(first_report_wins),
                                       cmocka_unit_test(long_text),  cmocka_unit_test(children),
                                       cmocka_unit_test(exit_codes), cmocka_unit_test(messages),
                                       cmocka_unit_test(memory),     cmocka_unit_test(lists),
                                       cmocka_unit_test(arithmetic), cmocka_unit_test(clocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
