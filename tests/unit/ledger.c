/* test: label=unit timeout=60 */
/* A rank's ledger: numbers, the ring, what is under way, entries caught half written, files of another make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "parallel/ledger.h"

struct fixture {
    struct dtx_ctx ctx;
    struct dtx_ledger *ledger;
    struct dtx_ledger_page *page;
    char path[64];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    dtx_ctx_init(&f->ctx);
    snprintf(f->path, sizeof f->path, "/tmp/dtx_ledger_%d", (int)getpid());
    *state = f;
    if (dtx_ledger_create(&f->ctx, f->path, &f->ledger) != DTX_OK)
        return 1;
    f->page = dtx_ledger_open_page(f->ledger, 7, "tp", 1, 4);
    return f->page == NULL;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    dtx_ledger_unmap(f->ledger);
    unlink(f->path);
    free(f);
    return 0;
}

static struct dtx_ledger_mark sum(struct fixture *f, int64_t count)
{
    return dtx_ledger_begin(f->page, DTX_LEDGER_ALL_REDUCE_SUM, DTX_F32, count, -1, DTX_HERE_FILE, 11);
}

static struct dtx_ledger *read_back(struct fixture *f)
{
    struct dtx_ledger *copy = NULL;
    assert_int_equal(dtx_ledger_read(&f->ctx, f->path, &copy), DTX_OK);
    return copy;
}

static void entries_hold_the_call(void **state)
{
    struct fixture *f = *state;
    dtx_ledger_finish(sum(f, 20), true);
    struct dtx_ledger_mark send = dtx_ledger_begin(f->page, DTX_LEDGER_SEND, DTX_BF16, 3, 2, DTX_HERE_FILE, 12);
    dtx_ledger_finish(sum(f, 5), false);
    struct dtx_ledger *copy = read_back(f);
    const struct dtx_ledger_page *page = &copy->pages[0];
    assert_string_equal(page->name, "tp");
    assert_int_equal(page->rank, 1);
    assert_int_equal(page->collectives, 2);
    assert_int_equal(page->sends, 1);
    const struct dtx_ledger_entry *e = page->ring;
    assert_int_equal(e[0].number, 1);
    assert_int_equal(e[0].bytes, 80);
    assert_int_equal(e[0].state, DTX_LEDGER_DONE);
    assert_true(e[0].end >= e[0].start);
    assert_string_equal(e[0].file, "tests/unit/ledger.c");
    assert_int_equal(e[0].line, 11);
    assert_int_equal(e[1].op, DTX_LEDGER_SEND);
    assert_int_equal(e[1].number, 1);
    assert_int_equal(e[1].bytes, 6);
    assert_int_equal(e[1].peer, 2);
    assert_int_equal(e[1].state, DTX_LEDGER_STARTED);
    assert_int_equal(e[2].number, 2);
    assert_int_equal(e[2].state, DTX_LEDGER_FAILED);
    dtx_mem_free(copy);
    double since;
    assert_null(dtx_ledger_waiting(f->page, &since)); /* a started message is not waited for */
    dtx_ledger_wait(send);
    assert_non_null(dtx_ledger_waiting(f->page, &since));
}

/* More entries than the ring holds: the last ones stay, and the end of one that is gone touches nobody else's. */
static void ring_wraps(void **state)
{
    struct fixture *f = *state;
    struct dtx_ledger_mark first = sum(f, 1);
    for (int i = 2; i <= DTX_LEDGER_RING + 3; i++)
        dtx_ledger_finish(sum(f, i), true);
    struct dtx_ledger_mark last = sum(f, 100);
    dtx_ledger_finish(first, false);
    struct dtx_ledger *copy = read_back(f);
    uint64_t lowest = UINT64_MAX, highest = 0;
    int waiting = 0;
    for (int i = 0; i < DTX_LEDGER_RING; i++) {
        const struct dtx_ledger_entry *e = &copy->pages[0].ring[i];
        lowest = e->number < lowest ? e->number : lowest;
        highest = e->number > highest ? e->number : highest;
        waiting += e->state == DTX_LEDGER_WAITING;
        assert_int_not_equal(e->state, DTX_LEDGER_FAILED);
        assert_int_equal(e->count, e->number == DTX_LEDGER_RING + 4 ? 100 : e->number);
    }
    assert_int_equal(lowest, 5);
    assert_int_equal(highest, DTX_LEDGER_RING + 4);
    assert_int_equal(waiting, 1);
    dtx_mem_free(copy);
    dtx_ledger_finish(last, true);
}

/* What is queued behind something else waits from the end of that. */
static void queued_entries(void **state)
{
    struct fixture *f = *state;
    double since, before = dtx_clock_now();
    struct dtx_ledger_mark a = sum(f, 1), b = sum(f, 2);
    assert_int_equal(dtx_ledger_waiting(f->page, &since)->number, 1);
    assert_true(since >= before);
    dtx_clock_sleep(0.01);
    dtx_ledger_finish(a, true);
    assert_int_equal(dtx_ledger_waiting(f->page, &since)->number, 2);
    assert_true(since >= before + 0.01);
    dtx_ledger_finish(b, true);
    assert_null(dtx_ledger_waiting(f->page, &since));
}

static void torn_entry_is_left_out(void **state)
{
    struct fixture *f = *state;
    dtx_ledger_finish(sum(f, 1), true);
    sum(f, 2);
    f->page->ring[1].stamp--; /* as between the two stores of the writer */
    struct dtx_ledger *copy = read_back(f);
    assert_int_equal(copy->pages[0].ring[0].state, DTX_LEDGER_DONE);
    assert_int_equal(copy->pages[0].ring[1].state, DTX_LEDGER_EMPTY);
    dtx_mem_free(copy);
}

static void pages_are_used_again(void **state)
{
    struct fixture *f = *state;
    struct dtx_ledger_page *pages[DTX_LEDGER_PAGES];
    for (int i = 1; i < DTX_LEDGER_PAGES; i++)
        assert_non_null(pages[i] = dtx_ledger_open_page(f->ledger, 100 + (uint64_t)i, "dp", 0, 2));
    assert_null(dtx_ledger_open_page(f->ledger, 99, "more", 0, 2));
    struct dtx_ledger_mark nowhere = dtx_ledger_begin(NULL, DTX_LEDGER_BARRIER, DTX_U8, 0, -1, DTX_HERE_FILE, 1);
    dtx_ledger_wait(nowhere);
    dtx_ledger_finish(nowhere, true);
    dtx_ledger_begin(pages[3], DTX_LEDGER_BARRIER, DTX_U8, 0, -1, DTX_HERE_FILE, 1);
    dtx_ledger_close_page(pages[3]);
    struct dtx_ledger_page *again = dtx_ledger_open_page(f->ledger, 98, "cp", 0, 2);
    assert_ptr_equal(again, pages[3]);
    assert_int_equal(again->collectives, 0);
    assert_int_equal(again->ring[0].state, DTX_LEDGER_EMPTY);
}

static void refuse(struct fixture *f, const char *words)
{
    struct dtx_ledger *copy = NULL;
    assert_int_equal(dtx_ledger_read(&f->ctx, f->path, &copy), DTX_E_FORMAT);
    assert_null(copy);
    assert_non_null(strstr(f->ctx.error.text, f->path));
    assert_non_null(strstr(f->ctx.error.text, words));
    dtx_error_clear(&f->ctx);
}

static void other_files_are_refused(void **state)
{
    struct fixture *f = *state;
    struct dtx_ledger *again;
    assert_int_equal(dtx_ledger_create(&f->ctx, f->path, &again), DTX_E_IO); /* never another rank's */
    dtx_error_clear(&f->ctx);
    f->ledger->format++;
    refuse(f, "format 3");
    f->ledger->format--;
    assert_int_equal(truncate(f->path, sizeof *f->ledger - 1), 0);
    refuse(f, "format 2");
    f->ledger->magic[0] = 'x';
    refuse(f, "no ledger");
    assert_int_equal(truncate(f->path, 10), 0);
    refuse(f, "10 bytes");
    struct dtx_ledger *copy;
    unlink(f->path);
    assert_int_equal(dtx_ledger_read(&f->ctx, f->path, &copy), DTX_E_IO);
    dtx_error_clear(&f->ctx);
}

/* Not a bound: the figure of parallel/README.md. */
static void cost(void **state)
{
    struct fixture *f = *state;
    enum { N = 1000000 };
    double begin = dtx_clock_now();
    for (int i = 0; i < N; i++)
        dtx_ledger_finish(sum(f, i), true);
    double both = dtx_clock_now() - begin;
    begin = dtx_clock_now();
    for (int i = 0; i < N; i++)
        dtx_clock_now();
    print_message("%.0f ns a collective, of which two looks at the clock take %.0f ns\n", 1e9 * both / N,
                  2e9 * (dtx_clock_now() - begin) / N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(entries_hold_the_call, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(ring_wraps, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(queued_entries, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(torn_entry_is_left_out, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(pages_are_used_again, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(other_files_are_refused, set_up, tear_down),
                                       cmocka_unit_test_setup_teardown(cost, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
