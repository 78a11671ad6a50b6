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

/* Is it what the words say? Some commands have a name of two words; *n: how many. */
static bool is_named(const struct dtx_command *command, int argc, char **argv, int *n)
{
    const char *blank = strchr(command->name, ' ');
    size_t first = blank ? (size_t)(blank - command->name) : strlen(command->name);
    *n = blank ? 2 : 1;
    return argc > *n && strlen(argv[1]) == first && strncmp(argv[1], command->name, first) == 0 &&
           (!blank || strcmp(argv[2], blank + 1) == 0);
}

/* Of two that fit the one with the longer name. */
static const struct dtx_command *find(int argc, char **argv, int *words)
{
    const struct dtx_command *found = NULL;
    *words = 0;
    for (int i = 0, n; commands[i]; i++)
        if (is_named(commands[i], argc, argv, &n) && n > *words) {
            found = commands[i];
            *words = n;
        }
    return found;
}

static void print_help(FILE *file)
{
    fprintf(file,
            "dtx %s: trains Differential Transformers\n\nusage: dtx COMMAND [options]    (dtx COMMAND --help)\n\n",
            DTX_VERSION);
    for (int i = 0; commands[i]; i++)
        fprintf(file, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
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
    int words;
    const struct dtx_command *command = find(argc, argv, &words);
    if (command) {
        struct dtx_ctx ctx;
        dtx_ctx_init(&ctx);
        enum dtx_status status = command->run(&ctx, argc - 1 - words, argv + 1 + words);
        if (status != DTX_OK && status != DTX_E_REQUEUE && ctx.error.status != DTX_OK)
            dtx_error_print(&ctx);
        return dtx_status_exit_code(status);
    }
    fprintf(stderr, "dtx: there is no command '%s'; `dtx --help` lists them\n", argv[1]);
    return 78;
}
