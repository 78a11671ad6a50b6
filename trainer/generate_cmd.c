#include <stdio.h>
#include <string.h>

#include "data/tokenizer.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "trainer/sample.h"
#include "trainer/session.h"

static const struct dtx_opt_row own_options[] = {
    {"tokenizer", DTX_OPT_TEXT, "tokenizer.json", NULL, DTX_OPT_FREE, "the tokenizer the training text was cut with"},
    {"prompt", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "text to continue; empty: a new document"},
    {"tokens", DTX_OPT_INT, "128", "1..", DTX_OPT_FREE, "most tokens to write"},
    {"temperature", DTX_OPT_REAL, "0.8", "0..", DTX_OPT_FREE, "0: always the most likely token"},
    {"top_p", DTX_OPT_REAL, "0.95", "0..1", DTX_OPT_FREE,
     "draw from the likeliest tokens with this share of probability"},
    {"seed", DTX_OPT_INT, "1", "0..", DTX_OPT_FREE, "seed of the draws"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const struct dtx_session_command command = {
    .name = "generate",
    .usage = "usage: dtx generate --resume CHECKPOINT --tokenizer tokenizer.json [--prompt TEXT] [--tokens N] …\n\n"
             "Writes text with a trained model. The same seed gives the same text.\n",
    .options = own_options,
    .needs_checkpoint = true,
    .one_rank = true};

struct writer {
    struct dtx_session *s;
    struct dtx_tokenizer *tokenizer;
    struct dtx_encoder *encoder;
    struct dtx_sampler sampler;
    struct dtx_ids ids; /* prompt, then what was written */
    struct dtx_bytes text;
    double *logits; /* [vocab of the model] */
    int32_t end;    /* id that ends a document, or −1 */
};

static enum dtx_status push(struct writer *w, int32_t id)
{
    DTX_TRY(w->s->ctx, dtx_ids_reserve(w->s->ctx, &w->ids, 1));
    w->ids.data[w->ids.n++] = id;
    return DTX_OK;
}

static enum dtx_status open_writer(struct writer *w)
{
    struct dtx_session *s = w->s;
    struct dtx_opt *opt = s->opt;
    void *p;
    int64_t invalid = 0, vocab = s->config.model.vocab;
    DTX_TRY(s->ctx, dtx_tokenizer_load(s->ctx, dtx_opt_text(opt, "tokenizer"), &w->tokenizer));
    int64_t known = dtx_tokenizer_vocab(w->tokenizer);
    if (known > vocab)
        return dtx_fail(s->ctx, DTX_E_CONFIG,
                        "%s has %lld tokens, the model only %lld: it was trained with another one",
                        dtx_opt_text(opt, "tokenizer"), (long long)known, (long long)vocab);
    w->end = dtx_tokenizer_special(w->tokenizer, DTX_END_OF_TEXT);
    DTX_TRY(s->ctx, dtx_encoder_create(s->ctx, w->tokenizer, &w->encoder));
    DTX_TRY(s->ctx, dtx_sampler_create(s->ctx, dtx_opt_real(opt, "temperature"), dtx_opt_real(opt, "top_p"),
                                       (uint64_t)dtx_opt_int(opt, "seed"), known, &w->sampler));
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, vocab, sizeof *w->logits, &p));
    w->logits = p;
    const char *prompt = dtx_opt_text(opt, "prompt");
    if (w->end >= 0)
        DTX_TRY(s->ctx, push(w, w->end));
    DTX_TRY(s->ctx, dtx_encoder_run(s->ctx, w->encoder, prompt, (int64_t)strlen(prompt), &w->ids, &invalid));
    if (w->ids.n == 0)
        return dtx_fail(s->ctx, DTX_E_CONFIG, "this tokenizer has no %s to begin a document with: give a --prompt",
                        DTX_END_OF_TEXT);
    return DTX_OK;
}

static void close_writer(struct writer *w)
{
    dtx_sampler_free(&w->sampler);
    dtx_encoder_free(w->encoder);
    dtx_tokenizer_free(w->tokenizer);
    dtx_ids_free(&w->ids);
    dtx_bytes_free(&w->text);
    dtx_mem_free(w->logits);
}

/* Prints the whole characters of what was added; a character may need several tokens. */
static enum dtx_status print_new(struct writer *w, int32_t id)
{
    DTX_TRY(w->s->ctx, dtx_tokenizer_decode(w->s->ctx, w->tokenizer, &id, 1, &w->text));
    fwrite(w->text.data, 1, (size_t)w->text.n, stdout);
    fflush(stdout);
    w->text.n = 0;
    return DTX_OK;
}

static enum dtx_status write_text(struct writer *w)
{
    struct dtx_session *s = w->s;
    int64_t context = s->config.batch.length, wanted = dtx_opt_int(s->opt, "tokens");
    int64_t base = dtx_max64(0, w->ids.n - dtx_max64(1, context / 2)); /* the context begins at ids[base] */
    int64_t fed = base;                                                /* ids before it are in the cache */
    printf("%s", dtx_opt_text(s->opt, "prompt"));
    for (int64_t i = 0; i < wanted; i++) {
        if (w->ids.n - base > context) { /* full: go on with the latter half */
            base = fed = w->ids.n - dtx_max64(1, context / 2);
        }
        DTX_TRY(s->ctx, dtx_engine_logits(s->engine, w->ids.data + fed, fed - base, w->ids.n - fed, w->logits));
        fed = w->ids.n;
        int32_t id = dtx_sampler_draw(&w->sampler, w->logits, i);
        if (id == w->end)
            break;
        DTX_TRY(s->ctx, push(w, id));
        DTX_TRY(s->ctx, print_new(w, id));
    }
    printf("\n");
    return DTX_OK;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_session session;
    struct writer writer = {.s = &session};
    bool done;
    enum dtx_status status = dtx_session_open(ctx, &command, argc, argv, &session, &done);
    if (status == DTX_OK && !done) {
        status = open_writer(&writer);
        if (status == DTX_OK)
            status = write_text(&writer);
        close_writer(&writer);
    }
    return dtx_session_close(&session, status);
}

const struct dtx_command dtx_command_generate = {"generate", "write text with a trained model", run};
