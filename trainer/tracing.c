#include "trainer/tracing.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { SPANS = 1 << 16 }; /* of a rank: 6 MiB */

/* Communicators by axis. */
static const struct {
    enum dtx_axis axis;
    const char *track;
} tracks[] = {{DTX_AXIS_TP, "tp"},           {DTX_AXIS_DP, "dp"},
              {DTX_AXIS_DP, "data"},         {DTX_AXIS_DP, "grads"},
              {DTX_AXIS_CP, "cp"},           {DTX_AXIS_PP, "pp"},
              {DTX_AXIS_PP, "pp-forward"},   {DTX_AXIS_PP, "pp-backward"},
              {DTX_AXIS_PP, "wrap-forward"}, {DTX_AXIS_PP, "wrap-backward"},
              {DTX_AXIS_PP, "tied"}};
enum { N_TRACKS = sizeof tracks / sizeof *tracks };

/* For a profiler alone: nothing is recorded here. */
static enum dtx_status open_ranges(struct dtx_tracing *t)
{
    struct dtx_ctx *ctx = t->session->ctx;
    if (!dtx_backend_ranges())
        return DTX_OK;
    DTX_TRY(ctx, dtx_trace_create(ctx, 1, &t->profiled));
    t->profiled->ranges = dtx_backend_ranges();
    ctx->trace = t->profiled;
    return DTX_OK;
}

enum dtx_status dtx_tracing_open(struct dtx_session *s, struct dtx_tracing *out)
{
    *out = (struct dtx_tracing){.session = s,
                                .path = dtx_opt_text(s->opt, "trace.path"),
                                .skip = dtx_opt_int(s->opt, "trace.skip"),
                                .steps = dtx_opt_int(s->opt, "trace.steps")};
    if (!*out->path || s->next_stage) /* the file is that of the first stage of this call */
        return open_ranges(out);
    enum dtx_status status = dtx_trace_create(s->ctx, SPANS, &out->trace);
    if (status == DTX_OK)
        out->trace->ranges = dtx_backend_ranges();
    if (status == DTX_OK && s->world->rank == 0) { /* a path that cannot be written is told before the steps */
        FILE *file = fopen(out->path, "w");
        if (!file)
            status = dtx_fail(s->ctx, DTX_E_CONFIG, "trace.path: cannot write '%s': %s", out->path, strerror(errno));
        else
            fclose(file);
    }
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, dtx_comm_barrier(s->world)); /* clocks of nodes differ: time 0 is when all are here */
    out->trace->origin = dtx_clock_now();
    s->ctx->trace = out->trace;
    return DTX_OK;
}

/* Seconds of the axes over all ranks: total, then overlapped. */
static enum dtx_status sum_shares(struct dtx_tracing *t, double seconds[2 * DTX_AXES])
{
    struct dtx_session *s = t->session;
    const char *names[N_TRACKS];
    struct dtx_trace_share shares[N_TRACKS];
    for (int i = 0; i < N_TRACKS; i++)
        names[i] = tracks[i].track;
    DTX_TRY(s->ctx, dtx_trace_overlap(s->ctx, t->trace, names, N_TRACKS, shares));
    memset(seconds, 0, 2 * DTX_AXES * sizeof *seconds);
    for (int i = 0; i < N_TRACKS; i++) {
        seconds[tracks[i].axis] += shares[i].total;
        seconds[DTX_AXES + tracks[i].axis] += shares[i].overlapped;
    }
    struct dtx_tensor all = dtx_tensor_1d(seconds, DTX_F64, 2 * DTX_AXES);
    return dtx_comm_all_reduce_sum(s->world, NULL, &all);
}

static enum dtx_status message(struct dtx_comm *world, void *data, int64_t bytes, int peer, bool receive)
{
    struct dtx_tensor t = dtx_tensor_1d(data, DTX_U8, bytes);
    struct dtx_request request;
    DTX_TRY(world->ctx, receive ? dtx_comm_recv_start(world, NULL, &t, peer, &request)
                                : dtx_comm_send_start(world, NULL, &t, peer, &request));
    return dtx_comm_wait(&request);
}

/* Rank 0 writes its own text, then that of the others as they come. file may be NULL: they come all the same. */
static enum dtx_status write_ranks(struct dtx_comm *world, char *own, FILE *file)
{
    int64_t bytes = (int64_t)strlen(own);
    if (world->rank != 0) {
        DTX_TRY(world->ctx, message(world, &bytes, sizeof bytes, 0, false));
        return message(world, own, bytes, 0, false);
    }
    if (file)
        fputs(own, file);
    for (int r = 1; r < world->size; r++) {
        void *text;
        DTX_TRY(world->ctx, message(world, &bytes, sizeof bytes, r, true));
        DTX_TRY(world->ctx, dtx_mem_alloc(world->ctx, bytes, 1, &text));
        enum dtx_status status = message(world, text, bytes, r, true);
        if (file && status == DTX_OK) {
            fputs(",\n", file);
            fwrite(text, 1, (size_t)bytes, file);
        }
        dtx_mem_free(text);
        DTX_TRY(world->ctx, status);
    }
    return DTX_OK;
}

/* "tp 1.20 s (0 % beside computation), dp …" of the axes that have more than one rank. */
static void describe(const double seconds[2 * DTX_AXES], char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < DTX_AXES; a++)
        if (seconds[a] > 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %.3g s, %.0f %% of it beside computation",
                                     used ? "; " : "", dtx_axis_name((enum dtx_axis)a), seconds[a],
                                     100 * seconds[DTX_AXES + a] / seconds[a]);
    if (!used)
        snprintf(text, bytes, "no rank had another to talk to");
}

static void end_file(const struct dtx_tracing *t, const double seconds[2 * DTX_AXES], FILE *file)
{
    fputs("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{", file);
    for (int a = 0; a < DTX_AXES; a++)
        fprintf(file, "%s\"%s_seconds\":%.9g,\"%s_overlapped_seconds\":%.9g", a ? "," : "",
                dtx_axis_name((enum dtx_axis)a), seconds[a], dtx_axis_name((enum dtx_axis)a), seconds[DTX_AXES + a]);
    fprintf(file, ",\"ranks\":%d,\"first_step\":%lld}}\n", t->session->world->size, (long long)t->first);
}

static enum dtx_status write_trace(struct dtx_tracing *t)
{
    struct dtx_session *s = t->session;
    bool root = s->world->rank == 0;
    double seconds[2 * DTX_AXES];
    char *own, shares[256];
    int64_t lost = dtx_trace_lost(t->trace);
    struct dtx_tensor count = dtx_tensor_1d(&lost, DTX_I64, 1);
    DTX_TRY(s->ctx, sum_shares(t, seconds));
    DTX_TRY(s->ctx, dtx_comm_all_reduce_sum(s->world, NULL, &count));
    dtx_trace_sort(t->trace);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, dtx_trace_text(s->ctx, t->trace, &own)));
    FILE *file = root ? fopen(t->path, "w") : NULL;
    bool failed = root && !file;
    if (file)
        fputs("{\"traceEvents\":[\n", file);
    enum dtx_status status = write_ranks(s->world, own, file);
    dtx_mem_free(own);
    if (file) {
        end_file(t, seconds, file);
        failed = ferror(file) != 0;
        failed = fclose(file) != 0 || failed;
    }
    DTX_TRY(s->ctx, status);
    describe(seconds, shares, sizeof shares);
    if (root && failed)
        dtx_log(s->ctx, DTX_LOG_WARN, "the trace could not be written to %s: %s", t->path, strerror(errno));
    else if (root)
        dtx_log(s->ctx, DTX_LOG_INFO, "trace from step %lld on in %s. Communication of all ranks: %s",
                (long long)t->first, t->path, shares);
    if (root && lost)
        dtx_log(s->ctx, DTX_LOG_WARN, "the trace lacks %lld spans: memory for %d a rank; set trace.steps lower",
                (long long)lost, SPANS);
    return DTX_OK;
}

bool dtx_tracing_ends(const struct dtx_tracing *t, bool last)
{
    return t->trace && t->seen > t->skip && (last || t->seen >= t->skip + t->steps);
}

enum dtx_status dtx_tracing_step(struct dtx_tracing *t, int64_t step, bool last)
{
    struct dtx_session *s = t->session;
    if (!t->trace)
        return DTX_OK;
    int64_t number = last ? t->skip + t->steps : t->seen++;
    if (number == t->skip) {
        t->first = step;
        atomic_store(&t->trace->running, true);
    }
    if (number < t->skip + t->steps || t->seen <= t->skip)
        return DTX_OK;
    atomic_store(&t->trace->running, false);
    DTX_TRY(s->ctx, dtx_engine_settle(s->engine)); /* its thread records nothing more */
    DTX_TRY(s->ctx, write_trace(t));
    dtx_tracing_close(t);
    return DTX_OK;
}

void dtx_tracing_close(struct dtx_tracing *t)
{
    if (t->trace || t->profiled)
        t->session->ctx->trace = NULL;
    dtx_trace_free(t->trace);
    dtx_trace_free(t->profiled);
    t->trace = t->profiled = NULL;
}
