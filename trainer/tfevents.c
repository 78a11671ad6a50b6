#include "trainer/tfevents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct dtx_tfevents {
    int fd;
    int64_t bytes; /* length of whole frames in the file */
    char path[4096];
    uint8_t *frame; /* grows; header of 12 bytes, message, footer of 4 */
    size_t capacity;
};

/* A protobuf message being written; space was made beforehand. */
struct message {
    uint8_t *data;
    size_t n;
};

/* Field numbers of event.proto and summary.proto; wire types: 0 varint, 1 eight bytes, 2 counted bytes, 5 four. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SESSION_STATUS = 1, SESSION_START = 1, SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { FRAME_HEADER = 12, FRAME_FOOTER = 4, EVENT_BYTES = 64, VALUE_BYTES = 16 };

uint32_t dtx_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}

static void put_le(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

/* TFRecord rotates the sum and adds a constant, so that a sum over data with sums inside is no fixed point. */
static void put_masked_crc(uint8_t *to, const uint8_t *data, size_t bytes)
{
    uint32_t crc = dtx_crc32c(0, data, bytes);
    if (!DTX_MUTANT(tfevents_crc_unmasked))
        crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    put_le(to, crc, 4);
}

static void add_varint(struct message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        m->data[m->n++] = (uint8_t)(value | 0x80);
    m->data[m->n++] = (uint8_t)value;
}

static void add_key(struct message *m, int field, int wire_type)
{
    add_varint(m, (uint64_t)(field << 3 | wire_type));
}

static void add_double(struct message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(m, field, 1);
    put_le(m->data + m->n, bits, 8);
    m->n += 8;
}

static void add_float(struct message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(m, field, 5);
    put_le(m->data + m->n, bits, 4);
    m->n += 4;
}

static void add_bytes(struct message *m, int field, const void *data, size_t bytes)
{
    add_key(m, field, 2);
    add_varint(m, bytes);
    memcpy(m->data + m->n, data, bytes);
    m->n += bytes;
}

/* Bytes of one Summary.Value: key and length of the tag (both one byte), the tag, key and four bytes of the float. */
static size_t value_bytes(const struct dtx_scalar *scalar)
{
    return 2 + strlen(scalar->tag) + 5;
}

static void add_summary(struct message *m, const struct dtx_scalar *scalars, int n)
{
    size_t bytes = 0; /* each value: one byte of key, one of length (tags are short) */
    for (int i = 0; i < n; i++)
        bytes += 2 + value_bytes(&scalars[i]);
    add_key(m, EVENT_SUMMARY, 2);
    add_varint(m, bytes);
    for (int i = 0; i < n; i++) {
        add_key(m, SUMMARY_VALUE, 2);
        add_varint(m, value_bytes(&scalars[i]));
        add_bytes(m, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        add_float(m, VALUE_SIMPLE, (float)scalars[i].value);
    }
}

static enum dtx_status reserve(struct dtx_ctx *ctx, struct dtx_tfevents *events, size_t bytes)
{
    if (bytes <= events->capacity)
        return DTX_OK;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)bytes, 1, &p));
    dtx_mem_free(events->frame);
    events->frame = p;
    events->capacity = bytes;
    return DTX_OK;
}

/* Room for a message of `bytes`, begun with time and step. */
static enum dtx_status begin_event(struct dtx_ctx *ctx, struct dtx_tfevents *events, size_t bytes, double wall_time,
                                   int64_t step, struct message *m)
{
    DTX_TRY(ctx, reserve(ctx, events, FRAME_HEADER + EVENT_BYTES + bytes + FRAME_FOOTER));
    *m = (struct message){events->frame + FRAME_HEADER, 0};
    add_double(m, EVENT_WALL_TIME, wall_time);
    add_key(m, EVENT_STEP, 0);
    add_varint(m, (uint64_t)step);
    return DTX_OK;
}

static enum dtx_status append_frame(struct dtx_ctx *ctx, struct dtx_tfevents *events, const struct message *m)
{
    uint8_t *frame = events->frame;
    size_t bytes = FRAME_HEADER + m->n + FRAME_FOOTER, done = 0;
    put_le(frame, m->n, 8);
    put_masked_crc(frame + 8, frame, 8);
    put_masked_crc(frame + FRAME_HEADER + m->n, m->data, m->n);
    while (done < bytes) {
        ssize_t n = write(events->fd, frame + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int cause = n < 0 ? errno : ENOSPC;
            if (ftruncate(events->fd, events->bytes) == 0)
                lseek(events->fd, events->bytes, SEEK_SET);
            return dtx_fail(ctx, DTX_E_IO, "%s: cannot append %zu bytes: %s", events->path, bytes, strerror(cause));
        }
        done += (size_t)n;
    }
    events->bytes += (int64_t)bytes;
    return DTX_OK;
}

/* The number after "events.out.tfevents." is a time in seconds; names sort by it. */
static enum dtx_status next_number(struct dtx_ctx *ctx, const char *folder, int64_t *out)
{
    static const char prefix[] = "events.out.tfevents.";
    int64_t number = (int64_t)dtx_clock_wall();
    DIR *d = opendir(folder);
    if (!d)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot read the folder: %s", folder, strerror(errno));
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d))
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0) {
            int64_t there = strtoll(entry->d_name + sizeof prefix - 1, NULL, 10);
            if (there > 0 && there < 9999999999)
                number = dtx_max64(number, there + 1);
        }
    closedir(d);
    *out = number;
    return DTX_OK;
}

static enum dtx_status write_opening(struct dtx_ctx *ctx, struct dtx_tfevents *events, int64_t first_step)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {SESSION_STATUS << 3, SESSION_START};
    double now = dtx_clock_wall();
    struct message m;
    DTX_TRY(ctx, begin_event(ctx, events, sizeof version, now, 0, &m));
    add_bytes(&m, EVENT_FILE_VERSION, version, sizeof version - 1);
    DTX_TRY(ctx, append_frame(ctx, events, &m));
    DTX_TRY(ctx, begin_event(ctx, events, sizeof start, now, first_step, &m));
    add_bytes(&m, EVENT_SESSION_LOG, start, sizeof start);
    DTX_TRY(ctx, append_frame(ctx, events, &m));
    return DTX_OK;
}

enum dtx_status dtx_tfevents_open(struct dtx_ctx *ctx, const char *folder, int64_t first_step,
                                  struct dtx_tfevents **out)
{
    int64_t number = 0;
    void *p;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot create the folder: %s", folder, strerror(errno));
    DTX_TRY(ctx, next_number(ctx, folder, &number));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tfevents), &p));
    struct dtx_tfevents *events = p;
    enum dtx_status status = DTX_OK;
    int n = snprintf(events->path, sizeof events->path, "%s/events.out.tfevents.%010lld.%s.%d", folder,
                     (long long)number, ctx->host, (int)getpid());
    events->fd = -1;
    if (n < (int)sizeof events->path)
        events->fd = open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    else
        errno = ENAMETOOLONG;
    if (events->fd < 0)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot create the file: %s", events->path, strerror(errno));
    if (status == DTX_OK)
        status = write_opening(ctx, events, first_step);
    if (status != DTX_OK) {
        dtx_tfevents_close(ctx, events);
        return status;
    }
    *out = events;
    return DTX_OK;
}

enum dtx_status dtx_tfevents_write(struct dtx_ctx *ctx, struct dtx_tfevents *events, double wall_time, int64_t step,
                                   const struct dtx_scalar *scalars, int n)
{
    size_t bytes = 0;
    struct message m;
    for (int i = 0; i < n; i++)
        bytes += value_bytes(&scalars[i]) + VALUE_BYTES;
    DTX_TRY(ctx, begin_event(ctx, events, bytes, wall_time, step, &m));
    add_summary(&m, scalars, n);
    DTX_TRY(ctx, append_frame(ctx, events, &m));
    return DTX_OK;
}

enum dtx_status dtx_tfevents_close(struct dtx_ctx *ctx, struct dtx_tfevents *events)
{
    if (!events)
        return DTX_OK;
    enum dtx_status status = DTX_OK;
    if (events->fd >= 0 && close(events->fd) != 0)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot close: %s", events->path, strerror(errno));
    dtx_mem_free(events->frame);
    dtx_mem_free(events);
    return status;
}
