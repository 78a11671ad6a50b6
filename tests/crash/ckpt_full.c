/* test: label=crash ranks=1 timeout=60 */
/* A real small file system fills up, and a real one turns read-only: the save fails with one clear message, the earlier
 * checkpoint still loads, and saving works again once there is room. Skipped where mounting is not allowed. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "tests/harness/ckpt_state.h"

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, ctx.error.text);                        \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static enum dtx_status save(struct dtx_ctx *ctx, struct dtx_comm *self, const char *dir, int64_t step)
{
    struct ckpt_state state = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, (struct ckpt_mesh){1, 1, 1});
    ckpt_state_add(&state, (struct ckpt_mesh){1, 1, 1}, 0, (uint64_t)step);
    enum dtx_status status = dtx_ckpt_save(ctx, self, dir, state.items, state.n, &meta, NULL);
    ckpt_state_free(&state);
    return status;
}

static bool finds(struct dtx_ctx *ctx, struct dtx_comm *self, const char *dir, const char *name)
{
    char path[DTX_DISK_PATH];
    return ckpt_find_whole(ctx, self, dir, "latest", path, sizeof path) == DTX_OK && strstr(path, name);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], filler[300];
    dtx_ctx_init(&ctx);
    ckpt_temp_make(dir);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", dir, "tmpfs", 0, "size=2m") != 0) {
        printf("cannot mount a small file system: %s\n", strerror(errno));
        rmdir(dir);
        return 77;
    }
    EXPECT(dtx_comm_self(&ctx, &self) == DTX_OK);
    EXPECT(save(&ctx, self, dir, 1) == DTX_OK);
    /* every amount of room between none and enough */
    snprintf(filler, sizeof filler, "%s/filler", dir);
    int failed = 0, saved = 0;
    for (int pages = 0; pages < 100 && !saved; pages += 2) {
        FILE *file = fopen(filler, "w");
        EXPECT(file);
        char page[4096] = {1};
        while (fwrite(page, sizeof page, 1, file) == 1 && fflush(file) == 0)
            ;
        fclose(file);
        long size = 0;
        file = fopen(filler, "r");
        EXPECT(file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0);
        fclose(file);
        EXPECT(truncate(filler, size - 4096L * pages > 0 ? size - 4096L * pages : 0) == 0);
        enum dtx_status status = save(&ctx, self, dir, 2);
        if (status == DTX_OK) {
            saved++;
        } else {
            failed++;
            EXPECT(strstr(ctx.error.text, "No space left on device"));
            dtx_error_clear(&ctx);
            /* what is left is the first checkpoint, whole; or the second where only `latest` did not fit any more */
            EXPECT(unlink(filler) == 0);
            EXPECT(finds(&ctx, self, dir, "step-00000001") || finds(&ctx, self, dir, "step-00000002"));
        }
    }
    EXPECT(failed > 5 && saved == 1);
    EXPECT(finds(&ctx, self, dir, "step-00000002"));
    EXPECT(mount("none", dir, NULL, MS_REMOUNT | MS_RDONLY, "size=2m") == 0);
    EXPECT(save(&ctx, self, dir, 3) == DTX_E_IO && strstr(ctx.error.text, "Read-only file system"));
    dtx_error_clear(&ctx);
    EXPECT(finds(&ctx, self, dir, "step-00000002")); /* reading needs no writing */
    dtx_comm_free(self);
    EXPECT(umount(dir) == 0 && rmdir(dir) == 0);
    return 0;
}
