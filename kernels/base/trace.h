/*
 * What a rank did when: spans of time in memory of a fixed size, written as one rank's part of a Chrome/Perfetto trace.
 * Off (ctx->trace NULL, or not running) a span costs a branch. Spans may be recorded by several threads at once;
 * everything else belongs to one thread while nobody records. Spans beyond the memory are counted, not kept.
 */
#ifndef DTX_KERNELS_BASE_TRACE_H
#define DTX_KERNELS_BASE_TRACE_H

#include <stdatomic.h>

#include "kernels/base/clock.h"
#include "kernels/base/status.h"

enum dtx_span_kind {
    DTX_SPAN_STEP,    /* all of an optimizer step, by its number */
    DTX_SPAN_PASS,    /* a step of the schedule; number: micro-batch */
    DTX_SPAN_COMPUTE, /* operations of a layer, the optimizer; number: block */
    DTX_SPAN_COMM,    /* a collective or message that the rank itself waits in; number: of the communicator's */
    DTX_SPAN_STARTED, /* a collective that a progress thread does meanwhile */
    DTX_SPAN_WAIT,    /* for one of these, for data */
    DTX_SPAN_KINDS
};

enum { DTX_TRACE_TRACK = 16 };

struct dtx_span {
    double begin, end; /* seconds of dtx_clock_now */
    enum dtx_span_kind kind;
    char track[DTX_TRACE_TRACK]; /* row: "compute", "data", "checkpoint", or a communicator's name */
    const char *name;            /* static */
    int64_t number, bytes;       /* bytes 0: none to tell */
};

/* A profiler's own ranges: the calling thread's, one in another. */
struct dtx_ranges {
    void (*push)(const char *name);
    void (*pop)(void);
};

struct dtx_trace {
    const struct dtx_ranges *ranges; /* told of every span as it begins and ends, recorded or not; NULL: none */
    atomic_bool running;
    atomic_llong n; /* recorded; may exceed capacity */
    int64_t capacity;
    double origin; /* time 0 */
    struct dtx_span *span;
};

enum dtx_status dtx_trace_create(struct dtx_ctx *ctx, int64_t capacity, struct dtx_trace **out);
void dtx_trace_free(struct dtx_trace *trace); /* accepts NULL */
void dtx_trace_add(struct dtx_trace *trace, double begin, double end, enum dtx_span_kind kind, const char *track,
                   const char *name, int64_t number, int64_t bytes);

/* Begins a span; 0: nothing is recorded. Spans of a thread end in reverse order. */
static inline double dtx_trace_begin(const struct dtx_ctx *ctx, const char *name)
{
    if (!ctx->trace)
        return 0;
    if (ctx->trace->ranges)
        ctx->trace->ranges->push(name);
    return atomic_load_explicit(&ctx->trace->running, memory_order_relaxed) ? dtx_clock_now() : 0;
}
static inline void dtx_trace_end(const struct dtx_ctx *ctx, double begin, enum dtx_span_kind kind, const char *track,
                                 const char *name, int64_t number, int64_t bytes)
{
    if (ctx->trace && ctx->trace->ranges)
        ctx->trace->ranges->pop();
    if (begin > 0)
        dtx_trace_add(ctx->trace, begin, dtx_clock_now(), kind, track, name, number, bytes);
}

/* Spans kept, and those that were not. */
int64_t dtx_trace_kept(const struct dtx_trace *trace);
int64_t dtx_trace_lost(const struct dtx_trace *trace);
/* By row and time, a span before what lies in it. */
void dtx_trace_sort(struct dtx_trace *trace);
/* Seconds that collectives and messages of a track took, and the part of them in which this rank computed: was in a
 * COMPUTE span and in no COMM or WAIT span. */
struct dtx_trace_share {
    double total, overlapped;
};
enum dtx_status dtx_trace_overlap(struct dtx_ctx *ctx, const struct dtx_trace *trace, const char *const *tracks, int n,
                                  struct dtx_trace_share *out);
/* The events of this rank as JSON objects separated by commas, after dtx_trace_sort; free with dtx_mem_free. */
enum dtx_status dtx_trace_text(struct dtx_ctx *ctx, const struct dtx_trace *trace, char **out);

#endif
