/* Every call of a save fails in turn, on each rank alone and on all, until none is left: all ranks report the same, the
 * new checkpoint or the one before loads, `latest` names one, and saving goes on. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/disk/disk.h"
#include "tests/disk/states.h"
#include "tests/harness/rank_check.h"

struct faults {
    struct dtx_comm *world, *alone;
    struct disk_control *control;
    const char *dir;
    int64_t number, good;         /* of the save, of the newest good one */
    int64_t met, refused, unseen; /* faults; saves that failed; saves that succeeded all the same */
    int stride;
};

static const char *const kind_names[] = {"", "EIO", "ENOSPC", "short write"};

static void check_outcome(struct faults *f, enum dtx_status status, const char *what)
{
    struct dtx_comm *world = f->world;
    int mine = (int)status, all[64];
    CHECK_OK(world, dtx_comm_gather_bytes(world, &mine, sizeof mine, all));
    for (int r = 0; r < world->size; r++)
        CHECK_THAT(world, all[r] == mine, "%s: rank %d reports %d", what, r, all[r]);
    CHECK_THAT(world, status == DTX_OK || world->ctx->error.text[0], "%s: no cause is given", what);
    char cause[300];
    snprintf(cause, sizeof cause, "%.299s", world->ctx->error.text);
    dtx_error_clear(world->ctx);
    int64_t found = numbered_load(world, f->dir, "latest");
    CHECK_THAT(world, found == f->number || (status != DTX_OK && found == f->good), "%s (%s): save %lld loads: %s",
               what, cause, (long long)found, world->ctx->error.text);
    f->good = found;
    if (world->rank == 0) {
        const char *fault = latest_fault(f->alone, f->dir, false);
        CHECK_THAT(world, !fault[0], "%s (%s): %s: %s", what, cause, fault, world->ctx->error.text);
    }
}

/* True when some rank met the fault. */
static bool one(struct faults *f, enum disk_kind kind, int who, int64_t at, bool same_step, bool beside)
{
    struct dtx_comm *world = f->world;
    char what[96];
    int met[64], mine;
    snprintf(what, sizeof what, "%s at call %lld of %s %d", kind_names[kind], (long long)at,
             who == world->size ? "all of" : "rank", who);
    f->number++;
    f->control->at = at;
    f->control->calls = f->control->faults = 0;
    f->control->kind = who == world->rank || who == world->size ? kind : DISK_NONE;
    enum dtx_status status = numbered_save(world, f->dir, f->number, same_step ? 7 : f->number + 10, beside);
    f->control->kind = DISK_NONE;
    mine = f->control->faults > 0;
    CHECK(world, status != DTX_OK || !world->ctx->error.text[0]);
    CHECK_THAT(world, status == DTX_OK || kind != DISK_SHORT, "%s: is no error, but %s", what, world->ctx->error.text);
    check_outcome(f, status, what);
    CHECK_OK(world, dtx_comm_gather_bytes(world, &mine, sizeof mine, met));
    bool any = false;
    for (int r = 0; r < world->size; r++)
        any = any || met[r];
    f->met += any;
    f->refused += status != DTX_OK;
    f->unseen += any && status == DTX_OK;
    return any;
}

int enumerate(struct dtx_comm *world, const char *dir, int stride)
{
    struct faults f = {.world = world, .dir = dir, .stride = stride};
    disk_control_function *find = (disk_control_function *)(intptr_t)dlsym(RTLD_DEFAULT, "disk_control");
    CHECK_THAT(world, find, "the library of tests/disk is not loaded: LD_PRELOAD");
    CHECK(world, world->size < 64);
    f.control = find();
    f.control->until = f.control->every = 0;
    world->ctx->log_level = DTX_LOG_ERROR + 1;
    CHECK_OK(world, dtx_comm_self(world->ctx, &f.alone));
    CHECK_OK(world, numbered_save(world, dir, ++f.number, 7, false));
    f.good = 1;
    for (enum disk_kind kind = DISK_EIO; kind <= DISK_SHORT; kind++)
        for (int way = 0; way < 3; way++) { /* a new step; the same again, beside; again without exchange */
            f.control->no_exchange = way == 2;
            for (int who = 0; who <= world->size - (world->size == 1); who++) {
                int64_t at = 1 + (who + way + kind) % stride, last = f.met;
                while (one(&f, kind, who, at, way > 0, way == 1))
                    at += stride;
                if (world->rank == 0 && stride == 1)
                    printf("%s, %s, %s %d: %lld faults\n", kind_names[kind],
                           way == 0   ? "new step"
                           : way == 1 ? "same step, beside"
                                      : "same step by way of a third name",
                           who == world->size ? "all of" : "rank", who, (long long)(f.met - last));
            }
        }
    f.control->no_exchange = false;
    f.number++;
    CHECK_OK(world, numbered_save(world, dir, f.number, f.number, false));
    check_outcome(&f, DTX_OK, "at last, without faults");
    if (world->rank == 0)
        printf("%lld faults met by %d ranks: %lld saves failed, %lld did not need the call; after each a checkpoint "
               "loads\n",
               (long long)f.met, world->size, (long long)f.refused, (long long)f.unseen);
    dtx_comm_free(f.alone);
    return 0;
}
