/* dtx tokenize: text files to a token file. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/args.h"
#include "data/textfile.h"
#include "data/tokenfile.h"
#include "data/tokenizer.h"
#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/meter.h"

static const char usage[] = "usage: dtx tokenize --tokenizer tokenizer.json --out PREFIX [options] FILE...\n"
                            "\n"
                            "Writes PREFIX.bin and PREFIX.idx (Megatron's format) from text files (- is standard\n"
                            "input); both appear only when they are complete. After each document stands the\n"
                            "separator. --split says what a document is: none, the whole file; line; blank-line,\n"
                            "what stands between blank lines; entry, a line that starts at the left margin with\n"
                            "all lines up to the next such line (dictionaries); form-feed. Invalid UTF-8 becomes\n"
                            "U+FFFD and is counted.\n";

static const struct dtx_opt_row rows[] = {
    {"tokenizer", DTX_OPT_TEXT, "tokenizer.json", NULL, DTX_OPT_FREE, "tokenizer.json or vocab.bpe"},
    {"out", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "prefix of the files to write"},
    {"split", DTX_OPT_CHOICE, "none", DTX_SPLIT_NAMES, DTX_OPT_FREE, "what a document is"},
    {"separator", DTX_OPT_TEXT, DTX_END_OF_TEXT, NULL, DTX_OPT_FREE, "special token behind each document; '' for none"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};

struct job {
    struct dtx_encoder *encoder;
    struct dtx_tokenwriter *writer;
    struct dtx_ids ids;
    enum dtx_split split;
    int32_t separator;
    int64_t documents, tokens, invalid;
    struct dtx_meter meter; /* bytes of text */
};

static enum dtx_split parse_split(const char *name)
{
    size_t n = strlen(name);
    int split = 0;
    for (const char *p = DTX_SPLIT_NAMES; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL, split++)
        if (strncmp(p, name, n) == 0 && (p[n] == '|' || !p[n]))
            return split;
    return DTX_SPLIT_NONE; /* not reached: the option table admits these names only */
}

static enum dtx_status write_part(struct dtx_ctx *ctx, struct job *j, const struct dtx_text_part *part)
{
    j->ids.n = 0;
    DTX_TRY(ctx, dtx_encoder_run(ctx, j->encoder, part->text, part->n, &j->ids, &j->invalid));
    if (part->ends && j->separator >= 0) {
        DTX_TRY(ctx, dtx_ids_reserve(ctx, &j->ids, 1));
        j->ids.data[j->ids.n++] = j->separator;
    }
    DTX_TRY(ctx, dtx_tokenwriter_add(ctx, j->writer, j->ids.data, j->ids.n));
    j->tokens += j->ids.n;
    if (part->ends) {
        j->documents++;
        DTX_TRY(ctx, dtx_tokenwriter_end(ctx, j->writer));
    }
    return DTX_OK;
}

static enum dtx_status tokenize_file(struct dtx_ctx *ctx, struct job *j, const char *path)
{
    struct dtx_textfile *file;
    struct dtx_text_part part;
    bool more = true;
    int64_t position = 0;
    DTX_TRY(ctx, dtx_textfile_open(ctx, path, j->split, 0, &file));
    enum dtx_status status = DTX_OK;
    while (more && status == DTX_OK) {
        status = dtx_textfile_next(ctx, file, &part, &more);
        if (status == DTX_OK && more)
            status = write_part(ctx, j, &part);
        dtx_meter_add(&j->meter, dtx_textfile_position(file) - position);
        position = dtx_textfile_position(file);
    }
    dtx_textfile_close(file);
    return status;
}

/* 0 when one is a pipe. */
static int64_t sum_sizes(const struct dtx_args *args)
{
    int64_t total = 0;
    for (int i = 0; i < args->n_words; i++) {
        struct stat st;
        if (stat(args->words[i], &st) != 0 || !S_ISREG(st.st_mode))
            return 0;
        total += st.st_size;
    }
    return total;
}

static enum dtx_status find_separator(struct dtx_ctx *ctx, const struct dtx_args *args, const struct dtx_tokenizer *t,
                                      int32_t *out)
{
    const char *name = dtx_opt_text(args->opt, "separator");
    *out = name[0] ? dtx_tokenizer_special(t, name) : -1;
    if (name[0] && *out < 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s has no special token %s; choose another with --separator",
                        dtx_opt_text(args->opt, "tokenizer"), name);
    return DTX_OK;
}

static enum dtx_status tokenize(struct dtx_ctx *ctx, const struct dtx_args *args)
{
    const char *out = dtx_opt_text(args->opt, "out");
    if (!out[0])
        return dtx_fail(ctx, DTX_E_CONFIG, "--out PREFIX is missing");
    struct job j = {.split = parse_split(dtx_opt_text(args->opt, "split"))};
    dtx_meter_start(&j.meter, stderr, "tokenize", sum_sizes(args));
    struct dtx_tokenizer *t;
    DTX_TRY(ctx, dtx_tokenizer_load(ctx, dtx_opt_text(args->opt, "tokenizer"), &t));
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, find_separator(ctx, args, t, &j.separator), done);
    DTX_TRY_GOTO(ctx, status, dtx_encoder_create(ctx, t, &j.encoder), done);
    DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_create(ctx, out, dtx_tokenizer_vocab(t), 0, &j.writer), done);
    for (int i = 0; i < args->n_words; i++)
        DTX_TRY_GOTO(ctx, status, tokenize_file(ctx, &j, args->words[i]), done);
    struct dtx_tokenwriter *writer = j.writer;
    j.writer = NULL;
    DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_publish(ctx, writer), done);
    double seconds = dtx_clock_now() - j.meter.start, bytes = (double)j.meter.done;
    dtx_meter_clear(&j.meter);
    printf("%s: %lld documents, %lld tokens from %.1f MB (%.2f bytes/token), %lld invalid parts replaced, %.1f s, "
           "%.1f MB/s\n",
           out, (long long)j.documents, (long long)j.tokens, bytes / 1e6, j.tokens > 0 ? bytes / (double)j.tokens : 0.0,
           (long long)j.invalid, seconds, bytes / 1e6 / (seconds > 0 ? seconds : 1));
done:
    dtx_meter_clear(&j.meter);
    dtx_tokenwriter_discard(j.writer);
    dtx_encoder_free(j.encoder);
    dtx_ids_free(&j.ids);
    dtx_tokenizer_free(t);
    return status;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_args args;
    DTX_TRY(ctx, dtx_args_read(ctx, usage, rows, 1, argc, argv, &args));
    enum dtx_status status = args.help ? DTX_OK : tokenize(ctx, &args);
    dtx_args_free(&args);
    return status;
}

const struct dtx_command dtx_command_tokenize = {"tokenize", "turn text files into a token file", run};
