#include "parallel/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"
#include "parallel/watch_impl.h"

enum {
    KEPT_SECONDS = 7 * 24 * 3600, /* ledgers of dead ranks that nobody asked for */
    SUSPENDED_SECONDS = 5         /* a thread that slept so much longer than it wanted: the job was suspended */
};

/* Never 0. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    return dtx_hash(&(uint64_t[2]){a, b}, 2 * sizeof a, 0) | 1;
}

/* Room for what the members say, and a page; world ranks of the members when they lie regularly. */
static void open_page(struct dtx_comm *comm, uint64_t id)
{
    struct dtx_watch *w = comm->watch;
    if (w->options.check &&
        dtx_mem_alloc(comm->ctx, comm->size, sizeof(struct dtx_watch_record), &comm->said) != DTX_OK)
        dtx_error_clear(comm->ctx);
    comm->page = dtx_ledger_open_page(w->ledger, id, comm->name, comm->rank, comm->size);
    if (!comm->page) {
        dtx_log(comm->ctx, DTX_LOG_WARN, "communicator '%s' is not watched: more than %d of them", comm->name,
                DTX_LEDGER_PAGES);
        return;
    }
    int first = dtx_comm_mpi_world_rank(comm, 0),
        stride = comm->size > 1 ? dtx_comm_mpi_world_rank(comm, 1) - first : 0;
    const int probes[] = {comm->rank, comm->size - 1}; /* axes are regular; others are found out by these */
    bool regular = true;
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++)
        regular = regular && dtx_comm_mpi_world_rank(comm, probes[i]) == first + stride * probes[i];
    comm->page->first = first;
    comm->page->stride = regular ? stride : 0;
}

void dtx_watch_join(struct dtx_comm *part, struct dtx_comm *parent, int color)
{
    if (!parent->page)
        return;
    uint64_t id = mix(mix(parent->page->id, ++parent->page->splits), (uint64_t)color);
    if (!part || part->size == 1)
        return;
    part->watch = parent->watch;
    open_page(part, id);
}

/* The first folder that can be written to. */
static const char *choose_dir(const char *wanted)
{
    const char *const dirs[] = {wanted, "/dev/shm", getenv("TMPDIR"), "/tmp"};
    if (wanted[0])
        return strcmp(wanted, "none") == 0 ? NULL : wanted;
    for (size_t i = 1; i < sizeof dirs / sizeof *dirs; i++)
        if (dirs[i] && dirs[i][0] && access(dirs[i], W_OK | X_OK) == 0)
            return dirs[i];
    return NULL;
}

/* "local" without a scheduler. */
static const char *job_name(char *text, size_t bytes)
{
    static const char *const variables[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"};
    const char *name = NULL;
    for (size_t i = 0; i < sizeof variables / sizeof *variables && !name; i++)
        name = getenv(variables[i]);
    snprintf(text, bytes, "%s", name && *name ? name : "local");
    for (char *c = text; *c; c++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_", *c))
            *c = '_';
    return text;
}

/* Rank 0's folder and token, on all ranks. */
static enum dtx_status agree_place(struct dtx_watch *w)
{
    struct {
        uint64_t token;
        char prefix[DTX_WATCH_PATH];
    } chosen = {0, ""};
    if (w->world->rank == 0) {
        char job[64];
        if (getrandom(&chosen.token, sizeof chosen.token, GRND_NONBLOCK) != sizeof chosen.token)
            chosen.token = mix((uint64_t)getpid(), (uint64_t)(1e9 * dtx_clock_wall()));
        const char *dir = choose_dir(w->options.dir);
        if (dir)
            snprintf(chosen.prefix, sizeof chosen.prefix, "%.*s/dtx-watch-%s-%016" PRIx64, DTX_WATCH_PATH - 128, dir,
                     job_name(job, sizeof job), chosen.token);
    }
    DTX_TRY(w->world->ctx, dtx_comm_broadcast_bytes(w->world, &chosen, sizeof chosen, 0));
    w->place.token = chosen.token;
    w->place.size = w->world->size;
    memcpy(w->place.prefix, chosen.prefix, sizeof chosen.prefix);
    return DTX_OK;
}

static enum dtx_status make_ledger(struct dtx_watch *w)
{
    struct dtx_ctx *ctx = w->world->ctx;
    enum dtx_status status = DTX_E_IO;
    if (w->place.prefix[0]) {
        char path[DTX_WATCH_PATH];
        dtx_watch_ledger_path(&w->place, w->world->rank, path);
        status = dtx_ledger_create(ctx, path, &w->ledger);
        if (status == DTX_OK)
            memcpy(w->path, path, sizeof path);
        else
            dtx_log(ctx, DTX_LOG_WARN, "comm.watch_dir: %s; this rank's ledger would not outlive it", ctx->error.text);
        dtx_error_clear(ctx);
    }
    if (status != DTX_OK)
        DTX_TRY(ctx, dtx_ledger_create(ctx, NULL, &w->ledger));
    w->ledger->rank = w->world->rank;
    w->ledger->size = w->world->size;
    w->ledger->token = w->place.token;
    dtx_watch_process(w->ledger->pid, 0, &w->ledger->born);
    snprintf(w->ledger->host, sizeof w->ledger->host, "%s", ctx->host);
    return DTX_OK;
}

/* Who all ranks are, and which of this host comes next after this one. */
static enum dtx_status meet_ranks(struct dtx_watch *w)
{
    struct dtx_watch_rank mine = {.pid = w->ledger->pid, .born = w->ledger->born};
    snprintf(mine.host, sizeof mine.host, "%s", w->ledger->host[0] ? w->ledger->host : "unknown");
    void *ranks;
    int size = w->world->size;
    DTX_TRY(w->world->ctx, dtx_mem_alloc(w->world->ctx, size, sizeof mine, &ranks));
    w->place.ranks = ranks;
    DTX_TRY(w->world->ctx, dtx_comm_gather_bytes(w->world, &mine, sizeof mine, ranks));
    w->neighbour = -1;
    w->one_host = true;
    for (int i = 1; i < size; i++) {
        int r = (w->world->rank + i) % size;
        bool here = strcmp(w->place.ranks[r].host, mine.host) == 0;
        w->one_host = w->one_host && here;
        if (here && w->neighbour < 0)
            w->neighbour = r;
        if (here && r < w->world->rank)
            w->lowest_here = false;
    }
    return DTX_OK;
}

/* From when on this rank has not gone on: the last begin or end of anything. */
static double last_activity(const struct dtx_ledger *ledger)
{
    double last = 0;
    for (int p = 0; p < DTX_LEDGER_PAGES; p++) {
        const struct dtx_ledger_page *page = &ledger->pages[p];
        uint64_t written = page->id ? page->written : 0;
        if (written && page->ring[(written - 1) % DTX_LEDGER_RING].start > last)
            last = page->ring[(written - 1) % DTX_LEDGER_RING].start;
        double ended = page->id ? page->ended : 0;
        last = ended > last ? ended : last;
    }
    return last;
}

/* Something of this rank takes too long. */
static void look_at_self(struct dtx_watch *w, double now)
{
    for (int p = 0; p < DTX_LEDGER_PAGES; p++) {
        const struct dtx_ledger_page *page = &w->ledger->pages[p];
        double since;
        const struct dtx_ledger_entry *e = page->id ? dtx_ledger_waiting(page, &since) : NULL;
        if (!e || w->ledger->end != DTX_LEDGER_RUNS || DTX_MUTANT(watch_never_times_out))
            continue; /* a rank that failed says so itself, after its grace */
        since = since > w->floor ? since : w->floor;
        double patience = DTX_MUTANT(ledger_impatient) ? 0 : page->patience,
               allowed = patience > 0 ? patience : w->options.timeout;
        if (now - since <= allowed)
            continue;
        char reason[512];
        snprintf(reason, sizeof reason,
                 "%s #%" PRIu64 " on '%s' of %" PRId64 " bytes at %.63s:%d has not finished in %.1f s (%s %g)",
                 dtx_ledger_op_name((enum dtx_ledger_op)e->op), e->number, page->name, e->bytes, e->file, e->line,
                 now - since, patience > 0 ? "it may take" : "comm.timeout", allowed);
        dtx_watch_alarm(w, reason, true, false);
    }
}

/* The next rank of this node died without a word. */
static void look_at_neighbour(struct dtx_watch *w)
{
    char path[DTX_WATCH_PATH], reason[512];
    if (w->neighbour < 0 || DTX_MUTANT(watch_death_unnoticed))
        return;
    const struct dtx_watch_rank *who = &w->place.ranks[w->neighbour];
    if (dtx_watch_process(who->pid, who->born, NULL) != 'X')
        return;
    struct dtx_ledger *ledger = NULL;
    dtx_watch_ledger_path(&w->place, w->neighbour, path);
    if (w->place.prefix[0] && dtx_ledger_read(&w->ctx, path, &ledger) != DTX_OK)
        dtx_error_clear(&w->ctx);
    bool told = ledger && ledger->end != DTX_LEDGER_RUNS;
    dtx_mem_free(ledger);
    if (told) {
        w->neighbour = -1; /* it has reported, or follows another's alarm */
        return;
    }
    snprintf(reason, sizeof reason, "rank %d (%s, pid %d) is gone: it was killed, or ended without the others",
             w->neighbour, who->host, who->pid);
    dtx_watch_alarm(w, reason, true, true);
}

static void look(struct dtx_watch *w)
{
    double now = dtx_clock_now();
    if (now - w->looked > SUSPENDED_SECONDS && !DTX_MUTANT(watch_suspension_counts))
        w->floor = now;
    w->looked = now;
    atomic_store_explicit(&w->ledger->seen, now, memory_order_relaxed);
    dtx_watch_look_beside(w);
    look_at_self(w, now);
    look_at_neighbour(w);
    bool quiet = now - last_activity(w->ledger) > w->options.timeout / 2;
    if (quiet || (w->options.stop_asked && w->options.stop_asked()))
        dtx_watch_follow(w);
}

static void *run_thread(void *argument)
{
    struct dtx_watch *w = argument;
    double period = w->options.timeout / 10;
    period = period < 0.05 ? 0.05 : period > 0.25 ? 0.25 : period;
    pthread_mutex_lock(&w->mutex);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(1e9 * period);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&w->changed, &w->mutex, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&w->mutex);
        look(w);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static enum dtx_status start_thread(struct dtx_watch *w)
{
    w->looked = w->floor = dtx_clock_now();
    if (w->options.timeout <= 0)
        return DTX_OK;
    int code = pthread_create(&w->thread, NULL, run_thread, w);
    if (code != 0)
        return dtx_fail(w->world->ctx, DTX_E_MEMORY, "cannot start the watch thread: %s", strerror(code));
    w->threaded = true;
    return DTX_OK;
}

static enum dtx_status create(struct dtx_comm *world, const struct dtx_watch_options *options)
{
    void *p;
    DTX_TRY(world->ctx, dtx_mem_alloc(world->ctx, 1, sizeof(struct dtx_watch), &p));
    struct dtx_watch *w = p;
    pthread_condattr_t attributes;
    w->world = world;
    w->options = *options;
    w->lowest_here = true;
    dtx_ctx_init_child(&w->ctx, world->ctx);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_mutex_init(&w->beside_mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    world->watch = w;
    return DTX_OK;
}

enum dtx_status dtx_watch_start(struct dtx_comm *world, const struct dtx_watch_options *options)
{
    if (world->size == 1)
        return DTX_OK;
    DTX_TRY(world->ctx, dtx_comm_agree(world, create(world, options)));
    DTX_TRY(world->ctx, agree_place(world->watch));
    DTX_TRY(world->ctx, dtx_comm_agree(world, make_ledger(world->watch)));
    DTX_TRY(world->ctx, meet_ranks(world->watch));
    open_page(world, mix(world->watch->place.token, 0));
    return dtx_comm_agree(world, start_thread(world->watch));
}

/* Rank 0: the folder, without what an earlier launch left there but its report. */
static bool make_shared(struct dtx_watch *w, const char *run)
{
    char path[DTX_WATCH_PATH];
    struct dtx_ctx *ctx = w->world->ctx;
    if (!realpath(run, w->place.run))
        return false;
    snprintf(path, sizeof path, "%.*s/watch", DTX_WATCH_PATH - 32, w->place.run);
    DIR *dir = mkdir(path, 0777) == 0 || errno == EEXIST ? opendir(path) : NULL;
    if (!dir)
        return false;
    bool clean = true; /* an old alarm would end this launch */
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strncmp(entry->d_name, "rank", 4) == 0 || strcmp(entry->d_name, "alarm") == 0)
            clean = unlinkat(dirfd(dir), entry->d_name, 0) == 0 && clean;
    closedir(dir);
    if (clean && dtx_watch_place_write(ctx, &w->place) == DTX_OK)
        return true;
    dtx_error_clear(ctx);
    return false;
}

/* One rank a host: ledgers that dead ranks have left. */
static void sweep(struct dtx_watch *w)
{
    char folder[DTX_WATCH_PATH];
    snprintf(folder, sizeof folder, "%s", w->place.prefix);
    char *slash = strrchr(folder, '/');
    if (!slash || !w->lowest_here)
        return;
    *slash = '\0';
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[2 * DTX_WATCH_PATH];
        struct stat info;
        struct dtx_ledger *ledger = NULL;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strncmp(entry->d_name, "dtx-watch-", 10) != 0 || lstat(path, &info) != 0 || info.st_uid != geteuid())
            continue;
        bool old = dtx_clock_wall() - (double)info.st_mtime > KEPT_SECONDS;
        if (dtx_ledger_read(&w->ctx, path, &ledger) != DTX_OK)
            dtx_error_clear(&w->ctx);
        bool dead = !ledger || (ledger->token != w->place.token && strcmp(ledger->host, w->ledger->host) == 0 &&
                                dtx_watch_process(ledger->pid, ledger->born, NULL) == 'X');
        if (dead && (old || (ledger && strcmp(ledger->run, w->place.run) == 0)))
            unlink(path);
        dtx_mem_free(ledger);
    }
    if (dir)
        closedir(dir);
}

enum dtx_status dtx_watch_share(struct dtx_comm *world, const char *run,
                                void (*reported)(void *self, const char *cause), void *self)
{
    struct dtx_watch *w = world->watch;
    if (!w || atomic_load(&w->shared)) /* a run's later stages find it shared */
        return DTX_OK;
    char path[DTX_WATCH_PATH] = "";
    if (world->rank == 0) {
        if (make_shared(w, run))
            snprintf(path, sizeof path, "%s", w->place.run);
        else
            dtx_log(world->ctx, DTX_LOG_WARN, "%s/watch cannot be written: hangs are reported by every host for itself",
                    run);
    }
    DTX_TRY(world->ctx, dtx_comm_broadcast_bytes(world, path, sizeof path, 0));
    memcpy(w->place.run, path, sizeof path);
    snprintf(w->ledger->run, sizeof w->ledger->run, "%.511s", path);
    w->reported = reported;
    w->reported_self = self;
    if (path[0])
        sweep(w);
    atomic_store(&w->shared, path[0] != '\0');
    return DTX_OK;
}

void dtx_watch_patience(struct dtx_comm *comm, double seconds)
{
    if (comm->page)
        comm->page->patience = seconds > 0 ? seconds : HUGE_VAL;
}

void dtx_watch_describe(struct dtx_comm *world, const char *mesh)
{
    if (world->watch)
        snprintf(world->watch->ledger->mesh, sizeof world->watch->ledger->mesh, "%s", mesh);
}

void dtx_watch_stop(struct dtx_comm *world)
{
    struct dtx_watch *w = world->watch;
    char path[DTX_WATCH_PATH];
    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    if (w->threaded)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    pthread_mutex_destroy(&w->beside_mutex);
    if (w->path[0] && !DTX_MUTANT(watch_ledger_left_behind))
        unlink(w->path);
    if (w->shared) {
        dtx_watch_copy_path(&w->place, world->rank, path);
        unlink(path);
        if (world->rank == 0) {
            dtx_watch_shared_path(w, "ranks", path);
            unlink(path);
            dtx_watch_shared_path(w, "", path);
            rmdir(path); /* stays when it holds an earlier report */
        }
    }
    world->page = NULL;
    world->watch = NULL;
    dtx_ledger_unmap(w->ledger);
    dtx_mem_free(w->place.ranks);
    dtx_mem_free(w);
}
