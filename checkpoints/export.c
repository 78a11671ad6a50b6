/* The frame of every export: the target is made beside its final name, hidden and locked, and renamed when it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoints/convert.h"
#include "checkpoints/disk.h"
#include "kernels/base/clock.h"
#include "kernels/base/mutant.h"

#define DTX_VARIANT(format) extern const struct dtx_ckpt_format dtx_ckpt_format_##format;
#include "checkpoints/formats.inc"
#undef DTX_VARIANT

#define DTX_VARIANT(format) "|" #format
static const char names[] =
#include "checkpoints/formats.inc"
    ;
#undef DTX_VARIANT

const char *dtx_ckpt_format_names(void)
{
    return names + 1;
}

const struct dtx_ckpt_format *dtx_ckpt_format_find(const char *name)
{
    static const struct dtx_ckpt_format *const list[] = {
#define DTX_VARIANT(format) &dtx_ckpt_format_##format,
#include "checkpoints/formats.inc"
#undef DTX_VARIANT
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

struct target {
    char path[DTX_DISK_PATH], parent[DTX_DISK_PATH], temporary[DTX_DISK_PATH];
    int lock; /* descriptor of the temporary folder; the lock goes with the process */
    bool exists;
};

/* May what is there be replaced? An empty folder, or an earlier export. */
static enum dtx_status check_existing(struct dtx_ctx *ctx, struct target *t, bool force)
{
    char config[DTX_DISK_PATH];
    t->exists = dtx_disk_exists(t->path);
    if (!t->exists)
        return DTX_OK;
    if (!force)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s exists; --force replaces it", t->path);
    DTX_TRY(ctx, dtx_disk_join(ctx, t->path, "config.json", config));
    if (dtx_disk_is_folder(t->path) && (dtx_disk_exists(config) || rmdir(t->path) == 0)) {
        t->exists = dtx_disk_exists(t->path); /* an empty folder is gone now */
        return DTX_OK;
    }
    return dtx_fail(ctx, DTX_E_CONFIG, "%s is no earlier export (there is no config.json in it): it is not replaced",
                    t->path);
}

/* Two exports of one name at once: the second is refused. What a killed one left is emptied. */
static enum dtx_status lock_temporary(struct dtx_ctx *ctx, struct target *t)
{
    struct stat mine, named;
    if (mkdir(t->temporary, 0777) != 0 && errno != EEXIST)
        return dtx_fail(ctx, DTX_E_IO, "cannot make folder %s on %s: %s", t->temporary, ctx->host, strerror(errno));
    t->lock = open(t->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->lock < 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot open folder %s on %s: %s", t->temporary, ctx->host, strerror(errno));
    bool busy = flock(t->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (busy || fstat(t->lock, &mine) != 0 || stat(t->temporary, &named) != 0 || mine.st_ino != named.st_ino)
        return dtx_fail(ctx, DTX_E_CONFIG, "another dtx is writing %s", t->path);
    return dtx_disk_empty_folder(ctx, t->temporary);
}

static enum dtx_status open_target(struct dtx_ctx *ctx, const char *out, bool force, struct target *t)
{
    char name[DTX_DISK_PATH];
    size_t n = (size_t)snprintf(t->path, sizeof t->path, "%s", out);
    if (n == 0 || n >= sizeof t->path - 16)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s", n ? "--out is too long" : "--out DIR is missing");
    while (n > 1 && t->path[n - 1] == '/')
        t->path[--n] = '\0';
    const char *slash = strrchr(t->path, '/'), *last = slash ? slash + 1 : t->path;
    if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "--out %s names no new folder", out);
    DTX_TRY(ctx, check_existing(ctx, t, force));
    dtx_disk_parent(t->path, t->parent);
    DTX_TRY(ctx, dtx_disk_make_folders(ctx, t->parent));
    snprintf(name, sizeof name, ".%.*s.new", (int)(sizeof name - 16), last);
    DTX_TRY(ctx, dtx_disk_join(ctx, t->parent, name, t->temporary));
    return lock_temporary(ctx, t);
}

static enum dtx_status publish(struct dtx_ctx *ctx, const struct target *t)
{
    char aside[DTX_DISK_PATH + 8];
    DTX_TRY(ctx, dtx_disk_sync(ctx, t->temporary));
    if (!t->exists) {
        DTX_TRY(ctx, dtx_disk_rename(ctx, t->temporary, t->path));
        return dtx_disk_sync(ctx, t->parent);
    }
    snprintf(aside, sizeof aside, "%s.old", t->temporary);
    DTX_TRY(ctx, dtx_disk_swap(ctx, t->temporary, t->path, aside));
    DTX_TRY(ctx, dtx_disk_sync(ctx, t->parent));
    struct dtx_ctx quiet;
    dtx_ctx_init_child(&quiet, ctx);
    if (dtx_disk_remove_folder(&quiet, t->temporary) != DTX_OK)
        dtx_log(ctx, DTX_LOG_WARN, "the earlier export stays: %s", quiet.error.text);
    return DTX_OK;
}

/* After a failure: what was begun goes away, as far as it can. */
static void discard(struct dtx_ctx *ctx, const struct target *t)
{
    struct dtx_ctx quiet;
    dtx_ctx_init_child(&quiet, ctx);
    (void)dtx_disk_remove_folder(&quiet, t->temporary);
}

static enum dtx_status export_into(struct dtx_ctx *ctx, const struct dtx_ckpt_format *format,
                                   struct dtx_ckpt_export *job, const char *out, bool force)
{
    struct target t = {.lock = -1};
    struct dtx_meter meter;
    enum dtx_status status = open_target(ctx, out, force, &t);
    if (status == DTX_OK) {
        dtx_meter_start(&meter, stderr, "export", 0);
        job->meter = &meter;
        job->folder = DTX_MUTANT(export_in_place) && mkdir(t.path, 0777) == 0 ? t.path : t.temporary;
        status = format->export_weights(ctx, job);
        dtx_meter_clear(&meter);
        if (status == DTX_OK && !DTX_MUTANT(export_in_place))
            status = publish(ctx, &t);
        if (status == DTX_OK)
            dtx_log(ctx, DTX_LOG_INFO, "exported %s to %s: %s, %.1f MB read, %.2f s", job->checkpoint, t.path,
                    dtx_dtype_name(job->dtype), 1e-6 * (double)meter.done, dtx_clock_now() - meter.start);
        else
            discard(ctx, &t);
    }
    if (t.lock >= 0)
        close(t.lock);
    return status;
}

enum dtx_status dtx_ckpt_export(struct dtx_ctx *ctx, const struct dtx_ckpt_format *format, struct dtx_ckpt_export *job,
                                const char *out, bool force)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_read(ctx, job->checkpoint, &index));
    job->index = &index;
    enum dtx_status status = dtx_ckpt_model_read(ctx, index.meta.config, job->checkpoint, &job->model);
    if (status == DTX_OK && job->as_trained)
        job->dtype = job->model.dtype == DTX_BF16 ? DTX_BF16 : DTX_F32;
    if (status == DTX_OK)
        status = export_into(ctx, format, job, out, force);
    dtx_ckpt_index_free(&index);
    return status;
}
