/*
 * A stand-in for the CUDA runtime (kernels/cuda/runtime.h): device memory is host memory with guard zones, filled with
 * NaN; launches run in the emulator. DTX_EMU_ORDER (fifo, lifo, random) is the order of threads in a block,
 * DTX_EMU_STREAMS when work runs: now (at the call), late (when the host waits for it and not before) or random (any
 * order that streams and events allow). So a missing wait or event gives wrong numbers here, and not on a cluster.
 * One state for each thread of the operating system.
 *
 * What a stream is given between capture_begin and capture_end is recorded, with that of streams which wait for its
 * events, and refused is what CUDA refuses then (cudaStreamCaptureModeThreadLocal), by its codes; where one mistake
 * spoils a record, its end says so. Memory that is freed before the record which uses it is a fault.
 */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <time.h>
#include <unistd.h>
#include <vector>

#define DTX_EMU
#include "kernels/base/mutant.h"
#include "kernels/cuda/runtime.h"
#include "kernels/simt/graph.h"
#include "kernels/simt/runtime.h"
#include "kernels/simt/simt.h"

enum mode { NOW, LATE, RANDOM };

/* cudaError_t */
enum code {
    OUT_OF_MEMORY = 2,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED,
    CAPTURE_MERGE,
    CAPTURE_UNMATCHED,
    CAPTURE_UNJOINED,
    CAPTURE_ISOLATION,
    CAPTURE_IMPLICIT,
    CAPTURED_EVENT
};

struct stream;

/* A record that is being made. */
struct capture {
    struct stream *origin;
    std::vector<struct stream *> streams; /* the origin and those that joined it */
    std::shared_ptr<struct graph> graph;
    bool open, spoilt;
};

struct event {
    std::atomic<uint64_t> issued, done; /* records asked for and made; read by any thread */
    struct stream *last;                /* the stream of the last one asked for */
    double when;                        /* of the last one made */
    std::atomic<bool> captured;         /* last asked for within a record: behind these nodes of it */
    std::shared_ptr<struct capture> capture;
    std::vector<int> nodes;
};

/* One piece of work of a stream: what it does, the event that must have been recorded so often before, and the event
 * that is recorded afterwards. Handles of events live as long as work that names them. */
struct work {
    std::function<int()> run;
    std::shared_ptr<event> before, after;
    uint64_t ticket;
    struct stream *source = nullptr; /* where `before` is recorded */
};

struct stream {
    std::deque<work> queue;
    std::shared_ptr<struct capture> capture; /* where its work is recorded; NULL: it runs */
    std::vector<int> last;                   /* nodes that the next one comes behind */
};

struct runtime_state {
    enum mode mode;
    int fault; /* of work that ran later than its call: every call reports it from then on */
    std::map<char *, size_t> memory;
    std::map<void *, size_t> arenas;
    size_t idle; /* of arenas, in no piece */
    std::map<char *, size_t> pinned;
    std::vector<struct stream *> streams;
    std::map<void *, std::shared_ptr<event>> events;
    std::vector<std::shared_ptr<struct capture>> captures; /* under way */
    std::map<void *, std::shared_ptr<const struct graph>> graphs;
    std::mt19937_64 random;
};

static struct runtime_state *state()
{
    static thread_local struct runtime_state s = {};
    return &s;
}

static bool ready(const struct stream *s)
{
    return !s->queue.empty() && (!s->queue.front().before || s->queue.front().before->done >= s->queue.front().ticket);
}

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs a stream's first piece of work; false when it waits for an event or another rank. */
static bool step(struct stream *s)
{
    if (!ready(s))
        return false;
    int code = s->queue.front().run ? s->queue.front().run() : 0;
    if (code == DTX_EMU_PENDING)
        return false;
    work w = std::move(s->queue.front());
    s->queue.pop_front();
    if (code)
        state()->fault = code;
    if (w.after) {
        w.after->when = now();
        w.after->done = std::max<uint64_t>(w.ticket, w.after->done);
    }
    return true;
}

/* The stream, or what it waits for, one piece on. */
static bool advance(struct stream *s)
{
    if (step(s))
        return true;
    if (s->queue.empty() || ready(s))
        return false;
    struct stream *other = s->queue.front().source;
    return other != s && advance(other);
}

static struct stream *any_stream()
{
    struct runtime_state *r = state();
    return r->streams[r->random() % r->streams.size()];
}

/* Runs the stream until it is empty, and of others what it waits for. While it waits for another rank all streams go
 * on, as they do on a device. */
static void drain(struct stream *s)
{
    while (!s->queue.empty()) {
        if (state()->mode == RANDOM && state()->random() % 2)
            step(any_stream());
        if (s->queue.empty() || advance(s))
            continue;
        bool moved = false;
        for (struct stream *other : state()->streams)
            moved = (other != s && advance(other)) || moved;
        if (!moved)
            usleep(20);
    }
}

static void drain_all()
{
    for (struct stream *s : state()->streams)
        drain(s);
}

/* Spoils the thread's records: it did what nobody may do beside one. */
static int spoil(enum code code)
{
    for (auto &c : state()->captures)
        c->spoilt = true;
    return code;
}

/* Work on no stream at all. */
static int refuse_legacy()
{
    return state()->captures.empty() ? INVALID_HANDLE : spoil(CAPTURE_IMPLICIT);
}

/* The allocation that an address lies in, and behind it the next. */
static std::map<char *, size_t>::const_iterator find(const std::map<char *, size_t> &all, const void *p)
{
    auto found = all.upper_bound((char *)p);
    return found != all.begin() && (--found, (char *)p < found->first + found->second) ? found : all.end();
}

static void note_memory(struct graph *g, const void *p)
{
    for (const auto *all : {&state()->memory, &state()->pinned}) {
        auto found = find(*all, p);
        if (found != all->end())
            g->memory.insert(found->first);
    }
}

static int record(struct stream *s, std::function<int()> run, const std::vector<const void *> &addresses)
{
    struct graph *g = s->capture->graph.get();
    if (s->capture->spoilt)
        return CAPTURE_INVALIDATED;
    for (const void *p : addresses)
        note_memory(g, p);
    if (DTX_MUTANT(simt_recorded_runs))
        run();
    g->nodes.push_back({std::move(run), s->last});
    s->last = {(int)g->nodes.size() - 1};
    return state()->fault;
}

static int submit(struct stream *s, work w)
{
    struct runtime_state *r = state();
    s->queue.push_back(std::move(w));
    if (r->mode == NOW)
        drain(s);
    while (r->mode == RANDOM && r->random() % 2)
        step(any_stream());
    return r->fault;
}

int dtx_emu_submit(void *handle, std::function<int()> run, const std::vector<const void *> &addresses)
{
    struct stream *s = (struct stream *)handle;
    if (!s)
        return refuse_legacy();
    return s->capture ? record(s, std::move(run), addresses) : submit(s, {std::move(run), nullptr, nullptr, 0});
}

bool dtx_emu_records(void *stream)
{
    return stream && ((struct stream *)stream)->capture;
}

int dtx_emu_graphs(void)
{
    return (int)state()->graphs.size();
}

static int launch_later(void *, void *stream, struct dtx_simt_job *job)
{
    std::shared_ptr<struct dtx_simt_job> kept(job, dtx_simt_job_free);
    return dtx_emu_submit(
        stream, [kept] { return dtx_simt_run_kept(kept.get()); }, dtx_simt_job_words(job));
}

static const char *error_text(int code)
{
    static const char *const captures[] = {
        "operation not permitted when stream is capturing",
        "operation failed due to a previous error during capture",
        "operation would result in a merge of separate capture sequences",
        "capture was not ended in the same stream as it began",
        "capturing stream has unjoined work",
        "dependency created on uncaptured work in another stream",
        "operation would make the legacy stream depend on a capturing blocking stream",
        "operation not permitted on an event last recorded in a capturing stream"};
    if (code >= CAPTURE_UNSUPPORTED && code <= CAPTURED_EVENT)
        return captures[code - CAPTURE_UNSUPPORTED];
    return code == DTX_SIMT_FAULT    ? dtx_simt_fault_text()
           : code == ILLEGAL_ADDRESS ? "memory was freed before a graph that uses it"
           : code == INVALID_HANDLE  ? "invalid resource handle"
           : code == ILLEGAL_STATE   ? "the operation cannot be performed in the present state"
                                     : "not possible in the emulator";
}

/* DTX_EMU_DEVICES: as if the node had so many. */
static int device_count(int *out)
{
    const char *text = getenv("DTX_EMU_DEVICES");
    *out = text ? atoi(text) : 1;
    return 0;
}

/* DTX_EMU_MEMORY: what the device has. */
static int memory_left(size_t *free_bytes, size_t *total)
{
    const char *text = getenv("DTX_EMU_MEMORY");
    size_t used = state()->idle;
    for (const auto &m : state()->memory)
        used += m.second;
    *total = text ? (size_t)strtoull(text, nullptr, 10) : (size_t)1 << 40;
    *free_bytes = used < *total ? *total - used : 0;
    return 0;
}

static int device_describe(int, struct dtx_cuda_device *out)
{
    size_t left;
    *out = {"emulated device", 9, 0, 1, 0};
    return memory_left(&left, &out->memory_bytes);
}

static int device_choose(int)
{
    return 0;
}

static bool fits(size_t bytes)
{
    size_t left, total;
    memory_left(&left, &total);
    return bytes <= left;
}

static int alloc_memory(void **out, size_t bytes)
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    if (!fits(bytes))
        return OUT_OF_MEMORY;
    *out = dtx_simt_alloc(bytes);
    state()->memory[(char *)*out] = bytes;
    return 0;
}

/* CUDA says nothing here, and its graph writes to what is another's then. */
static void check_graphs(const void *p)
{
    for (const auto &g : state()->graphs)
        if (g.second->memory.count((const char *)p) && !DTX_MUTANT(simt_freed_under_graph))
            state()->fault = ILLEGAL_ADDRESS;
}

static int free_memory(void *p)
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    drain_all();
    check_graphs(p);
    state()->memory.erase((char *)p);
    dtx_simt_free(p);
    return state()->fault;
}

/* What is copied from ordinary host memory is taken at the call, but by a record when it runs. */
static int copy(void *to, const void *from, size_t bytes, void *stream)
{
    auto on_device = [](const void *p) { return find(state()->memory, p) != state()->memory.end(); };
    if (dtx_emu_records(stream) || on_device(from) || find(state()->pinned, from) != state()->pinned.end())
        return dtx_emu_submit(stream, [=] { return memmove(to, from, bytes), 0; }, {to, from});
    std::shared_ptr<std::vector<char>> staged(new std::vector<char>((const char *)from, (const char *)from + bytes));
    return dtx_emu_submit(stream, [=] { return memcpy(to, staged->data(), bytes), 0; }, {});
}

static int zero(void *to, size_t bytes, void *stream)
{
    return dtx_emu_submit(stream, [=] { return memset(to, 0, bytes), 0; }, {to});
}

static int arena_alloc(void **out, size_t bytes)
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    if (!fits(bytes))
        return OUT_OF_MEMORY;
    *out = dtx_simt_arena(bytes);
    state()->arenas[*out] = bytes;
    state()->idle += bytes;
    return 0;
}

static int arena_free(void *arena)
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    size_t bytes = state()->arenas[arena];
    state()->arenas.erase(arena);
    state()->idle -= bytes;
    dtx_simt_arena_free(arena, bytes);
    return state()->fault;
}

static void *piece_cut(void *arena, size_t offset, size_t bytes)
{
    void *p = dtx_simt_cut(arena, offset, bytes);
    state()->memory[(char *)p] = bytes;
    state()->idle -= bytes;
    return p;
}

static void piece_join(void *, void *piece)
{
    auto found = state()->memory.find((char *)piece);
    check_graphs(piece);
    state()->idle += found->second;
    state()->memory.erase(found);
    dtx_simt_join(piece);
}

static int wait_all()
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    drain_all();
    return state()->fault;
}

/* DTX_EMU_PINNED=0: no memory can be pinned. */
static int host_alloc(void **out, size_t bytes)
{
    const char *text = getenv("DTX_EMU_PINNED");
    if (text && strcmp(text, "0") == 0)
        return OUT_OF_MEMORY;
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    *out = malloc(bytes);
    state()->pinned[(char *)*out] = bytes;
    return 0;
}

static int host_free(void *p)
{
    if (!state()->captures.empty())
        return spoil(CAPTURE_UNSUPPORTED);
    drain_all();
    check_graphs(p);
    if (state()->pinned.erase((char *)p) == 0)
        return 1; /* cudaErrorInvalidValue */
    free(p);
    return 0;
}

static int stream_create(void **out, bool)
{
    struct stream *s = new stream();
    state()->streams.push_back(s);
    *out = s;
    return 0;
}

/* No stream is recorded there any more. */
static void end_record(const std::shared_ptr<struct capture> &c)
{
    std::vector<std::shared_ptr<struct capture>> &all = state()->captures;
    c->open = false;
    for (struct stream *s : c->streams) {
        s->capture.reset();
        s->last.clear();
    }
    all.erase(std::find(all.begin(), all.end(), c));
}

static int stream_free(void *handle)
{
    struct stream *s = (struct stream *)handle;
    if (s->capture)
        end_record(std::shared_ptr<struct capture>(s->capture));
    drain(s);
    state()->streams.erase(std::find(state()->streams.begin(), state()->streams.end(), s));
    delete s;
    return 0;
}

static int stream_wait(void *stream)
{
    if (!stream)
        return refuse_legacy();
    if (dtx_emu_records(stream)) {
        ((struct stream *)stream)->capture->spoilt = true;
        return CAPTURE_UNSUPPORTED;
    }
    drain((struct stream *)stream);
    return state()->fault;
}

static int event_create(void **out, bool)
{
    std::shared_ptr<event> e = std::make_shared<event>();
    state()->events[e.get()] = e;
    *out = e.get();
    return 0;
}

static int event_free(void *handle)
{
    state()->events.erase(handle);
    return 0;
}

static int event_record(void *handle, void *stream)
{
    std::shared_ptr<event> e = state()->events[handle];
    struct stream *s = (struct stream *)stream;
    if (!s)
        return refuse_legacy();
    e->captured = s->capture != nullptr;
    e->capture = s->capture;
    e->nodes = s->last;
    if (s->capture)
        return s->capture->spoilt ? (int)CAPTURE_INVALIDATED : 0;
    e->last = s;
    return submit(s, {nullptr, nullptr, e, ++e->issued});
}

/* A stream that waits for an event of a record belongs to it from then on. */
static int join_record(struct stream *s, const struct event *e)
{
    std::shared_ptr<struct capture> c = e->capture;
    if (!c->open)
        return CAPTURED_EVENT;
    if (s->capture && s->capture != c)
        return s->capture->spoilt = c->spoilt = true, CAPTURE_MERGE;
    if (!s->capture) {
        s->capture = c;
        c->streams.push_back(s);
    }
    s->last.insert(s->last.end(), e->nodes.begin(), e->nodes.end());
    return c->spoilt ? (int)CAPTURE_INVALIDATED : 0;
}

static int event_await(void *stream, void *handle)
{
    std::shared_ptr<event> e = state()->events[handle];
    struct stream *s = (struct stream *)stream;
    if (!s)
        return refuse_legacy();
    if (e->captured)
        return join_record(s, e.get());
    if (!s->capture)
        return submit(s, {nullptr, e, nullptr, e->issued, e->last});
    if (e->issued == 0)
        return 0; /* never recorded: nothing to wait for */
    s->capture->spoilt = true;
    return CAPTURE_ISOLATION;
}

/* A thread that records asks for no event at all. */
static int event_happened(void *handle, bool *out)
{
    struct event *e = (struct event *)handle;
    *out = e->done >= e->issued;
    if (e->captured)
        return CAPTURED_EVENT;
    return state()->captures.empty() ? 0 : spoil(CAPTURE_UNSUPPORTED);
}

static int event_seconds(void *from, void *to, double *out)
{
    *out = ((struct event *)to)->when - ((struct event *)from)->when;
    return 0;
}

static int capture_begin(void *handle)
{
    struct stream *s = (struct stream *)handle;
    if (!s)
        return CAPTURE_UNSUPPORTED;
    if (s->capture)
        return ILLEGAL_STATE;
    s->capture.reset(new capture{s, {s}, std::make_shared<struct graph>(), true, false});
    state()->captures.push_back(s->capture);
    return 0;
}

static int capture_end(void *handle, void **out)
{
    struct stream *s = (struct stream *)handle;
    *out = nullptr;
    if (!s || !s->capture)
        return ILLEGAL_STATE;
    std::shared_ptr<struct capture> c = s->capture;
    if (c->origin != s)
        return c->spoilt = true, CAPTURE_UNMATCHED;
    bool joined = c->graph->ends_with(s->last) || DTX_MUTANT(simt_fork_not_joined);
    end_record(c);
    if (c->spoilt || !joined)
        return c->spoilt ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
    *out = c->graph.get();
    state()->graphs[*out] = c->graph;
    return 0;
}

/* One piece of work of the stream: branches of it run in turns that suit DTX_EMU_STREAMS. */
static int graph_launch(void *handle, void *stream)
{
    auto found = state()->graphs.find(handle);
    if (found == state()->graphs.end())
        return INVALID_HANDLE;
    if (dtx_emu_records(stream)) {
        ((struct stream *)stream)->capture->spoilt = true;
        return CAPTURE_UNSUPPORTED;
    }
    std::shared_ptr<const struct graph> g = found->second;
    graph::order order = state()->mode == NOW ? graph::FIRST : state()->mode == LATE ? graph::LAST : graph::ANY;
    return dtx_emu_submit(stream, [g, order] { return g->run(order, state()->random); }, {});
}

static int graph_free(void *handle)
{
    return state()->graphs.erase(handle) ? 0 : (int)INVALID_HANDLE;
}

static const struct dtx_cuda_runtime table = {
    error_text,   device_count, device_describe, device_choose, alloc_memory,  free_memory, copy,         zero,
    memory_left,  host_alloc,   host_free,       stream_create, stream_free,   stream_wait, event_create, event_free,
    event_record, event_await,  event_happened,  event_seconds, capture_begin, capture_end, graph_launch, graph_free,
    arena_alloc,  arena_free,   piece_cut,       piece_join,    wait_all};

/* The place of the variable's value among three names, 0 when it is absent, −1 when it is none of them. */
static int choose(const char *variable, const char *a, const char *b, const char *c)
{
    const char *names[] = {a, b, c}, *value = getenv(variable);
    for (int i = 0; value && i < 3; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    return value ? -1 : 0;
}

const struct dtx_cuda_runtime *dtx_emu_runtime(char *why, size_t size)
{
    int order = choose("DTX_EMU_ORDER", "fifo", "lifo", "random");
    int streams = choose("DTX_EMU_STREAMS", "now", "late", "random");
    if (order < 0 || streams < 0) {
        snprintf(why, size, "DTX_EMU_ORDER must be fifo, lifo or random and DTX_EMU_STREAMS now, late or random");
        return NULL;
    }
    state()->mode = (enum mode)streams;
    state()->fault = 0;
    state()->random.seed(1);
    dtx_simt_fault_clear();
    struct dtx_simt_settings settings = {};
    settings.order = (enum dtx_simt_order)order;
    settings.seed = 1;
    settings.defer = launch_later;
    settings.architecture = getenv("DTX_EMU_ARCH") ? atoi(getenv("DTX_EMU_ARCH")) : 80;
    settings.edge_blocks = getenv("DTX_EMU_EDGE_BLOCKS") ? (unsigned)atoi(getenv("DTX_EMU_EDGE_BLOCKS")) : 0;
    if (const char *folder = getenv("DTX_EMU_PTX")) {
        settings.ptx = dtx_ptx_load(folder, settings.architecture, why, size);
        if (!settings.ptx)
            return NULL;
    }
    dtx_simt_set(&settings);
    return &table;
}
