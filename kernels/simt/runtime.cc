/*
 * A stand-in for the CUDA runtime (kernels/cuda/runtime.h): device memory is host memory with guard zones, filled with
 * NaN; launches run in the emulator. DTX_EMU_ORDER (fifo, lifo, random) is the order of threads in a block,
 * DTX_EMU_STREAMS when work runs: now (at the call), late (when the host waits for it and not before) or random (any
 * order that streams and events allow). So a missing wait or event gives wrong numbers here, and not on a cluster.
 * One state for each thread of the operating system.
 */
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
#include "kernels/cuda/runtime.h"
#include "kernels/simt/runtime.h"
#include "kernels/simt/simt.h"

enum mode { NOW, LATE, RANDOM };
enum { OUT_OF_MEMORY = 2 }; /* cudaErrorMemoryAllocation */

struct stream;

struct event {
    std::atomic<uint64_t> issued, done; /* records asked for and made; read by any thread */
    struct stream *last;                /* the stream of the last one asked for */
    double when;                        /* of the last one made */
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

static int submit(void *handle, work w)
{
    struct stream *s = (struct stream *)handle;
    struct runtime_state *r = state();
    s->queue.push_back(std::move(w));
    if (r->mode == NOW)
        drain(s);
    while (r->mode == RANDOM && r->random() % 2)
        step(any_stream());
    return r->fault;
}

int dtx_emu_submit(void *stream, std::function<int()> run)
{
    return submit(stream, {std::move(run), nullptr, nullptr, 0});
}

static int launch_later(void *, void *stream, struct dtx_simt_job *job)
{
    return submit(stream, {[job] { return dtx_simt_run(job); }, nullptr, nullptr, 0});
}

static bool lies_in(const std::map<char *, size_t> &all, const void *p)
{
    auto found = all.upper_bound((char *)p);
    return found != all.begin() && (--found, (char *)p < found->first + found->second);
}

static const char *error_text(int code)
{
    return code == DTX_SIMT_FAULT ? dtx_simt_fault_text() : "not possible in the emulator";
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
    if (!fits(bytes))
        return OUT_OF_MEMORY;
    *out = dtx_simt_alloc(bytes);
    state()->memory[(char *)*out] = bytes;
    return 0;
}

static int free_memory(void *p)
{
    drain_all();
    state()->memory.erase((char *)p);
    dtx_simt_free(p);
    return state()->fault;
}

static int copy(void *to, const void *from, size_t bytes, void *stream)
{
    if (lies_in(state()->memory, from) || lies_in(state()->pinned, from))
        return submit(stream, {[=] { return memmove(to, from, bytes), 0; }, nullptr, nullptr, 0});
    std::shared_ptr<std::vector<char>> staged(new std::vector<char>((const char *)from, (const char *)from + bytes));
    return submit(stream, {[=] { return memcpy(to, staged->data(), bytes), 0; }, nullptr, nullptr, 0});
}

static int zero(void *to, size_t bytes, void *stream)
{
    return submit(stream, {[=] { return memset(to, 0, bytes), 0; }, nullptr, nullptr, 0});
}

static int arena_alloc(void **out, size_t bytes)
{
    if (!fits(bytes))
        return OUT_OF_MEMORY;
    *out = dtx_simt_arena(bytes);
    state()->arenas[*out] = bytes;
    state()->idle += bytes;
    return 0;
}

static int arena_free(void *arena)
{
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
    state()->idle += found->second;
    state()->memory.erase(found);
    dtx_simt_join(piece);
}

static int wait_all()
{
    drain_all();
    return state()->fault;
}

/* DTX_EMU_PINNED=0: no memory can be pinned. */
static int host_alloc(void **out, size_t bytes)
{
    const char *text = getenv("DTX_EMU_PINNED");
    if (text && strcmp(text, "0") == 0)
        return OUT_OF_MEMORY;
    *out = malloc(bytes);
    state()->pinned[(char *)*out] = bytes;
    return 0;
}

static int host_free(void *p)
{
    drain_all();
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

static int stream_free(void *handle)
{
    struct stream *s = (struct stream *)handle;
    drain(s);
    for (size_t i = 0; i < state()->streams.size(); i++)
        if (state()->streams[i] == s)
            state()->streams.erase(state()->streams.begin() + (ptrdiff_t)i);
    delete s;
    return 0;
}

static int stream_wait(void *stream)
{
    drain((struct stream *)stream);
    return state()->fault;
}

static int event_create(void **out, bool)
{
    std::shared_ptr<event> e(new event());
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
    e->last = (struct stream *)stream;
    return submit(stream, {nullptr, nullptr, e, ++e->issued});
}

static int event_await(void *stream, void *handle)
{
    std::shared_ptr<event> e = state()->events[handle];
    return submit(stream, {nullptr, e, nullptr, e->issued, e->last});
}

static int event_happened(void *handle, bool *out)
{
    struct event *e = (struct event *)handle;
    *out = e->done >= e->issued;
    return 0;
}

static int event_seconds(void *from, void *to, double *out)
{
    *out = ((struct event *)to)->when - ((struct event *)from)->when;
    return 0;
}

static int refuse_capture(void *)
{
    return 801; /* cudaErrorNotSupported */
}

static int refuse_end(void *, void **)
{
    return 801;
}

static int refuse_launch(void *, void *)
{
    return 801;
}

static const struct dtx_cuda_runtime table = {
    error_text,   device_count,  device_describe, device_choose, alloc_memory,   free_memory,   copy,
    zero,         memory_left,   host_alloc,      host_free,     stream_create,  stream_free,   stream_wait,
    event_create, event_free,    event_record,    event_await,   event_happened, event_seconds, refuse_capture,
    refuse_end,   refuse_launch, arena_alloc,     arena_free,    piece_cut,      piece_join,    wait_all};

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
    if (const char *folder = getenv("DTX_EMU_PTX")) {
        settings.ptx = dtx_ptx_load(folder, settings.architecture, why, size);
        if (!settings.ptx)
            return NULL;
    }
    dtx_simt_set(&settings);
    return &table;
}
