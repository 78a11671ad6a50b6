/* `dtx bench`: kernels and whole training steps as shares of what this machine reaches, measured in the same run. */
#include <stdio.h>
#include <string.h>

#include "kernels/base/command.h"
#include "launch/bench/bench.h"

extern const struct dtx_command dtx_command_bench;

static const struct {
    const char *name, *summary;
    enum dtx_status (*run)(struct dtx_ctx *, int, char **);
} benches[] = {
    {"step", "whole training steps: tokens/s, model FLOP/s, share of the measured peak", dtx_bench_step},
    {"kernels", "every operation with the shapes of a training step", dtx_bench_kernels},
    {"attention", "differential against softmax attention, forward and backward", dtx_bench_attention},
    {"comm", "all-reduce over the ranks of an mpirun", dtx_bench_comm},
    {"checkpoint", "a run's state to the disk and back against plain writing and reading", dtx_bench_checkpoint},
    {"stream", "samples of token files, tokens/s", dtx_bench_stream},
    {"tokenizer", "text to token ids, beside memcpy of the same text", dtx_bench_tokenizer}};
enum { BENCHES = sizeof benches / sizeof *benches };

static void print_help(FILE *file)
{
    fprintf(file, "usage: dtx bench BENCH [options]    (dtx bench BENCH --help)\n\n");
    for (int i = 0; i < BENCHES; i++)
        fprintf(file, "  %-10s %s\n", benches[i].name, benches[i].summary);
    fprintf(file, "\nEvery speed stands beside the peak that was measured in turns with it, on the same threads. A\n"
                  "busy machine lowers both; the benches say when they did not get the CPU time they wanted.\n");
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        print_help(stdout);
        return DTX_OK;
    }
    if (argc == 0) {
        print_help(stderr);
        return dtx_fail(ctx, DTX_E_CONFIG, "dtx bench needs the name of one of these benches");
    }
    for (int i = 0; i < BENCHES; i++)
        if (strcmp(argv[0], benches[i].name) == 0)
            return benches[i].run(ctx, argc - 1, argv + 1);
    return dtx_fail(ctx, DTX_E_CONFIG, "there is no bench '%s'; dtx bench --help lists those there are", argv[0]);
}

const struct dtx_command dtx_command_bench = {"bench", "speed of kernels and training steps as shares of the peak",
                                              run};
