/* Samples of a stream as rows of length + 1 tokens, for tests: rows[n][length + 1], starts[n][length] or NULL. */
#ifndef DTX_TESTS_UNIT_STREAM_ROWS_H
#define DTX_TESTS_UNIT_STREAM_ROWS_H

#include <stdlib.h>
#include <string.h>

#include "data/stream.h"

static inline enum dtx_status stream_rows(struct dtx_ctx *ctx, const struct dtx_stream *s, int64_t first, int64_t n,
                                          int32_t *rows, int32_t *starts)
{
    int64_t length = dtx_stream_length(s);
    int32_t *buffer = malloc(3 * (size_t)(n * length + 1) * sizeof *buffer);
    struct dtx_rows out = {buffer, buffer + n * length, buffer + 2 * n * length, false};
    struct dtx_walk *walk;
    enum dtx_status status = dtx_walk_open(ctx, s, &walk);
    if (status != DTX_OK)
        return status;
    status = dtx_stream_read(ctx, s, walk, first, n, &out);
    for (int64_t i = 0; i < n && status == DTX_OK; i++) {
        int32_t *row = rows + i * (length + 1);
        memcpy(row, out.tokens + i * length, (size_t)length * sizeof *row);
        row[length] = out.targets[(i + 1) * length - 1];
        for (int64_t t = 1; t < length; t++)
            if (out.targets[i * length + t - 1] != row[t])
                row[t] = -2; /* no test expects it */
    }
    if (starts && status == DTX_OK)
        memcpy(starts, out.doc_start, (size_t)(n * length) * sizeof *starts);
    dtx_walk_close(walk);
    free(buffer);
    return status;
}

#endif
