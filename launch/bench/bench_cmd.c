/* `dtx bench`: kernels and whole training steps as shares of what this machine reaches, measured in the same run. */
#include "kernels/base/command.h"
#include "launch/bench/bench.h"

extern const struct dtx_command dtx_command_bench;

static const struct dtx_command benches[] = {
    {"step", "whole training steps: tokens/s, model FLOP/s, share of the measured peak", dtx_bench_step},
    {"kernels", "every operation with the shapes of a training step", dtx_bench_kernels},
    {"attention", "differential against softmax attention, forward and backward", dtx_bench_attention},
    {"comm", "all-reduce over the ranks of an mpirun", dtx_bench_comm},
    {"checkpoint", "a run's state to the disk and back against plain writing and reading", dtx_bench_checkpoint},
    {"stream", "samples of token files, tokens/s", dtx_bench_stream},
    {"tokenizer", "text to token ids, beside memcpy of the same text", dtx_bench_tokenizer}};

static const char footer[] =
    "\nEvery speed stands beside the peak that was measured in turns with it, on the same threads. A\n"
    "busy machine lowers both; the benches say when they did not get the CPU time they wanted.\n";

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    return dtx_command_choose(ctx, "bench", "bench", benches, sizeof benches / sizeof *benches, footer, argc, argv);
}

const struct dtx_command dtx_command_bench = {"bench", "speed of kernels and training steps as shares of the peak",
                                              run};
