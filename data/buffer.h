/* Growing arrays of bytes and token ids. A zeroed struct is an empty buffer; capacity grows by half, contents stay. */
#ifndef DTX_DATA_BUFFER_H
#define DTX_DATA_BUFFER_H

#include "kernels/base/status.h"

struct dtx_bytes {
    char *data;
    int64_t n, capacity;
};

struct dtx_ids {
    int32_t *data;
    int64_t n, capacity;
};

/* Moves `used` elements of `old` to an array of at least `need` elements when *capacity is smaller; sets *out and
 * *capacity, or fails and leaves all as it was. */
enum dtx_status dtx_grow(struct dtx_ctx *ctx, void *old, int64_t used, int64_t need, size_t size, int64_t *capacity,
                         void **out);

/* Room for `extra` more elements behind the n present. */
enum dtx_status dtx_bytes_reserve(struct dtx_ctx *ctx, struct dtx_bytes *b, int64_t extra);
enum dtx_status dtx_bytes_append(struct dtx_ctx *ctx, struct dtx_bytes *b, const void *data, int64_t n);
void dtx_bytes_free(struct dtx_bytes *b);
enum dtx_status dtx_ids_reserve(struct dtx_ctx *ctx, struct dtx_ids *b, int64_t extra);
void dtx_ids_free(struct dtx_ids *b);

#endif
