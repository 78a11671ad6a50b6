/* test: label=unit timeout=60 */
#include "data/loader.h"
#include "kernels/base/clock.h"
#include "tests/unit/data_support.h"
#include "tests/unit/stream_rows.h"

enum { LENGTH = 4, TOKENS = 97, SAMPLES = (TOKENS - 1) / LENGTH, ROW = LENGTH + 1 };

static struct dtx_stream *open_stream(struct data_fixture *f)
{
    const int64_t tokens = TOKENS;
    data_make_tokens(f, data_path(f, "t"), 1000, &tokens, 1);
    struct dtx_stream_config config = {
        .paths = data_path(f, "t"), .length = LENGTH, .seed = 3, .vocab = 1000, .separator = 10, .doc_reset = true};
    struct dtx_stream *s;
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    return s;
}

static void check_rows(struct data_fixture *f, const struct dtx_stream *s, const struct dtx_batch *b)
{
    int32_t row[ROW], starts[LENGTH];
    for (int64_t i = 0; i < b->n; i++) {
        data_ok(f, stream_rows(&f->ctx, s, b->first_sample + i, 1, row, starts));
        assert_memory_equal(row, b->tokens + i * LENGTH, LENGTH * sizeof *row);
        assert_memory_equal(row + 1, b->targets + i * LENGTH, LENGTH * sizeof *row);
        assert_memory_equal(starts, b->doc_start + i * LENGTH, sizeof starts);
    }
}

/* CASES 18: the ranks' parts in rank order are samples first, first + 1, … of the stream, over epoch edges too. */
static void one_sequence_for_any_number_of_ranks(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    for (int size = 1; size <= 5; size++)
        for (int64_t batch = size; batch <= 9; batch++)
            for (int thread = 0; thread < 2; thread++) {
                struct dtx_loader *l[5];
                const int64_t first = 17;
                for (int r = 0; r < size; r++) {
                    struct dtx_loader_config config = {.first_sample = first,
                                                       .global_batch = batch,
                                                       .dp_rank = r,
                                                       .dp_size = size,
                                                       .depth = 2,
                                                       .thread = thread};
                    data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l[r]));
                }
                int64_t next = first;
                for (int step = 0; step < 8; step++)
                    for (int r = 0; r < size; r++) {
                        struct dtx_batch b;
                        data_ok(f, dtx_loader_next(&f->ctx, l[r], &b));
                        assert_int_equal(b.first_sample, next);
                        assert_int_equal(b.length, LENGTH);
                        assert_true(b.n > 0 && b.wait_seconds >= 0);
                        check_rows(f, s, &b);
                        next += b.n;
                        assert_int_equal(dtx_loader_position(l[r]), first + (step + 1) * batch);
                        if (r == size - 1)
                            assert_int_equal(next, first + (step + 1) * batch);
                    }
                for (int r = 0; r < size; r++)
                    dtx_loader_close(l[r]);
            }
    dtx_stream_close(s);
}

/* CASES 17: stop anywhere with batches read ahead, go on from the position, on other numbers of ranks. */
static void resumes_where_it_stopped(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    const int64_t batch = 6;
    int64_t position = 0;
    int used[3 * SAMPLES] = {0};
    for (int part = 0; position + batch <= 3 * SAMPLES; part++) {
        int size = part % 4 + 1, steps = part % 3 + 1;
        int64_t reached = position;
        for (int r = 0; r < size; r++) {
            struct dtx_loader_config config = {.first_sample = position,
                                               .global_batch = batch,
                                               .dp_rank = r,
                                               .dp_size = size,
                                               .depth = 3,
                                               .thread = true};
            struct dtx_loader *l;
            data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l));
            for (int k = 0; k < steps && position + (k + 1) * batch <= 3 * SAMPLES; k++) {
                struct dtx_batch b;
                data_ok(f, dtx_loader_next(&f->ctx, l, &b));
                check_rows(f, s, &b);
                for (int64_t i = 0; i < b.n; i++)
                    used[b.first_sample + i]++;
            }
            reached = dtx_loader_position(l);
            dtx_loader_close(l);
        }
        position = reached;
    }
    for (int64_t i = 0; i < 3 * SAMPLES; i++)
        assert_int_equal(used[i], 1);
    dtx_stream_close(s);
}

/* The batch in the caller's hands is not overwritten while the thread fills all it may. */
static void a_batch_stays_until_the_next(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    struct dtx_loader_config config = {.global_batch = 5, .dp_size = 1, .depth = 1, .thread = true};
    struct dtx_loader *l;
    data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l));
    for (int step = 0; step < 4; step++) {
        struct dtx_batch b;
        data_ok(f, dtx_loader_next(&f->ctx, l, &b));
        dtx_clock_sleep(0.02);
        check_rows(f, s, &b);
    }
    dtx_loader_close(l);
    dtx_stream_close(s);
}

static void hands_over_errors_after_the_good_batches(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    int fd = open(data_path(f, "t.bin"), O_RDWR);
    uint16_t bad = 1001;
    int64_t bad_sample = 0;
    for (int32_t row[ROW]; bad_sample < SAMPLES; bad_sample++) {
        data_ok(f, stream_rows(&f->ctx, s, bad_sample, 1, row, NULL));
        if (row[0] <= 50 && row[LENGTH] > 50)
            break;
    }
    assert_int_equal(pwrite(fd, &bad, 2, 102), 2); /* token 51: in one sample only */
    close(fd);
    for (int thread = 0; thread < 2; thread++) {
        struct dtx_loader_config config = {.global_batch = 3, .dp_size = 1, .depth = 2, .thread = thread};
        struct dtx_loader *l;
        struct dtx_batch b;
        data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l));
        for (int64_t k = 0; k < bad_sample / 3; k++) {
            data_ok(f, dtx_loader_next(&f->ctx, l, &b));
            assert_int_equal(b.first_sample, 3 * k);
        }
        data_fails(f, dtx_loader_next(&f->ctx, l, &b), DTX_E_FORMAT, "t.bin", "id 1001", "offset 102", NULL);
        assert_int_equal(dtx_loader_position(l), bad_sample / 3 * 3);
        data_fails(f, dtx_loader_next(&f->ctx, l, &b), DTX_E_IO, "stopped", NULL);
        dtx_loader_close(l);
    }
    dtx_stream_close(s);
}

static void closes_while_the_thread_works(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    for (int i = 0; i < 40; i++) {
        struct dtx_loader_config config = {
            .first_sample = i, .global_batch = 2000, .dp_size = 1, .depth = 1 + i % 4, .thread = true};
        struct dtx_loader *l;
        data_ok(f, dtx_loader_open(&f->ctx, s, &config, &l));
        if (i % 4 == 3)
            dtx_clock_sleep(1e-3);
        dtx_loader_close(l);
    }
    dtx_loader_close(NULL);
    dtx_stream_close(s);
}

static void refuses_what_cannot_be(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_stream *s = open_stream(f);
    static const struct dtx_loader_config cases[] = {
        {.global_batch = 3, .dp_size = 4, .depth = 1},         {.global_batch = 0, .dp_size = 1, .depth = 1},
        {.global_batch = 4, .dp_size = 2, .dp_rank = 2},       {.global_batch = 4, .dp_size = 0},
        {.global_batch = 4, .dp_size = 1, .first_sample = -2}, {.global_batch = 4, .dp_size = 1, .thread = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtx_loader *l = NULL;
        assert_int_not_equal(dtx_loader_open(&f->ctx, s, &cases[i], &l), DTX_OK);
        assert_null(l);
        dtx_error_clear(&f->ctx);
    }
    dtx_stream_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(one_sequence_for_any_number_of_ranks), DATA_TEST(resumes_where_it_stopped),
        DATA_TEST(a_batch_stays_until_the_next),         DATA_TEST(hands_over_errors_after_the_good_batches),
        DATA_TEST(closes_while_the_thread_works),        DATA_TEST(refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
