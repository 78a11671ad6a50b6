/* test: label=unit ranks=1 timeout=60 */
/*
 * Traces. Without an argument: spans of a made-up rank are sorted and written, those beyond the memory counted, and the
 * overlapped share is what a pencil gives. With FILE RANKS (train/trace.sh): the file is valid JSON for Perfetto with
 * all ranks and the rows each must have; spans of a row do not run backwards or across each other, and lie inside of
 * the trace; prints how many collectives over the data ranks went on beside computation by the spans of the file, and
 * checks that the program's share fits to that.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "kernels/base/mem.h"
#include "kernels/base/trace.h"

enum { MOST_RANKS = 16, MOST_ROWS = 24, MOST_SPANS = 1 << 17 };
static const double tolerance = 0.01; /* µs: times are written in ns */

struct span {
    int rank, row;
    double begin, end;
    const char *name;
    bool micro_batch, block, collective;
};

struct file {
    int ranks, n;
    const char *row[MOST_RANKS][MOST_ROWS]; /* NULL: none */
    struct span *span;
    double seconds, overlapped; /* of the data axis, as the program says */
};

static void fault(const char *what, const struct span *s)
{
    printf("FAILED: %s: %s of rank %d, row %d, from %.3f to %.3f\n", what, s->name, s->rank, s->row, s->begin, s->end);
    exit(1);
}

static void need(bool condition, const char *what)
{
    if (!condition) {
        printf("FAILED: %s\n", what);
        exit(1);
    }
}

static void read_event(struct file *f, json_t *event)
{
    const char *ph = json_string_value(json_object_get(event, "ph"));
    json_t *args = json_object_get(event, "args");
    int rank = (int)json_integer_value(json_object_get(event, "pid"));
    int row = (int)json_integer_value(json_object_get(event, "tid"));
    const char *name = json_string_value(json_object_get(event, "name"));
    need(ph && name && json_is_object(args), "an event without ph, name or args");
    need(rank >= 0 && rank < MOST_RANKS && row >= 0 && row < MOST_ROWS, "pid or tid out of range");
    if (strcmp(ph, "M") == 0) {
        if (strcmp(name, "process_name") == 0)
            f->ranks++;
        if (strcmp(name, "thread_name") == 0)
            f->row[rank][row] = json_string_value(json_object_get(args, "name"));
        return;
    }
    need(strcmp(ph, "X") == 0 && f->n < MOST_SPANS, "an event that is no span, or too many");
    struct span *s = &f->span[f->n++];
    s->rank = rank;
    s->row = row;
    s->name = name;
    s->begin = json_number_value(json_object_get(event, "ts"));
    s->end = s->begin + json_number_value(json_object_get(event, "dur"));
    s->micro_batch = json_object_get(args, "micro_batch") != NULL;
    s->block = json_object_get(args, "block") != NULL;
    s->collective = json_object_get(args, "bytes") != NULL;
    need(f->row[rank][row] != NULL, "a span in a row without a name");
}

static bool in_row(const struct file *f, const struct span *s, const char *row)
{
    return strcmp(f->row[s->rank][s->row], row) == 0;
}

/* Within a row spans come in order of time and lie in each other or beside each other. */
static void check_nesting(const struct file *f)
{
    const struct span *open[64];
    int depth = 0;
    for (int i = 0; i < f->n; i++) {
        const struct span *s = &f->span[i];
        bool begins = i == 0 || s[-1].rank != s->rank || s[-1].row != s->row;
        depth = begins ? 0 : depth;
        if (s->end < s->begin)
            fault("a span ends before it begins", s);
        if (!begins && s->begin < s[-1].begin)
            fault("time goes back", s);
        if (s->begin < 0)
            fault("a span before the trace", s);
        while (depth && open[depth - 1]->end <= s->begin + tolerance)
            depth--;
        if (depth && s->end > open[depth - 1]->end + tolerance)
            fault("spans cross each other", s);
        need(depth < 64, "spans lie too deep in each other");
        open[depth++] = s;
    }
}

static bool has_row(const struct file *f, int rank, const char *name)
{
    for (int r = 0; r < MOST_ROWS; r++)
        if (f->row[rank][r] && strcmp(f->row[rank][r], name) == 0)
            return true;
    return false;
}

/* Every rank has its rows and, on the compute row, blocks within micro-batches within a step. */
static void check_rows(const struct file *f, int ranks)
{
    static const char *const rows[] = {"compute", "data", "grads", "checkpoint"};
    need(f->ranks == ranks, "not all ranks are there");
    for (int r = 0; r < ranks; r++) {
        int steps = 0, passes = 0, blocks = 0;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            if (!has_row(f, r, rows[i])) {
                printf("FAILED: rank %d has no row %s\n", r, rows[i]);
                exit(1);
            }
        const struct span *pass = NULL, *step = NULL;
        for (int i = 0; i < f->n; i++) {
            const struct span *s = &f->span[i];
            if (s->rank != r || !in_row(f, s, "compute"))
                continue;
            if (strcmp(s->name, "step") == 0 || strcmp(s->name, "evaluation") == 0)
                step = s;
            else if (s->micro_batch)
                pass = s;
            if (s->micro_batch && (!step || s->end > step->end + tolerance))
                fault("a micro-batch outside of every step", s);
            if (s->block && (!pass || s->end > pass->end + tolerance))
                fault("a block outside of every micro-batch", s);
            steps += strcmp(s->name, "step") == 0;
            passes += s->micro_batch;
            blocks += s->block;
        }
        need(steps > 0 && passes >= 2 * steps && blocks > passes, "steps, micro-batches or blocks are missing");
    }
}

/* Seconds of span c in which its rank was in a block, or in anything that is computation, by the file alone. */
static double beside(const struct file *f, const struct span *c, bool blocks)
{
    double seconds = 0;
    for (int i = 0; i < f->n; i++) {
        const struct span *s = &f->span[i];
        bool layer = s->block || (!blocks && (strcmp(s->name, "embed") == 0 || strcmp(s->name, "head") == 0 ||
                                              strcmp(s->name, "norm") == 0 || strcmp(s->name, "optimizer") == 0));
        if (s->rank == c->rank && in_row(f, s, "compute") && layer)
            seconds += fmax(0, fmin(s->end, c->end) - fmax(s->begin, c->begin));
    }
    return seconds * 1e-6;
}

static int check_file(const char *path, int ranks)
{
    json_error_t error;
    struct file f = {.span = calloc(MOST_SPANS, sizeof *f.span)};
    json_t *root = json_load_file(path, 0, &error);
    if (!root) {
        printf("FAILED: %s:%d: %s\n", path, error.line, error.text);
        return 1;
    }
    json_t *events = json_object_get(root, "traceEvents"), *other = json_object_get(root, "otherData");
    need(json_is_array(events) && json_is_object(other), "no traceEvents or otherData");
    for (size_t i = 0; i < json_array_size(events); i++)
        read_event(&f, json_array_get(events, i));
    f.seconds = json_real_value(json_object_get(other, "dp_seconds"));
    f.overlapped = json_real_value(json_object_get(other, "dp_overlapped_seconds"));
    check_nesting(&f);
    check_rows(&f, ranks);
    double total = 0, most = 0;
    int crossing = 0;
    for (int i = 0; i < f.n; i++)
        if (in_row(&f, &f.span[i], "grads") || in_row(&f, &f.span[i], "dp")) {
            total += (f.span[i].end - f.span[i].begin) * 1e-6;
            most += f.span[i].collective ? beside(&f, &f.span[i], false) : 0;
            crossing += f.span[i].collective && beside(&f, &f.span[i], true) > 0;
        }
    printf("%d spans; data axis %.6f s by spans, %.6f said; beside layers at most %.6f, said %.6f\n", f.n, total,
           f.seconds, most, f.overlapped);
    need(fabs(total - f.seconds) <= 1e-3 * total, "the program says another time of the data axis");
    need(f.overlapped <= most + 1e-6, "the program says more overlap than its spans have");
    need((crossing > 0) == (f.overlapped > 0), "spans cross blocks and the program says nothing of it, or says so");
    printf("overlapped share %.4f, %d collectives beside blocks\n", f.overlapped / f.seconds, crossing);
    json_decref(root);
    free(f.span);
    return 0;
}

static void overlap_by_pencil(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_trace *trace;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_trace_create(&ctx, 16, &trace), DTX_OK);
    dtx_trace_add(trace, 10, 20, DTX_SPAN_PASS, "compute", "forward", 0, 0);
    dtx_trace_add(trace, 11, 14, DTX_SPAN_COMPUTE, "compute", "attn", 0, 0);
    dtx_trace_add(trace, 15, 19, DTX_SPAN_COMPUTE, "compute", "ffn", 0, 0);
    dtx_trace_add(trace, 16, 17, DTX_SPAN_COMM, "tp", "all-gather", 0, 8);         /* the rank waits in it */
    dtx_trace_add(trace, 12, 18, DTX_SPAN_STARTED, "grads", "all-gather", 0, 8);   /* beside 2 + 1 + 1 seconds */
    dtx_trace_add(trace, 18.5, 30, DTX_SPAN_STARTED, "grads", "all-gather", 1, 8); /* 0.5 */
    dtx_trace_add(trace, 30, 31, DTX_SPAN_COMM, "grads", "all-gather", 2, 8);
    dtx_trace_add(trace, 1, 2, DTX_SPAN_STARTED, "early", "all-gather", 0, 8);
    static const char *const tracks[] = {"tp", "grads", "early", "nothing"};
    struct dtx_trace_share share[4];
    assert_int_equal(dtx_trace_overlap(&ctx, trace, tracks, 4, share), DTX_OK);
    assert_true(fabs(share[0].total - 1) < 1e-12 && share[0].overlapped == 0);
    assert_true(fabs(share[1].total - 18.5) < 1e-12 && fabs(share[1].overlapped - 4.5) < 1e-12);
    assert_true(share[2].total == 1 && share[2].overlapped == 0 && share[3].total == 0);
    dtx_trace_free(trace);
}

static void written(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_trace *trace;
    char *text;
    dtx_ctx_init(&ctx);
    ctx.rank = 3;
    assert_true(dtx_trace_begin(&ctx, "wait") == 0); /* off */
    assert_int_equal(dtx_trace_create(&ctx, 3, &trace), DTX_OK);
    ctx.trace = trace;
    assert_true(dtx_trace_begin(&ctx, "wait") == 0); /* not running */
    dtx_trace_end(&ctx, 0, DTX_SPAN_WAIT, "data", "wait", 0, 0);
    assert_int_equal(dtx_trace_kept(trace), 0);
    trace->origin = 100;
    dtx_trace_add(trace, 101, 102, DTX_SPAN_COMM, "tp", "all-gather", 7, 4096);
    dtx_trace_add(trace, 101.5, 102, DTX_SPAN_COMPUTE, "compute", "attn", 5, 0);
    dtx_trace_add(trace, 101, 103, DTX_SPAN_PASS, "compute", "forward", 2, 0);
    dtx_trace_add(trace, 104, 105, DTX_SPAN_PASS, "compute", "forward", 3, 0);
    assert_int_equal(dtx_trace_kept(trace), 3);
    assert_int_equal(dtx_trace_lost(trace), 1);
    dtx_trace_sort(trace);
    assert_int_equal(dtx_trace_text(&ctx, trace, &text), DTX_OK);
    const char *pass = strstr(text, "{\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":1000000.000,\"dur\":2000000.000,\"name\":"
                                    "\"forward\",\"args\":{\"micro_batch\":2}}");
    const char *layer = strstr(text, "\"name\":\"attn\",\"args\":{\"block\":5}}");
    const char *comm = strstr(text, "\"name\":\"all-gather\",\"args\":{\"seq\":7,\"bytes\":4096}}");
    assert_true(pass && layer && comm && pass < layer && layer < comm);
    dtx_mem_free(text);
    dtx_trace_free(trace);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return check_file(argv[1], atoi(argv[2]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(overlap_by_pencil), cmocka_unit_test(written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
