/* test: label=unit timeout=60 */
#include <sys/resource.h>

#include "data/loader.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "tests/unit/data_support.h"
#include "tests/unit/stream_rows.h"

enum { VOCAB = 60000 };

static struct dtx_stream_config config_of(const char *paths, int64_t length)
{
    return (struct dtx_stream_config){.paths = paths, .length = length, .seed = 4, .vocab = VOCAB, .separator = -1};
}

static struct dtx_stream *open_stream(struct data_fixture *f, struct dtx_stream_config config)
{
    struct dtx_stream *s = NULL;
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    return s;
}

static char *ledger_at(struct data_fixture *f, const struct dtx_stream *s, int64_t position)
{
    struct dtx_walk *walk;
    char *text;
    data_ok(f, dtx_walk_open(&f->ctx, s, &walk));
    data_ok(f, dtx_stream_ledger(&f->ctx, s, walk, position, NULL, 0, &text));
    dtx_walk_close(walk);
    return text;
}

static void text_reads_back(void **state)
{
    struct data_fixture *f = *state;
    static const char text[] = "dtx ledger 1\n"
                               "samples 123456789012345\n"
                               "file 00000000000000ff 4611686018427387 a path with blanks\n"
                               "file 0123456789abcdef 100 b\n"
                               "file 0123456789abcdef 100 b\n"
                               "file 0000000000000001 0 \n"
                               "course 0 2 7 10 8 0 0 0 0\n"
                               "course 1 0 1 10 4 1 20 4 2,1\n"
                               "layer 0 5 0 1 3 0 0-3 1\n"
                               "layer 1 5 0 1 3 4 2,1 1-2\n"
                               "course -1 9 0 3 0 0 0 0 3\n"
                               "skip 5 9\n"
                               "skip 20 21\n"
                               "end\n";
    struct dtx_data_ledger ledger;
    char *again;
    data_ok(f, dtx_data_ledger_read(&f->ctx, text, &ledger));
    data_ok(f, dtx_data_ledger_write(&f->ctx, &ledger, &again));
    assert_string_equal(again, text);
    assert_int_equal(ledger.courses[1].layers[1].within, 4);
    dtx_data_ledger_free(&ledger);
    dtx_mem_free(again);
    /* Cut anywhere, or with one byte changed, it is refused or at least reads to something that can be written. */
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        copy[n] = '\0';
        data_fails(f, dtx_data_ledger_read(&f->ctx, copy, &ledger), DTX_E_FORMAT, "ledger of the data", "line", NULL);
        for (const char *c = "-9 \n0"; *c; c++) {
            memcpy(copy, text, sizeof text);
            copy[n] = *c;
            if (dtx_data_ledger_read(&f->ctx, copy, &ledger) == DTX_OK) {
                data_ok(f, dtx_data_ledger_write(&f->ctx, &ledger, &again));
                dtx_mem_free(again);
                dtx_data_ledger_free(&ledger);
            } else {
                dtx_error_clear(&f->ctx);
            }
        }
    }
    static const char *const bad[][2] = {
        {"course 0 0 0 10 11 0 0 0 1\n", "further"},
        {"course 0 0 0 10 1 1 0 0 1\n", "further"},
        {"course 0 0 0 10 1 0 0 0 1-4\n", "list"},
        {"course 0 0 0 10 1 0 0 0 1,1\n", "twice"},
        {"course 1 0 0 10 1 0 0 0 1\n", "order"},
        {"layer 0 5 0 1 3 0 0 0\n", "no course"},
        {"course 0 0 0 0 1 0 0 0 1\n", "course is not"},
        {"course 0 0 0 10 1 0 0 0 1\nfile 01 1 x\n", "below"},
        {"course 0 0 0 9 1 0 0 0 1\ncourse 1 0 0 9 1 0 0 0 1\n", "two courses"},
        {"what 1\n", "begins with none"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        char whole[512];
        snprintf(whole, sizeof whole, "dtx ledger 1\nsamples 1\nfile 01 100 a\nfile 02 100 b\n%send\n", bad[k][0]);
        data_fails(f, dtx_data_ledger_read(&f->ctx, whole, &ledger), DTX_E_FORMAT, bad[k][1], NULL);
    }
}

static void passes_over_intervals(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_data_ledger ledger = {0};
    static const int64_t intervals[][2] = {{10, 12}, {30, 40}, {12, 15}, {38, 50}, {5, 5}, {0, 1}, {100, 101}};
    for (size_t k = 0; k < sizeof intervals / sizeof *intervals; k++)
        data_ok(f, dtx_data_ledger_skip(&f->ctx, &ledger, intervals[k][0], intervals[k][1]));
    assert_int_equal(ledger.n_skips, 4);
    bool skipped[200] = {false};
    for (size_t k = 0; k < sizeof intervals / sizeof *intervals; k++)
        for (int64_t i = intervals[k][0]; i < intervals[k][1]; i++)
            skipped[i] = true;
    for (int64_t first = 0; first < 110; first++)
        for (int64_t n = 1; n < 60; n++) {
            int64_t i = first, left = n;
            while (left > 0)
                left -= !skipped[i++];
            assert_int_equal(dtx_skips_pass(ledger.skips, ledger.n_skips, first, n), i);
        }
    data_fails(f, dtx_data_ledger_skip(&f->ctx, &ledger, -1, 3), DTX_E_RANGE, "-1", NULL);
    data_fails(f, dtx_data_ledger_skip(&f->ctx, &ledger, 7, 3), DTX_E_RANGE, "7", NULL);
    dtx_data_ledger_free(&ledger);
}

/* A run of before the ledger goes on where it stood; with the same options it is the same sequence. */
static void older_runs_go_on(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t lengths[] = {301, 95};
    char paths[2048];
    data_make_tokens(f, data_path(f, "a"), VOCAB, &lengths[0], 1);
    data_make_tokens(f, data_path(f, "b"), VOCAB, &lengths[1], 1);
    snprintf(paths, sizeof paths, "%s,%s", data_path(f, "a"), data_path(f, "b"));
    struct dtx_stream_config config = config_of(paths, 10);
    struct dtx_stream *whole = open_stream(f, config);
    int32_t want[11], got[11];
    for (int64_t at = 1; at < 200; at += 13) {
        config.samples_before = at;
        config.length_before = 10;
        struct dtx_stream *s = open_stream(f, config);
        assert_int_equal(dtx_stream_first(s), at);
        for (int64_t i = at; i < at + 60; i++) {
            data_ok(f, stream_rows(&f->ctx, whole, i, 1, want, NULL));
            data_ok(f, stream_rows(&f->ctx, s, i, 1, got, NULL));
            assert_memory_equal(want, got, sizeof got);
        }
        data_fails(f, stream_rows(&f->ctx, s, at - 1, 1, got, NULL), DTX_E_RANGE, "stands at", NULL);
        dtx_stream_close(s);
    }
    dtx_stream_close(whole);
}

/* Files are known by their tokens: moved, renamed and in another order of sources they are the same. */
static void moved_files_are_known(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t lengths[] = {201, 201, 151}; /* a and b differ in where they are alone */
    static const char *const names[] = {"a", "b", "c"};
    char first[2048], second[2048];
    for (int k = 0; k < 3; k++)
        data_make_tokens(f, data_path(f, names[k]), VOCAB, &lengths[k], 1);
    snprintf(first, sizeof first, "1 %s,1 %s,2 %s", data_path(f, "a"), data_path(f, "b"), data_path(f, "c"));
    struct dtx_stream *s = open_stream(f, config_of(first, 10));
    char *text = ledger_at(f, s, 41);
    dtx_stream_close(s);
    assert_int_equal(rename(data_path(f, "c.bin"), data_path(f, "d.bin")), 0);
    assert_int_equal(rename(data_path(f, "c.idx"), data_path(f, "d.idx")), 0);
    snprintf(second, sizeof second, "1 %s,5 %s", data_path(f, "d"), data_path(f, "a"));
    struct dtx_stream_config config = config_of(second, 10);
    config.ledger = text;
    s = open_stream(f, config);
    const struct dtx_data_ledger *ledger = dtx_stream_start(s);
    assert_int_equal(ledger->samples, 41);
    assert_int_equal(ledger->n_courses, 3);
    assert_int_equal(ledger->courses[2].source, -1); /* b is kept */
    assert_int_equal(ledger->courses[0].number, 2);
    int64_t done = 0;
    for (int k = 0; k < 3; k++)
        done += ledger->courses[k].done + ledger->courses[k].epoch * (lengths[k == 0 ? 2 : k - 1] - 1) / 10;
    assert_int_equal(done, 41);
    assert_true(strstr(text, "c\n") != NULL);
    dtx_stream_close(s);
    dtx_mem_free(text);
}

/* The loader leaves out what is to be passed over, on every rank alike, notes it in the ledger, and goes back to
 * samples before when it is told to. */
static void loaders_pass_over(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = 1001;
    data_make_tokens(f, data_path(f, "t"), VOCAB, &tokens, 1);
    struct dtx_stream *s = open_stream(f, config_of(data_path(f, "t"), 10));
    for (int thread = 0; thread < 2; thread++) {
        struct dtx_loader *l[3];
        int64_t next[3] = {0, 0, 0};
        for (int r = 0; r < 3; r++) {
            struct dtx_loader_config config = {
                .first_sample = -1, .global_batch = 6, .dp_rank = r, .dp_size = 3, .depth = 2, .thread = thread};
            data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l[r]));
        }
        for (int step = 0; step < 20; step++) {
            int64_t at = dtx_loader_position(l[0]), want[6];
            if (step == 5)
                for (int r = 0; r < 3; r++) /* a jump back to sample 12; 14 to 33 are left out */
                    data_ok(f, dtx_loader_skip(&f->ctx, l[r], 14, 34, 12));
            if (step == 5)
                at = 12;
            for (int k = 0; k < 6; k++, at++) {
                if (step >= 5 && at >= 14 && at < 34)
                    at = 34;
                want[k] = at;
            }
            for (int r = 0; r < 3; r++) {
                struct dtx_batch b;
                int32_t row[11];
                data_ok(f, dtx_loader_next(&f->ctx, l[r], &b));
                assert_int_equal(b.first_sample, want[2 * r]);
                assert_int_equal(dtx_loader_position(l[r]), want[5] + 1);
                for (int k = 0; k < 2; k++) {
                    data_ok(f, stream_rows(&f->ctx, s, want[2 * r + k], 1, row, NULL));
                    assert_memory_equal(row, b.tokens + 10 * k, 10 * sizeof *row);
                }
                next[r] = want[5] + 1;
            }
        }
        char *text;
        data_ok(f, dtx_loader_ledger(&f->ctx, l[1], &text));
        assert_non_null(strstr(text, "\nskip 14 34\n"));
        struct dtx_stream_config config = config_of(data_path(f, "t"), 10);
        config.ledger = text;
        struct dtx_stream *resumed = open_stream(f, config);
        assert_int_equal(dtx_stream_first(resumed), next[1]);
        assert_int_equal(dtx_stream_start(resumed)->n_skips, 1);
        dtx_stream_close(resumed);
        dtx_mem_free(text);
        data_fails(f, dtx_loader_skip(&f->ctx, l[0], 1, 2, 100000), DTX_E_RANGE, "cannot go back", NULL);
        for (int r = 0; r < 3; r++)
            dtx_loader_close(l[r]);
    }
    dtx_stream_close(s);
}

/* CASES 21: a thousand sources in under a second under a limit of 256 descriptors, read from all over. */
static void a_thousand_sources(void **state)
{
    enum { N = 1000, TOKENS = 300 };
    struct data_fixture *f = *state;
    struct rlimit limit = {256, 256}, before;
    uint16_t ids[TOKENS];
    char *paths = calloc(N, 300), *at = paths;
    for (int k = 0; k < N; k++) {
        char name[32];
        snprintf(name, sizeof name, "s%03d.npy", k);
        for (int t = 0; t < TOKENS; t++)
            ids[t] = (uint16_t)((k * 41 + t * t) % VOCAB);
        data_write(data_path(f, name), ids, sizeof ids);
        at += sprintf(at, "%s%d %s", k ? "," : "", 1 + k % 5, data_path(f, name));
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct dtx_stream_config config = config_of(paths, 16);
    config.type = "u16";
    double start = dtx_clock_now();
    struct dtx_stream *s = open_stream(f, config);
    double opened = dtx_clock_now() - start;
    char *text = ledger_at(f, s, INT64_C(3000000000));
    dtx_stream_close(s);
    config.ledger = text;
    start = dtx_clock_now();
    s = open_stream(f, config);
    double resumed = dtx_clock_now() - start;
    print_message("1,000 sources: opened in %.3f s, resumed in %.3f s, ledger of %zu bytes\n", opened, resumed,
                  strlen(text));
    assert_true(opened < 1 && resumed < 1);
    int32_t rows[200 * 17];
    for (int64_t i = 0; i < 2000; i += 200)
        data_ok(f, stream_rows(&f->ctx, s, INT64_C(3000000000) + i, 200, rows, NULL));
    dtx_stream_close(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    dtx_mem_free(text);
    free(paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(text_reads_back),       DATA_TEST(passes_over_intervals), DATA_TEST(older_runs_go_on),
        DATA_TEST(moved_files_are_known), DATA_TEST(loaders_pass_over),     DATA_TEST(a_thousand_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
