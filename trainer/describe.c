#include "trainer/describe.h"

#include <stdio.h>

#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/peak.h"
#include "trainer/snapshot.h"

/* What the table of weights takes on this rank. */
static void describe_memory(const struct dtx_session *s)
{
    struct dtx_params_bytes bytes = dtx_params_memory(dtx_engine_params(s->engine));
    char weights[16], gradients[16], masters[16], states[16], activations[16], copy[16], snapshot[48] = "";
    dtx_format_count((double)dtx_snapshot_bytes(dtx_engine_params(s->engine)), copy);
    if (s->config.snapshot)
        snprintf(snapshot, sizeof snapshot, ", copy to roll back to %sB", copy);
    dtx_format_count((double)dtx_engine_activation_bytes(s->engine), activations);
    dtx_format_count((double)bytes.weights, weights);
    dtx_format_count((double)bytes.gradients, gradients);
    dtx_format_count((double)bytes.masters, masters);
    dtx_format_count((double)bytes.states, states);
    dtx_log(s->ctx, DTX_LOG_INFO,
            "memory of rank %d: weights %sB, gradients %sB, masters %sB, optimizer %sB%s, activations %sB%s",
            s->ctx->rank, weights, gradients, masters, states,
            dtx_engine_params(s->engine)->zero && dtx_mesh_data_size(dtx_engine_mesh(s->engine)) > 1
                ? " (ZeRO: its share of the data ranks')"
                : "",
            activations, snapshot);
}

void dtx_describe_run(const struct dtx_session *s, const struct dtx_stream *stream, double peak_flops)
{
    const struct dtx_engine_config *c = &s->config;
    const struct dtx_batch_config *b = &c->batch;
    char count[16], peak[16], tokens[16], context[32] = "";
    if (c->mesh[DTX_AXIS_CP] > 1)
        snprintf(context, sizeof context, " × cp %d (%s)", c->mesh[DTX_AXIS_CP], c->ring ? "ring" : "gather");
    dtx_format_count((double)dtx_params_total(dtx_engine_params(s->engine)), count);
    dtx_format_count(peak_flops, peak);
    dtx_format_count((double)dtx_stream_tokens(stream), tokens);
    dtx_log(s->ctx, DTX_LOG_INFO, "%s attention, %s parameters, %s%s, tp %d × pp %d × dp %d%s, %d thread%s a rank (%s)",
            dtx_opt_text(s->opt, "model.attention"), count, dtx_dtype_name(c->dtype),
            c->fp8 ? " with fp8 products" : "", c->mesh[DTX_AXIS_TP], c->mesh[DTX_AXIS_PP], c->mesh[DTX_AXIS_DP],
            context, s->backend->threads, s->backend->threads == 1 ? "" : "s", dtx_isa_name(s->backend->isa));
    dtx_log(s->ctx, DTX_LOG_INFO,
            "%lld sequences of %lld tokens a step, as %d micro-batches of %lld on each data rank; %s training tokens",
            (long long)b->global_batch, (long long)b->length, b->micro_batches, (long long)b->micro_batch, tokens);
    dtx_stream_log(s->ctx, stream);
    describe_memory(s);
    if (peak_flops > 0)
        dtx_log(s->ctx, DTX_LOG_INFO, "measured peak of all ranks: %sFLOP/s", peak);
    if (s->initialized)
        dtx_log(s->ctx, DTX_LOG_INFO, "a new run from the weights of %s", s->source);
    if (!s->resumed)
        return;
    const int *was = s->meta.mesh;
    bool same = was[0] == c->mesh[DTX_AXIS_TP] && was[1] == c->mesh[DTX_AXIS_DP] && was[2] == c->mesh[DTX_AXIS_PP] &&
                was[3] == c->mesh[DTX_AXIS_CP];
    context[0] = '\0';
    if (was[3] > 1)
        snprintf(context, sizeof context, " × cp %d", was[3]);
    dtx_log(s->ctx, DTX_LOG_INFO, "resumed from %s at step %lld", s->source, (long long)s->meta.step);
    if (!same)
        dtx_log(s->ctx, DTX_LOG_INFO,
                "the checkpoint is of tp %d × pp %d × dp %d%s; this run goes on with the mesh above", was[0], was[2],
                was[1], context);
}

enum dtx_status dtx_describe_ranks(struct dtx_session *s, double *peak_flops, size_t *memory_bytes)
{
    double seconds = dtx_opt_real(s->opt, "log.peak_seconds");
    struct {
        double peak;
        size_t memory;
    } mine = {0, s->backend->peak_bytes}, *all;
    void *p;
    *peak_flops = 0;
    *memory_bytes = 0;
    DTX_TRY(s->ctx, dtx_comm_barrier(s->world));
    enum dtx_status status =
        seconds > 0 ? dtx_peak_measure(s->ctx, s->backend, s->config.dtype, seconds, &mine.peak) : DTX_OK;
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->world->size, sizeof mine, &p));
    all = p;
    status = dtx_comm_gather_bytes(s->world, &mine, sizeof mine, all);
    for (int r = 0; r < s->world->size && status == DTX_OK; r++) {
        *peak_flops += all[r].peak;
        *memory_bytes = all[r].memory > *memory_bytes ? all[r].memory : *memory_bytes;
    }
    dtx_mem_free(p);
    return status;
}
