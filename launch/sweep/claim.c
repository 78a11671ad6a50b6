#include "launch/sweep/claim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "kernels/base/clock.h"
#include "kernels/base/mutant.h"

/* In the order of enum dtx_sweep_outcome. */
static const char *const outcomes[] = {"", "stopped", "crashed", "failed", "diverged", "done"};
enum { OUTCOMES = sizeof outcomes / sizeof *outcomes, LINE = 512 };

/* Without memory of the library's: also called between fork and exec. */
static void first_line(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, out, bytes - 1) : 0;
    if (fd >= 0)
        close(fd);
    out[length > 0 ? length : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

/* The start of a process in ticks since the boot, field 22 of its stat; "" when there is none. */
static void start_of(long pid, char *out, size_t bytes)
{
    char path[64], text[1024], *field;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    first_line(path, text, sizeof text);
    field = strrchr(text, ')'); /* the program's name may hold anything */
    out[0] = '\0';
    for (int i = 0; field && i < 20; i++) {
        field = strchr(field + 1, ' ');
        if (i == 0 && field && field[1] == 'Z') /* dead, nobody has asked how */
            return;
    }
    if (field)
        snprintf(out, bytes, "%.*s", (int)strcspn(field + 1, " "), field + 1);
}

void dtx_sweep_self_read(struct dtx_sweep_self *self, double stale)
{
    char boot[64], space[64] = "";
    *self = (struct dtx_sweep_self){.pid = (long)getpid(), .stale = stale};
    if (gethostname(self->host, sizeof self->host - 1) != 0)
        strcpy(self->host, "unknown");
    first_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    snprintf(self->place, sizeof self->place, "%s/%s", boot, space);
    start_of(self->pid, self->started, sizeof self->started);
    const char *array = getenv("SLURM_ARRAY_JOB_ID"), *task = getenv("SLURM_ARRAY_TASK_ID"),
               *job = getenv("SLURM_JOB_ID"), *restart = getenv("SLURM_RESTART_COUNT");
    self->restart = restart ? atoi(restart) : 0;
    if (array && task)
        snprintf(self->job, sizeof self->job, "%s_%s", array, task);
    else if (job)
        snprintf(self->job, sizeof self->job, "%s", job);
}

static void claim_path(const struct dtx_sweep *sweep, int trial, int k, const char *suffix, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/state/%s.%d%s", sweep->dir, sweep->trials.item[trial].id, k, suffix);
}

struct place { /* of an id in the table */
    const char *id;
    int index;
};

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->id, ((const struct place *)b)->id);
}

static enum dtx_status list(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const struct place *places,
                            int attempts[])
{
    char path[DTX_SWEEP_PATH], id[DTX_SWEEP_ID];
    snprintf(path, sizeof path, "%s/state", sweep->dir);
    DIR *folder = opendir(path);
    if (!folder)
        return dtx_fail(ctx, dtx_status_of_path(errno), "cannot open %s: %s", path, strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        char *end;
        if (strlen(entry->d_name) < DTX_SWEEP_ID || entry->d_name[DTX_SWEEP_ID - 1] != '.')
            continue;
        snprintf(id, sizeof id, "%.*s", DTX_SWEEP_ID - 1, entry->d_name);
        long k = strtol(entry->d_name + DTX_SWEEP_ID, &end, 10);
        struct place key = {.id = id};
        const struct place *found = bsearch(&key, places, (size_t)sweep->trials.n, sizeof *places, by_id);
        if (found && *end == '\0' && k > attempts[found->index] && k < 1000000)
            attempts[found->index] = (int)k;
    }
    closedir(folder);
    return DTX_OK;
}

enum dtx_status dtx_sweep_count_attempts(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int attempts[])
{
    int n = sweep->trials.n;
    struct place *places = malloc((size_t)n * sizeof *places + 1);
    if (!places)
        return dtx_fail(ctx, DTX_E_MEMORY, "sweep: no memory");
    for (int i = 0; i < n; i++) {
        places[i] = (struct place){sweep->trials.item[i].id, i};
        attempts[i] = 0;
    }
    qsort(places, (size_t)n, sizeof *places, by_id);
    enum dtx_status status = list(ctx, sweep, places, attempts);
    free(places);
    return status;
}

/* The value of a line "key value". */
static void take(FILE *file, const char *key, char *out, size_t bytes)
{
    char line[LINE];
    size_t length = strlen(key);
    rewind(file);
    out[0] = '\0';
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            snprintf(out, bytes, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
}

/* Seconds since the claim was touched, both by the clock of whoever keeps the files. */
static double age(const struct dtx_sweep *sweep, const char *path, const struct dtx_sweep_self *self)
{
    char now[DTX_SWEEP_PATH];
    struct stat claim, here;
    snprintf(now, sizeof now, "%s/state/.now.%s.%ld", sweep->dir, self->host, self->pid);
    int fd = open(now, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, ".", 1) != 1 || fsync(fd) != 0 || fstat(fd, &here) != 0 || stat(path, &claim) != 0) {
        if (fd >= 0)
            close(fd);
        return 0; /* not known: not dead */
    }
    close(fd);
    unlink(now);
    return (double)(here.st_mtim.tv_sec - claim.st_mtim.tv_sec) +
           1e-9 * (double)(here.st_mtim.tv_nsec - claim.st_mtim.tv_nsec);
}

static bool process_alive(long pid, const char *started)
{
    char now[32];
    start_of(pid, now, sizeof now);
    return DTX_MUTANT(sweep_pid_taken_for_process) ? *now != '\0' : *now && strcmp(now, started) == 0;
}

/* Does the trial's own process live on, though the one that started it is gone? */
static bool child_alive(const char *path)
{
    char child[DTX_SWEEP_PATH + 8], line[64];
    snprintf(child, sizeof child, "%s.pid", path);
    first_line(child, line, sizeof line);
    char *blank = strchr(line, ' ');
    return blank && process_alive(atol(line), blank + 1) && !DTX_MUTANT(sweep_orphan_unseen);
}

/* Is the process that made this claim at work, or what it started? */
static bool alive(const struct dtx_sweep *sweep, const char *path, FILE *claim, const struct dtx_sweep_attempt *attempt,
                  const struct dtx_sweep_self *self)
{
    char place[128], pid[32], started[32], restart[32];
    take(claim, "place", place, sizeof place);
    take(claim, "pid", pid, sizeof pid);
    take(claim, "started", started, sizeof started);
    if (strcmp(attempt->host, self->host) == 0 && strcmp(place, self->place) == 0)
        return process_alive(atol(pid), started) || child_alive(path);
    /* Slurm runs a job once at a time: what this very job began before it was restarted has ended. */
    take(claim, "restart", restart, sizeof restart);
    if (self->job[0] && strcmp(attempt->job, self->job) == 0 && atoi(restart) < self->restart)
        return false;
    return age(sweep, path, self) < self->stale && !DTX_MUTANT(sweep_other_hosts_dead);
}

void dtx_sweep_attempt_read(const struct dtx_sweep *sweep, int trial, int k, const struct dtx_sweep_self *self,
                            struct dtx_sweep_attempt *out)
{
    char path[DTX_SWEEP_PATH], text[LINE];
    *out = (struct dtx_sweep_attempt){.outcome = DTX_SWEEP_UNFINISHED};
    claim_path(sweep, trial, k, ".end", path);
    FILE *file = fopen(path, "re");
    if (file) {
        take(file, "outcome", text, sizeof text);
        for (int i = 1; i < OUTCOMES; i++)
            if (strcmp(text, outcomes[i]) == 0)
                out->outcome = (enum dtx_sweep_outcome)i;
        take(file, "cause", out->cause, sizeof out->cause);
        fclose(file);
    }
    claim_path(sweep, trial, k, "", path);
    file = fopen(path, "re");
    if (!file)
        return;
    take(file, "host", out->host, sizeof out->host);
    take(file, "job", out->job, sizeof out->job);
    take(file, "time", text, sizeof text);
    out->time = atof(text);
    take(file, "from", text, sizeof text);
    out->from = atoll(text);
    if (out->outcome == DTX_SWEEP_UNFINISHED)
        out->alive = alive(sweep, path, file, out, self);
    fclose(file);
}

enum dtx_status dtx_sweep_claim(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial, int k,
                                const struct dtx_sweep_self *self, int64_t from, bool *won)
{
    char path[DTX_SWEEP_PATH], mine[DTX_SWEEP_PATH], text[1024];
    struct stat made;
    claim_path(sweep, trial, k, "", path);
    snprintf(mine, sizeof mine, "%s/state/.%s.%d.%s.%ld.%s", sweep->dir, sweep->trials.item[trial].id, k, self->host,
             self->pid, self->started);
    snprintf(text, sizeof text, "host %s\nplace %s\npid %ld\nstarted %s\njob %s\nrestart %d\ntime %.3f\nfrom %lld\n",
             self->host, self->place, self->pid, self->started, self->job, self->restart, dtx_clock_wall(),
             (long long)from);
    DTX_TRY(ctx, dtx_disk_write_text(ctx, mine, text));
    int linked, cause;
    if (DTX_MUTANT(sweep_claim_overwrites))
        linked = rename(mine, path);
    else
        linked = link(mine, path);
    cause = errno;
    /* NFS may lose the answer of a link that was made. */
    *won = linked == 0 || (stat(mine, &made) == 0 && made.st_nlink == 2);
    unlink(mine);
    if (!*won && cause != EEXIST)
        return dtx_fail(ctx, DTX_E_IO, "cannot make %s: %s", path, strerror(cause));
    return DTX_OK;
}

void dtx_sweep_note_child(const struct dtx_sweep *sweep, int trial, int k)
{
    char path[DTX_SWEEP_PATH], text[64], started[32];
    claim_path(sweep, trial, k, ".pid", path);
    start_of((long)getpid(), started, sizeof started);
    int length = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), started);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, (size_t)length) != length)
        _exit(127);
    close(fd);
}

void dtx_sweep_touch(const struct dtx_sweep *sweep, int trial, int k)
{
    char path[DTX_SWEEP_PATH];
    claim_path(sweep, trial, k, "", path);
    (void)utimensat(AT_FDCWD, path, NULL, 0); /* NULL: now, by the server's clock */
}

enum dtx_status dtx_sweep_end_attempt(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial, int k,
                                      enum dtx_sweep_outcome outcome, const char *cause)
{
    char path[DTX_SWEEP_PATH], temporary[DTX_SWEEP_PATH + 8], text[LINE];
    snprintf(text, sizeof text, "outcome %s\ntime %.3f\ncause %.300s", outcomes[outcome], dtx_clock_wall(), cause);
    for (char *c = strstr(text, "cause "); c && *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    strcat(text, "\n");
    claim_path(sweep, trial, k, ".end", path);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    DTX_TRY(ctx, dtx_disk_write_text(ctx, temporary, text));
    return dtx_disk_rename(ctx, temporary, path);
}
