#include "data/stream.h"

#include <math.h>
#include <string.h>

#include "data/order.h"
#include "data/tokenfile.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct source {
    struct dtx_tokenfile *file;
    int64_t first_token, tokens;   /* the part that is read */
    int64_t first_sample, samples; /* among the samples of all sources */
};

struct dtx_stream {
    int64_t length, vocab;
    int32_t separator;
    bool doc_reset, in_order;
    int64_t samples, tokens, tail;
    struct dtx_order order;
    int n_sources;
    struct source *sources;
};

static enum dtx_status check_config(struct dtx_ctx *ctx, const struct dtx_stream_config *c)
{
    if (c->length < 1 || c->length >= INT32_MAX)
        return dtx_fail(ctx, DTX_E_CONFIG, "a sample length of %lld tokens is not possible", (long long)c->length);
    if (c->vocab < 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "a vocabulary of %lld ids is not possible", (long long)c->vocab);
    if (!(c->heldout >= 0 && c->heldout < 1))
        return dtx_fail(ctx, DTX_E_CONFIG, "the held-out share must be in [0, 1), not %g", c->heldout);
    if (c->use_heldout && c->heldout == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "held-out text is wanted, but the held-out share is 0");
    if (c->separator >= c->vocab || (c->doc_reset && c->separator < 0))
        return dtx_fail(ctx, DTX_E_CONFIG, "the separator %d is no id of the vocabulary of %lld%s", c->separator,
                        (long long)c->vocab, c->doc_reset ? "; document reset needs one" : "");
    return DTX_OK;
}

/* The held-out documents are the last round(share · documents), at least one and not all. */
static enum dtx_status cut_part(struct dtx_ctx *ctx, struct source *src, const struct dtx_stream_config *c)
{
    const struct dtx_tokenfile_info *info = dtx_tokenfile_info(src->file);
    src->first_token = 0;
    src->tokens = info->tokens;
    if (c->heldout == 0)
        return DTX_OK;
    if (info->documents < 2)
        return dtx_fail(
            ctx, DTX_E_CONFIG,
            "%s has %lld document(s): a held-out share of %g needs at least 2; tokenize with --split or set "
            "the share to 0",
            info->index_path, (long long)info->documents, c->heldout);
    int64_t held = (int64_t)llround(c->heldout * (double)info->documents), cut;
    held = dtx_min64(dtx_max64(held, 1), info->documents - 1);
    DTX_TRY(ctx, dtx_tokenfile_document(ctx, src->file, info->documents - held, &cut));
    if (c->use_heldout) {
        src->first_token = cut;
        src->tokens = info->tokens - cut;
    } else if (!DTX_MUTANT(stream_heldout_overlap)) {
        src->tokens = cut;
    }
    return DTX_OK;
}

static enum dtx_status open_source(struct dtx_ctx *ctx, struct dtx_stream *s, const struct dtx_stream_config *c,
                                   const char *prefix)
{
    struct source *src = &s->sources[s->n_sources];
    DTX_TRY(ctx, (c->trusted ? dtx_tokenfile_open_trusted : dtx_tokenfile_open)(ctx, prefix, c->vocab, &src->file));
    s->n_sources++;
    DTX_TRY(ctx, cut_part(ctx, src, c));
    src->first_sample = s->samples;
    src->samples = src->tokens > 0 ? (src->tokens - 1) / c->length : 0;
    if (DTX_MUTANT(stream_last_sample_lost) && src->samples > 0)
        src->samples = src->tokens / c->length - 1;
    s->samples += src->samples;
    s->tokens += src->tokens;
    s->tail += src->samples > 0 ? src->tokens - (src->samples * c->length + 1) : src->tokens;
    if (src->samples == 0)
        dtx_log(ctx, DTX_LOG_WARN, "%s: its %s part of %lld tokens is shorter than one sample of %lld + 1: not used",
                prefix, c->use_heldout ? "held-out" : "training", (long long)src->tokens, (long long)c->length);
    return DTX_OK;
}

static enum dtx_status open_sources(struct dtx_ctx *ctx, struct dtx_stream *s, const struct dtx_stream_config *c)
{
    int n = 1;
    for (const char *p = c->paths; *p; p++)
        n += *p == ',';
    void *sources, *prefix;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *s->sources, &sources));
    s->sources = sources;
    for (const char *p = c->paths; p;) {
        const char *comma = strchr(p, ',');
        size_t bytes = comma ? (size_t)(comma - p) : strlen(p);
        if (bytes == 0)
            return dtx_fail(ctx, DTX_E_CONFIG, "an empty path in the list of token files '%s'", c->paths);
        DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)bytes + 1, 1, &prefix));
        memcpy(prefix, p, bytes);
        enum dtx_status status = open_source(ctx, s, c, prefix);
        dtx_mem_free(prefix);
        DTX_TRY(ctx, status);
        p = comma ? comma + 1 : NULL;
    }
    if (s->samples == 0)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "%s: the %s part has %lld tokens, one sample needs %lld + 1: give more text, a shorter sample "
                        "or another held-out share (now %g)",
                        c->paths, c->use_heldout ? "held-out" : "training", (long long)s->tokens, (long long)c->length,
                        c->heldout);
    return DTX_OK;
}

enum dtx_status dtx_stream_open(struct dtx_ctx *ctx, const struct dtx_stream_config *config, struct dtx_stream **out)
{
    DTX_TRY(ctx, check_config(ctx, config));
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_stream), &p));
    struct dtx_stream *s = p;
    s->length = config->length;
    s->vocab = config->vocab;
    s->separator = config->separator;
    s->doc_reset = config->doc_reset;
    s->in_order = config->use_heldout;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, open_sources(ctx, s, config), fail);
    DTX_TRY_GOTO(ctx, status, dtx_order_init(ctx, &s->order, config->seed, s->samples), fail);
    *out = s;
    return DTX_OK;
fail:
    dtx_stream_close(s);
    return status;
}

void dtx_stream_close(struct dtx_stream *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_sources; i++)
        dtx_tokenfile_close(s->sources[i].file);
    dtx_mem_free(s->sources);
    dtx_mem_free(s);
}

int64_t dtx_stream_samples(const struct dtx_stream *s)
{
    return s->samples;
}

int64_t dtx_stream_tokens(const struct dtx_stream *s)
{
    return s->tokens;
}

int64_t dtx_stream_tail(const struct dtx_stream *s)
{
    return s->tail;
}

int64_t dtx_stream_length(const struct dtx_stream *s)
{
    return s->length;
}

/* The source that holds sample i of the concatenation; sources without samples are passed over. */
static const struct source *find_source(const struct dtx_stream *s, int64_t i)
{
    int low = 0, high = s->n_sources;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (s->sources[middle].first_sample <= i)
            low = middle;
        else
            high = middle;
    }
    return &s->sources[low];
}

/* tokens[length + 1] → start[length] */
static void find_starts(const struct dtx_stream *s, const int32_t *tokens, int32_t *start)
{
    int32_t current = 0;
    for (int64_t t = 0; t < s->length; t++) {
        start[t] = current;
        if (s->doc_reset && tokens[t] == s->separator)
            current = (int32_t)t + !DTX_MUTANT(stream_document_starts_at_separator);
    }
}

enum dtx_status dtx_stream_read(struct dtx_ctx *ctx, const struct dtx_stream *s, int64_t first, int64_t n,
                                int32_t *tokens, int32_t *doc_start)
{
    if (first < 0 || n < 0)
        return dtx_fail(ctx, DTX_E_RANGE, "samples %lld … + %lld are wanted", (long long)first, (long long)n);
    int64_t step = s->length + DTX_MUTANT(stream_sample_overlap_missing);
    for (int64_t k = 0; k < n; k++) {
        int64_t g = first + k;
        int64_t i = s->in_order ? g % s->samples : dtx_order_sample(&s->order, g);
        const struct source *src = find_source(s, i);
        int32_t *row = tokens + k * (s->length + 1);
        DTX_TRY(ctx, dtx_tokenfile_read(ctx, src->file, src->first_token + (i - src->first_sample) * step,
                                        s->length + 1, row));
        if (doc_start)
            find_starts(s, row, doc_start + k * s->length);
    }
    return DTX_OK;
}

static enum dtx_status count_part(struct dtx_ctx *ctx, const struct source *src, int64_t *counts)
{
    int32_t ids[4096];
    for (int64_t t = 0; t < src->tokens; t += 4096) {
        int64_t part = dtx_min64(4096, src->tokens - t);
        DTX_TRY(ctx, dtx_tokenfile_read(ctx, src->file, src->first_token + t, part, ids));
        for (int64_t i = 0; i < part; i++)
            counts[ids[i]]++;
    }
    return DTX_OK;
}

enum dtx_status dtx_stream_entropy(struct dtx_ctx *ctx, const struct dtx_stream *s, double *nats)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->vocab, sizeof(int64_t), &p));
    int64_t *counts = p;
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < s->n_sources; i++)
        DTX_TRY_GOTO(ctx, status, count_part(ctx, &s->sources[i], counts), done);
    double sum = 0;
    for (int64_t v = 0; v < s->vocab; v++) {
        double share = (double)counts[v] / (double)s->tokens;
        if (counts[v] > 0)
            sum -= share * log(share);
    }
    *nats = sum;
done:
    dtx_mem_free(counts);
    return status;
}
