#include "launch/doctor/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum {
    MAX_PASSES = 256,
    MIN_PASSES = 3,
    SYNCS = 9,
    BLOCK_BYTES = 4 << 20,
    BLOCKS_PER_SYNC = 8,
    REDUCE_COUNT = 4 << 20
};
static const int64_t disk_limit_bytes = (int64_t)1 << 30;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double dtx_measure_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n ? values[n / 2] : 0;
}

/* Each thread touches its part first, so that the pages lie in its own memory. */
static void triad_start(double *a, double *b, double *c, int64_t n, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        a[i] = 0;
        b[i] = c[i] = 1;
    }
}

static void triad_pass(double *a, const double *b, const double *c, int64_t n, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        a[i] = b[i] + 3 * c[i];
}

enum dtx_status dtx_measure_triad(struct dtx_ctx *ctx, int threads, int64_t memory_bytes, double seconds,
                                  double *bytes_per_second)
{
    int64_t cache = dtx_max64(sysconf(_SC_LEVEL3_CACHE_SIZE), 16 << 20);
    int64_t array_bytes = dtx_min64(dtx_min64(4 * cache, (int64_t)128 << 20), memory_bytes / 32 / 64 * 64);
    int64_t n = dtx_max64(array_bytes, 1 << 20) / 8;
    size_t bytes = (size_t)n * 3 * sizeof(double);
    double *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return dtx_fail(ctx, DTX_E_MEMORY, "memory bandwidth: cannot map %zu bytes: %s", bytes, strerror(errno));
    double *a = memory, *b = memory + n, *c = memory + 2 * n, times[MAX_PASSES];
    triad_start(a, b, c, n, threads);
    double start = dtx_clock_now();
    int passes = 0;
    while (passes < MAX_PASSES && (passes < MIN_PASSES || dtx_clock_now() - start < seconds)) {
        double t = dtx_clock_now();
        triad_pass(a, b, c, n, threads);
        times[passes++] = dtx_clock_now() - t;
    }
    bool right = a[0] == 4 && a[n / 2] == 4 && a[n - 1] == 4;
    munmap(memory, bytes);
    if (!right)
        return dtx_fail(ctx, DTX_E_INTERNAL, "memory bandwidth: wrong sums; the memory or the build is broken");
    *bytes_per_second = 24.0 * (double)n / dtx_measure_median(times, passes);
    return DTX_OK;
}

static enum dtx_status write_all(struct dtx_ctx *ctx, int fd, const char *path, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, data, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return dtx_fail(ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
        data += written;
        n -= (size_t)written;
    }
    return DTX_OK;
}

static enum dtx_status sync_file(struct dtx_ctx *ctx, int fd, const char *path)
{
    if (fsync(fd) != 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: fsync: %s", path, strerror(errno));
    return DTX_OK;
}

/* The blocks of an open file, which follow `from`, are what was written. */
static enum dtx_status read_back(struct dtx_ctx *ctx, int fd, const char *path, const char *block, int64_t from,
                                 int64_t bytes, double seconds, double *bytes_per_second)
{
    void *memory;
    int64_t done = 0;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, BLOCK_BYTES, 1, &memory));
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    enum dtx_status status = DTX_OK;
    double start = dtx_clock_now();
    while (status == DTX_OK && done < bytes && (done == 0 || dtx_clock_now() - start < seconds)) {
        ssize_t n = pread(fd, memory, BLOCK_BYTES, from + done);
        if (DTX_MUTANT(doctor_disk_damages))
            ((char *)memory)[9] ^= 1;
        if (n < 0)
            status = dtx_fail(ctx, DTX_E_IO, "%s: cannot read: %s", path, strerror(errno));
        else if (n != BLOCK_BYTES || memcmp(memory, block, BLOCK_BYTES) != 0)
            status = dtx_fail(ctx, DTX_E_IO, "%s: what is read at byte %lld is not what was written", path,
                              (long long)(from + done));
        done += BLOCK_BYTES;
    }
    *bytes_per_second = (double)done / (dtx_clock_now() - start);
    dtx_mem_free(memory);
    return status;
}

/* On an open empty file. */
static enum dtx_status disk_passes(struct dtx_ctx *ctx, int fd, const char *path, const char *block, double seconds,
                                   struct dtx_disk_speed *out)
{
    double times[SYNCS], start = dtx_clock_now();
    int syncs = 0;
    while (syncs < SYNCS && (syncs < 1 || dtx_clock_now() - start < seconds / 2)) {
        double t = dtx_clock_now();
        DTX_TRY(ctx, write_all(ctx, fd, path, block, 4096));
        DTX_TRY(ctx, sync_file(ctx, fd, path));
        times[syncs++] = dtx_clock_now() - t;
    }
    int64_t written = 0; /* flushed in pieces, so that a slow disk ends in time too */
    start = dtx_clock_now();
    while (written < disk_limit_bytes && (written == 0 || dtx_clock_now() - start < seconds / 2)) {
        for (int i = 0; i < BLOCKS_PER_SYNC; i++)
            DTX_TRY(ctx, write_all(ctx, fd, path, block, BLOCK_BYTES));
        DTX_TRY(ctx, sync_file(ctx, fd, path));
        written += (int64_t)BLOCKS_PER_SYNC * BLOCK_BYTES;
    }
    out->write_bytes = (double)written / (dtx_clock_now() - start);
    out->sync = dtx_measure_median(times, syncs);
    return read_back(ctx, fd, path, block, 4096 * (int64_t)syncs, written, seconds / 2, &out->read_bytes);
}

enum dtx_status dtx_measure_disk(struct dtx_ctx *ctx, const char *folder, double seconds, struct dtx_disk_speed *out)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/.dtx-doctor-%s-%d", folder, ctx->host, (int)getpid()) >= (int)sizeof path)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: this path is too long", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot make a file: %s", path, strerror(errno));
    void *block = NULL;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, BLOCK_BYTES, 1, &block), done);
    for (int64_t i = 0; i < BLOCK_BYTES; i++)
        ((unsigned char *)block)[i] =
            (unsigned char)(i * 2654435761u >> 13); /* nothing that a file system compresses */
    DTX_TRY_GOTO(ctx, status, disk_passes(ctx, fd, path, block, seconds, out), done);
done:
    dtx_mem_free(block);
    close(fd);
    unlink(path);
    return status;
}

/* The median time of an all-reduce of `tensor`; all ranks run the same number. */
static enum dtx_status reduce_time(struct dtx_comm *comm, struct dtx_queue *queue, const struct dtx_tensor *tensor,
                                   double seconds, double *result)
{
    struct dtx_ctx *ctx = comm->ctx;
    double times[MAX_PASSES], first = dtx_clock_now();
    DTX_TRY(ctx, dtx_comm_all_reduce_sum(comm, queue, tensor));
    DTX_TRY(ctx, queue->backend->queues->wait(queue));
    first = dtx_clock_now() - first;
    int passes = first * MAX_PASSES < seconds ? MAX_PASSES : (int)(seconds / first);
    passes = passes < MIN_PASSES ? MIN_PASSES : passes;
    DTX_TRY(ctx, dtx_comm_broadcast_bytes(comm, &passes, sizeof passes, 0));
    for (int i = 0; i < passes; i++) {
        double start = dtx_clock_now();
        DTX_TRY(ctx, dtx_comm_all_reduce_sum(comm, queue, tensor));
        DTX_TRY(ctx, queue->backend->queues->wait(queue));
        times[i] = dtx_clock_now() - start;
    }
    *result = dtx_measure_median(times, passes);
    return DTX_OK;
}

enum dtx_status dtx_measure_all_reduce(struct dtx_comm *comm, struct dtx_backend *backend, double seconds,
                                       double *bytes_per_second, double *latency_seconds)
{
    struct dtx_ctx *ctx = comm->ctx;
    struct dtx_tensor large = dtx_tensor_1d(NULL, DTX_F32, REDUCE_COUNT), one;
    struct dtx_queue *queue = NULL;
    double time = 0, latency = 0;
    enum dtx_status status = backend->queues->create(backend, &queue);
    if (status == DTX_OK)
        status = dtx_tensor_alloc(backend, &large);
    DTX_TRY_GOTO(ctx, status, dtx_comm_agree(comm, status), done);
    one = dtx_tensor_rows(&large, 0, 1);
    DTX_TRY_GOTO(ctx, status, reduce_time(comm, queue, &one, seconds / 4, &latency), done);
    DTX_TRY_GOTO(ctx, status, reduce_time(comm, queue, &large, seconds * 3 / 4, &time), done);
    *bytes_per_second = (double)REDUCE_COUNT * 4 / time;
    *latency_seconds = latency;
done:
    dtx_tensor_free(backend, &large);
    if (queue)
        backend->queues->free(queue);
    return status;
}
