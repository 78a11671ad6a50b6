/* test: label=crash ranks=1 timeout=120 */
/* A process that saves all the time is killed at random instants, twenty times in one folder: each time a checkpoint
 * loads, whole, and no older than the last one that was reported as saved. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "kernels/base/clock.h"
#include "kernels/base/rng.h"
#include "tests/harness/ckpt_state.h"

enum { KILLS = 20 };

static int fault(struct dtx_ctx *ctx, int kill_number, const char *what)
{
    fprintf(stderr, "kill %d: %s: %s\n", kill_number, what, ctx->error.text);
    return 1;
}

/* Saves step, step + 1, … (every third one twice) until it is killed. */
static void save_for_ever(const char *dir, int64_t step, volatile int64_t *saved)
{
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_WARN;
    if (dtx_comm_self(&ctx, &self) != DTX_OK)
        _exit(1);
    for (;; step++)
        for (int again = 0; again <= (step % 3 == 0); again++) {
            struct ckpt_state state = {0};
            struct dtx_ckpt_meta meta = ckpt_state_meta(step, (struct ckpt_mesh){1, 1, 1});
            struct dtx_ckpt_save_options options = {.keep = 2};
            ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
            if (dtx_ckpt_save(&ctx, self, dir, state.items, state.n, &meta, &options) != DTX_OK) {
                dtx_error_print(&ctx);
                _exit(1);
            }
            *saved = step;
            ckpt_state_free(&state);
        }
}

/* The step that loads whole, or −1. */
static int64_t load_latest(struct dtx_ctx *ctx, struct dtx_comm *self, const char *dir)
{
    char path[DTX_DISK_PATH];
    struct ckpt_state state = {0};
    if (ckpt_find_whole(ctx, self, dir, "latest", path, sizeof path) != DTX_OK)
        return -1;
    int64_t step = atoll(strrchr(path, '-') + 1);
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
    ckpt_state_clear(&state);
    if (dtx_ckpt_load(ctx, self, path, state.items, state.n) != DTX_OK ||
        ckpt_state_differences(&state, (uint64_t)step) != 0)
        step = -1;
    ckpt_state_free(&state);
    return step;
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256];
    int64_t step = 1;
    dtx_ctx_init(&ctx);
    ckpt_temp_make(dir);
    volatile int64_t *saved = mmap(NULL, sizeof *saved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (saved == MAP_FAILED || dtx_comm_self(&ctx, &self) != DTX_OK)
        return 1;
    for (int k = 0; k < KILLS; k++) {
        int64_t before = *saved;
        pid_t pid = fork();
        if (pid == 0)
            save_for_ever(dir, step, saved);
        while (*saved <= before && waitpid(pid, NULL, WNOHANG) == 0) /* at least one more, then any instant */
            dtx_clock_sleep(0.001);
        dtx_clock_sleep(0.15 * dtx_rng_uniform(dtx_rng_key((uint64_t)getpid(), "kill"), (uint64_t)k));
        int result = 0;
        if (kill(pid, SIGKILL) != 0 || waitpid(pid, &result, 0) != pid || !WIFSIGNALED(result))
            return fault(&ctx, k, "the saving process ended by itself");
        int64_t found = load_latest(&ctx, self, dir);
        if (found < *saved)
            return fault(&ctx, k, "the last saved checkpoint does not load");
        step = found + 1;
    }
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
    return 0;
}
