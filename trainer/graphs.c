#include "trainer/graphs.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/trace.h"

struct entry {
    struct dtx_graph_pass pass;
    void *graph; /* NULL: ran once */
};

struct dtx_graphs {
    struct dtx_ctx *ctx;
    struct dtx_queue *queue;
    struct entry *entry;
    int64_t n, capacity, made, launched;
};

enum dtx_status dtx_graphs_create(struct dtx_ctx *ctx, struct dtx_queue *queue, struct dtx_graphs **out)
{
    void *memory;
    if (!queue->backend->queues->records)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "cuda.graphs: the backend %s records no launches",
                        queue->backend->name);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_graphs), &memory));
    *out = memory;
    (*out)->ctx = ctx;
    (*out)->queue = queue;
    return DTX_OK;
}

void dtx_graphs_free(struct dtx_graphs *g)
{
    if (!g)
        return;
    const struct dtx_queue_table *queues = g->queue->backend->queues;
    queues->wait(g->queue);
    for (int64_t i = 0; i < g->n; i++)
        queues->graph_free(g->queue, g->entry[i].graph);
    dtx_mem_free(g->entry);
    dtx_mem_free(g);
}

static bool same(const struct dtx_graph_pass *a, struct dtx_graph_pass b)
{
    if (DTX_MUTANT(graph_for_any_slot))
        b.slot = a->slot;
    if (DTX_MUTANT(graph_for_any_buffer)) {
        b.in = a->in;
        b.out = a->out;
    }
    if (DTX_MUTANT(graph_evaluates_as_it_trains))
        b.training = a->training;
    if (DTX_MUTANT(graph_forgets_documents))
        b.documents = a->documents;
    return memcmp(a, &b, sizeof b) == 0;
}

/* A few dozen at most: schedules repeat slots and buffers. */
static struct entry *find(struct dtx_graphs *g, const struct dtx_graph_pass *pass)
{
    for (int64_t i = 0; i < g->n; i++)
        if (same(&g->entry[i].pass, *pass))
            return &g->entry[i];
    return NULL;
}

static enum dtx_status add(struct dtx_graphs *g, const struct dtx_graph_pass *pass)
{
    void *memory;
    DTX_TRY(g->ctx, dtx_mem_grow(g->ctx, g->entry, g->n, sizeof *g->entry, &g->capacity, &memory));
    g->entry = memory;
    g->entry[g->n++].pass = *pass;
    return DTX_OK;
}

/* What the pass did wrong is the cause where recording fails too. */
static enum dtx_status record(struct dtx_graphs *g, struct entry *e, enum dtx_status (*run)(void *self), void *self)
{
    const struct dtx_queue_table *queues = g->queue->backend->queues;
    DTX_TRY(g->ctx, queues->begin_capture(g->queue));
    enum dtx_status status = run(self);
    if (status == DTX_OK)
        status = queues->end_capture(g->queue, &e->graph);
    else if (!DTX_MUTANT(graph_recording_not_ended))
        queues->end_capture(g->queue, NULL);
    if (status != DTX_OK)
        dtx_log(g->ctx, DTX_LOG_WARN, "cuda.graphs: a pass cannot be recorded; cuda.graphs false does without");
    g->made += status == DTX_OK;
    return status;
}

enum dtx_status dtx_graphs_run(struct dtx_graphs *g, const struct dtx_graph_pass *pass,
                               enum dtx_status (*run)(void *self), void *self)
{
    struct entry *e = find(g, pass);
    if (!e) {
        DTX_TRY(g->ctx, add(g, pass));
        return run(self);
    }
    if (!e->graph)
        DTX_TRY(g->ctx, record(g, e, run, self));
    double begin = dtx_trace_begin(g->ctx, "graph");
    DTX_TRY(g->ctx, g->queue->backend->queues->launch(g->queue, e->graph));
    dtx_trace_end(g->ctx, begin, DTX_SPAN_COMPUTE, "compute", "graph", -1, 0);
    g->launched++;
    return DTX_OK;
}

void dtx_graphs_count(const struct dtx_graphs *g, int64_t *made, int64_t *launched)
{
    *made = g ? g->made : 0;
    *launched = g ? g->launched : 0;
}
