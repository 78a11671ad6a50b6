/* test: label=unit timeout=60 */
/*
 * Records of launches in the emulator's runtime: what is recorded runs when it is launched and not before, with the
 * arguments of the record and the memory of the launch, also of streams that were forked; and what CUDA refuses
 * meanwhile is refused.
 */
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

#include "kernels/cuda/runtime.h"
#include "kernels/device/launch.h"
#include "kernels/simt/runtime.h"

enum { N = 4, UNSUPPORTED = 900, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT };

struct setup {
    const struct dtx_cuda_runtime *r;
    void *stream, *side, *event, *joined;
    int *x, *y; /* [N], on the device */
};

DTX_KERNEL(32, 1) times_plus(int *to, const int *from, int factor, int more)
{
    if ((int)threadIdx.x < N)
        to[threadIdx.x] = factor * from[threadIdx.x] + more;
}

static int times_plus_on(void *stream, int *to, const int *from, int factor, int more)
{
    return dtx_launch(stream, times_plus, 1, 32, 0, to, from, factor, more);
}

static struct setup begin(const char *streams)
{
    struct setup s = {};
    char why[256] = "";
    setenv("DTX_EMU_STREAMS", streams, 1);
    s.r = dtx_emu_runtime(why, sizeof why);
    assert_non_null(s.r);
    assert_int_equal(s.r->stream_create(&s.stream, false) | s.r->stream_create(&s.side, false), 0);
    assert_int_equal(s.r->event_create(&s.event, false) | s.r->event_create(&s.joined, false), 0);
    assert_int_equal(s.r->alloc((void **)&s.x, N * sizeof(int)) | s.r->alloc((void **)&s.y, N * sizeof(int)), 0);
    assert_int_equal(s.r->zero(s.x, N * sizeof(int), s.stream) | s.r->zero(s.y, N * sizeof(int), s.stream), 0);
    assert_int_equal(s.r->stream_wait(s.stream), 0);
    return s;
}

/* code: of all that was done after the last record was freed. */
static void end(struct setup *s, int code)
{
    s->r->free(s->x);
    s->r->free(s->y);
    assert_int_equal(s->r->stream_wait(s->stream), code);
    s->r->event_free(s->event);
    s->r->event_free(s->joined);
    s->r->stream_free(s->stream);
    s->r->stream_free(s->side);
    unsetenv("DTX_EMU_STREAMS");
}

static void launch(struct setup *s, void *graph)
{
    assert_int_equal(s->r->graph_launch(graph, s->stream), 0);
    assert_int_equal(s->r->stream_wait(s->stream), 0);
}

static const char *const modes[] = {"now", "late", "random"};

/* x = 2·host + 1 twice over: host memory is read at the launch, the factor is that of the record. */
static void recorded(void **)
{
    for (const char *mode : modes) {
        struct setup s = begin(mode);
        void *graph;
        int host[N] = {1, 2, 3, 4}, factor = 2;
        assert_int_equal(s.r->capture_begin(s.stream), 0);
        assert_int_equal(s.r->copy(s.x, host, sizeof host, s.stream), 0);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, factor, 1), 0);
        assert_int_equal(s.r->zero(s.y, sizeof(int), s.stream), 0);
        assert_int_equal(s.r->copy(s.y + 1, s.x, 3 * sizeof(int), s.stream), 0);
        factor = 7;
        assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
        assert_int_equal(s.r->stream_wait(s.stream), 0);
        for (int i = 0; i < N; i++)
            assert_true(s.x[i] == 0 && s.y[i] == 0); /* device memory is host memory here: nothing has run */
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < N; i++)
                host[i] = 10 * round + i;
            launch(&s, graph);
            for (int i = 0; i < N; i++)
                assert_int_equal(s.x[i], 2 * (10 * round + i) + 1);
            assert_int_equal(s.y[0], 0);
            assert_int_equal(s.y[3], s.x[2]);
        }
        assert_int_equal(dtx_emu_graphs(), 1);
        assert_int_equal(s.r->graph_free(graph), 0);
        assert_int_equal(dtx_emu_graphs(), 0);
        assert_int_not_equal(s.r->graph_launch(graph, s.stream), 0);
        end(&s, 0);
    }
}

/* A launch comes after the stream's earlier work and before its later work. */
static void in_order(void **)
{
    for (const char *mode : modes) {
        struct setup s = begin(mode);
        void *graph;
        assert_int_equal(s.r->capture_begin(s.stream), 0);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, 3, 0), 0);
        assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), 0);
        assert_int_equal(s.r->graph_launch(graph, s.stream), 0);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), 0);
        assert_int_equal(s.r->graph_launch(graph, s.stream), 0);
        assert_int_equal(s.r->stream_wait(s.stream), 0);
        assert_int_equal(s.x[0], 12);
        s.r->graph_free(graph);
        end(&s, 0);
    }
}

/* y on the side stream, from x; x again from y. `waits`: the side waits for x, the stream for y. */
static void fork(struct setup *s, bool joins)
{
    assert_int_equal(s->r->capture_begin(s->stream), 0);
    assert_int_equal(times_plus_on(s->stream, s->x, s->x, 1, 1), 0);
    assert_int_equal(s->r->event_record(s->event, s->stream), 0);
    assert_int_equal(s->r->event_await(s->side, s->event), 0);
    assert_int_equal(times_plus_on(s->side, s->y, s->x, 10, 0), 0);
    if (joins) {
        assert_int_equal(s->r->event_record(s->joined, s->side), 0);
        assert_int_equal(s->r->event_await(s->stream, s->joined), 0);
    }
    assert_int_equal(times_plus_on(s->stream, s->x, joins ? s->y : s->x, 1, 2), 0);
}

static void forked(void **)
{
    for (const char *mode : modes) {
        struct setup s = begin(mode);
        void *graph;
        fork(&s, true);
        assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
        launch(&s, graph);
        assert_int_equal(s.y[0], 10);
        assert_int_equal(s.x[0], 12);
        launch(&s, graph);
        assert_int_equal(s.x[0], 132);
        assert_int_equal(times_plus_on(s.side, s.x, s.x, 0, 5), 0); /* the side is a stream like others again */
        assert_int_equal(s.r->stream_wait(s.side), 0);
        assert_int_equal(s.x[0], 5);
        s.r->graph_free(graph);
        fork(&s, false);
        assert_int_equal(s.r->capture_end(s.stream, &graph), UNJOINED);
        assert_null(graph);
        end(&s, 0);
    }
}

/* Two branches that nothing orders: with "late" the one recorded last runs first, so a missing event shows. */
static void branches(void **)
{
    struct setup s = begin("late");
    void *graph;
    assert_int_equal(s.r->capture_begin(s.stream), 0);
    assert_int_equal(s.r->event_record(s.event, s.stream), 0);
    assert_int_equal(s.r->event_await(s.side, s.event), 0);
    assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), 0);
    assert_int_equal(times_plus_on(s.side, s.y, s.x, 1, 0), 0);
    assert_int_equal(s.r->event_record(s.joined, s.side), 0);
    assert_int_equal(s.r->event_await(s.stream, s.joined), 0);
    assert_int_equal(s.r->zero(s.y + 1, sizeof(int), s.stream), 0);
    assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
    launch(&s, graph);
    assert_true(s.x[0] == 1 && s.y[0] == 0);
    s.r->graph_free(graph);
    end(&s, 0);
}

/* What is refused between begin and end, and that the end says so too where it spoils the record. */
static int wait(struct setup *s)
{
    return s->r->stream_wait(s->stream);
}
static int wait_for_all(struct setup *s)
{
    return s->r->wait();
}
static int allocate(struct setup *s)
{
    void *p;
    return s->r->alloc(&p, 64);
}
static int release(struct setup *s)
{
    return s->r->free(s->y);
}
static int pin(struct setup *s)
{
    void *p;
    return s->r->host_alloc(&p, 64);
}
static int await_outside(struct setup *s)
{
    s->r->event_record(s->joined, s->side);
    return s->r->event_await(s->stream, s->joined);
}
static int legacy(struct setup *s)
{
    return s->r->zero(s->y, sizeof(int), nullptr);
}
static int merge(struct setup *s)
{
    void *graph;
    s->r->capture_begin(s->side);
    s->r->event_record(s->event, s->stream);
    int code = s->r->event_await(s->side, s->event);
    s->r->capture_end(s->side, &graph);
    return code;
}
static int end_elsewhere(struct setup *s)
{
    void *graph;
    s->r->event_record(s->event, s->stream);
    s->r->event_await(s->side, s->event);
    return s->r->capture_end(s->side, &graph);
}
static int query(struct setup *s)
{
    bool happened;
    s->r->event_record(s->event, s->stream);
    return s->r->event_happened(s->event, &happened);
}

static int query_outside(struct setup *s)
{
    bool happened;
    s->r->event_record(s->event, s->side);
    return s->r->event_happened(s->event, &happened);
}

static void refused(void **)
{
    const struct {
        int (*what)(struct setup *);
        int code, ends;
    } cases[] = {{wait, UNSUPPORTED, INVALIDATED},         {wait_for_all, UNSUPPORTED, INVALIDATED},
                 {allocate, UNSUPPORTED, INVALIDATED},     {release, UNSUPPORTED, INVALIDATED},
                 {pin, UNSUPPORTED, INVALIDATED},          {await_outside, ISOLATION, INVALIDATED},
                 {legacy, IMPLICIT, INVALIDATED},          {merge, MERGE, INVALIDATED},
                 {end_elsewhere, UNMATCHED, INVALIDATED},  {query, CAPTURED_EVENT, 0},
                 {query_outside, UNSUPPORTED, INVALIDATED}};
    for (const auto &c : cases) {
        struct setup s = begin("late");
        void *graph;
        assert_int_equal(s.r->capture_begin(s.stream), 0);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), 0);
        int code = c.what(&s);
        if (code != c.code)
            fail_msg("case %d: code %d (%s), must be %d", (int)(&c - cases), code, s.r->error_text(code), c.code);
        assert_null(strstr(s.r->error_text(code), "emulator"));
        if (c.ends == INVALIDATED)
            assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), INVALIDATED);
        assert_int_equal(s.r->capture_end(s.stream, &graph), c.ends);
        assert_int_equal(graph == nullptr, c.ends != 0);
        if (graph)
            s.r->graph_free(graph);
        assert_int_equal(times_plus_on(s.stream, s.x, s.x, 1, 1), 0); /* the stream is one again */
        assert_int_equal(s.r->stream_wait(s.stream), 0);
        assert_int_equal(s.x[0], 1);
        end(&s, 0);
    }
}

/* Memory that goes before the graph which uses it: by a kernel's argument, a copy, a fill. */
static void freed(void **)
{
    enum { ILLEGAL_ADDRESS = 700 };
    for (int use = 0; use < 4; use++) {
        struct setup s = begin("now");
        void *graph;
        int *z;
        assert_int_equal(s.r->alloc((void **)&z, N * sizeof(int)), 0);
        assert_int_equal(s.r->capture_begin(s.stream), 0);
        if (use == 0)
            assert_int_equal(times_plus_on(s.stream, s.x, z + 1, 1, 1), 0);
        if (use == 1)
            assert_int_equal(s.r->copy(s.x, z, sizeof(int), s.stream), 0);
        if (use == 2)
            assert_int_equal(s.r->zero(z + 3, sizeof(int), s.stream), 0);
        assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
        assert_int_equal(s.r->free(z), use < 3 ? ILLEGAL_ADDRESS : 0); /* the last one uses none of it */
        s.r->graph_free(graph);
        end(&s, use < 3 ? ILLEGAL_ADDRESS : 0);
    }
}

/* The same with a piece of an arena. */
static void piece_freed(void **)
{
    enum { ILLEGAL_ADDRESS = 700 };
    struct setup s = begin("late");
    void *arena, *graph;
    assert_int_equal(s.r->arena_alloc(&arena, 1024), 0);
    int *used = (int *)s.r->piece_cut(arena, 0, N * sizeof(int));
    int *other = (int *)s.r->piece_cut(arena, 512, N * sizeof(int));
    assert_int_equal(s.r->capture_begin(s.stream), 0);
    assert_int_equal(times_plus_on(s.stream, s.x, used, 1, 1), 0);
    assert_int_equal(s.r->capture_end(s.stream, &graph), 0);
    s.r->piece_join(arena, other);
    assert_int_equal(s.r->stream_wait(s.stream), 0);
    s.r->piece_join(arena, used);
    assert_int_equal(s.r->stream_wait(s.stream), ILLEGAL_ADDRESS);
    s.r->graph_free(graph);
    s.r->arena_free(arena);
    end(&s, ILLEGAL_ADDRESS);
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded),   cmocka_unit_test(in_order),
                                       cmocka_unit_test(forked),     cmocka_unit_test(branches),
                                       cmocka_unit_test(refused),    cmocka_unit_test(freed),
                                       cmocka_unit_test(piece_freed)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
