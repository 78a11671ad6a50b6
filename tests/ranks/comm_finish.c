/* test: label=ranks ranks=4 timeout=60 */
/*
 * The end of a program. Without an argument: all is well. With one (comm_death.sh) rank 2 fails while the others
 *   together: also come to the end     all: fail too     busy: sit in a collective     killed: the same, rank 2 is
 * killed     started: wait for a collective that was started     left: have started one, and all fail
 */
#include <signal.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "parallel/comm_queue.h"
#include "tests/harness/rank_check.h"

/* A thread is in a collective that rank 2 never joins. */
static enum dtx_status start(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_comm **comm, const char *mode)
{
    static float x[1 << 20];
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 1 << 20);
    struct dtx_event event;
    DTX_TRY(ctx, dtx_comm_split(world, 0, world->rank, "started", comm));
    DTX_TRY(ctx, dtx_comm_async(*comm, 2));
    if (world->rank == 2)
        return dtx_fail(ctx, DTX_E_CONFIG, "cannot read /data/tokens.bin");
    DTX_TRY(ctx, dtx_comm_start_all_reduce_sum(*comm, NULL, &t, &event));
    if (strcmp(mode, "started") == 0)
        DTX_TRY(ctx, dtx_event_wait(&event));
    return dtx_fail(ctx, DTX_E_PEER, "rank 2 is gone");
}

/* What a training loop does: returns when something failed. */
static enum dtx_status work(struct dtx_ctx *ctx, struct dtx_comm *world, const char *mode, struct dtx_comm **comm)
{
    float x[1000] = {0};
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 1000);
    for (int step = 0; step < 5; step++)
        DTX_TRY(ctx, dtx_comm_all_reduce_sum(world, NULL, &t));
    if (strcmp(mode, "started") == 0 || strcmp(mode, "left") == 0)
        return start(ctx, world, comm, mode);
    if (strcmp(mode, "all") == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "no such key 'trian.steps'");
    if (strcmp(mode, "requeue") == 0) {
        if (world->rank == 2)
            dtx_clock_sleep(DTX_COMM_GRACE + 1.5);
        return DTX_E_REQUEUE;
    }
    if (world->rank == 2 && strcmp(mode, "killed") == 0)
        raise(SIGKILL);
    if (world->rank == 2 && mode[0])
        return dtx_fail(ctx, DTX_E_CONFIG, "cannot read /data/tokens.bin");
    if (strcmp(mode, "busy") == 0 || strcmp(mode, "killed") == 0)
        for (;;)
            DTX_TRY(ctx, dtx_comm_all_reduce_sum(world, NULL, &t));
    return DTX_OK;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    if (!world)
        return 1;
    struct dtx_comm *comm = NULL;
    enum dtx_status status = work(&ctx, world, argc > 1 ? argv[1] : "", &comm);
    dtx_comm_halt(comm);
    status = dtx_comm_finish(world, status, DTX_COMM_GRACE);
    /* As in main.c: what was not printed yet. */
    if (ctx.error.status != DTX_OK)
        dtx_error_print(&ctx);
    return dtx_status_exit_code(status);
}
