/* The beginning and the end of a parallel program: what the launcher says, and one report when something failed. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#define DTX_COMM_FUNCTIONS /* callers stay those outside */
#include "parallel/comm_impl.h"
#include "parallel/watch.h"

struct dtx_comm_options dtx_comm_options_default(void)
{
    const char *synchronous = getenv("DTX_SYNCHRONOUS_SENDS");
    return (struct dtx_comm_options){
        .synchronous_sends = synchronous && (strcmp(synchronous, "true") == 0 || strcmp(synchronous, "1") == 0),
        .piece_bytes = 64 << 20,
        .small_bytes = 64 << 10,
    };
}

/* The number a variable holds, or −1. */
static long number(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return -1;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return *end || errno ? -1 : value;
}

/* Whether a launcher that speaks to MPI started this process. */
static bool launched(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]))
            return true;
    return false;
}

/* A world of one rank: is it meant? N processes that believe to be alone would all write the same files. */
static enum dtx_status check_single(struct dtx_ctx *ctx, long launcher_size)
{
    static const char *const variables[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE"};
    if (launcher_size == 1 || DTX_MUTANT(singleton_accepted))
        return DTX_OK;
    const char *variable = "OMPI_COMM_WORLD_SIZE";
    long tasks = launcher_size;
    for (size_t i = 0; tasks <= 1 && i < sizeof variables / sizeof *variables; i++) {
        variable = variables[i];
        tasks = number(variable);
    }
    if (tasks <= 1)
        return DTX_OK;
    return dtx_fail(ctx, DTX_E_CONFIG,
                    "%s says that %ld tasks were started, but MPI sees one: each would train by itself and overwrite "
                    "the others' files. The launcher and dtx's MPI library do not fit. Start with `srun --mpi=pmix dtx "
                    "…` (`srun --mpi=list` shows what this Slurm has) or with the mpirun of the Open MPI dtx was built "
                    "with; for one process inside a larger allocation use `mpirun -n 1 dtx …`",
                    variable, tasks);
}

static enum dtx_status check_options(struct dtx_ctx *ctx, const struct dtx_comm_options *options)
{
    if (options->piece_bytes >= 1 && options->piece_bytes <= INT_MAX && options->small_bytes >= 0 &&
        options->small_bytes <= INT_MAX)
        return DTX_OK;
    return dtx_fail(ctx, DTX_E_RANGE, "communicator: pieces of %lld bytes, small sums up to %lld (at most %d each)",
                    (long long)options->piece_bytes, (long long)options->small_bytes, INT_MAX);
}

enum dtx_status dtx_comm_open_world_with(struct dtx_ctx *ctx, const struct dtx_comm_options *options,
                                         struct dtx_comm **out)
{
    struct dtx_comm_options chosen = options ? *options : dtx_comm_options_default();
    DTX_TRY(ctx, check_options(ctx, &chosen));
    long launcher_size = number("OMPI_COMM_WORLD_SIZE"); /* before MPI_Init, which sets it itself */
    if (!launched()) {
        DTX_TRY(ctx, check_single(ctx, launcher_size));
        return dtx_comm_self(ctx, out);
    }
    struct dtx_comm *world;
    DTX_TRY(ctx, dtx_comm_mpi_open(ctx, &chosen, &world));
    if (world->size == 1) {
        enum dtx_status status = check_single(ctx, launcher_size);
        if (status != DTX_OK) {
            dtx_comm_mpi_close(world);
            return status;
        }
    }
    ctx->rank = world->rank;
    ctx->size = world->size;
    *out = world;
    return DTX_OK;
}

enum dtx_status dtx_comm_open_world(struct dtx_ctx *ctx, struct dtx_comm **out)
{
    return dtx_comm_open_world_with(ctx, NULL, out);
}

static void close_world(struct dtx_comm *world)
{
    dtx_watch_stop(world);
    dtx_mem_free(world->said);
    if (world->table == &dtx_comm_mpi_table)
        dtx_comm_mpi_close(world);
    else
        dtx_comm_free(world);
}

void dtx_comm_close_world(struct dtx_comm *world)
{
    if (!world)
        return;
    dtx_comm_barrier(world);
    close_world(world);
}

enum dtx_status dtx_comm_finish(struct dtx_comm *world, enum dtx_status status, double grace)
{
    if (!world)
        return status;
    struct dtx_ctx *ctx = world->ctx;
    bool several = world->size > 1, failed = status != DTX_OK && status != DTX_E_REQUEUE;
    bool table = status == DTX_E_LIBRARY; /* MPI's errors come of ranks that disagree: where they are is the cause */
    if (!failed || DTX_MUTANT(finish_waits_for_ever))
        grace = -1; /* a rank that did not fail waits: the others may be writing, and one that failed ends the job */
    if (failed && ctx->error.status != DTX_E_PEER)
        dtx_watch_failing(world, table);
    struct dtx_ledger_mark mark =
        dtx_ledger_begin(world->page, DTX_LEDGER_END, DTX_U8, 0, -1, world->file, world->line);
    bool alone = several && !dtx_comm_mpi_meet(world, grace);
    dtx_ledger_finish(mark, !alone);
    if (alone)
        dtx_watch_fail(world, table, dtx_status_exit_code(status));
    else if (several)
        status = dtx_comm_agree(world, status);
    /* The report goes out before any rank can exit: a launcher ends all ranks when one exits with an error. */
    if (status != DTX_OK && status != DTX_E_REQUEUE && ctx->error.status != DTX_OK && ctx->error.status != DTX_E_PEER) {
        dtx_error_print(ctx);
        if (table)
            dtx_watch_print(world);
    }
    if (alone)
        dtx_comm_abort(world, dtx_status_exit_code(status));
    dtx_comm_close_world(world);
    dtx_error_clear(ctx);
    return status;
}
