/* dtx data: looks into token files and copies them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/args.h"
#include "data/rewrite.h"
#include "data/source.h"
#include "data/stream.h"
#include "data/tokenizer.h"
#include "kernels/base/clock.h"
#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"

static const char usage[] =
    "usage: dtx data inspect [--document N] [--show N] [--tokenizer FILE] PATH...\n"
    "       dtx data verify [--vocab N] PATH...\n"
    "       dtx data convert --out PREFIX [--vocab N] [--separator ID] PATH\n"
    "       dtx data merge --out PREFIX [--vocab N] [--separator ID] PATH...\n"
    "       dtx data split --out PREFIX (--parts N | --shares A,B,... | --tokens N) PATH\n"
    "       dtx data entropy [--heldout X] [--vocab N] PREFIX...\n"
    "\n"
    "PATH is a file of tokens: PREFIX of Megatron's PREFIX.bin and PREFIX.idx, llm.c's .bin, datatrove's .ds,\n"
    "OLMo's or NumPy's .npy; FORMAT:PATH where the name does not tell (megatron, llmc, datatrove, npy).\n"
    "\n"
    "inspect prints counts and the first tokens of the file or of a document, as text with a tokenizer; verify reads "
    "every index entry and token. convert, merge and\n"
    "split write Megatron pairs and keep documents whole; documents come from the index, else end at --separator.\n"
    "split makes PREFIX-00000-of-00003, ...: N parts of like size, parts with these shares of the tokens (in order:\n"
    "the last one is the end of the text), or parts of about so many tokens. entropy prints the unigram entropy in\n"
    "nats of the held-out tokens: the loss that a model without any context could reach at best.\n";

static const struct dtx_opt_row rows[] = {
    {"vocab", DTX_OPT_INT, "0", "0..2147483647", DTX_OPT_FREE, "refuse ids at or beyond it; 0: any id passes"},
    {"type", DTX_OPT_CHOICE, "auto", "auto|u8|i8|i16|u16|i32|u32|i64|u64", DTX_OPT_FREE, "of raw tokens"},
    {"separator", DTX_OPT_INT, "-1", "-1..2147483647", DTX_OPT_FREE,
     "id that ends a document where there is no index; -1: none"},
    {"mmap", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "map files instead of reading them"},
    {"document", DTX_OPT_INT, "-1", "-1..", DTX_OPT_FREE, "inspect: show this document, from 0; -1: the file's start"},
    {"show", DTX_OPT_INT, "16", "0..1048576", DTX_OPT_FREE, "inspect: tokens to show"},
    {"tokenizer", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "inspect: show them as text"},
    {"out", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "convert, merge, split: prefix of the files to write"},
    {"parts", DTX_OPT_INT, "0", "0..99999", DTX_OPT_FREE, "split: number of parts"},
    {"shares", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "split: share of each part, as in 0.98,0.02"},
    {"tokens", DTX_OPT_INT, "0", "0..", DTX_OPT_FREE, "split: tokens of a part"},
    {"heldout", DTX_OPT_REAL, "0.05", "0..1", DTX_OPT_FREE, "entropy: share of the documents, the last ones; 0: all"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL},
};

/* What the actions work on: the paths behind the action's name, opened one by one or together. */
struct job {
    const struct dtx_opt *opt;
    struct dtx_filepool *files;
    const char *const *paths;
    int n;
};

static enum dtx_status open_source(struct dtx_ctx *ctx, const struct job *j, const char *path, struct dtx_source **out)
{
    struct dtx_source_config config = {.files = j->files,
                                       .vocab = dtx_opt_int(j->opt, "vocab"),
                                       .separator = (int32_t)dtx_opt_int(j->opt, "separator"),
                                       .type = dtx_opt_text(j->opt, "type")};
    return dtx_source_open(ctx, &config, path, out);
}

static void print_info(const struct dtx_source_info *info)
{
    printf("format       %s\ndata         %s, %lld bytes\n", info->format, info->data_path,
           (long long)info->data_bytes);
    if (info->index_path)
        printf("index        %s, %lld bytes\n", info->index_path, (long long)info->index_bytes);
    printf("type         %s\ntokens       %lld\n", info->type, (long long)info->tokens);
    if (info->documents < 0)
        printf("documents    not known: there is no index\n");
    else
        printf("sequences    %lld\ndocuments    %lld\nmean length  %.1f tokens a document\n",
               (long long)info->sequences, (long long)info->documents,
               info->documents > 0 ? (double)info->tokens / (double)info->documents : 0.0);
}

static enum dtx_status print_text(struct dtx_ctx *ctx, const struct job *j, const int32_t *ids, int64_t n)
{
    struct dtx_tokenizer *t;
    struct dtx_bytes text = {0};
    DTX_TRY(ctx, dtx_tokenizer_load(ctx, dtx_opt_text(j->opt, "tokenizer"), &t));
    enum dtx_status status = dtx_tokenizer_decode(ctx, t, ids, n, &text);
    if (status == DTX_OK) {
        fwrite(text.data, 1, (size_t)text.n, stdout);
        putchar('\n');
    }
    dtx_bytes_free(&text);
    dtx_tokenizer_free(t);
    return status;
}

/* The tokens that were asked for: of a document, or the first ones. */
static enum dtx_status print_tokens(struct dtx_ctx *ctx, const struct job *j, struct dtx_source *s)
{
    int64_t d = dtx_opt_int(j->opt, "document"), first = 0, end = dtx_source_info(s)->tokens;
    void *ids;
    if (d >= 0) {
        if (d >= dtx_source_info(s)->documents)
            return dtx_fail(ctx, DTX_E_CONFIG, "%s: document %lld is wanted, it has %lld",
                            dtx_source_info(s)->data_path, (long long)d,
                            (long long)dtx_max64(0, dtx_source_info(s)->documents));
        DTX_TRY(ctx, dtx_source_document(ctx, s, d, &first));
        DTX_TRY(ctx, dtx_source_document(ctx, s, d + 1, &end));
        printf("document %lld is tokens %lld to %lld\n", (long long)d, (long long)first, (long long)end - 1);
    }
    int64_t n = dtx_max64(0, dtx_min64(dtx_opt_int(j->opt, "show"), end - first));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(int32_t), &ids));
    enum dtx_status status = dtx_source_read(ctx, s, first, n, ids);
    if (status == DTX_OK && dtx_opt_text(j->opt, "tokenizer")[0]) {
        status = print_text(ctx, j, ids, n);
    } else if (status == DTX_OK) {
        printf("first tokens");
        for (int64_t i = 0; i < n; i++)
            printf(" %d", ((int32_t *)ids)[i]);
        printf("\n");
    }
    dtx_mem_free(ids);
    return status;
}

static enum dtx_status inspect_one(struct dtx_ctx *ctx, const struct job *j, const char *path)
{
    struct dtx_source *s;
    DTX_TRY(ctx, open_source(ctx, j, path, &s));
    print_info(dtx_source_info(s));
    enum dtx_status status = print_tokens(ctx, j, s);
    dtx_source_close(s);
    return status;
}

static enum dtx_status verify_one(struct dtx_ctx *ctx, const struct job *j, const char *path)
{
    struct dtx_source *s;
    int64_t largest;
    struct dtx_meter meter;
    DTX_TRY(ctx, open_source(ctx, j, path, &s));
    const struct dtx_source_info *info = dtx_source_info(s);
    dtx_meter_start(&meter, stderr, path, info->tokens * info->token_bytes);
    enum dtx_status status = dtx_source_verify(ctx, s, &meter, &largest);
    dtx_meter_clear(&meter);
    if (status == DTX_OK && info->documents >= 0)
        printf("%s: good: %lld tokens, %lld documents, largest id %lld\n", path, (long long)info->tokens,
               (long long)info->documents, (long long)largest);
    else if (status == DTX_OK)
        printf("%s: good: %lld tokens, largest id %lld\n", path, (long long)info->tokens, (long long)largest);
    dtx_source_close(s);
    return status;
}

/* All paths are looked at; with several, each fault is printed where it is found. */
static enum dtx_status each(struct dtx_ctx *ctx, const struct job *j,
                            enum dtx_status (*run)(struct dtx_ctx *ctx, const struct job *j, const char *path))
{
    enum dtx_status status = DTX_OK;
    int bad = 0;
    for (int i = 0; i < j->n; i++) {
        enum dtx_status one = run(ctx, j, j->paths[i]);
        if (j->n == 1)
            return one;
        if (one != DTX_OK) {
            fflush(stdout);
            dtx_error_print(ctx);
            dtx_error_clear(ctx);
            status = bad++ ? status : one;
        }
    }
    if (bad > 0)
        return dtx_fail(ctx, status, "%d of %d files are not good", bad, j->n);
    return DTX_OK;
}

static enum dtx_status inspect(struct dtx_ctx *ctx, const struct job *j)
{
    return each(ctx, j, inspect_one);
}

static enum dtx_status verify(struct dtx_ctx *ctx, const struct job *j)
{
    return each(ctx, j, verify_one);
}

static enum dtx_status entropy_one(struct dtx_ctx *ctx, const struct job *j, const char *prefix)
{
    int64_t vocab = dtx_opt_int(j->opt, "vocab"), largest;
    if (vocab == 0) {
        struct dtx_source *source;
        DTX_TRY(ctx, open_source(ctx, j, prefix, &source));
        enum dtx_status status = dtx_source_verify(ctx, source, NULL, &largest);
        dtx_source_close(source);
        DTX_TRY(ctx, status);
        vocab = largest + 1;
    }
    double heldout = dtx_opt_real(j->opt, "heldout"), nats;
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

static enum dtx_status entropy(struct dtx_ctx *ctx, const struct job *j)
{
    return each(ctx, j, entropy_one);
}

static enum dtx_status check_out(struct dtx_ctx *ctx, const struct job *j, const char *action, bool single)
{
    if (!dtx_opt_text(j->opt, "out")[0])
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx data %s: --out PREFIX is missing", action);
    if (single && j->n != 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx data %s takes one file, not %d; dtx data merge takes several", action,
                        j->n);
    return DTX_OK;
}

/* Opens all paths; *bytes of tokens are in them. */
static enum dtx_status open_all(struct dtx_ctx *ctx, const struct job *j, struct dtx_source **sources, int64_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < j->n; i++) {
        DTX_TRY(ctx, open_source(ctx, j, j->paths[i], &sources[i]));
        const struct dtx_source_info *info = dtx_source_info(sources[i]);
        *bytes += info->tokens * info->token_bytes;
    }
    return DTX_OK;
}

static void print_part(const char *prefix, const struct dtx_rewrite_part *part)
{
    printf("%s: %lld documents, %lld tokens\n", prefix, (long long)part->documents, (long long)part->tokens);
}

static enum dtx_status merge_paths(struct dtx_ctx *ctx, const struct job *j, const char *what)
{
    const char *out = dtx_opt_text(j->opt, "out");
    struct dtx_rewrite_part part;
    struct dtx_meter meter;
    int64_t bytes;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, j->n, sizeof(struct dtx_source *), &p));
    struct dtx_source **sources = p;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, open_all(ctx, j, sources, &bytes), done);
    dtx_meter_start(&meter, stderr, what, bytes);
    struct dtx_rewrite r = {sources, j->n, dtx_opt_int(j->opt, "vocab"), &meter};
    status = dtx_rewrite_merge(ctx, &r, out, &part);
    dtx_meter_clear(&meter);
    if (status == DTX_OK)
        print_part(out, &part);
done:
    for (int i = 0; i < j->n; i++)
        dtx_source_close(sources[i]);
    dtx_mem_free(sources);
    return status;
}

static enum dtx_status merge(struct dtx_ctx *ctx, const struct job *j)
{
    DTX_TRY(ctx, check_out(ctx, j, "merge", false));
    return merge_paths(ctx, j, "merge");
}

static enum dtx_status convert(struct dtx_ctx *ctx, const struct job *j)
{
    DTX_TRY(ctx, check_out(ctx, j, "convert", true));
    return merge_paths(ctx, j, "convert");
}

/* Shares "0.9,0.1" to ends in tokens; the shares are normalised. */
static enum dtx_status ends_of_shares(struct dtx_ctx *ctx, const char *text, int64_t tokens, int64_t *ends, int n)
{
    double sum = 0, total = 0;
    for (int pass = 0; pass < 2; pass++) {
        const char *p = text;
        for (int k = 0; k < n; k++) {
            char *after;
            double share = strtod(p, &after);
            if (after == p || (*after && *after != ',') || !(share > 0 && share < 1e9))
                return dtx_fail(ctx, DTX_E_CONFIG, "--shares %s: '%s' is no positive share", text, p);
            p = after + (*after == ',');
            if (pass == 0) {
                total += share;
                continue;
            }
            sum += share;
            ends[k] = k + 1 < n ? (int64_t)((double)tokens * (sum / total)) : tokens;
        }
    }
    return DTX_OK;
}

/* The ends that the options ask for; *out is freed with dtx_mem_free. */
static enum dtx_status choose_ends(struct dtx_ctx *ctx, const struct job *j, int64_t tokens, int64_t **out, int *n)
{
    const char *shares = dtx_opt_text(j->opt, "shares");
    int64_t parts = dtx_opt_int(j->opt, "parts"), size = dtx_opt_int(j->opt, "tokens");
    if ((parts > 0) + (size > 0) + (shares[0] != '\0') != 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx data split needs one of --parts, --shares and --tokens");
    if (size > 0)
        parts = dtx_max64(1, dtx_div_up(tokens, size));
    for (const char *p = shares; *p; p++)
        parts += (p == shares) + (*p == ',');
    if (parts > DTX_REWRITE_MOST_PARTS)
        return dtx_fail(ctx, DTX_E_CONFIG, "%lld parts are too many, at most %d", (long long)parts,
                        DTX_REWRITE_MOST_PARTS);
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, parts, sizeof(int64_t), &p));
    int64_t *ends = p;
    for (int64_t k = 0; k < parts; k++)
        ends[k] = k + 1 == parts ? tokens : size > 0 ? size * (k + 1) : tokens / parts * (k + 1);
    enum dtx_status status = shares[0] ? ends_of_shares(ctx, shares, tokens, ends, (int)parts) : DTX_OK;
    if (status != DTX_OK)
        dtx_mem_free(ends);
    *out = ends;
    *n = (int)parts;
    return status;
}

static enum dtx_status split_source(struct dtx_ctx *ctx, const struct job *j, struct dtx_source *s, const int64_t *ends,
                                    int n)
{
    const char *out = dtx_opt_text(j->opt, "out");
    const struct dtx_source_info *info = dtx_source_info(s);
    struct dtx_meter meter;
    void *parts;
    char name[DTX_REWRITE_PATH];
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(struct dtx_rewrite_part), &parts));
    dtx_meter_start(&meter, stderr, "split", info->tokens * info->token_bytes);
    struct dtx_rewrite r = {&s, 1, dtx_opt_int(j->opt, "vocab"), &meter};
    enum dtx_status status = dtx_rewrite_split(ctx, &r, out, ends, n, parts);
    dtx_meter_clear(&meter);
    for (int k = 0; k < n && status == DTX_OK; k++) {
        dtx_rewrite_name(out, k, n, name);
        print_part(name, (const struct dtx_rewrite_part *)parts + k);
    }
    dtx_mem_free(parts);
    return status;
}

static enum dtx_status split(struct dtx_ctx *ctx, const struct job *j)
{
    struct dtx_source *s;
    int64_t *ends = NULL;
    int n;
    DTX_TRY(ctx, check_out(ctx, j, "split", true));
    DTX_TRY(ctx, open_source(ctx, j, j->paths[0], &s));
    enum dtx_status status = choose_ends(ctx, j, dtx_source_info(s)->tokens, &ends, &n);
    if (status == DTX_OK) {
        status = split_source(ctx, j, s, ends, n);
        dtx_mem_free(ends);
    }
    dtx_source_close(s);
    return status;
}

static const struct action {
    const char *name;
    enum dtx_status (*run)(struct dtx_ctx *ctx, const struct job *j);
} actions[] = {{"inspect", inspect}, {"verify", verify}, {"convert", convert},
               {"merge", merge},     {"split", split},   {"entropy", entropy}};
enum { N_ACTIONS = sizeof actions / sizeof *actions };

static enum dtx_status run_action(struct dtx_ctx *ctx, const struct dtx_args *args)
{
    const struct action *action = NULL;
    for (int a = 0; a < N_ACTIONS; a++)
        if (strcmp(args->words[0], actions[a].name) == 0)
            action = &actions[a];
    if (!action)
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx data: '%s' is none of inspect, verify, convert, merge, split, entropy",
                        args->words[0]);
    struct job j = {.opt = args->opt, .paths = args->words + 1, .n = args->n_words - 1};
    DTX_TRY(ctx, dtx_filepool_create(ctx, dtx_opt_bool(args->opt, "mmap"), 0, &j.files));
    enum dtx_status status = action->run(ctx, &j);
    dtx_filepool_free(j.files);
    return status;
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_args args;
    DTX_TRY(ctx, dtx_args_read(ctx, usage, rows, 2, argc, argv, &args));
    enum dtx_status status = args.help ? DTX_OK : run_action(ctx, &args);
    dtx_args_free(&args);
    return status;
}

const struct dtx_command dtx_command_data = {"data", "inspect, verify, convert, merge and split token files", run};
