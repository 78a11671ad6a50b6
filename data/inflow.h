/*
 * A file or standard input as a stream of bytes, decompressed where it is gzip or zstd: told by its first bytes, so
 * names do not matter. Several members or frames in a row are one text. A stream that is cut off, damaged or followed
 * by something else is an error that names file and offset. Memory: the window of the compressor. Not collective.
 */
#ifndef DTX_DATA_INFLOW_H
#define DTX_DATA_INFLOW_H

#include "kernels/base/status.h"

struct dtx_inflow;

/* "-" is standard input. */
enum dtx_status dtx_inflow_open(struct dtx_ctx *ctx, const char *path, struct dtx_inflow **out);
void dtx_inflow_close(struct dtx_inflow *f); /* accepts NULL */
/* The next bytes of the text, at most `bytes`; *got = 0 at its end. */
enum dtx_status dtx_inflow_read(struct dtx_ctx *ctx, struct dtx_inflow *f, void *out, size_t bytes, int64_t *got);
/* Passes over bytes of the text; it is an error when it has fewer. */
enum dtx_status dtx_inflow_skip(struct dtx_ctx *ctx, struct dtx_inflow *f, int64_t bytes);
/* Bytes of the file read so far, as it lies on disk. */
int64_t dtx_inflow_consumed(const struct dtx_inflow *f);

#endif
