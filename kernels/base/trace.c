#include "kernels/base/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { TRACKS = 32, EVENT_TEXT = 192 };

enum dtx_status dtx_trace_create(struct dtx_ctx *ctx, int64_t capacity, struct dtx_trace **out)
{
    void *trace, *spans;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_trace), &trace));
    enum dtx_status status = dtx_mem_alloc(ctx, capacity, sizeof(struct dtx_span), &spans);
    if (status != DTX_OK) {
        dtx_mem_free(trace);
        return status;
    }
    *out = trace;
    (*out)->capacity = capacity;
    (*out)->span = spans;
    return DTX_OK;
}

void dtx_trace_free(struct dtx_trace *trace)
{
    if (!trace)
        return;
    dtx_mem_free(trace->span);
    dtx_mem_free(trace);
}

void dtx_trace_add(struct dtx_trace *trace, double begin, double end, enum dtx_span_kind kind, const char *track,
                   const char *name, int64_t number, int64_t bytes)
{
    long long i = atomic_fetch_add_explicit(&trace->n, 1, memory_order_relaxed);
    if (i >= trace->capacity)
        return;
    struct dtx_span *s = &trace->span[i];
    *s = (struct dtx_span){.begin = begin, .end = end, .kind = kind, .name = name, .number = number, .bytes = bytes};
    if (DTX_MUTANT(trace_end_before_begin) && kind == DTX_SPAN_STARTED)
        s->end = begin - (end - begin);
    snprintf(s->track, sizeof s->track, "%s", track);
}

int64_t dtx_trace_kept(const struct dtx_trace *trace)
{
    return dtx_min64((int64_t)atomic_load(&trace->n), trace->capacity);
}

int64_t dtx_trace_lost(const struct dtx_trace *trace)
{
    return (int64_t)atomic_load(&trace->n) - dtx_trace_kept(trace);
}

static int compare_spans(const void *a, const void *b)
{
    const struct dtx_span *x = a, *y = b;
    int track = strcmp(x->track, y->track);
    if (track)
        return track;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end < y->end) - (x->end > y->end);
}

void dtx_trace_sort(struct dtx_trace *trace)
{
    qsort(trace->span, (size_t)dtx_trace_kept(trace), sizeof *trace->span, compare_spans);
}

/* A moment at which computation or waiting begins (+1) or ends (−1). */
struct edge {
    double time;
    int computing, waiting;
};

static int compare_edges(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

/* Edges in order of time become moments from which the rank computes or not: returns their number. */
static int64_t list_edges(const struct dtx_trace *trace, struct edge *edge)
{
    int64_t n = 0, kept = dtx_trace_kept(trace);
    for (int64_t i = 0; i < kept; i++) {
        const struct dtx_span *s = &trace->span[i];
        int computing = s->kind == DTX_SPAN_COMPUTE, waiting = s->kind == DTX_SPAN_COMM || s->kind == DTX_SPAN_WAIT;
        if (!computing && !waiting)
            continue;
        edge[n++] = (struct edge){s->begin, computing, waiting};
        edge[n++] = (struct edge){s->end, -computing, -waiting};
    }
    qsort(edge, (size_t)n, sizeof *edge, compare_edges);
    for (int64_t i = 1; i < n; i++) {
        edge[i].computing += edge[i - 1].computing;
        edge[i].waiting += edge[i - 1].waiting;
    }
    return n;
}

/* Seconds from begin to end in which the rank computed. */
static double computed(const struct edge *edge, int64_t n, double begin, double end)
{
    int64_t low = 0, high = n; /* the first edge after begin */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (edge[middle].time <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    double seconds = 0, from = begin;
    for (int64_t i = low; from < end && i <= n; i++) {
        double to = i < n && edge[i].time < end ? edge[i].time : end;
        if (i > 0 && edge[i - 1].computing > 0 && edge[i - 1].waiting == 0)
            seconds += to - from;
        from = to;
    }
    return seconds;
}

enum dtx_status dtx_trace_overlap(struct dtx_ctx *ctx, const struct dtx_trace *trace, const char *const *tracks, int n,
                                  struct dtx_trace_share *out)
{
    void *edges;
    int64_t kept = dtx_trace_kept(trace);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * kept, sizeof(struct edge), &edges));
    int64_t n_edges = list_edges(trace, edges);
    for (int t = 0; t < n; t++)
        out[t] = (struct dtx_trace_share){0, 0};
    for (int64_t i = 0; i < kept; i++) {
        const struct dtx_span *s = &trace->span[i];
        for (int t = 0; t < n && (s->kind == DTX_SPAN_COMM || s->kind == DTX_SPAN_STARTED); t++)
            if (strcmp(s->track, tracks[t]) == 0) {
                out[t].total += s->end - s->begin;
                if (s->kind == DTX_SPAN_STARTED)
                    out[t].overlapped += computed(edges, n_edges, s->begin, s->end);
            }
    }
    dtx_mem_free(edges);
    return DTX_OK;
}

struct writer {
    char *text;
    size_t used, capacity;
};

static void print(struct writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print(struct writer *w, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int length = vsnprintf(w->text + w->used, w->capacity - w->used, format, ap);
    va_end(ap);
    if (length > 0 && (size_t)length < w->capacity - w->used)
        w->used += (size_t)length;
}

/* Rows: the rank's own work first, then what it waits for, then the communicators by name. */
static int place_of(const char *track)
{
    static const char *const first[] = {"compute", "data", "checkpoint"};
    for (int i = 0; i < 3; i++)
        if (strcmp(track, first[i]) == 0)
            return i;
    return 3;
}

static void print_span(struct writer *w, int rank, int row, double origin, const struct dtx_span *s)
{
    static const char *const numbers[DTX_SPAN_KINDS] = {"step", "micro_batch", "block", "seq", "seq", "seq"};
    print(w, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\",\"args\":{", rank, row,
          1e6 * (s->begin - origin), 1e6 * (s->end - s->begin), s->name);
    if (s->number >= 0)
        print(w, "\"%s\":%lld%s", numbers[s->kind], (long long)s->number, s->bytes ? "," : "");
    if (s->bytes)
        print(w, "\"bytes\":%lld", (long long)s->bytes);
    print(w, "}}");
}

enum dtx_status dtx_trace_text(struct dtx_ctx *ctx, const struct dtx_trace *trace, char **out)
{
    int64_t kept = dtx_trace_kept(trace);
    struct writer w = {.capacity = (size_t)(kept + 2 * TRACKS + 2) * EVENT_TEXT};
    void *text;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)w.capacity, 1, &text));
    w.text = text;
    print(&w, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d (%s)\"}}", ctx->rank,
          ctx->rank, ctx->host);
    print(&w, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", ctx->rank,
          ctx->rank);
    int row = 0;
    for (int64_t i = 0; i < kept; i++) {
        const struct dtx_span *s = &trace->span[i];
        if (i == 0 || strcmp(s->track, trace->span[i - 1].track) != 0) {
            int place = place_of(s->track);
            row++;
            print(&w,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}"
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
                  ctx->rank, row, s->track, ctx->rank, row, place < 3 ? place : place + row);
        }
        print_span(&w, ctx->rank, row, trace->origin, s);
    }
    *out = text;
    return DTX_OK;
}
