/*
 * Training steps to be measured: a session (configuration, mesh, backend), one or both attention variants of one model,
 * and batches from the data pipeline. Without data.train every rank makes its own small token file, the same on all,
 * in the temporary folder; nothing of it remains. Collective over the world unless it says otherwise.
 */
#ifndef DTX_LAUNCH_BENCH_WORKLOAD_H
#define DTX_LAUNCH_BENCH_WORKLOAD_H

#include "data/loader.h"
#include "launch/bench/bench.h"
#include "trainer/session.h"

/* A variant of the model and its matched counterpart: a diff head of width d takes the place of two softmax heads. */
struct dtx_workload_run {
    const char *name; /* of the attention variant */
    struct dtx_engine_config config;
    struct dtx_engine *engine;
    int64_t step;
};

struct dtx_workload {
    struct dtx_ctx *ctx;
    struct dtx_session session;
    struct dtx_workload_run runs[2]; /* diff before softmax */
    int n_runs;
    struct dtx_stream *stream;
    struct dtx_loader *loader;
    double lr;
    enum dtx_bench_clock clock;
    char **words; /* the command line as the session reads it */
    int n_words;
};

struct dtx_workload_timing {
    double seconds, data_wait; /* of the step, the batch included, by the bench's clock */
    double wall_seconds;
    double cpu_share; /* CPU time had of threads · wall_seconds, this rank */
    double loss;
};

/* The rows of a bench: DTX_WORKLOAD_OPTIONS and its own. Short names stand for training options: --dtype, --threads,
 * --isa, --length, --batch, --micro_batch. Without preset or CONFIG.yaml the model is bench-124m; `one_micro_batch`
 * then takes one micro-batch a step. */
enum dtx_status dtx_workload_open(struct dtx_ctx *ctx, const struct dtx_session_command *command, int argc, char **argv,
                                  bool one_micro_batch, struct dtx_workload *workload, bool *done);
enum dtx_status dtx_workload_step(struct dtx_workload *workload, struct dtx_workload_run *run,
                                  struct dtx_workload_timing *timing);
/* Ends MPI, like dtx_session_close; returns the status to exit with. */
enum dtx_status dtx_workload_close(struct dtx_workload *workload, enum dtx_status status);
/* {"layers", "width", …}. Not collective. */
json_t *dtx_workload_json(const struct dtx_workload *workload);
/* Tokens of one step of the whole mesh. Not collective. */
int64_t dtx_workload_tokens(const struct dtx_workload *workload);
void dtx_workload_print(const struct dtx_workload *workload, FILE *file);

#define DTX_WORKLOAD_OPTIONS                                                                                           \
    DTX_BENCH_CLOCK_OPTION,                                                                                            \
        {"attention",  DTX_OPT_CHOICE,                                                                                 \
         "both",       "diff|softmax|both",                                                                            \
         DTX_OPT_FREE, "which to run: the model's own variant, its matched counterpart, or both in turns"},            \
    {                                                                                                                  \
        "json", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE,                                                                  \
            "write the figures to this file; -: standard output, the table to standard error"                          \
    }
#define DTX_WORKLOAD_SHORT                                                                                             \
    "Short for training options: --dtype (train.dtype), --threads (cpu.threads), --isa (cpu.isa), --length\n"          \
    "(train.length), --batch (train.batch), --micro_batch (train.micro_batch).\n"

#endif
