/* test: label=ranks ranks=2 timeout=60 */
/* A rank fails while the other's save waits for it: both leave within seconds, with one status, though the writing
 * thread is in the middle of a collective; nothing of that checkpoint is published. */
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/staging.h"
#include "kernels/base/clock.h"
#include "tests/harness/ckpt_state.h"
#include "tests/harness/rank_check.h"

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    struct dtx_ckpt_staging *staging;
    struct ckpt_state state = {0};
    char dir[256] = "", path[512];
    dtx_ctx_init(&ctx);
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK)
        return 1;
    struct ckpt_mesh mesh = {2, 1, 1};
    struct dtx_ckpt_meta meta = ckpt_state_meta(1, mesh);
    if (world->rank == 0)
        ckpt_temp_make(dir);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, dir, sizeof dir, 0));
    ckpt_state_add(&state, mesh, world->rank, 1);
    size_t bytes = dtx_ckpt_staging_bytes(state.items, state.n);
    struct dtx_ckpt_item *items = malloc((size_t)state.n * sizeof *items);
    memcpy(items, state.items, (size_t)state.n * sizeof *items);
    CHECK_OK(world, dtx_ckpt_staging_open(&ctx, world, NULL, bytes, true, 0, &staging));
    CHECK_OK(world, dtx_ckpt_staging_place(staging, items, state.n));
    if (world->rank == 0)
        dtx_ckpt_staging_start(staging, dir, NULL, items, state.n, &meta, NULL);
    dtx_clock_sleep(0.2);
    double start = dtx_clock_now();
    bool gone = dtx_ckpt_staging_halt(staging, 0.3);
    CHECK_THAT(world, gone == (world->rank == 1), "the writing thread is %s", gone ? "gone" : "still there");
    CHECK_THAT(world, dtx_clock_now() - start < 5, "halted after %.1f s", dtx_clock_now() - start);
    snprintf(path, sizeof path, "%s/step-00000001", dir);
    CHECK_THAT(world, !dtx_disk_exists(path), "%s was published", path);
    if (world->rank == 0)
        ckpt_temp_remove(dir);
    ckpt_state_free(&state);
    ctx.log_level = DTX_LOG_ERROR;
    if (world->rank == 1)
        (void)dtx_fail(&ctx, DTX_E_NUMERIC, "as it must be: rank 1 fails");
    /* each may have failed on its own: they meet, and end with one status */
    enum dtx_status status = dtx_comm_finish(world, world->rank == 1 ? DTX_E_NUMERIC : DTX_E_PEER, DTX_COMM_GRACE);
    return status == DTX_E_NUMERIC || status == DTX_E_PEER ? 0 : 1;
}
