#include "data/inflow.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "data/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { CHUNK_BYTES = 64 << 10, WINDOW_LOG_MOST = 31 };
enum kind { PLAIN, GZIP, ZSTD };

struct dtx_inflow {
    char *path;
    int fd;
    enum kind kind;
    char *chunk; /* compressed bytes [start, end) are not used yet */
    size_t start, end;
    int64_t consumed; /* bytes read of the file */
    bool at_end;      /* of the file */
    bool inside;      /* a member or frame has begun and not ended */
    bool zip_ready;
    z_stream zip;
    ZSTD_DStream *zstd;
};

/* Reads more when all is used. */
static enum dtx_status refill(struct dtx_ctx *ctx, struct dtx_inflow *f)
{
    int64_t got;
    if (f->start < f->end || f->at_end)
        return DTX_OK;
    DTX_TRY(ctx, dtx_file_read_some(ctx, f->fd, f->path, f->chunk, CHUNK_BYTES, &got));
    f->start = 0;
    f->end = (size_t)got;
    f->consumed += got;
    f->at_end = got == 0;
    return DTX_OK;
}

/* The first bytes decide: a pipe may hand out fewer than four at once. */
static enum dtx_status sniff(struct dtx_ctx *ctx, struct dtx_inflow *f)
{
    while (f->end < 4 && !f->at_end) {
        int64_t got;
        DTX_TRY(ctx, dtx_file_read_some(ctx, f->fd, f->path, f->chunk + f->end, CHUNK_BYTES - f->end, &got));
        f->end += (size_t)got;
        f->consumed += got;
        f->at_end = got == 0;
    }
    const unsigned char *p = (const unsigned char *)f->chunk;
    if (f->end >= 2 && p[0] == 0x1f && p[1] == 0x8b)
        f->kind = GZIP;
    else if (f->end >= 4 && (memcmp(p, "\x28\xb5\x2f\xfd", 4) == 0 ||
                             ((p[0] & 0xf0) == 0x50 && memcmp(p + 1, "\x2a\x4d\x18", 3) == 0)))
        f->kind = ZSTD;
    return DTX_OK;
}

static enum dtx_status open_decoder(struct dtx_ctx *ctx, struct dtx_inflow *f)
{
    if (f->kind == GZIP) {
        f->zip_ready = inflateInit2(&f->zip, 15 + 16) == Z_OK;
        if (!f->zip_ready)
            return dtx_fail(ctx, DTX_E_MEMORY, "%s: zlib cannot start: no memory", f->path);
    }
    if (f->kind == ZSTD) {
        f->zstd = ZSTD_createDStream();
        if (!f->zstd || ZSTD_isError(ZSTD_DCtx_setParameter(f->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MOST)))
            return dtx_fail(ctx, DTX_E_MEMORY, "%s: zstd cannot start: no memory", f->path);
    }
    return DTX_OK;
}

enum dtx_status dtx_inflow_open(struct dtx_ctx *ctx, const char *path, struct dtx_inflow **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_inflow), &p));
    struct dtx_inflow *f = p;
    f->fd = -1;
    enum dtx_status status;
    int64_t bytes;
    DTX_TRY_GOTO(ctx, status, dtx_mem_text(ctx, path, &f->path), fail);
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, CHUNK_BYTES, 1, &p), fail);
    f->chunk = p;
    if (strcmp(path, "-") == 0)
        f->fd = STDIN_FILENO;
    else
        DTX_TRY_GOTO(ctx, status, dtx_file_open(ctx, path, &f->fd, &bytes), fail);
    DTX_TRY_GOTO(ctx, status, sniff(ctx, f), fail);
    DTX_TRY_GOTO(ctx, status, open_decoder(ctx, f), fail);
    *out = f;
    return DTX_OK;
fail:
    dtx_inflow_close(f);
    return status;
}

void dtx_inflow_close(struct dtx_inflow *f)
{
    if (!f)
        return;
    if (f->zip_ready)
        inflateEnd(&f->zip);
    ZSTD_freeDStream(f->zstd); /* accepts NULL */
    if (f->fd >= 0 && f->fd != STDIN_FILENO)
        close(f->fd);
    dtx_mem_free(f->chunk);
    dtx_mem_free(f->path);
    dtx_mem_free(f);
}

int64_t dtx_inflow_consumed(const struct dtx_inflow *f)
{
    return f->consumed;
}

static int64_t place(const struct dtx_inflow *f)
{
    return f->consumed - (int64_t)(f->end - f->start);
}

/* Behind a gzip member: another one, or zeros that some writers pad with, or the end. */
static enum dtx_status next_member(struct dtx_ctx *ctx, struct dtx_inflow *f)
{
    DTX_TRY(ctx, refill(ctx, f));
    while (f->start < f->end && f->chunk[f->start] == 0) {
        f->start++;
        DTX_TRY(ctx, refill(ctx, f));
    }
    if (f->start == f->end)
        return DTX_OK;
    if ((unsigned char)f->chunk[f->start] != 0x1f)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: what follows at byte %lld is not gzip", f->path, (long long)place(f));
    inflateReset(&f->zip);
    return DTX_OK;
}

static enum dtx_status step_gzip(struct dtx_ctx *ctx, struct dtx_inflow *f, char *out, size_t bytes, int64_t *got)
{
    f->zip.next_in = (unsigned char *)f->chunk + f->start;
    f->zip.avail_in = (unsigned)(f->end - f->start);
    f->zip.next_out = (unsigned char *)out;
    f->zip.avail_out = (unsigned)bytes;
    int rc = inflate(&f->zip, Z_NO_FLUSH);
    f->start = f->end - f->zip.avail_in;
    *got = (int64_t)(bytes - f->zip.avail_out);
    f->inside = rc != Z_STREAM_END;
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: damaged gzip near byte %lld: %s", f->path, (long long)place(f),
                        f->zip.msg ? f->zip.msg : "no data");
    return rc == Z_STREAM_END ? next_member(ctx, f) : DTX_OK;
}

static enum dtx_status step_zstd(struct dtx_ctx *ctx, struct dtx_inflow *f, char *out, size_t bytes, int64_t *got)
{
    ZSTD_inBuffer in = {f->chunk, f->end, f->start};
    ZSTD_outBuffer to = {out, bytes, 0};
    size_t rc = ZSTD_decompressStream(f->zstd, &to, &in);
    f->start = in.pos;
    *got = (int64_t)to.pos;
    f->inside = rc != 0;
    if (ZSTD_isError(rc))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: damaged zstd near byte %lld: %s", f->path, (long long)place(f),
                        ZSTD_getErrorName(rc));
    return DTX_OK;
}

static enum dtx_status read_plain(struct dtx_ctx *ctx, struct dtx_inflow *f, char *out, size_t bytes, int64_t *got)
{
    if (f->start == f->end && bytes >= CHUNK_BYTES) { /* without a copy */
        DTX_TRY(ctx, dtx_file_read_some(ctx, f->fd, f->path, out, bytes, got));
        f->consumed += *got;
        return DTX_OK;
    }
    DTX_TRY(ctx, refill(ctx, f));
    size_t n = f->end - f->start < bytes ? f->end - f->start : bytes;
    memcpy(out, f->chunk + f->start, n);
    f->start += n;
    *got = (int64_t)n;
    return DTX_OK;
}

enum dtx_status dtx_inflow_read(struct dtx_ctx *ctx, struct dtx_inflow *f, void *out, size_t bytes, int64_t *got)
{
    *got = 0;
    if (bytes > 1 << 30)
        bytes = 1 << 30; /* zlib counts with unsigned int */
    if (f->kind == PLAIN)
        return read_plain(ctx, f, out, bytes, got);
    while (*got == 0) {
        DTX_TRY(ctx, refill(ctx, f));
        bool empty = f->start == f->end && f->at_end;
        if (empty && !f->inside)
            return DTX_OK;
        DTX_TRY(ctx, (f->kind == GZIP ? step_gzip : step_zstd)(ctx, f, out, bytes, got));
        if (empty && *got == 0 && f->inside && !DTX_MUTANT(inflow_truncation_unseen))
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the %s stream is cut off at byte %lld", f->path,
                            f->kind == GZIP ? "gzip" : "zstd", (long long)f->consumed);
        if (empty && *got == 0)
            return DTX_OK;
    }
    return DTX_OK;
}

enum dtx_status dtx_inflow_skip(struct dtx_ctx *ctx, struct dtx_inflow *f, int64_t bytes)
{
    if (f->kind == PLAIN && lseek(f->fd, bytes, SEEK_SET) == bytes) { /* nothing but the first chunk was read */
        f->start = f->end = 0;
        f->at_end = false;
        f->consumed = bytes;
        return DTX_OK;
    }
    void *p;
    int64_t left = bytes, got = 1;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, CHUNK_BYTES, 1, &p));
    enum dtx_status status = DTX_OK;
    while (left > 0 && got > 0) {
        DTX_TRY_GOTO(ctx, status, dtx_inflow_read(ctx, f, p, (size_t)dtx_min64(left, CHUNK_BYTES), &got), done);
        left -= got;
    }
    if (left > 0)
        status = dtx_fail(ctx, DTX_E_FORMAT, "%s has %lld bytes of text, %lld were to be passed over", f->path,
                          (long long)(bytes - left), (long long)bytes);
done:
    dtx_mem_free(p);
    return status;
}
