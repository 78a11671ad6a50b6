/* dtx tokenize: text files to token files. */
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/args.h"
#include "data/tokenize.h"
#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"

static const char usage[] =
    "usage: dtx tokenize --tokenizer tokenizer.json --out PREFIX [options] FILE...\n"
    "\n"
    "Writes PREFIX.bin and PREFIX.idx (Megatron's format), or with --shard_bytes PREFIX-00000.bin ..., and\n"
    "PREFIX.manifest.json with counts and checksums. FILEs are text or JSON lines (.jsonl, .ndjson, .json), also\n"
    "gzip or zstd (seen from their first bytes), patterns in quotes ('web/*.jsonl.zst'), or - for standard input.\n"
    "After each document stands the separator. --split says what a document of text is: none, the whole file; line;\n"
    "blank-line, what stands between blank lines; entry, a line that starts at the left margin with all lines up to\n"
    "the next such line (dictionaries); form-feed. Invalid UTF-8 becomes U+FFFD and is counted; lines of JSON without\n"
    "the text are named, counted and left out. Documents without text are left out.\n"
    "\n"
    "A call that was killed or stopped goes on where it was when it is repeated; a finished one has nothing to do.\n"
    "Output does not depend on threads or kills.\n";

static const struct dtx_opt_row rows[] = {
    {"tokenizer", DTX_OPT_TEXT, "tokenizer.json", NULL, DTX_OPT_FREE,
     "tokenizer.json, a tiktoken file, vocab.bpe or a folder with them"},
    {"out", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "prefix of the files to write"},
    {"split", DTX_OPT_CHOICE, "none", DTX_SPLIT_NAMES, DTX_OPT_FREE, "what a document of text is"},
    {"format", DTX_OPT_CHOICE, "auto", DTX_TEXT_FORMAT_NAMES, DTX_OPT_FREE, "of the files; auto: by their names"},
    {"field", DTX_OPT_TEXT, "text", NULL, DTX_OPT_FREE, "the text's key in a line of JSON"},
    {"separator", DTX_OPT_TEXT, DTX_END_OF_TEXT, NULL, DTX_OPT_FREE, "special token behind each document; '' for none"},
    {"threads", DTX_OPT_INT, "0", "0..1024", DTX_OPT_FREE, "threads that encode; 0: one per processor"},
    {"shard_bytes", DTX_OPT_INT, "0", "0..", DTX_OPT_FREE, "begin a new pair when .bin has this size; 0: one pair"},
    {"save_seconds", DTX_OPT_REAL, "30", "0..", DTX_OPT_FREE, "how often the work is brought to disk"},
    {"strict", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "stop at invalid UTF-8 and bad lines of JSON"},
    {"restart", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "begin anew, whatever an earlier call has done"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};

/* Position of a name among "a|b|c"; the option table admits these names only. */
static int choice(const char *names, const char *name)
{
    size_t n = strlen(name);
    int at = 0;
    for (const char *p = names; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL, at++)
        if (strncmp(p, name, n) == 0 && (p[n] == '|' || !p[n]))
            return at;
    return 0;
}

/* The word as a pattern that matches itself alone. */
static enum dtx_status escape(struct dtx_ctx *ctx, const char *word, char **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * (int64_t)strlen(word) + 1, 1, &p));
    char *q = p;
    for (const char *c = word; *c; *q++ = *c++)
        if (strchr("*?[\\", *c))
            *q++ = '\\';
    *out = p;
    return DTX_OK;
}

/* Words that are files stand for themselves, others with *, ? or [ for the files that match, in the order of their
 * names. */
static enum dtx_status expand(struct dtx_ctx *ctx, const struct dtx_args *args, glob_t *out)
{
    for (int i = 0; i < args->n_words; i++) {
        const char *word = args->words[i];
        char *escaped = NULL;
        bool pattern = strpbrk(word, "*?[") && access(word, F_OK) != 0;
        if (!pattern)
            DTX_TRY(ctx, escape(ctx, word, &escaped));
        int rc =
            glob(pattern ? word : escaped, (pattern ? GLOB_ERR : GLOB_NOMAGIC) | (i > 0 ? GLOB_APPEND : 0), NULL, out);
        dtx_mem_free(escaped);
        if (rc == GLOB_NOMATCH && pattern)
            return dtx_fail(ctx, DTX_E_CONFIG, "no file matches %s", word);
        if (rc == GLOB_NOMATCH)
            return dtx_fail(ctx, DTX_E_CONFIG, "cannot open %s on %s: %s", word, ctx->host, strerror(ENOENT));
        if (rc != 0)
            return dtx_fail(ctx, rc == GLOB_NOSPACE ? DTX_E_MEMORY : DTX_E_IO, "cannot look for %s", word);
    }
    return DTX_OK;
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

static void print_result(const char *out, const struct dtx_tokenize_result *r, double seconds)
{
    const struct dtx_tokenize_input *t = &r->total;
    if (r->complete_before)
        printf("%s: complete already: ", out);
    else
        printf("%s: ", out);
    printf("%lld documents, %lld tokens from %.1f MB (%.2f bytes/token), %lld invalid parts replaced",
           (long long)t->documents, (long long)t->tokens, (double)t->text_bytes / 1e6,
           t->tokens > 0 ? (double)t->text_bytes / (double)t->tokens : 0.0, (long long)t->invalid);
    if (t->bad_lines > 0)
        printf(", %lld bad lines left out", (long long)t->bad_lines);
    if (t->empty > 0)
        printf(", %lld empty texts left out", (long long)t->empty);
    if (r->shards > 1)
        printf(", %lld shards", (long long)r->shards);
    if (!r->complete_before)
        printf(", %.1f s, %.1f MB/s", seconds, (double)r->text_bytes / 1e6 / (seconds > 0 ? seconds : 1));
    printf("\n");
}

static enum dtx_status tokenize(struct dtx_ctx *ctx, const struct dtx_args *args, const glob_t *files)
{
    const struct dtx_opt *opt = args->opt;
    const char *out = dtx_opt_text(opt, "out");
    struct dtx_tokenizer *t;
    struct dtx_tokenize_result result;
    struct dtx_host host;
    double start = dtx_clock_now();
    dtx_host_read("", &host);
    int threads = (int)dtx_opt_int(opt, "threads");
    struct dtx_tokenize_config config = {
        .out = out,
        .paths = (const char *const *)files->gl_pathv,
        .split_name = dtx_opt_text(opt, "split"),
        .split = (enum dtx_split)choice(DTX_SPLIT_NAMES, dtx_opt_text(opt, "split")),
        .format = (enum dtx_text_format)choice(DTX_TEXT_FORMAT_NAMES, dtx_opt_text(opt, "format")),
        .field = dtx_opt_text(opt, "field"),
        .threads = threads > 0 ? threads : host.cores_allowed,
        .shard_bytes = dtx_opt_int(opt, "shard_bytes"),
        .save_seconds = dtx_opt_real(opt, "save_seconds"),
        .strict = dtx_opt_bool(opt, "strict"),
        .restart = dtx_opt_bool(opt, "restart"),
    };
    DTX_TRY(ctx, dtx_narrow_int(ctx, (int64_t)files->gl_pathc, "number of files", &config.n_paths));
    DTX_TRY(ctx, dtx_tokenizer_load(ctx, dtx_opt_text(opt, "tokenizer"), &t));
    config.tokenizer = t;
    enum dtx_status status = find_separator(ctx, args, t, &config.separator);
    if (status == DTX_OK)
        status = dtx_tokenize_run(ctx, &config, &result);
    if (status == DTX_OK)
        print_result(out, &result, dtx_clock_now() - start);
    dtx_tokenizer_free(t);
    return status;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_args args;
    glob_t files = {0};
    DTX_TRY(ctx, dtx_args_read(ctx, usage, rows, 1, argc, argv, &args));
    enum dtx_status status = DTX_OK;
    if (!args.help && !dtx_opt_text(args.opt, "out")[0])
        status = dtx_fail(ctx, DTX_E_CONFIG, "--out PREFIX is missing");
    else if (!args.help)
        status = expand(ctx, &args, &files);
    if (status == DTX_OK && !args.help)
        status = tokenize(ctx, &args, &files);
    globfree(&files);
    dtx_args_free(&args);
    return status;
}

const struct dtx_command dtx_command_tokenize = {"tokenize", "turn text into token files, many threads, resumable",
                                                 run};
