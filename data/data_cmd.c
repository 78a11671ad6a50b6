/* dtx data: looks into token files. */
#include <stdio.h>
#include <string.h>

#include "data/args.h"
#include "data/stream.h"
#include "data/tokenfile.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"

static const char usage[] = "usage: dtx data inspect PREFIX...\n"
                            "       dtx data verify [--vocab N] PREFIX...\n"
                            "       dtx data entropy [--heldout X] [--vocab N] PREFIX...\n"
                            "\n"
                            "PREFIX.bin and PREFIX.idx are a token file. inspect prints counts and the first tokens;\n"
                            "verify reads every index entry and token; entropy prints the unigram entropy in nats of\n"
                            "the held-out tokens: the loss that a model without any context could reach at best.\n";

static const struct dtx_opt_row rows[] = {
    {"vocab", DTX_OPT_INT, "0", "0..2147483647", DTX_OPT_FREE, "refuse ids at or beyond it; 0: any id passes"},
    {"heldout", DTX_OPT_REAL, "0.05", "0..1", DTX_OPT_FREE, "entropy: share of the documents, the last ones; 0: all"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};

static enum dtx_status inspect(struct dtx_ctx *ctx, const struct dtx_args *args, const char *prefix)
{
    (void)args;
    struct dtx_tokenfile *f;
    DTX_TRY(ctx, dtx_tokenfile_open(ctx, prefix, 0, &f));
    const struct dtx_tokenfile_info *info = dtx_tokenfile_info(f);
    int32_t ids[16];
    int64_t n = dtx_min64(16, info->tokens);
    enum dtx_status status = dtx_tokenfile_read(ctx, f, 0, n, ids);
    if (status == DTX_OK) {
        printf("data         %s, %lld bytes\nindex        %s, %lld bytes\ntype         %s\ntokens       %lld\n"
               "sequences    %lld\ndocuments    %lld\nmean length  %.1f tokens a document\nfirst tokens",
               info->data_path, (long long)info->data_bytes, info->index_path, (long long)info->index_bytes, info->type,
               (long long)info->tokens, (long long)info->sequences, (long long)info->documents,
               info->documents > 0 ? (double)info->tokens / (double)info->documents : 0.0);
        for (int64_t i = 0; i < n; i++)
            printf(" %d", ids[i]);
        printf("\n");
    }
    dtx_tokenfile_close(f);
    return status;
}

static enum dtx_status verify(struct dtx_ctx *ctx, const struct dtx_args *args, const char *prefix)
{
    struct dtx_tokenfile *f;
    int64_t largest;
    DTX_TRY(ctx, dtx_tokenfile_open(ctx, prefix, dtx_opt_int(args->opt, "vocab"), &f));
    enum dtx_status status = dtx_tokenfile_verify(ctx, f, &largest);
    if (status == DTX_OK)
        printf("%s: good: %lld tokens, %lld documents, largest id %lld\n", prefix,
               (long long)dtx_tokenfile_info(f)->tokens, (long long)dtx_tokenfile_info(f)->documents,
               (long long)largest);
    dtx_tokenfile_close(f);
    return status;
}

static enum dtx_status entropy(struct dtx_ctx *ctx, const struct dtx_args *args, const char *prefix)
{
    int64_t vocab = dtx_opt_int(args->opt, "vocab"), largest;
    if (vocab == 0) {
        struct dtx_tokenfile *f;
        DTX_TRY(ctx, dtx_tokenfile_open(ctx, prefix, 0, &f));
        enum dtx_status status = dtx_tokenfile_verify(ctx, f, &largest);
        dtx_tokenfile_close(f);
        DTX_TRY(ctx, status);
        vocab = largest + 1;
    }
    double heldout = dtx_opt_real(args->opt, "heldout"), nats;
    struct dtx_stream_config config = {
        .paths = prefix, .length = 1, .heldout = heldout, .use_heldout = heldout > 0, .vocab = vocab, .separator = -1};
    struct dtx_stream *s;
    DTX_TRY(ctx, dtx_stream_open(ctx, &config, &s));
    enum dtx_status status = dtx_stream_entropy(ctx, s, &nats);
    if (status == DTX_OK)
        printf("%s: unigram entropy %.4f nats over %lld tokens\n", prefix, nats, (long long)dtx_stream_tokens(s));
    dtx_stream_close(s);
    return status;
}

static const struct action {
    const char *name;
    enum dtx_status (*run)(struct dtx_ctx *ctx, const struct dtx_args *args, const char *prefix);
} actions[] = {{"inspect", inspect}, {"verify", verify}, {"entropy", entropy}};
enum { N_ACTIONS = sizeof actions / sizeof *actions };

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_args args;
    DTX_TRY(ctx, dtx_args_read(ctx, usage, rows, 2, argc, argv, &args));
    enum dtx_status status = DTX_OK;
    const struct action *action = NULL;
    for (int a = 0; a < N_ACTIONS && !args.help; a++)
        if (strcmp(args.words[0], actions[a].name) == 0)
            action = &actions[a];
    if (!args.help && !action)
        status = dtx_fail(ctx, DTX_E_CONFIG, "dtx data: '%s' is none of inspect, verify, entropy", args.words[0]);
    for (int i = 1; i < args.n_words && status == DTX_OK; i++)
        status = action->run(ctx, &args, args.words[i]);
    dtx_args_free(&args);
    return status;
}

const struct dtx_command dtx_command_data = {"data", "inspect, verify and measure token files", run};
