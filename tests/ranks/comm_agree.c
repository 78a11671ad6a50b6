/* test: label=ranks ranks=4 timeout=60 */
/* Every set of failing ranks: all ranks get one status; one keeps the report, the others say whose it is. */
#include <string.h>

#include "tests/harness/rank_check.h"

static enum dtx_status status_of(int rank)
{
    static const enum dtx_status statuses[] = {DTX_E_CONFIG, DTX_E_IO, DTX_E_FORMAT, DTX_E_NUMERIC};
    return statuses[rank];
}

static void check_failures(struct dtx_comm *world, unsigned failing)
{
    struct dtx_ctx *ctx = world->ctx;
    int lowest = 0, count = 0;
    for (int r = world->size - 1; r >= 0; r--)
        if (failing >> r & 1) {
            lowest = r;
            count++;
        }
    enum dtx_status status = DTX_OK;
    if (failing >> world->rank & 1)
        status = dtx_fail(ctx, status_of(world->rank), "disk %d is full", world->rank);
    enum dtx_status agreed = dtx_comm_agree(world, status);
    if (!failing) {
        CHECK(world, agreed == DTX_OK && ctx->error.status == DTX_OK);
        return;
    }
    CHECK_THAT(world, agreed == status_of(lowest), "ranks %x", failing);
    char want[128];
    if (world->rank == lowest)
        snprintf(want, sizeof want, "disk %d is full", lowest);
    else
        snprintf(want, sizeof want, "rank %d (%s): disk %d is full", lowest, ctx->host, lowest);
    CHECK(world, ctx->error.status == (world->rank == lowest ? status_of(lowest) : DTX_E_PEER));
    CHECK(world, strncmp(ctx->error.text, want, strlen(want)) == 0);
    CHECK(world, world->rank != lowest || (count > 1) == (strstr(ctx->error.text, "ranks failed") != NULL));
    dtx_error_clear(ctx);
}

/* A rank that wants to be requeued gives way to a real failure. */
static void check_requeue(struct dtx_comm *world)
{
    CHECK(world, dtx_comm_agree(world, DTX_E_REQUEUE) == DTX_E_REQUEUE);
    dtx_error_clear(world->ctx);
    enum dtx_status status = DTX_E_REQUEUE;
    if (world->rank == 3)
        status = dtx_fail(world->ctx, DTX_E_NUMERIC, "loss is NaN");
    CHECK(world, dtx_comm_agree(world, status) == DTX_E_NUMERIC);
    CHECK(world, strstr(world->ctx->error.text, "loss is NaN"));
    CHECK(world, (world->rank == 3) == (world->ctx->error.status == DTX_E_NUMERIC));
    dtx_error_clear(world->ctx);
}

/* Agreeing again on what was agreed on changes no report: it stays the failing rank's own, and is not counted twice. */
static void check_again(struct dtx_comm *world, int bad)
{
    struct dtx_ctx *ctx = world->ctx;
    char before[DTX_ERROR_TEXT];
    enum dtx_status status = DTX_OK;
    if (world->rank == bad)
        status = dtx_fail(ctx, DTX_E_IO, "disk is full");
    status = dtx_comm_agree(world, status);
    strcpy(before, ctx->error.text);
    CHECK(world, dtx_comm_agree(world, status) == DTX_E_IO);
    CHECK(world, ctx->error.status == (world->rank == bad ? DTX_E_IO : DTX_E_PEER));
    CHECK_THAT(world, strcmp(before, ctx->error.text) == 0, "%s, then %s", before, ctx->error.text);
    dtx_error_clear(ctx);
}

/* A status without a report still says something. */
static void check_silent(struct dtx_comm *world)
{
    CHECK(world, dtx_comm_agree(world, world->rank == 1 ? DTX_E_MEMORY : DTX_OK) == DTX_E_MEMORY);
    CHECK(world, strstr(world->ctx->error.text, "memory"));
    dtx_error_clear(world->ctx);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    if (!world)
        return 1;
    for (unsigned failing = 0; failing < 16; failing++)
        check_failures(world, failing);
    for (int bad = 0; bad < world->size; bad++)
        check_again(world, bad);
    check_requeue(world);
    check_silent(world);
    return dtx_status_exit_code(dtx_comm_finish(world, DTX_OK, DTX_COMM_GRACE));
}
