#include "data/buffer.h"

#include <string.h>

#include "kernels/base/mem.h"

enum dtx_status dtx_grow(struct dtx_ctx *ctx, void *old, int64_t used, int64_t need, size_t size, int64_t *capacity,
                         void **out)
{
    if (need <= *capacity) {
        *out = old;
        return DTX_OK;
    }
    int64_t wanted = dtx_max64(need, dtx_max64(64, *capacity + *capacity / 2));
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, wanted, size, &p));
    if (used > 0)
        memcpy(p, old, (size_t)used * size);
    dtx_mem_free(old);
    *out = p;
    *capacity = wanted;
    return DTX_OK;
}

enum dtx_status dtx_bytes_reserve(struct dtx_ctx *ctx, struct dtx_bytes *b, int64_t extra)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, b->data, b->n, b->n + extra, 1, &b->capacity, &p));
    b->data = p;
    return DTX_OK;
}

enum dtx_status dtx_bytes_append(struct dtx_ctx *ctx, struct dtx_bytes *b, const void *data, int64_t n)
{
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, b, n));
    if (n > 0)
        memcpy(b->data + b->n, data, (size_t)n);
    b->n += n;
    return DTX_OK;
}

void dtx_bytes_free(struct dtx_bytes *b)
{
    dtx_mem_free(b->data);
    *b = (struct dtx_bytes){0};
}

enum dtx_status dtx_ids_reserve(struct dtx_ctx *ctx, struct dtx_ids *b, int64_t extra)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, b->data, b->n, b->n + extra, sizeof *b->data, &b->capacity, &p));
    b->data = p;
    return DTX_OK;
}

void dtx_ids_free(struct dtx_ids *b)
{
    dtx_mem_free(b->data);
    *b = (struct dtx_ids){0};
}
