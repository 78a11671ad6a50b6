/* How a watched job ends: one rank prints, all leave. And the comparison before every collective. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"
#include "parallel/watch_impl.h"

/* Seconds: for copies from other hosts; until a rank that nobody killed leaves by itself, and more for every rank,
 * since that would end the one that reports too; for MPI_Abort to return. */
#define COPIES_GRACE     2.0
#define DEATH_GRACE      0.3
#define LEAVE_GRACE      4.0
#define LEAVE_GRACE_RANK 0.01
enum { ABORT_GRACE = 3 };

void dtx_watch_shared_path(const struct dtx_watch *w, const char *name, char path[DTX_WATCH_PATH])
{
    snprintf(path, DTX_WATCH_PATH, "%.*s/watch/%s", DTX_WATCH_PATH - 64, w->place.run, name);
}

/* In the run's folder, for all ranks; before there is one, and without, for those of this host. "": nowhere. */
static void alarm_path(struct dtx_watch *w, char path[DTX_WATCH_PATH])
{
    path[0] = '\0';
    if (atomic_load(&w->shared))
        dtx_watch_shared_path(w, "alarm", path);
    else if (w->place.prefix[0])
        snprintf(path, DTX_WATCH_PATH, "%.*s-alarm", DTX_WATCH_PATH - 16, w->place.prefix);
}

/* True on one rank: that which makes the alarm's file. When it cannot be made at all, better every rank than none. */
static bool claim(struct dtx_watch *w, const char *reason)
{
    char path[DTX_WATCH_PATH], text[1024];
    alarm_path(w, path);
    int fd = path[0] ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        return !path[0] || errno != EEXIST || DTX_MUTANT(watch_every_rank_reports);
    int n = snprintf(text, sizeof text, "rank %d: %.900s\n", w->ledger->rank, reason);
    if (write(fd, text, (size_t)n) != n)
        dtx_log(&w->ctx, DTX_LOG_WARN, "%s: cannot write: %s", path, strerror(errno));
    close(fd);
    return true;
}

/* A ledger as RUN/watch/rank-<r>, whole or not at all. observed: by another rank, as this state; 0: its own. */
static void leave_copy(struct dtx_watch *w, const struct dtx_ledger *ledger, int rank, char observed)
{
    char path[DTX_WATCH_PATH], temporary[DTX_WATCH_PATH + 32];
    struct dtx_ledger *copy;
    struct dtx_ctx ctx;
    dtx_ctx_init_child(&ctx, &w->ctx);
    if (dtx_ledger_copy(&ctx, ledger, &copy) != DTX_OK)
        return;
    copy->observed = observed;
    if (!observed)
        copy->seen = dtx_clock_now();
    dtx_watch_copy_path(&w->place, rank, path);
    snprintf(temporary, sizeof temporary, "%s.%d", path, w->ledger->rank);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0) {
        bool written = write(fd, copy, sizeof *copy) == (ssize_t)sizeof *copy;
        if (close(fd) != 0 || !written || rename(temporary, path) != 0)
            unlink(temporary);
    }
    dtx_mem_free(copy);
}

/* This rank's ledger, and those of ranks of this host that cannot do it themselves. */
static void leave_copies(struct dtx_watch *w)
{
    char path[DTX_WATCH_PATH];
    if (!atomic_load(&w->shared) || w->one_host)
        return;
    leave_copy(w, w->ledger, w->ledger->rank, 0);
    for (int r = 0; w->place.prefix[0] && r < w->place.size; r++) {
        const struct dtx_watch_rank *who = &w->place.ranks[r];
        if (r == w->ledger->rank || strcmp(who->host, w->ledger->host) != 0)
            continue;
        char process = dtx_watch_process(who->pid, who->born, NULL);
        struct dtx_ledger *ledger;
        struct dtx_ctx ctx;
        dtx_ctx_init_child(&ctx, &w->ctx);
        dtx_watch_ledger_path(&w->place, r, path);
        if ((process != 'X' && process != 'T') || dtx_ledger_read(&ctx, path, &ledger) != DTX_OK)
            continue;
        leave_copy(w, ledger, r, process);
        dtx_mem_free(ledger);
    }
}

/* The report as one text: printed at once, kept in RUN/watch/report.txt. */
static void report(struct dtx_watch *w, const char *reason, bool table)
{
    char *text = NULL;
    size_t bytes = 0;
    struct dtx_ctx ctx;
    struct dtx_watch_view view;
    dtx_ctx_init_child(&ctx, &w->ctx);
    FILE *memory = open_memstream(&text, &bytes);
    if (!memory)
        return;
    fprintf(memory, "dtx: error on rank %d (%s): %s\n", w->ledger->rank, w->ledger->host, reason);
    if (table && dtx_watch_view_make(&ctx, &w->place, w->ledger->host, w->ledger, &view) == DTX_OK) {
        dtx_watch_view_print(&ctx, &view, memory);
        dtx_watch_view_free(&view);
    }
    if (fclose(memory) == 0)
        fwrite(text, 1, bytes, stderr);
    if (atomic_load(&w->shared)) {
        char path[DTX_WATCH_PATH], when[64] = "";
        time_t now = (time_t)dtx_clock_wall();
        struct tm local;
        if (localtime_r(&now, &local))
            strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
        dtx_watch_shared_path(w, "report.txt", path);
        FILE *file = fopen(path, "a");
        if (file) {
            fprintf(file, "%s, launch %016" PRIx64 "\n%.*s\n", when, w->place.token, (int)bytes, text);
            fclose(file);
        }
        if (w->reported)
            w->reported(w->reported_self, reason);
    }
    free(text);
}

/* A library that hangs in its abort is ended by the signal's default action. */
static _Noreturn void leave(struct dtx_watch *w, int exit_code)
{
    signal(SIGALRM, SIG_DFL);
    alarm(ABORT_GRACE);
    dtx_watch_stop_beside(w);
    w->world->table->abort(w->world, exit_code);
    _Exit(exit_code);
}

/* While another rank reports and ends the job. */
static _Noreturn void wait_for_the_end(struct dtx_watch *w)
{
    dtx_clock_sleep(LEAVE_GRACE + LEAVE_GRACE_RANK * w->place.size);
    signal(SIGALRM, SIG_DFL);
    alarm(ABORT_GRACE);
    dtx_watch_stop_beside(w);
    _Exit(1);
}

/* One thread of a rank goes on; another one waits for the end. */
static void enter(struct dtx_watch *w)
{
    while (atomic_exchange(&w->leaving, true))
        for (;;)
            dtx_clock_sleep(1);
    if (w->ledger->end == DTX_LEDGER_RUNS)
        w->ledger->end = DTX_LEDGER_LEAVES;
}

static _Noreturn void end_job(struct dtx_watch *w, const char *reason, bool table, double grace, int exit_code)
{
    bool mine = claim(w, reason);
    leave_copies(w);
    if (!mine)
        wait_for_the_end(w);
    dtx_clock_sleep(grace);
    report(w, reason, table);
    leave(w, exit_code);
}

void dtx_watch_alarm(struct dtx_watch *w, const char *reason, bool table, bool death)
{
    enter(w);
    end_job(w, reason, table, death ? DEATH_GRACE : w->one_host ? 0 : COPIES_GRACE, 1);
}

void dtx_watch_follow(struct dtx_watch *w)
{
    char path[DTX_WATCH_PATH];
    alarm_path(w, path);
    if (!path[0] || access(path, F_OK) != 0)
        return;
    enter(w);
    leave_copies(w);
    wait_for_the_end(w);
}

void dtx_watch_fail(struct dtx_comm *world, bool table, int exit_code)
{
    if (!world->watch)
        return;
    enter(world->watch);
    end_job(world->watch, world->ctx->error.text, table, table && !world->watch->one_host ? COPIES_GRACE : 0,
            exit_code);
}

void dtx_watch_failing(struct dtx_comm *world, bool table)
{
    struct dtx_watch *w = world->watch;
    if (!w || atomic_load(&w->leaving)) /* what fails in an alarm fails of it */
        return;
    snprintf(w->ledger->cause, sizeof w->ledger->cause, "%.*s", (int)sizeof w->ledger->cause - 1,
             world->ctx->error.text);
    w->ledger->end = DTX_LEDGER_FAILS;
    if (table)
        leave_copies(w);
}

void dtx_watch_print(struct dtx_comm *world)
{
    struct dtx_watch *w = world->watch;
    struct dtx_watch_view view;
    struct dtx_ctx ctx;
    if (!w)
        return;
    dtx_ctx_init_child(&ctx, &w->ctx);
    if (dtx_watch_view_make(&ctx, &w->place, w->ledger->host, w->ledger, &view) != DTX_OK)
        return;
    dtx_watch_view_print(&ctx, &view, stderr);
    dtx_watch_view_free(&view);
}

void dtx_watch_blamed(struct dtx_comm *world, bool *blamed)
{
    struct dtx_watch *w = world->watch;
    struct dtx_watch_view view;
    struct dtx_ctx ctx;
    memset(blamed, 0, (size_t)world->size * sizeof *blamed);
    if (!w)
        return;
    dtx_ctx_init_child(&ctx, &w->ctx);
    if (dtx_watch_view_make(&ctx, &w->place, w->ledger->host, w->ledger, &view) != DTX_OK)
        return;
    dtx_watch_view_blame(&ctx, &view, blamed);
    dtx_watch_view_free(&view);
}

void dtx_watch_leave(struct dtx_comm *comm)
{
    if (comm->watch && comm->watch->ledger->end == DTX_LEDGER_RUNS)
        comm->watch->ledger->end = DTX_LEDGER_LEAVES;
}

static bool same_record(const struct dtx_watch_record *a, const struct dtx_watch_record *b)
{
    return a->op == b->op && a->peer == b->peer && a->number == b->number &&
           (DTX_MUTANT(watch_compare_ignores_bytes) || (a->bytes == b->bytes && a->dtype == b->dtype));
}

/* "rank 2 (n1) all-gather of 64 bytes f32 at x.c:7; ranks 0,1 (n1) …": every kind once. */
static void list_records(const struct dtx_comm *comm, const struct dtx_watch_record *said, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0, kinds = 0; r < comm->size && kinds < 8; r++) {
        int same = 0, world = comm->page->first + comm->page->stride * r;
        bool known = false;
        for (int k = 0; k < comm->size; k++) {
            bool equal = same_record(&said[k], &said[r]);
            known = known || (equal && k < r);
            same += equal;
        }
        if (known)
            continue;
        char others[48] = "";
        if (same > 1)
            snprintf(others, sizeof others, " and %d other%s", same - 1, same == 2 ? "" : "s");
        char root[24] = "";
        if (said[r].op == DTX_LEDGER_BROADCAST)
            snprintf(root, sizeof root, " from rank %d", said[r].peer);
        int n = snprintf(text + used, bytes - used,
                         "%srank %d (%s)%s: %s #%" PRIu64 " of %" PRId64 " bytes (%s)%s at %s:%d",
                         kinds++ ? "; but " : "", world, comm->watch->place.ranks[world].host, others,
                         dtx_ledger_op_name((enum dtx_ledger_op)said[r].op), said[r].number, said[r].bytes,
                         dtx_dtype_name((enum dtx_dtype)said[r].dtype), root, said[r].file, said[r].line);
        if (n < 0 || (size_t)n >= bytes - used)
            return;
        used += (size_t)n;
    }
}

enum dtx_status dtx_watch_compare(struct dtx_comm *comm, struct dtx_ledger_mark mark)
{
    if (!comm->said || !mark.page)
        return DTX_OK;
    const struct dtx_ledger_entry *e = &mark.page->ring[mark.place % DTX_LEDGER_RING];
    struct dtx_watch_record mine = {.number = e->number,
                                    .count = e->count,
                                    .bytes = e->bytes,
                                    .op = e->op,
                                    .dtype = e->dtype,
                                    .peer = e->peer,
                                    .line = e->line};
    memcpy(mine.file, e->file, sizeof mine.file);
    mine.file[sizeof mine.file - 1] = '\0';
    struct dtx_tensor in = dtx_tensor_1d(&mine, DTX_U8, sizeof mine),
                      out = dtx_tensor_1d(comm->said, DTX_U8, comm->size * (int64_t)sizeof mine);
    int64_t sent = comm->sent_bytes;
    enum dtx_status status = comm->table->all_gather(comm, NULL, &in, &out);
    comm->sent_bytes = sent; /* counted are the program's own bytes */
    const struct dtx_watch_record *said = comm->said;
    for (int r = 1; r < comm->size && status == DTX_OK; r++)
        if (!same_record(&said[r], &said[0])) {
            char text[2048];
            list_records(comm, said, text, sizeof text);
            status = dtx_fail(comm->ctx, DTX_E_INTERNAL,
                              "the ranks of communicator '%s' disagree about its next collective (comm.check): %s",
                              comm->name, text);
        }
    if (status != DTX_OK)
        dtx_ledger_finish(mark, false);
    return status;
}
