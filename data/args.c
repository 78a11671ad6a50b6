#include "data/args.h"

#include <string.h>

#include "kernels/base/mem.h"

static void print_help(const char *usage, const struct dtx_opt_row *rows)
{
    fputs(usage, stdout);
    if (rows->key)
        fputs("\noptions\n", stdout);
    for (const struct dtx_opt_row *r = rows; r->key; r++) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", r->key);
        printf("  %-16s %s", flag, r->help);
        if (r->type == DTX_OPT_CHOICE)
            printf(" (%s)", r->range);
        if (r->initial[0])
            printf(" [%s]", r->initial);
        putchar('\n');
    }
}

static enum dtx_status read_words(struct dtx_ctx *ctx, const struct dtx_opt_row *const *tables, const char *usage,
                                  int min_words, int argc, char **argv, struct dtx_args *args)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, argc, sizeof *args->words, &p));
    args->words = p;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &args->opt));
    DTX_TRY(ctx, dtx_opt_load_args(ctx, args->opt, argc, argv, args->words, argc, &args->n_words));
    DTX_TRY(ctx, dtx_opt_check(ctx, args->opt));
    if (args->n_words < min_words)
        return dtx_fail(ctx, DTX_E_CONFIG, "%d file(s) are given, at least %d needed\n%s", args->n_words, min_words,
                        usage);
    return DTX_OK;
}

enum dtx_status dtx_args_read(struct dtx_ctx *ctx, const char *usage, const struct dtx_opt_row *rows, int min_words,
                              int argc, char **argv, struct dtx_args *out)
{
    *out = (struct dtx_args){0};
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        out->help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    if (out->help) {
        print_help(usage, rows);
        return DTX_OK;
    }
    enum dtx_status status = read_words(ctx, &rows, usage, min_words, argc, argv, out);
    if (status != DTX_OK)
        dtx_args_free(out);
    return status;
}

void dtx_args_free(struct dtx_args *args)
{
    dtx_opt_free(args->opt);
    dtx_mem_free(args->words);
    *args = (struct dtx_args){0};
}
