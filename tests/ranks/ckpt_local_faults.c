/* test: label=ranks ranks=2 timeout=60 */
/* The local tier on two nodes, on whose disks each call fails in turn, of one rank or of both: a save that fails leaves
 * nothing half done, and the one before it is found and loads; looking for a checkpoint is no failure, whatever fails:
 * one is found that loads, or none, by both ranks alike. The calls are replaced by this program's own. */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpoints/local.h"
#include "tests/harness/ckpt_state.h"
#include "tests/harness/rank_check.h"

enum { ITEMS = 3 }; /* of the state: fewer calls */

static struct {
    bool armed;
    int calls, at; /* call number `at` fails */
} os;

static bool fails(void)
{
    bool now = os.armed && ++os.calls == os.at;
    if (now)
        errno = EIO;
    return now;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    return fails() ? -1 : (ssize_t)syscall(SYS_pread64, fd, data, bytes, at);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    return fails() ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, bytes, at);
}

int fsync(int fd)
{
    return fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t bytes)
{
    return fails() ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

int rename(const char *from, const char *to)
{
    return fails() ? -1 : (int)syscall(SYS_rename, from, to);
}

int mkdir(const char *path, mode_t mode)
{
    return fails() ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

struct run {
    struct dtx_comm *world;
    char dir[256], disks[300];
    struct dtx_ckpt_local_options options;
    struct dtx_ckpt_local *local;
    int64_t good; /* step of the newest that loads */
};

static const struct ckpt_mesh mesh = {2, 1, 1};

/* Call `at` of rank `who` fails from now on; 2: of both. */
static void arm(const struct run *r, int who, int at)
{
    os.calls = 0;
    os.at = at;
    os.armed = who == r->world->rank || who == 2;
}

/* Did any rank's fail? */
static bool disarm(const struct run *r)
{
    int met = os.armed && os.calls >= os.at, all[2];
    os.armed = false;
    CHECK_OK(r->world, dtx_comm_gather_bytes(r->world, &met, sizeof met, all));
    return all[0] || all[1];
}

/* The step of what is found, whose values are right; −1: nothing. */
static int64_t find(const struct run *r, int who, int at, bool *met)
{
    struct dtx_comm *world = r->world;
    struct dtx_ckpt_index index;
    struct ckpt_state state = {0};
    char folder[4096];
    bool found;
    arm(r, who, at);
    enum dtx_status status =
        dtx_ckpt_local_find(world->ctx, world, &r->options, -1, &found, &index, folder, sizeof folder);
    *met = disarm(r);
    int64_t step = status == DTX_OK && found ? index.meta.step : -1, steps[2];
    CHECK_OK(world, status);
    CHECK_OK(world, dtx_comm_gather_bytes(world, &step, sizeof step, steps));
    CHECK_THAT(world, steps[0] == steps[1], "steps %lld and %lld are found", (long long)steps[0], (long long)steps[1]);
    if (step < 0)
        return step;
    ckpt_state_add(&state, mesh, world->rank, (uint64_t)step);
    ckpt_state_clear(&state);
    int all = state.n;
    state.n = ITEMS;
    CHECK_OK(world, dtx_ckpt_index_load(world->ctx, world, folder, &index, state.items, ITEMS));
    CHECK(world, ckpt_state_differences(&state, (uint64_t)step) == 0);
    state.n = all;
    ckpt_state_free(&state);
    dtx_ckpt_index_free(&index);
    return step;
}

static bool save(struct run *r, int64_t step, int who, int at)
{
    struct dtx_comm *world = r->world;
    struct ckpt_state state = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    struct dtx_ckpt_saved saved;
    char pattern[400];
    glob_t begun;
    bool unused;
    ckpt_state_add(&state, mesh, world->rank, (uint64_t)step);
    arm(r, who, at);
    enum dtx_status status = dtx_ckpt_local_save(world->ctx, world, r->local, state.items, ITEMS, &meta, &saved);
    bool met = disarm(r);
    ckpt_state_free(&state);
    int mine = (int)status, all[2];
    CHECK_OK(world, dtx_comm_gather_bytes(world, &mine, sizeof mine, all));
    CHECK_THAT(world, all[0] == all[1], "one rank says %d, the other %d", all[0], all[1]);
    CHECK_THAT(world, met || status == DTX_OK, "no fault, but %s", world->ctx->error.text);
    dtx_error_clear(world->ctx);
    snprintf(pattern, sizeof pattern, "%s/*/*/*/.rank-*", r->disks);
    CHECK_THAT(world, glob(pattern, 0, NULL, &begun) == GLOB_NOMATCH, "call %d of rank %d leaves %s", at, who,
               begun.gl_pathv[0]);
    globfree(&begun);
    int64_t found = find(r, -1, 0, &unused);
    CHECK_THAT(world, found == step || (status != DTX_OK && found == r->good), "call %d of rank %d: step %lld is found",
               at, who, (long long)found);
    r->good = found;
    return met;
}

static int test(struct dtx_comm *world)
{
    struct run r = {.world = world};
    int64_t step = 1;
    int none = 0, calls = 0;
    bool met = true;
    world->ctx->log_level = DTX_LOG_ERROR + 1;
    if (world->rank == 0)
        ckpt_temp_make(r.dir);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, r.dir, sizeof r.dir, 0));
    snprintf(r.disks, sizeof r.disks, "%s/disks", r.dir);
    r.options = (struct dtx_ckpt_local_options){r.disks, r.dir, world->rank == 0 ? "a" : "b"};
    CHECK_OK(world, dtx_ckpt_local_open(world->ctx, world, &r.options, true, &r.local));
    save(&r, step++, -1, 0);
    for (int who = 0; who <= 2; who++)
        for (int at = 1; save(&r, step, who, at); at++, step++)
            calls++;
    save(&r, ++step, -1, 0);
    for (int who = 0; who <= 2; who++)
        for (int at = 1; met || at == 1; at++, calls++)
            none += find(&r, who, at, &met) < 0;
    CHECK_THAT(world, calls > 100 && none > 0, "%d calls, %d without a checkpoint", calls, none);
    dtx_ckpt_local_close(r.local);
    CHECK_OK(world, dtx_comm_barrier(world));
    if (world->rank == 0) {
        printf("%d calls failed; nothing was found after %d\n", calls, none);
        ckpt_temp_remove(r.dir);
    }
    return 0;
}

int main(void)
{
    return rank_main(test);
}
