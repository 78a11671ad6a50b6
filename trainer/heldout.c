#include <string.h>

#include "data/stream.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/loop.h"
#include "trainer/stop.h"

struct dtx_heldout {
    struct dtx_session *session;
    struct dtx_stream *stream;
    int64_t each; /* sequences of one data rank in a batch */
    struct dtx_walk *walk;
    int32_t *tokens, *targets, *starts; /* [each · length] */
    bool *asked;                        /* [ranks] */
};

enum dtx_status dtx_heldout_open(struct dtx_session *s, struct dtx_heldout **out)
{
    void *p;
    const struct dtx_batch_config *b = &s->config.batch;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, 1, sizeof(struct dtx_heldout), &p));
    struct dtx_heldout *h = p;
    h->session = s;
    h->each = b->micro_batch * b->micro_batches;
    int64_t n = h->each * b->length;
    enum dtx_status status = dtx_mem_alloc(s->ctx, 3 * n, sizeof *h->tokens, &p);
    if (status == DTX_OK) {
        h->tokens = p;
        status = dtx_mem_alloc(s->ctx, s->world->size, sizeof *h->asked, &p);
    }
    if (status == DTX_OK) {
        h->asked = p;
        h->targets = h->tokens + n;
        h->starts = h->targets + n;
        struct dtx_stream_config config = dtx_session_stream(s, true);
        status = dtx_stream_open(s->ctx, &config, &h->stream);
        if (status == DTX_OK)
            status = dtx_walk_open(s->ctx, h->stream, &h->walk);
    }
    if (status != DTX_OK) {
        dtx_heldout_close(h);
        return status;
    }
    *out = h;
    return DTX_OK;
}

void dtx_heldout_close(struct dtx_heldout *h)
{
    if (!h)
        return;
    dtx_walk_close(h->walk);
    dtx_stream_close(h->stream);
    dtx_mem_free(h->tokens);
    dtx_mem_free(h->asked);
    dtx_mem_free(h);
}

/* This rank's part of the batch that begins at held-out sample `first`; sequences beyond `samples` have no targets. */
static enum dtx_status fill(struct dtx_heldout *h, int64_t first, int64_t samples)
{
    struct dtx_session *s = h->session;
    int64_t length = s->config.batch.length;
    if (!DTX_MUTANT(heldout_same_on_all_ranks))
        first += h->each * dtx_engine_mesh(s->engine)->rank[DTX_AXIS_DP];
    for (int64_t i = 0; i < h->each; i++) {
        int32_t *tokens = h->tokens + i * length, *targets = h->targets + i * length;
        if (first + i >= samples) {
            memset(tokens, 0, (size_t)length * sizeof *tokens);
            memset(h->starts + i * length, 0, (size_t)length * sizeof *tokens);
            memset(targets, 0xff, (size_t)length * sizeof *targets);
            continue;
        }
        struct dtx_rows row = {.tokens = tokens, .targets = targets, .doc_start = h->starts + i * length};
        DTX_TRY(s->ctx, dtx_stream_read(s->ctx, h->stream, h->walk, first + i, 1, &row));
    }
    return DTX_OK;
}

/* Is any rank asked to stop? */
static enum dtx_status find_request(struct dtx_heldout *h, bool *out)
{
    struct dtx_session *s = h->session;
    bool own = dtx_stop_requested() != 0 && !DTX_MUTANT(evaluation_hears_no_signal);
    *out = false;
    DTX_TRY(s->ctx, dtx_comm_gather_bytes(s->world, &own, sizeof own, h->asked));
    for (int r = 0; r < s->world->size; r++)
        *out |= h->asked[r];
    return DTX_OK;
}

enum dtx_status dtx_heldout_loss(struct dtx_heldout *h, int64_t samples, bool *cut, double *loss, int64_t *targets)
{
    struct dtx_session *s = h->session;
    bool documents = dtx_opt_bool(s->opt, "data.doc_reset");
    double sum = 0;
    *targets = 0;
    samples = dtx_min64(samples, dtx_stream_samples(h->stream));
    for (int64_t first = 0; first < samples; first += s->config.batch.global_batch) {
        if (cut)
            DTX_TRY(s->ctx, find_request(h, cut));
        if (cut && *cut)
            return DTX_OK;
        DTX_TRY(s->ctx, dtx_comm_agree(s->world, fill(h, first, samples)));
        struct dtx_engine_batch batch = {h->tokens, h->targets, documents ? h->starts : NULL};
        double part;
        int64_t count;
        DTX_TRY(s->ctx, dtx_engine_evaluate(s->engine, &batch, &part, &count));
        sum += part;
        *targets += count;
    }
    *loss = *targets ? sum / (double)*targets : 0.0;
    return DTX_OK;
}
