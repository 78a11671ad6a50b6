/* test: label=ranks ranks=4 timeout=60 */
/*
 * Four ranks under watch: tp pairs (0,1) (2,3), dp pairs (0,2) (1,3). Without arguments: all is well, and no ledger is
 * left. watch.sh gives: MODE FOLDER-OF-LEDGERS RUN TIMEOUT CHECK; in step 6 rank 2 then
 *   kill: is killed    stop: is stopped     exit: exits      busy: computes for ever   leave: comes to its end
 *   count: sums fewer numbers               operation: calls another operation         root: broadcasts from another
 * root send: sends fewer numbers than are expected
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "parallel/watch.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 20, ODD_STEP = 6 };

struct axes {
    struct dtx_comm *tp, *dp;
};

static bool is(const char *mode, const char *name)
{
    return strcmp(mode, name) == 0;
}

static enum dtx_status step(struct dtx_comm *world, const struct axes *axes, const char *mode)
{
    float x[20] = {0};
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_F32, 20), less = dtx_tensor_1d(x, DTX_F32, 10);
    struct dtx_ctx *ctx = world->ctx;
    struct dtx_request request;
    DTX_TRY(ctx, dtx_comm_all_reduce_sum(axes->tp, NULL, &t));
    if (is(mode, "kill"))
        raise(SIGKILL);
    if (is(mode, "stop"))
        raise(SIGSTOP);
    if (is(mode, "exit"))
        exit(0);
    if (is(mode, "busy"))
        dtx_clock_sleep(600);
    if (is(mode, "count"))
        DTX_TRY(ctx, dtx_comm_all_reduce_sum(axes->dp, NULL, &less)); /* here: count */
    else if (is(mode, "operation"))
        DTX_TRY(ctx, dtx_comm_barrier(axes->dp)); /* here: operation */
    else
        DTX_TRY(ctx, dtx_comm_all_reduce_sum(axes->dp, NULL, &t)); /* here: sum */
    if (world->rank == 2) {
        DTX_TRY(ctx, dtx_comm_send_start(axes->tp, NULL, is(mode, "send") ? &less : &t, 1, &request)); /* here: send */
        DTX_TRY(ctx, dtx_comm_wait(&request));
    } else if (world->rank == 3) {
        DTX_TRY(ctx, dtx_comm_recv_start(axes->tp, NULL, &t, 0, &request)); /* here: receive */
        DTX_TRY(ctx, dtx_comm_wait(&request));
    }
    DTX_TRY(ctx, dtx_comm_broadcast(world, NULL, &t, is(mode, "root") ? 2 : 0)); /* here: root */
    return dtx_comm_agree(world, DTX_OK);
}

static enum dtx_status work(struct dtx_comm *world, const char *mode)
{
    struct axes axes;
    DTX_TRY(world->ctx, dtx_comm_split(world, world->rank / 2, world->rank, "tp", &axes.tp));
    DTX_TRY(world->ctx, dtx_comm_split(world, world->rank % 2, world->rank, "dp", &axes.dp));
    for (int i = 1; i <= STEPS; i++) {
        const char *mine = i == ODD_STEP && world->rank == 2 ? mode : "";
        if (is(mine, "leave"))
            return DTX_OK;
        DTX_TRY(world->ctx, step(world, &axes, mine));
    }
    dtx_comm_free(axes.dp);
    dtx_comm_free(axes.tp);
    return DTX_OK;
}

static bool empty(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n == 2;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    char dir[64] = "/tmp/dtx_watch_XXXXXX";
    const char *mode = argc > 1 ? argv[1] : "";
    if (!world)
        return 1;
    bool root = world->rank == 0;
    struct dtx_watch_options options = {.timeout = argc > 4 ? atof(argv[4]) : 30,
                                        .dir = argc > 2 ? argv[2] : dir,
                                        .check = argc > 5 && strcmp(argv[5], "check") == 0};
    if (argc <= 2) {
        CHECK(world, !root || mkdtemp(dir));
        CHECK_OK(world, dtx_comm_broadcast_bytes(world, dir, sizeof dir, 0));
    }
    const char *run = argc > 3 ? argv[3] : dir;
    CHECK_OK(world, dtx_watch_start(world, &options));
    CHECK_OK(world, dtx_watch_share(world, run, NULL, NULL));
    enum dtx_status status = dtx_comm_finish(world, work(world, mode), DTX_COMM_GRACE);
    if (argc <= 2 && root) { /* all have passed MPI_Finalize */
        bool left = !empty(dir);
        rmdir(dir);
        if (left)
            fprintf(stderr, "a clean run leaves files in %s\n", dir);
        return status != DTX_OK || left;
    }
    return dtx_status_exit_code(status);
}
