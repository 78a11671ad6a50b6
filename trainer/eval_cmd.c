#include <math.h>
#include <stdio.h>

#include "kernels/base/command.h"
#include "trainer/loop.h"

static const struct dtx_opt_row own_options[] = {
    {"samples", DTX_OPT_INT, "0", "0..", DTX_OPT_FREE, "held-out sequences to read; 0: all"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const struct dtx_session_command command = {
    .name = "eval",
    .usage = "usage: dtx eval --resume CHECKPOINT [--data.train PREFIX] [--samples N] [--KEY VALUE …]\n\n"
             "Loss of a checkpoint on held-out text (the last data.heldout of each source's documents). Any number of\n"
             "ranks; options come from the checkpoint unless given.\n",
    .options = own_options,
    .needs_checkpoint = true,
    .needs_data = true};

static enum dtx_status evaluate(struct dtx_session *s)
{
    struct dtx_heldout *heldout = NULL;
    int64_t samples = dtx_opt_int(s->opt, "samples"), targets;
    double loss;
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, dtx_heldout_open(s, &heldout)));
    enum dtx_status status = dtx_heldout_loss(heldout, samples ? samples : INT64_MAX, NULL, &loss, &targets);
    dtx_heldout_close(heldout);
    if (status == DTX_OK && !isfinite(loss))
        status =
            dtx_fail(s->ctx, DTX_E_NUMERIC, "the held-out loss of %s is %g: its weights are damaged", s->source, loss);
    if (status == DTX_OK && s->world->rank == 0)
        printf("held-out loss %.6f nats (perplexity %.3f, %.4f bits a token) over %lld tokens, step %lld\n", loss,
               exp(loss), loss / log(2.0), (long long)targets, (long long)s->meta.step);
    return status;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_session session;
    bool done;
    enum dtx_status status = dtx_session_open(ctx, &command, argc, argv, &session, &done);
    if (status == DTX_OK && !done)
        status = evaluate(&session);
    return dtx_session_close(&session, status);
}

const struct dtx_command dtx_command_eval = {"eval", "loss of a checkpoint on held-out text", run};
