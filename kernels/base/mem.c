#include "kernels/base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum dtx_status dtx_mem_alloc(struct dtx_ctx *ctx, int64_t n, size_t size, void **out)
{
    size_t bytes;
    if (n < 0 || __builtin_mul_overflow((size_t)n, size, &bytes) || bytes > SIZE_MAX - 64)
        return dtx_fail(ctx, DTX_E_MEMORY, "impossible allocation of %lld × %zu bytes", (long long)n, size);
    bytes = bytes ? (bytes + 63) / 64 * 64 : 64;
    void *p = aligned_alloc(64, bytes);
    if (!p)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory allocating %zu bytes", bytes);
    memset(p, 0, bytes);
    *out = p;
    return DTX_OK;
}

enum dtx_status dtx_mem_grow(struct dtx_ctx *ctx, void *list, int64_t n, size_t size, int64_t *capacity, void **out)
{
    enum { FIRST = 32 };
    *out = list;
    if (n < *capacity)
        return DTX_OK;
    int64_t longer = *capacity ? 2 * *capacity : FIRST;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, longer, size, out));
    if (n)
        memcpy(*out, list, (size_t)n * size);
    dtx_mem_free(list);
    *capacity = longer;
    return DTX_OK;
}

void dtx_mem_free(void *p)
{
    free(p);
}

enum dtx_status dtx_narrow_int(struct dtx_ctx *ctx, int64_t value, const char *what, int *out)
{
    if (value < INT_MIN || value > INT_MAX)
        return dtx_fail(ctx, DTX_E_RANGE, "%s = %lld does not fit 32 bits", what, (long long)value);
    *out = (int)value;
    return DTX_OK;
}

enum dtx_status dtx_mem_text(struct dtx_ctx *ctx, const char *text, char **out)
{
    void *p = NULL;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)strlen(text) + 1, 1, &p));
    strcpy(p, text);
    *out = p;
    return DTX_OK;
}
