/* dtx tokenizer: learns and describes tokenizers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/args.h"
#include "data/bpe_train.h"
#include "data/file.h"
#include "data/textfile.h"
#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"

static const char usage[] = "usage: dtx tokenizer train --vocab N --out tokenizer.json FILE...\n"
                            "       dtx tokenizer info FILE\n"
                            "\n"
                            "train learns byte-level BPE from text files (- is standard input): 256 bytes,\n"
                            "<|endoftext|> and merges. info describes a tokenizer: a tokenizer.json, a tiktoken\n"
                            "file (cl100k_base.tiktoken, or cl100k:FILE), GPT-2's vocab.bpe with encoder.json, or\n"
                            "the folder of one of these.\n";

static const struct dtx_opt_row train_rows[] = {
    {"vocab", DTX_OPT_INT, "8192", "257..1000000", DTX_OPT_FREE, "ids of the vocabulary, bytes and special included"},
    {"out", DTX_OPT_TEXT, "tokenizer.json", NULL, DTX_OPT_FREE, "file to write"},
    {"threads", DTX_OPT_INT, "0", "0..64", DTX_OPT_FREE, "threads that count; 0: one per processor; no effect on ids"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};
static const struct dtx_opt_row no_rows[] = {{NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

static enum dtx_status feed_file(struct dtx_ctx *ctx, struct dtx_bpe_trainer *trainer, const char *path, int64_t *bytes)
{
    struct dtx_textfile *file;
    struct dtx_text_part part;
    bool more = true;
    DTX_TRY(ctx, dtx_textfile_open(ctx, path, DTX_SPLIT_NONE, 0, &file));
    enum dtx_status status = DTX_OK;
    while (more && status == DTX_OK) {
        status = dtx_textfile_next(ctx, file, &part, &more);
        if (status == DTX_OK && more) {
            status = dtx_bpe_trainer_feed(ctx, trainer, part.text, part.n);
            *bytes += part.n;
        }
    }
    dtx_textfile_close(file);
    return status;
}

static enum dtx_status train(struct dtx_ctx *ctx, const struct dtx_args *args)
{
    double start = dtx_clock_now();
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = (int)dtx_opt_int(args->opt, "threads");
    if (threads == 0)
        threads = (int)dtx_max64(1, dtx_min64(processors, 64));
    const char *out = dtx_opt_text(args->opt, "out");
    int64_t vocab = dtx_opt_int(args->opt, "vocab"), bytes = 0;
    struct dtx_bpe_trainer *trainer;
    struct dtx_tokenizer *t = NULL;
    struct dtx_outfile probe; /* better now than after minutes of learning */
    DTX_TRY(ctx, dtx_outfile_open(ctx, &probe, out));
    dtx_outfile_discard(&probe);
    DTX_TRY(ctx, dtx_bpe_trainer_create(ctx, threads, &trainer));
    enum dtx_status status;
    for (int i = 1; i < args->n_words; i++)
        DTX_TRY_GOTO(ctx, status, feed_file(ctx, trainer, args->words[i], &bytes), done);
    DTX_TRY_GOTO(ctx, status, dtx_bpe_trainer_finish(ctx, trainer, vocab, &t), done);
    DTX_TRY_GOTO(ctx, status, dtx_tokenizer_save(ctx, t, out), done);
    if (dtx_tokenizer_vocab(t) < vocab)
        dtx_log(ctx, DTX_LOG_WARN, "the text has pairs for %lld ids only, not %lld: give more text",
                (long long)dtx_tokenizer_vocab(t), (long long)vocab);
    printf("%s: %lld ids, %lld merges, from %.1f MB of text in %.1f s\n", out, (long long)dtx_tokenizer_vocab(t),
           (long long)dtx_tokenizer_merges(t), (double)bytes / 1e6, dtx_clock_now() - start);
done:
    dtx_tokenizer_free(t);
    dtx_bpe_trainer_free(trainer);
    return status;
}

static enum dtx_status info(struct dtx_ctx *ctx, const struct dtx_args *args)
{
    const char *path = args->words[1];
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_load(ctx, path, &t));
    int64_t longest = 0, n;
    for (int32_t id = 0; id < dtx_tokenizer_vocab(t); id++) {
        dtx_tokenizer_token(t, id, &n);
        longest = dtx_max64(longest, n);
    }
    printf("file          %s\nvocabulary    %lld ids\nmerges        %lld\nend of text   %d\nlongest token %lld bytes\n"
           "hash          %016llx\n",
           path, (long long)dtx_tokenizer_vocab(t), (long long)dtx_tokenizer_merges(t),
           dtx_tokenizer_special(t, DTX_END_OF_TEXT), (long long)longest, (unsigned long long)dtx_tokenizer_hash(t));
    for (const char *line = dtx_tokenizer_pattern(t); *line;) {
        int width = (int)strcspn(line, "\n");
        printf("pattern       %.*s\n", width, line);
        line += width + (line[width] == '\n');
    }
    dtx_tokenizer_free(t);
    return DTX_OK;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    bool training = argc > 0 && strcmp(argv[0], "info") != 0;
    struct dtx_args args;
    DTX_TRY(ctx, dtx_args_read(ctx, usage, training ? train_rows : no_rows, 2, argc, argv, &args));
    enum dtx_status status = DTX_OK;
    if (!args.help && strcmp(args.words[0], "train") == 0)
        status = train(ctx, &args);
    else if (!args.help && strcmp(args.words[0], "info") == 0)
        status = info(ctx, &args);
    else if (!args.help)
        status = dtx_fail(ctx, DTX_E_CONFIG, "dtx tokenizer: '%s' is neither train nor info", args.words[0]);
    dtx_args_free(&args);
    return status;
}

const struct dtx_command dtx_command_tokenizer = {"tokenizer", "learn a byte-level BPE vocabulary from text", run};
