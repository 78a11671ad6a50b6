#include "kernels/base/command.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/opt.h"

static void print_list(FILE *file, const char *group, const struct dtx_command *commands, int n, const char *footer)
{
    fprintf(file, "usage: dtx %s NAME [options]    (dtx %s NAME --help)\n\n", group, group);
    for (int i = 0; i < n; i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs(footer, file);
}

enum dtx_status dtx_command_choose(struct dtx_ctx *ctx, const char *group, const char *what,
                                   const struct dtx_command *commands, int n, const char *footer, int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        print_list(stdout, group, commands, n, footer);
        return DTX_OK;
    }
    if (argc == 0) {
        print_list(stderr, group, commands, n, footer);
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx %s needs the name of one of these", group);
    }
    for (int i = 0; i < n; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(ctx, argc - 1, argv + 1);
    return dtx_fail(ctx, DTX_E_CONFIG, "there is no %s '%s'; dtx %s --help lists those there are", what, argv[0],
                    group);
}

enum dtx_status dtx_command_options(struct dtx_ctx *ctx, const struct dtx_opt_row *const *rows, const char *usage,
                                    const char *missing, int argc, char **argv, const char **words, int max_words,
                                    int *n_words, struct dtx_opt **out)
{
    struct dtx_opt *opt;
    *out = NULL;
    *n_words = 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, rows, 1, &opt));
    enum dtx_status status = dtx_opt_load_args(ctx, opt, argc, argv, words, max_words, n_words);
    bool help = status == DTX_OK && dtx_opt_bool(opt, "help");
    if (status == DTX_OK && *n_words == 0 && !help)
        dtx_opt_fault(opt, "%s", missing);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    if (status == DTX_OK && help) {
        fputs(usage, stdout);
        dtx_opt_help(opt, stdout);
    }
    if (status != DTX_OK || help)
        dtx_opt_free(opt);
    else
        *out = opt;
    return status;
}
