/*
 * `trace.path`: some steps of every rank as one Chrome/Perfetto trace, a process for each rank, with the share of each
 * axis' communication that went on beside computation. Written by rank 0 as soon as the steps are done, one rank's part
 * after another, so its memory does not grow with the ranks. Collective over the world. What fails here is a warning:
 * training goes on.
 */
#ifndef DTX_TRAINER_TRACING_H
#define DTX_TRAINER_TRACING_H

#include "kernels/base/trace.h"
#include "trainer/session.h"

struct dtx_tracing {
    struct dtx_session *session;
    struct dtx_trace *trace;    /* NULL: off, or written */
    struct dtx_trace *profiled; /* without trace.path, where a profiler wants ranges */
    const char *path;           /* option's */
    int64_t skip, steps;        /* steps of this call left out first; traced */
    int64_t seen;               /* begun so far */
    int64_t first;              /* number of the first traced step */
};

/* Reads the options; without trace.path all else does nothing. A profiler (NVTX) is told of spans from here on. */
enum dtx_status dtx_tracing_open(struct dtx_session *session, struct dtx_tracing *out);
/* Will the next dtx_tracing_step write the trace? */
bool dtx_tracing_ends(const struct dtx_tracing *tracing, bool last);
/* Before step `step`, and once behind the last (last: write what there is).
 * No other thread may record any more where it ends. */
enum dtx_status dtx_tracing_step(struct dtx_tracing *tracing, int64_t step, bool last);
/* Not collective: frees what was not written. */
void dtx_tracing_close(struct dtx_tracing *tracing);

#endif
