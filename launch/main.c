/* The table of commands and the one place where a status becomes an exit code. */
#include <stdio.h>
#include <string.h>

#include "kernels/base/command.h"

#define DTX_COMMAND(name) extern const struct dtx_command dtx_command_##name;
#include "launch/commands.inc"
#undef DTX_COMMAND

static const struct dtx_command *const commands[] = {
#define DTX_COMMAND(name) &dtx_command_##name,
#include "launch/commands.inc"
#undef DTX_COMMAND
    NULL};

static void print_help(FILE *file)
{
    fprintf(file,
            "dtx %s: trains Differential Transformers\n\nusage: dtx COMMAND [options]    (dtx COMMAND --help)\n\n",
            DTX_VERSION);
    for (int i = 0; commands[i]; i++)
        fprintf(file, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? 78 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dtx %s\n", DTX_VERSION);
        return 0;
    }
    for (int i = 0; commands[i]; i++) {
        if (strcmp(argv[1], commands[i]->name) != 0)
            continue;
        struct dtx_ctx ctx;
        dtx_ctx_init(&ctx);
        enum dtx_status status = commands[i]->run(&ctx, argc - 2, argv + 2);
        if (status != DTX_OK && status != DTX_E_REQUEUE && ctx.error.status != DTX_OK)
            dtx_error_print(&ctx);
        return dtx_status_exit_code(status);
    }
    fprintf(stderr, "dtx: there is no command '%s'; `dtx --help` lists them\n", argv[1]);
    return 78;
}
