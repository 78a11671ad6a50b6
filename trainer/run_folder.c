#include "trainer/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/mutant.h"

/* With everything above it, synced, so that no power cut takes what is saved in it; it must be writable, so that a run
 * does not find out when it first saves. */
static enum dtx_status make_folder(struct dtx_ctx *ctx, const char *key, const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char end = *p;
        *p = '\0';
        bool made = mkdir(part, 0777) == 0;
        if (!made && errno != EEXIST)
            return dtx_fail(ctx, dtx_status_of_path(errno), "%s: cannot make the folder %s: %s", key, part,
                            strerror(errno));
        if (made && !DTX_MUTANT(run_folder_not_synced))
            DTX_TRY(ctx, dtx_disk_sync_name(ctx, part));
        if (end == '\0')
            break;
        *p = end;
    }
    struct stat existing;
    if (stat(path, &existing) != 0 || !S_ISDIR(existing.st_mode) || access(path, W_OK | X_OK) != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: %s is no folder that this user may write to", key, path);
    return DTX_OK;
}

static bool holds_checkpoints(const char *path)
{
    bool found = false;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        found = strncmp(entry->d_name, "step-", 5) == 0;
    if (dir)
        closedir(dir);
    return found;
}

/* Does the checkpoint lie in this checkpoint folder? */
static bool own_checkpoint(const char *checkpoint_dir, const char *resumed_from)
{
    char folder[PATH_MAX], parent[PATH_MAX], own[PATH_MAX];
    if (strcmp(checkpoint_dir, resumed_from) == 0) /* from the nodes' disks */
        return true;
    snprintf(folder, sizeof folder, "%s/..", resumed_from);
    return realpath(folder, parent) && realpath(checkpoint_dir, own) && strcmp(parent, own) == 0;
}

/* Nobody else's metrics and checkpoints are in the way. */
static enum dtx_status check_owner(struct dtx_ctx *ctx, const char *run_dir, const char *checkpoint_dir,
                                   const char *resumed_from, bool begins_again)
{
    char path[PATH_MAX];
    struct stat existing;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    bool metrics = stat(path, &existing) == 0 && existing.st_size > 0;
    if (resumed_from && own_checkpoint(checkpoint_dir, resumed_from))
        return DTX_OK;
    if (metrics && resumed_from)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "run.dir: %s holds another run than the checkpoint %s; give the run's own folder, or a new one",
                        run_dir, resumed_from);
    if (metrics && !begins_again)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "run.dir: %s already holds a run; continue it with --resume latest, or choose another folder",
                        run_dir);
    if (holds_checkpoints(checkpoint_dir))
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "checkpoint.dir: %s already holds another run's checkpoints; choose another folder",
                        checkpoint_dir);
    return DTX_OK;
}

/* Metrics of attempts that saved nothing, which the run makes again from its beginning. */
static enum dtx_status set_aside(struct dtx_ctx *ctx, const char *run_dir, int64_t attempt)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat existing;
    snprintf(from, sizeof from, "%s/metrics.jsonl", run_dir);
    if (stat(from, &existing) != 0 || DTX_MUTANT(metrics_not_set_aside))
        return DTX_OK;
    snprintf(to, sizeof to, "%s/logs", run_dir);
    mkdir(to, 0777);
    snprintf(to, sizeof to, "%s/logs/attempt-%lld.metrics.jsonl", run_dir, (long long)attempt);
    if (rename(from, to) != 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot move %s to %s: %s", from, to, strerror(errno));
    dtx_log(ctx, DTX_LOG_INFO, "nothing was saved: the run begins again; metrics of the attempt before are in %s", to);
    return DTX_OK;
}

enum dtx_status dtx_run_folder_open(struct dtx_ctx *ctx, const char *run_dir, const char *checkpoint_dir,
                                    const char *resumed_from, const char *config, int64_t attempt_before,
                                    struct dtx_run_folder *out)
{
    char path[PATH_MAX];
    struct dtx_run_folder folder = {{-1, -1}};
    DTX_TRY(ctx, make_folder(ctx, "run.dir", run_dir));
    DTX_TRY(ctx, make_folder(ctx, "checkpoint.dir", checkpoint_dir));
    enum dtx_status status = check_owner(ctx, run_dir, checkpoint_dir, resumed_from, attempt_before >= 0);
    if (status == DTX_OK)
        status = dtx_disk_lock(ctx, "run.dir", run_dir, &folder.locks[0]);
    if (status == DTX_OK)
        status = dtx_disk_lock(ctx, "checkpoint.dir", checkpoint_dir, &folder.locks[1]);
    if (status == DTX_OK && !resumed_from && attempt_before >= 0)
        status = set_aside(ctx, run_dir, attempt_before);
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    if (status == DTX_OK) {
        FILE *file = fopen(path, "w");
        bool written = file && fputs(config, file) >= 0;
        if ((file && fclose(file) != 0) || !written)
            status = dtx_fail(ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
    }
    if (status != DTX_OK) {
        dtx_run_folder_close(&folder);
        return status;
    }
    *out = folder;
    return DTX_OK;
}

bool dtx_run_folder_idle(const char *run_dir, const char *checkpoint_dir, const char *resumed_from)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/.lock", run_dir);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    bool busy = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return DTX_MUTANT(status_of_others_written) ||
           (!busy && (!resumed_from || own_checkpoint(checkpoint_dir, resumed_from)));
}

void dtx_run_folder_close(struct dtx_run_folder *folder)
{
    for (int i = 0; i < 2; i++)
        if (folder->locks[i] > 0)
            close(folder->locks[i]);
}
