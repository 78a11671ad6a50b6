#include "parallel/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static const char magic[8] = "dtxledg";

const char *dtx_ledger_op_name(enum dtx_ledger_op op)
{
    static const char *const names[DTX_LEDGER_OPS] = {
        "all-reduce sum", "all-reduce max", "reduce-scatter", "all-gather", "broadcast", "barrier", "split", "end",
        "send",           "receive"};
    return (unsigned)op < DTX_LEDGER_OPS ? names[op] : "unknown";
}

enum dtx_status dtx_ledger_create(struct dtx_ctx *ctx, const char *path, struct dtx_ledger **out)
{
    size_t bytes = sizeof(struct dtx_ledger);
    int fd = -1;
    if (path) {
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        int code =
            fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes); /* a full folder is found out now, not by SIGBUS */
        if (code != 0) {
            if (fd >= 0) {
                close(fd);
                unlink(path);
            }
            return dtx_fail(ctx, DTX_E_IO, "%s: cannot make: %s", path, strerror(code));
        }
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED) {
        if (path)
            unlink(path);
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot map: %s", path ? path : "ledger", strerror(code));
    }
    struct dtx_ledger *ledger = p;
    memcpy(ledger->magic, magic, sizeof magic);
    ledger->format = DTX_LEDGER_FORMAT;
    ledger->bytes = (uint32_t)bytes;
    ledger->pid = (int32_t)getpid();
    ledger->wall = dtx_clock_wall() - dtx_clock_now();
    ledger->seen = dtx_clock_now();
    *out = ledger;
    return DTX_OK;
}

void dtx_ledger_unmap(struct dtx_ledger *ledger)
{
    if (ledger)
        munmap(ledger, sizeof *ledger);
}

struct dtx_ledger_page *dtx_ledger_open_page(struct dtx_ledger *ledger, uint64_t id, const char *name, int rank,
                                             int size)
{
    for (int i = 0; i < DTX_LEDGER_PAGES; i++) {
        struct dtx_ledger_page *page = &ledger->pages[i];
        if (page->id != 0)
            continue;
        memset((char *)page + sizeof page->id, 0, sizeof *page - sizeof page->id);
        snprintf(page->name, sizeof page->name, "%s", name);
        page->rank = rank;
        page->size = size;
        page->id = id;
        return page;
    }
    return NULL;
}

void dtx_ledger_close_page(struct dtx_ledger_page *page)
{
    if (page)
        page->id = 0;
}

struct dtx_ledger_mark dtx_ledger_begin(struct dtx_ledger_page *page, enum dtx_ledger_op op, enum dtx_dtype dtype,
                                        int64_t count, int peer, const char *file, int line)
{
    if (!page)
        return (struct dtx_ledger_mark){NULL, 0};
    uint64_t place = atomic_load_explicit(&page->written, memory_order_relaxed);
    struct dtx_ledger_entry *e = &page->ring[place % DTX_LEDGER_RING];
    uint64_t *counter = op == DTX_LEDGER_SEND      ? &page->sends
                        : op == DTX_LEDGER_RECEIVE ? &page->receives
                                                   : &page->collectives;
    if (!DTX_MUTANT(ledger_number_stands_still) || *counter == 0)
        ++*counter;
    atomic_store_explicit(&e->stamp, 2 * place + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    e->number = *counter;
    e->count = count;
    e->bytes = count * (int64_t)dtx_dtype_bytes(dtype);
    e->start = dtx_clock_now();
    e->end = 0;
    memcpy(e->file, file, DTX_LEDGER_FILE);
    e->line = line;
    e->peer = peer;
    e->op = (uint8_t)op;
    e->dtype = (uint8_t)dtype;
    atomic_store_explicit(&e->state, op >= DTX_LEDGER_SEND ? DTX_LEDGER_STARTED : DTX_LEDGER_WAITING,
                          memory_order_relaxed);
    atomic_store_explicit(&e->stamp, 2 * place + 2, memory_order_release);
    atomic_store_explicit(&page->written, place + 1, memory_order_release);
    return (struct dtx_ledger_mark){page, place};
}

/* The entry, if later ones have not taken its place. */
static struct dtx_ledger_entry *entry_of(struct dtx_ledger_mark mark)
{
    if (!mark.page)
        return NULL;
    struct dtx_ledger_entry *e = &mark.page->ring[mark.place % DTX_LEDGER_RING];
    return atomic_load_explicit(&e->stamp, memory_order_relaxed) == 2 * mark.place + 2 ? e : NULL;
}

void dtx_ledger_wait(struct dtx_ledger_mark mark)
{
    struct dtx_ledger_entry *e = entry_of(mark);
    if (!e)
        return;
    e->start = dtx_clock_now();
    atomic_store_explicit(&e->state, DTX_LEDGER_WAITING, memory_order_release);
}

void dtx_ledger_finish(struct dtx_ledger_mark mark, bool ok)
{
    if (!mark.page)
        return;
    double now = dtx_clock_now();
    struct dtx_ledger_entry *e = entry_of(mark);
    atomic_store_explicit(&mark.page->ended, now, memory_order_relaxed);
    if (!e)
        return;
    e->end = now;
    atomic_store_explicit(&e->state, ok ? DTX_LEDGER_DONE : DTX_LEDGER_FAILED, memory_order_release);
}

bool dtx_ledger_patient(const struct dtx_ledger_page *page, const struct dtx_ledger_entry *entry, double now)
{
    return page->patience > 0 && !DTX_MUTANT(ledger_impatient) &&
           (entry->state != DTX_LEDGER_WAITING || now - entry->start <= page->patience);
}

const struct dtx_ledger_entry *dtx_ledger_waiting(const struct dtx_ledger_page *page, double *since)
{
    const struct dtx_ledger_entry *found = NULL;
    for (int i = 0; i < DTX_LEDGER_RING; i++) {
        const struct dtx_ledger_entry *e = &page->ring[i];
        if (atomic_load_explicit(&e->state, memory_order_acquire) == DTX_LEDGER_WAITING &&
            (!found || e->start < found->start))
            found = e;
    }
    if (found) { /* one that was queued behind others waits since the one before it ended */
        double ended = atomic_load_explicit(&page->ended, memory_order_relaxed);
        *since = ended > found->start ? ended : found->start;
    }
    return found;
}

/* An entry that its writer may be changing. */
static void copy_entry(const struct dtx_ledger_entry *from, struct dtx_ledger_entry *to)
{
    uint64_t before = atomic_load_explicit(&from->stamp, memory_order_acquire);
    memcpy((void *)to, (const void *)from, sizeof *to);
    atomic_thread_fence(memory_order_acquire);
    uint64_t after = atomic_load_explicit(&from->stamp, memory_order_relaxed);
    if ((before != after || before % 2 == 1) && !DTX_MUTANT(ledger_torn_entry_taken))
        *to = (struct dtx_ledger_entry){.stamp = 0};
    to->file[DTX_LEDGER_FILE - 1] = '\0';
}

enum dtx_status dtx_ledger_copy(struct dtx_ctx *ctx, const struct dtx_ledger *ledger, struct dtx_ledger **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof *ledger, &p));
    struct dtx_ledger *copy = p;
    memcpy((void *)copy, (const void *)ledger, offsetof(struct dtx_ledger, pages));
    copy->host[sizeof copy->host - 1] = copy->mesh[sizeof copy->mesh - 1] = '\0';
    copy->cause[sizeof copy->cause - 1] = copy->run[sizeof copy->run - 1] = '\0';
    for (int i = 0; i < DTX_LEDGER_PAGES; i++) {
        const struct dtx_ledger_page *from = &ledger->pages[i];
        struct dtx_ledger_page *to = &copy->pages[i];
        if (from->id == 0)
            continue;
        memcpy((void *)to, (const void *)from, offsetof(struct dtx_ledger_page, ring));
        to->name[sizeof to->name - 1] = '\0';
        for (int k = 0; k < DTX_LEDGER_RING; k++)
            copy_entry(&from->ring[k], &to->ring[k]);
    }
    *out = copy;
    return DTX_OK;
}

enum dtx_status dtx_ledger_read(struct dtx_ctx *ctx, const char *path, struct dtx_ledger **out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return dtx_fail(ctx, DTX_E_IO, "%s: %s", path, strerror(code));
    }
    size_t head = offsetof(struct dtx_ledger, rank);
    void *p = (size_t)info.st_size < head ? MAP_FAILED : mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %lld bytes are no ledger of a rank", path, (long long)info.st_size);
    const struct dtx_ledger *ledger = p;
    enum dtx_status status;
    if (memcmp(ledger->magic, magic, sizeof magic) != 0)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s: is no ledger of a rank", path);
    else if (ledger->format != DTX_LEDGER_FORMAT || ledger->bytes != sizeof *ledger ||
             (size_t)info.st_size != sizeof *ledger)
        status =
            dtx_fail(ctx, DTX_E_FORMAT,
                     "%s: a ledger of format %u with %u bytes (the file has %lld), this program reads format %d "
                     "with %zu: use the dtx that runs there",
                     path, ledger->format, ledger->bytes, (long long)info.st_size, DTX_LEDGER_FORMAT, sizeof *ledger);
    else
        status = dtx_ledger_copy(ctx, ledger, out);
    munmap(p, (size_t)info.st_size);
    return status;
}
