/* test: label=unit timeout=60 */
/* What the table says of made-up ledgers: four ranks on two hosts, tp pairs (0,1) (2,3), dp pairs (0,2) (1,3). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "parallel/watch_view.h"

enum { RANKS = 4, WORLD = 0, TP = 1, DP = 2 };

struct fixture {
    struct dtx_ctx ctx;
    char dir[32], shell[96];
    struct dtx_watch_rank ranks[RANKS];
    struct dtx_watch_place place;
    struct dtx_ledger *ledger[RANKS];
    struct dtx_ledger_page *page[RANKS][3];
    char *text;
    int findings;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char path[DTX_WATCH_PATH];
    dtx_ctx_init(&f->ctx);
    strcpy(f->dir, "/tmp/dtx_view_XXXXXX");
    if (!mkdtemp(f->dir))
        return 1;
    f->place = (struct dtx_watch_place){.token = 0xabc, .size = RANKS, .ranks = f->ranks};
    snprintf(f->place.run, sizeof f->place.run, "%s", f->dir);
    snprintf(f->place.prefix, sizeof f->place.prefix, "%s/dtx-watch-local", f->dir);
    snprintf(path, sizeof path, "%s/watch", f->dir);
    mkdir(path, 0777);
    for (int r = 0; r < RANKS; r++) {
        f->ranks[r] = (struct dtx_watch_rank){.pid = (int32_t)getpid()};
        snprintf(f->ranks[r].host, sizeof f->ranks[r].host, r < 2 ? "n1" : "n2");
        dtx_watch_ledger_path(&f->place, r, path);
        if (dtx_ledger_create(&f->ctx, path, &f->ledger[r]) != DTX_OK)
            return 1;
        struct dtx_ledger *l = f->ledger[r];
        l->rank = r;
        l->size = RANKS;
        l->token = f->place.token;
        strcpy(l->host, f->ranks[r].host);
        int at[3][5] = {{1, r, 4, 0, 1}, {10 + r / 2, r % 2, 2, r / 2 * 2, 1}, {20 + r % 2, r / 2, 2, r % 2, 2}};
        static const char *const names[] = {"world", "tp", "dp"};
        for (int p = 0; p < 3; p++) {
            f->page[r][p] = dtx_ledger_open_page(l, (uint64_t)at[p][0], names[p], at[p][1], at[p][2]);
            f->page[r][p]->first = at[p][3];
            f->page[r][p]->stride = at[p][4];
        }
    }
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++)
        dtx_ledger_unmap(f->ledger[r]);
    snprintf(f->shell, sizeof f->shell, "rm -r %s", f->dir);
    int code = system(f->shell);
    free(f->text);
    free(f);
    return code;
}

/* Rank r calls a collective of n floats and returns from it, or not. */
static void call(struct fixture *f, int r, int page, enum dtx_ledger_op op, int64_t n, bool done)
{
    struct dtx_ledger_mark mark = dtx_ledger_begin(f->page[r][page], op, DTX_F32, n, -1, DTX_HERE_FILE, 100 + r);
    if (done)
        dtx_ledger_finish(mark, true);
}

static void look(struct fixture *f)
{
    struct dtx_watch_view view;
    size_t bytes;
    free(f->text);
    f->text = NULL;
    assert_int_equal(dtx_watch_view_make(&f->ctx, &f->place, "n1", NULL, &view), DTX_OK);
    FILE *memory = open_memstream(&f->text, &bytes);
    f->findings = dtx_watch_view_print(&f->ctx, &view, memory);
    fclose(memory);
    dtx_watch_view_free(&view);
}

static void says(struct fixture *f, const char *words)
{
    if (!strstr(f->text, words))
        fail_msg("no '%s' in\n%s", words, f->text);
}

static void says_not(struct fixture *f, const char *words)
{
    if (strstr(f->text, words))
        fail_msg("'%s' in\n%s", words, f->text);
}

/* All in step: no finding, one row. */
static void in_step(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++)
        dtx_ledger_finish(dtx_ledger_begin(f->page[r][WORLD], DTX_LEDGER_BARRIER, DTX_U8, 0, -1, DTX_HERE_FILE, 5),
                          true);
    look(f);
    assert_int_equal(f->findings, 0);
    says(f, "  0-3       several      busy     after world         #1       barrier                   0  "
            "tests/unit/watch_view.c:5");
    says_not(f, "missing");
}

/* Rank 2 computes; 0 waits for it in dp, 1 for 0 in tp, 3 for 2 in tp: the cause is named, not who waits for victims.
 */
static void one_is_missing(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++)
        call(f, r, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, true);
    call(f, 0, DP, DTX_LEDGER_ALL_GATHER, 30, false);
    call(f, 1, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, false);
    call(f, 3, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, false);
    look(f);
    says(f, "missing   rank 2 (n2, pid ");
    says(f, "busy) in dp #1: rank 0 waits in all-gather of 120 bytes (30 f32) at tests/unit/watch_view.c:100");
    says(f, "busy) in tp #2: rank 3 waits in all-reduce sum");
    says_not(f, "missing   rank 0");
    says_not(f, "disagree");
}

/* Rank 0 is at a disk, where rank 2's writer waits for it: no news, nor an excuse for rank 2, for which 3 waits. */
static void patience(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++) {
        f->page[r][DP]->patience = 100;
        call(f, r, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, true);
    }
    call(f, 2, DP, DTX_LEDGER_ALL_GATHER, 30, false);
    call(f, 3, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, false);
    look(f);
    says(f, "missing   rank 2 (n2, pid ");
    says(f, "busy) in tp #2: rank 3 waits in all-reduce sum");
    says_not(f, "in dp");
    for (int r = 0; r < RANKS; r++) {
        f->page[r][DP]->patience = 1e-9;
        f->ledger[r]->seen = dtx_clock_now();
    }
    look(f);
    says(f, "missing   rank 0 (n1, pid ");
    says(f, "in dp #1: rank 2 waits in all-gather");
}

static void others_disagree(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < RANKS; r++)
        call(f, r, WORLD, DTX_LEDGER_ALL_REDUCE_SUM, 8, true);
    for (int r = 0; r < RANKS; r++)
        call(f, r, WORLD, r == 2 ? DTX_LEDGER_ALL_GATHER : DTX_LEDGER_ALL_REDUCE_SUM, 8, false);
    look(f);
    says(f, "disagree  in world #2: ranks 0,1,3 (");
    says(f, " call all-reduce sum of 32 bytes (8 f32) at tests/unit/watch_view.c:100; but rank 2 (n2, pid ");
    says(f, " calls all-gather of 32 bytes (8 f32) at tests/unit/watch_view.c:102");
    says_not(f, "missing");
}

static void sizes_disagree(void **state)
{
    struct fixture *f = *state;
    call(f, 0, TP, DTX_LEDGER_ALL_REDUCE_SUM, 20, false);
    call(f, 1, TP, DTX_LEDGER_ALL_REDUCE_SUM, 10, true);
    call(f, 1, TP, DTX_LEDGER_BARRIER, 0, false);
    look(f);
    says(f, "disagree  in tp #1: rank 0 (n1, pid ");
    says(f, "waits) calls all-reduce sum of 80 bytes (20 f32) at tests/unit/watch_view.c:100; but rank 1 (n1, pid ");
    says(f, "all-reduce sum of 40 bytes (10 f32)");
}

/* Nobody is to blame alone: all that wait are named. */
static void ring_of_waits(void **state)
{
    struct fixture *f = *state;
    call(f, 0, TP, DTX_LEDGER_BARRIER, 0, false);
    call(f, 1, DP, DTX_LEDGER_BARRIER, 0, false);
    call(f, 3, TP, DTX_LEDGER_BARRIER, 0, false);
    call(f, 2, DP, DTX_LEDGER_BARRIER, 0, false);
    look(f);
    says(f, "missing   rank 1 (n1");
    says(f, "missing   rank 0 (n1");
    says(f, "missing   rank 2 (n2");
    says(f, "missing   rank 3 (n2");
}

static void messages(void **state)
{
    struct fixture *f = *state;
    dtx_ledger_wait(dtx_ledger_begin(f->page[0][TP], DTX_LEDGER_RECEIVE, DTX_F32, 8, 1, DTX_HERE_FILE, 7));
    look(f);
    says(f, "missing   rank 1 (n1, pid ");
    says(f, "in tp message #1: rank 0 waits in receive of 32 bytes (8 f32) at tests/unit/watch_view.c:7");
    dtx_ledger_begin(f->page[1][TP], DTX_LEDGER_SEND, DTX_F32, 4, 0, DTX_HERE_FILE, 8);
    look(f);
    says_not(f, "missing");
    says(f,
         "disagree  in tp message #1: rank 1 (n1): send of 16 bytes (4 f32) at tests/unit/watch_view.c:8; but rank 0 "
         "(n1): receive of 32 bytes");
}

/* Conditions of processes: one that is gone (a child that was waited for), one that is stopped. */
static void dead_and_stopped(void **state)
{
    struct fixture *f = *state;
    pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    waitpid(gone, NULL, 0);
    pid_t stopped = fork();
    if (stopped == 0)
        for (;;)
            pause();
    kill(stopped, SIGSTOP);
    int status;
    waitpid(stopped, &status, WUNTRACED);
    f->ranks[0].pid = (int32_t)gone;
    f->ranks[1].pid = (int32_t)stopped;
    look(f);
    kill(stopped, SIGKILL);
    waitpid(stopped, &status, 0);
    char words[64];
    snprintf(words, sizeof words, "dead      rank 0 (n1, pid %d, dead)", (int)gone);
    says(f, words);
    snprintf(words, sizeof words, "stopped   rank 1 (n1, pid %d, stopped)", (int)stopped);
    says(f, words);
    assert_int_equal(f->findings, 2);
    /* The pid lives, but it began at another time: another process. */
    uint64_t born = 0;
    assert_int_equal(dtx_watch_process((int32_t)getpid(), 0, &born), 'R');
    assert_int_equal(dtx_watch_process((int32_t)getpid(), born, NULL), 'R');
    assert_int_equal(dtx_watch_process((int32_t)getpid(), born + 1, NULL), 'X');
}

/* Another host's rank: from its copy, with what a neighbour saw; without one it is not heard of. */
static void copies_of_other_hosts(void **state)
{
    struct fixture *f = *state;
    char path[DTX_WATCH_PATH], copy[DTX_WATCH_PATH];
    call(f, 0, DP, DTX_LEDGER_BARRIER, 0, false);
    f->ledger[3]->observed = 'T';
    dtx_watch_ledger_path(&f->place, 3, path);
    dtx_watch_copy_path(&f->place, 3, copy);
    assert_int_equal(rename(path, copy), 0);
    dtx_watch_ledger_path(&f->place, 2, path);
    assert_int_equal(unlink(path), 0);
    look(f);
    says(f, "stopped   rank 3 (n2");
    says(f, "unknown   rank 2 (n2");
    says(f, "missing   rank 2 (n2, pid ");
    says(f, "unknown) in dp #1: rank 0 waits in barrier");
    /* A ledger of another launch is none. */
    f->ledger[1]->token++;
    look(f);
    says(f, "unknown   ranks 1,2 (n1");
}

static void list_of_ranks(void **state)
{
    struct fixture *f = *state;
    struct dtx_watch_place again;
    assert_int_equal(dtx_watch_place_read(&f->ctx, f->dir, &again), DTX_E_IO);
    dtx_error_clear(&f->ctx);
    assert_int_equal(dtx_watch_place_write(&f->ctx, &f->place), DTX_OK);
    assert_int_equal(dtx_watch_place_read(&f->ctx, f->dir, &again), DTX_OK);
    assert_int_equal(again.size, RANKS);
    assert_int_equal(again.token, 0xabc);
    assert_string_equal(again.prefix, f->place.prefix);
    assert_string_equal(again.run, f->dir);
    assert_memory_equal(again.ranks, f->ranks, sizeof f->ranks);
    dtx_mem_free(again.ranks);
    char path[96];
    snprintf(path, sizeof path, "%s/watch/ranks", f->dir);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(dtx_watch_place_read(&f->ctx, f->dir, &again), DTX_E_FORMAT);
    dtx_error_clear(&f->ctx);
}

static void ranges(void **state)
{
    (void)state;
    char text[32];
    dtx_watch_ranges((int[]){0, 1, 2, 5, 7, 8}, 6, text, sizeof text);
    assert_string_equal(text, "0-2,5,7,8");
    dtx_watch_ranges((int[]){3}, 1, text, sizeof text);
    assert_string_equal(text, "3");
    dtx_watch_ranges(NULL, 0, text, sizeof text);
    assert_string_equal(text, "");
    int odd[100];
    for (int i = 0; i < 100; i++)
        odd[i] = 2 * i;
    dtx_watch_ranges(odd, 100, text, sizeof text);
    assert_true(strlen(text) < sizeof text && strstr(text, "…"));
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {WITH(in_step),         WITH(one_is_missing),    WITH(patience),
                                       WITH(others_disagree), WITH(sizes_disagree),    WITH(ring_of_waits),
                                       WITH(messages),        WITH(dead_and_stopped),  WITH(copies_of_other_hosts),
                                       WITH(list_of_ranks),   cmocka_unit_test(ranges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
