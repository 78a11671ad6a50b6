/* test: label=ranks ranks=2 timeout=60 */
/*
 * Two ranks under watch that sum over the stand-in for NCCL. Without arguments: all is well. nccl_watch.sh gives:
 * FOLDER-OF-LEDGERS RUN TIMEOUT, and DTX_EMU_NCCL says which operation never ends.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/comm_nccl.h"
#include "parallel/comm_queue.h"
#include "parallel/watch.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 8, COUNT = 100 };

static enum dtx_status step(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *a,
                            const struct dtx_tensor *b, const struct dtx_tensor *c)
{
    float host[COUNT];
    struct dtx_event event;
    DTX_TRY(comm->ctx, dtx_comm_start_all_reduce_sum(comm, queue, a, &event)); /* here: started */
    DTX_TRY(comm->ctx, dtx_event_wait(&event));
    DTX_TRY(comm->ctx, dtx_comm_all_reduce_max(comm, queue, b));
    struct dtx_request request[2];
    DTX_TRY(comm->ctx, dtx_comm_recv_start(comm, queue, b, 1 - comm->rank, &request[0]));
    DTX_TRY(comm->ctx, dtx_comm_send_start(comm, queue, c, 1 - comm->rank, &request[1]));
    DTX_TRY(comm->ctx, dtx_comm_wait(&request[0]));
    DTX_TRY(comm->ctx, dtx_comm_wait(&request[1]));
    return dtx_tensor_get(queue, b, host);
}

static enum dtx_status work(struct dtx_comm *world)
{
    struct dtx_backend *backend;
    struct dtx_queue *queue;
    struct dtx_comm *between, *pair;
    struct dtx_tensor t[3];
    struct dtx_ctx *ctx = world->ctx;
    DTX_TRY(ctx, dtx_backend_open(ctx, "emu", 1, 0, &backend));
    DTX_TRY(ctx, backend->queues->create(backend, &queue));
    DTX_TRY(ctx, dtx_comm_nccl_create(world, backend, &between));
    DTX_TRY(ctx, dtx_comm_split(between, 0, world->rank, "pair", &pair));
    DTX_TRY(ctx, dtx_comm_async(pair, 2));
    for (int i = 0; i < 3; i++) {
        t[i] = dtx_tensor_1d(NULL, DTX_F32, COUNT);
        DTX_TRY(ctx, dtx_tensor_alloc(backend, &t[i]));
    }
    for (int i = 0; i < STEPS; i++)
        DTX_TRY(ctx, step(pair, queue, &t[0], &t[1], &t[2]));
    for (int i = 0; i < 3; i++)
        dtx_tensor_free(backend, &t[i]);
    dtx_comm_free(pair);
    dtx_comm_free(between);
    backend->queues->free(queue);
    dtx_backend_close(backend);
    return DTX_OK;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    if (!world)
        return 1;
    struct dtx_watch_options options = {.timeout = argc > 3 ? atof(argv[3]) : 30, .dir = argc > 1 ? argv[1] : "none"};
    CHECK_OK(world, dtx_watch_start(world, &options));
    if (argc > 2)
        CHECK_OK(world, dtx_watch_share(world, argv[2], NULL, NULL));
    return dtx_status_exit_code(dtx_comm_finish(world, work(world), DTX_COMM_GRACE));
}
