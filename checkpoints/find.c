#include "checkpoints/ckpt.h"

#include <stdio.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "checkpoints/retain.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Is it one checkpoint's folder (whole or not), rather than a folder of them? */
static bool looks_like_checkpoint(struct dtx_ctx *ctx, const char *folder)
{
    char path[DTX_DISK_PATH];
    struct dtx_ctx quiet;
    dtx_ctx_init_child(&quiet, ctx);
    return (dtx_disk_join(&quiet, folder, DTX_CKPT_MANIFEST, path) == DTX_OK && dtx_disk_exists(path)) ||
           (dtx_disk_join(&quiet, folder, DTX_CKPT_INDEX, path) == DTX_OK && dtx_disk_exists(path));
}

/* Root: what the words mean: one checkpoint's folder, or a folder of checkpoints. */
static enum dtx_status resolve(struct dtx_ctx *ctx, const char *dir, const char *what, char out[DTX_DISK_PATH],
                               bool *single)
{
    bool latest = strcmp(what, "latest") == 0;
    size_t tail = strlen("/" DTX_CKPT_INDEX);
    if (snprintf(out, DTX_DISK_PATH, "%s", latest && dir ? dir : what) >= DTX_DISK_PATH)
        return dtx_fail(ctx, DTX_E_CONFIG, "the checkpoint's path is too long");
    if (!latest && !dtx_disk_exists(out) && dir)
        DTX_TRY(ctx, dtx_disk_join(ctx, dir, what, out));
    if (!dtx_disk_exists(out))
        return dtx_fail(ctx, DTX_E_CONFIG, "there is no checkpoint: %s does not exist", latest ? out : what);
    if (strlen(out) > tail && strcmp(out + strlen(out) - tail, "/" DTX_CKPT_INDEX) == 0)
        out[strlen(out) - tail] = '\0'; /* the index file stands for its folder */
    int64_t unused;
    DTX_TRY(ctx, dtx_disk_size(ctx, out, &unused)); /* what cannot be looked at is no file yet */
    if (!dtx_disk_is_folder(out))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s is a file; a checkpoint is a folder with %s in it", out, DTX_CKPT_INDEX);
    *single = looks_like_checkpoint(ctx, out);
    return DTX_OK;
}

/* All ranks: is what tells where everything lies whole? Its place in the sequence. */
static enum dtx_status try_folder(struct dtx_ctx *ctx, struct dtx_comm *world, const char *folder, int64_t *sequence)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, folder, &index));
    *sequence = index.manifest.sequence;
    dtx_ckpt_index_free(&index);
    return DTX_OK;
}

/* Takes the report back and says it as a warning. */
static void say_passed_over(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_ckpt_search *search,
                            const char *path, enum dtx_status fault)
{
    search->fault = fault;
    snprintf(search->why, sizeof search->why, "%.500s", ctx->error.text);
    dtx_error_clear(ctx);
    if (world->rank == 0 && !DTX_MUTANT(ckpt_passed_over_silently))
        dtx_log(ctx, DTX_LOG_WARN, "checkpoint %s is passed over: %s", path, search->why);
}

/* Root: those behind `found` in the list that are damaged and, as far as one can tell, newer. */
static void warn_passed_over(struct dtx_ctx *ctx, const char *base, const struct dtx_ckpt_place *places, int n,
                             int found)
{
    for (int i = found + 1; i < n; i++)
        if (places[i].status != DTX_OK && !DTX_MUTANT(ckpt_passed_over_silently) &&
            (places[i].sequence > places[found].sequence || places[i].step > places[found].step))
            dtx_log(ctx, DTX_LOG_WARN, "checkpoint %s/%s is passed over: %s", base, places[i].name, places[i].why);
}

/* All ranks try in turn what is left of the candidates; root knows the list. */
static enum dtx_status try_places(struct dtx_ctx *ctx, struct dtx_comm *world, const char *base,
                                  const struct dtx_ckpt_place *places, int n, struct dtx_ckpt_search *search,
                                  char found[DTX_DISK_PATH])
{
    bool again = search->before > 0;
    search->n = n;
    for (int i = 0; i < n; i++) {
        int64_t sequence = world->rank == 0 ? places[i].sequence : 0;
        enum dtx_status status = world->rank == 0 ? dtx_disk_join(ctx, base, places[i].name, found) : DTX_OK;
        DTX_TRY(ctx, dtx_comm_agree(world, status));
        DTX_TRY(ctx, dtx_comm_broadcast_bytes(world, found, DTX_DISK_PATH, 0));
        DTX_TRY(ctx, dtx_comm_broadcast_bytes(world, &sequence, sizeof sequence, 0));
        if (again && (sequence >= search->before || sequence < 0))
            continue;
        status = try_folder(ctx, world, found, &search->sequence);
        if (status == DTX_OK && world->rank == 0 && !again)
            warn_passed_over(ctx, base, places, n, i);
        if (status == DTX_OK || status == DTX_E_UNSUPPORTED)
            return status;
        say_passed_over(ctx, world, search, found, status);
    }
    if (n == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "there is no checkpoint in %s", base);
    return dtx_fail(ctx, search->fault, "none of the %d checkpoints in %s can be used; the last: %s", n, base,
                    search->why);
}

enum dtx_status dtx_ckpt_find(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir, const char *what,
                              struct dtx_ckpt_search *search, char *path, size_t path_bytes)
{
    struct {
        char base[DTX_DISK_PATH], found[DTX_DISK_PATH];
        bool single;
        int n;
    } s;
    struct dtx_ckpt_place *places = NULL;
    memset(&s, 0, sizeof s);
    enum dtx_status status = DTX_OK;
    if (world->rank == 0) {
        status = resolve(ctx, dir, what, s.base, &s.single);
        if (status == DTX_OK && !s.single)
            status = dtx_ckpt_list(ctx, s.base, &places, &s.n);
    }
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(world, status), done);
    DTX_TRY_GOTO(ctx, status, dtx_comm_broadcast_bytes(world, &s, sizeof s, 0), done);
    search->single = s.single;
    if (s.single) {
        memcpy(s.found, s.base, sizeof s.found);
        DTX_TRY_GOTO(ctx, status, try_folder(ctx, world, s.found, &search->sequence), done);
    } else {
        DTX_TRY_GOTO(ctx, status, try_places(ctx, world, s.base, places, s.n, search, s.found), done);
    }
    if (snprintf(path, path_bytes, "%s", s.found) >= (int)path_bytes)
        status = dtx_fail(ctx, DTX_E_CONFIG, "the checkpoint's path is too long: %s", s.found);
done:
    dtx_mem_free(places);
    return status;
}

bool dtx_ckpt_pass_over(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_ckpt_search *search, const char *path,
                        enum dtx_status status)
{
    if (search->single || (status != DTX_E_FORMAT && status != DTX_E_IO) || DTX_MUTANT(ckpt_load_damage_ends))
        return false;
    search->before = search->sequence;
    say_passed_over(ctx, world, search, path, status);
    return true;
}
