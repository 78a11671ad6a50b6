/*
 * `cuda.graphs`: passes of a stage (forward or backward of a micro-batch through a chunk) that are recorded once and
 * then launched as one piece of work. The first time a pass runs plainly, which leaves choices of libraries and code on
 * the device behind it; the second time it is recorded and launched; from then on it is launched. So what it calls must
 * depend on the pass alone: fixed addresses, no copies from or to the host, no waiting, no exchange with other ranks.
 * What changes with the micro-batch or the step comes through memory. Not collective.
 */
#ifndef DTX_TRAINER_GRAPHS_H
#define DTX_TRAINER_GRAPHS_H

#include "kernels/backend.h"

struct dtx_graphs;

/* Passes that are equal in all of this do the same. Compared as bytes: no padding. */
struct dtx_graph_pass {
    int32_t kind, chunk, slot, keep; /* of the schedule's step */
    int32_t training, documents;
    const void *in, *out; /* boundary tensors */
};

/* queue must outlive it. */
enum dtx_status dtx_graphs_create(struct dtx_ctx *ctx, struct dtx_queue *queue, struct dtx_graphs **out);
/* Waits for the queue; before the memory that passes use is freed. Accepts NULL. */
void dtx_graphs_free(struct dtx_graphs *graphs);
/* run(self) is the pass, on the queue; or a launch of what it did. */
enum dtx_status dtx_graphs_run(struct dtx_graphs *graphs, const struct dtx_graph_pass *pass,
                               enum dtx_status (*run)(void *self), void *self);
/* Graphs that there are, and their launches so far. */
void dtx_graphs_count(const struct dtx_graphs *graphs, int64_t *made, int64_t *launched);

#endif
