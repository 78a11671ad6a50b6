#include "checkpoints/retain.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/index.h"
#include "checkpoints/manifest.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

void dtx_ckpt_folder_name(const char *prefix, int64_t step, char out[48])
{
    snprintf(out, 48, "%sstep-%08lld", prefix, (long long)step);
}

bool dtx_ckpt_folder_step(const char *name, const char *prefix, int64_t *step)
{
    char again[48];
    size_t skip = strlen(prefix);
    long long value;
    if (strncmp(name, prefix, skip) != 0 || sscanf(name + skip, "step-%lld", &value) != 1 || value < 0)
        return false;
    dtx_ckpt_folder_name(prefix, value, again);
    *step = value;
    return strcmp(again, name) == 0;
}

enum dtx_status dtx_ckpt_each_entry(struct dtx_ctx *ctx, const char *dir,
                                    enum dtx_status (*visit)(struct dtx_ctx *ctx, void *self, const char *name),
                                    void *self)
{
    DIR *folder = opendir(dir);
    if (!folder)
        return dtx_fail(ctx, dtx_status_of_path(errno), "cannot open folder %s: %s", dir, strerror(errno));
    struct dirent *entry;
    enum dtx_status status = DTX_OK;
    errno = 0;
    while (status == DTX_OK && (entry = readdir(folder))) {
        status = visit(ctx, self, entry->d_name);
        errno = 0;
    }
    if (status == DTX_OK && errno != 0)
        status = dtx_fail(ctx, DTX_E_IO, "cannot read folder %s: %s", dir, strerror(errno));
    closedir(folder);
    return status;
}

struct listing {
    const char *dir;
    struct dtx_ckpt_place *places;
    int n, room;
};

static enum dtx_status add_place(struct dtx_ctx *ctx, void *self, const char *name)
{
    struct listing *list = self;
    int64_t step;
    char path[DTX_DISK_PATH], final[48];
    if (!dtx_ckpt_folder_step(name, "", &step)) {
        if (!dtx_ckpt_folder_step(name, ".old-", &step))
            return DTX_OK;
        dtx_ckpt_folder_name("", step, final);
        DTX_TRY(ctx, dtx_disk_join(ctx, list->dir, final, path));
        if (dtx_disk_is_folder(path))
            return DTX_OK;
    }
    if (list->n == list->room) {
        void *more;
        DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * list->room + 16, sizeof *list->places, &more));
        if (list->n)
            memcpy(more, list->places, (size_t)list->n * sizeof *list->places);
        dtx_mem_free(list->places);
        list->places = more;
        list->room = 2 * list->room + 16;
    }
    struct dtx_ckpt_place *place = &list->places[list->n];
    struct dtx_ckpt_manifest manifest;
    DTX_TRY(ctx, dtx_disk_join(ctx, list->dir, name, path));
    snprintf(place->name, sizeof place->name, "%s", name);
    place->step = step;
    struct dtx_ctx probe; /* a fault of one checkpoint is a finding, not a failure */
    dtx_ctx_init_child(&probe, ctx);
    manifest.sequence = -1;
    place->status = dtx_ckpt_manifest_read(&probe, path, &manifest);
    place->sequence = manifest.sequence;
    snprintf(place->why, sizeof place->why, "%.500s", probe.error.text);
    list->n++;
    return DTX_OK;
}

static int newest_first(const void *a, const void *b)
{
    const struct dtx_ckpt_place *x = a, *y = b;
    bool x_newer = x->status == DTX_E_UNSUPPORTED, y_newer = y->status == DTX_E_UNSUPPORTED;
    if (x_newer != y_newer)
        return x_newer ? -1 : 1;
    if ((x->status == DTX_OK) != (y->status == DTX_OK))
        return x->status == DTX_OK ? -1 : 1;
    if (x->status == DTX_OK && x->sequence != y->sequence && !DTX_MUTANT(ckpt_order_by_step))
        return x->sequence < y->sequence ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

enum dtx_status dtx_ckpt_list(struct dtx_ctx *ctx, const char *dir, struct dtx_ckpt_place **out, int *n)
{
    struct listing list = {.dir = dir};
    enum dtx_status status = dtx_ckpt_each_entry(ctx, dir, add_place, &list);
    if (status != DTX_OK) {
        dtx_mem_free(list.places);
        return status;
    }
    if (list.n)
        qsort(list.places, (size_t)list.n, sizeof *list.places, newest_first);
    *out = list.places;
    *n = list.n;
    return DTX_OK;
}

int64_t dtx_ckpt_next_sequence(const struct dtx_ckpt_place *places, int n)
{
    int64_t next = 1, gap = 0;
    for (int i = 0; i < n; i++) {
        next = dtx_max64(next, places[i].sequence + 1);
        if (places[i].status == DTX_E_IO && places[i].sequence < 0 && !DTX_MUTANT(ckpt_unreadable_forgotten))
            gap = 1 << 20;
    }
    return next + gap;
}

static enum dtx_status tidy_entry(struct dtx_ctx *ctx, void *self, const char *name)
{
    int64_t step;
    char path[DTX_DISK_PATH], final[DTX_DISK_PATH], final_name[48];
    DTX_TRY(ctx, dtx_disk_join(ctx, self, name, path));
    if (dtx_ckpt_folder_step(name, ".old-", &step)) {
        dtx_ckpt_folder_name("", step, final_name);
        DTX_TRY(ctx, dtx_disk_join(ctx, self, final_name, final));
        if (!dtx_disk_exists(final))
            return dtx_disk_rename(ctx, path, final);
        int64_t unused; /* the old one goes only when its successor is certainly there */
        DTX_TRY(ctx, dtx_disk_size(ctx, final, &unused));
        return dtx_disk_remove_folder(ctx, path);
    }
    if (dtx_ckpt_folder_step(name, ".new-", &step) || dtx_ckpt_folder_step(name, ".gone-", &step))
        return dtx_disk_remove_folder(ctx, path);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_tidy(struct dtx_ctx *ctx, const char *dir)
{
    return dtx_ckpt_each_entry(ctx, dir, tidy_entry, (void *)dir);
}

/* Renamed first, so that a kill in the middle leaves no damaged checkpoint under a good name. */
static enum dtx_status remove_checkpoint(struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_place *place)
{
    char path[DTX_DISK_PATH], gone[DTX_DISK_PATH], name[48];
    dtx_ckpt_folder_name(".gone-", place->step, name);
    DTX_TRY(ctx, dtx_disk_join(ctx, dir, place->name, path));
    DTX_TRY(ctx, dtx_disk_join(ctx, dir, name, gone));
    DTX_TRY(ctx, dtx_disk_rename(ctx, path, gone));
    return dtx_disk_remove_folder(ctx, gone);
}

/* The held-out loss that a checkpoint was saved with; NaN: it has none, or cannot be read. */
static double heldout_of(const struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_place *place)
{
    struct dtx_ctx quiet;
    struct dtx_ckpt_index index;
    char path[DTX_DISK_PATH];
    dtx_ctx_init_child(&quiet, ctx);
    if (dtx_disk_join(&quiet, dir, place->name, path) != DTX_OK || dtx_ckpt_index_read(&quiet, path, &index) != DTX_OK)
        return NAN;
    double loss = index.meta.heldout;
    dtx_ckpt_index_free(&index);
    return loss;
}

/* Marks the complete checkpoints with the lowest losses; they are ordered newest first. */
static enum dtx_status mark_best(struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_place *places, int n,
                                 int best, bool *kept)
{
    void *memory;
    if (best <= 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof(double), &memory));
    double *loss = memory;
    for (int i = 0; i < n; i++)
        loss[i] = places[i].status == DTX_OK ? heldout_of(ctx, dir, &places[i]) : NAN;
    for (; best > 0; best--) {
        int lowest = -1;
        for (int i = 0; i < n; i++)
            if (!isnan(loss[i]) &&
                (lowest < 0 || (DTX_MUTANT(ckpt_retain_worst) ? loss[i] > loss[lowest] : loss[i] < loss[lowest])))
                lowest = i;
        if (lowest < 0)
            break;
        kept[lowest] = true;
        loss[lowest] = NAN;
    }
    dtx_mem_free(memory);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_retain(struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_save_options *options)
{
    struct dtx_ckpt_place *places;
    void *memory = NULL;
    int n;
    if (options->keep <= 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_ckpt_list(ctx, dir, &places, &n));
    int good = 0, all = 0;
    enum dtx_status status = dtx_mem_alloc(ctx, n, sizeof(bool), &memory);
    bool *kept = memory;
    if (status == DTX_OK)
        status = mark_best(ctx, dir, places, n, options->keep_best, kept);
    for (int i = 0; i < n; i++)
        all += places[i].status == DTX_OK;
    for (int i = 0; i < n && status == DTX_OK; i++) {
        if (places[i].status != DTX_OK)
            continue;
        good++;
        bool recent = DTX_MUTANT(ckpt_retain_oldest) ? good > all - options->keep : good <= options->keep;
        bool round = options->keep_every > 0 && places[i].step % options->keep_every == 0 &&
                     !DTX_MUTANT(ckpt_retain_every_forgotten);
        if (!recent && !round && !kept[i])
            status = remove_checkpoint(ctx, dir, &places[i]);
    }
    dtx_mem_free(memory);
    dtx_mem_free(places);
    return status;
}
