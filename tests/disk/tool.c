/* What the shell tests of crash/ start:
 *   disk_tool record DIR            under the library: five saves, with marks of what was reported
 *   disk_tool replay RECORD         (replay.c)
 *   disk_tool replay RECORD ROOT BELOW STEP   the same for any run, recorded from the folder ROOT on, which saves into
 *                                   ROOT/BELOW, last STEP
 *   disk_tool enumerate DIR STRIDE  under the library: every STRIDE-th call of a save fails (enumerate.c)
 *   disk_tool save DIR N STEP       one save, of number N
 *   disk_tool shards FOLDER N       a checkpoint of N shards (shards.c)
 *   disk_tool load DIR              prints the number of the newest; it and what `latest` names must load (one process)
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/disk/disk.h"
#include "tests/disk/states.h"

static enum dtx_status record(struct dtx_comm *world, const char *dir)
{
    static const int64_t steps[SAVES] = {1, 2, 3, 3, 4};
    disk_mark_function *mark = (disk_mark_function *)(intptr_t)dlsym(RTLD_DEFAULT, "disk_mark");
    char text[600];
    if (!mark)
        return dtx_fail(world->ctx, DTX_E_CONFIG, "the library of tests/disk is not loaded");
    snprintf(text, sizeof text, "folder %.500s", dir);
    if (world->rank == 0)
        mark(text);
    for (int64_t number = 1; number <= SAVES; number++) {
        DTX_TRY(world->ctx, dtx_comm_barrier(world));
        snprintf(text, sizeof text, "begin %lld", (long long)number);
        if (world->rank == 0)
            mark(text);
        DTX_TRY(world->ctx, dtx_comm_barrier(world));
        DTX_TRY(world->ctx, numbered_save(world, dir, number, steps[number - 1], number % 2 == 0));
        snprintf(text, sizeof text, "saved %lld", (long long)number);
        if (world->rank == 0)
            mark(text);
    }
    return DTX_OK;
}

static enum dtx_status load(struct dtx_comm *world, const char *dir)
{
    int64_t number = numbered_load(world, dir, "latest");
    if (number < 0)
        return world->ctx->error.status;
    const char *fault = latest_fault(world, dir, false);
    if (fault[0])
        return dtx_fail(world->ctx, DTX_E_FORMAT, "%s", fault);
    printf("%lld\n", (long long)number);
    return DTX_OK;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    const char *action = argc > 2 ? argv[1] : "";
    if (strcmp(action, "replay") == 0)
        return argc > 5 ? replay_run(argv[2], argv[3], argv[4], atoll(argv[5])) : replay(argv[2]);
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_WARN;
    enum dtx_status status = dtx_comm_open_world(&ctx, &world);
    if (status != DTX_OK) {
        dtx_error_print(&ctx);
        return 1;
    }
    if (strcmp(action, "record") == 0)
        status = record(world, argv[2]);
    else if (strcmp(action, "enumerate") == 0 && argc > 3)
        status = enumerate(world, argv[2], atoi(argv[3])) ? DTX_E_FORMAT : DTX_OK;
    else if (strcmp(action, "save") == 0 && argc > 4)
        status = numbered_save(world, argv[2], atoll(argv[3]), atoll(argv[4]), false);
    else if (strcmp(action, "shards") == 0 && argc > 3)
        status = many_shards(&ctx, argv[2], atoi(argv[3]));
    else if (strcmp(action, "load") == 0)
        status = load(world, argv[2]);
    else
        status = dtx_fail(&ctx, DTX_E_CONFIG, "usage: disk_tool record|replay|enumerate|save|shards|load …");
    return dtx_comm_finish(world, status, DTX_COMM_GRACE) != DTX_OK;
}
