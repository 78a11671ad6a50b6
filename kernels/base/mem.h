/*
 * Host memory and checked arithmetic. Allocations are 64-byte aligned and zeroed; every narrowing goes through here.
 */
#ifndef DTX_KERNELS_BASE_MEM_H
#define DTX_KERNELS_BASE_MEM_H

#include "kernels/base/status.h"

/* n·size bytes, zeroed, 64-byte aligned; at least one byte, so that a pointer is never NULL on success. */
enum dtx_status dtx_mem_alloc(struct dtx_ctx *ctx, int64_t n, size_t size, void **out);
/* Room for one more behind the n elements of `list` (from dtx_mem_alloc; NULL: none yet): *out is the list, or, where
 * *capacity was reached, one twice as long with the same elements, zeros behind them, and the old one is freed. */
enum dtx_status dtx_mem_grow(struct dtx_ctx *ctx, void *list, int64_t n, size_t size, int64_t *capacity, void **out);
/* Accepts NULL. */
void dtx_mem_free(void *p);
/* An int that holds `value`, else DTX_E_RANGE naming `what`. */
enum dtx_status dtx_narrow_int(struct dtx_ctx *ctx, int64_t value, const char *what, int *out);
/* A copy of text (free with dtx_mem_free). */
enum dtx_status dtx_mem_text(struct dtx_ctx *ctx, const char *text, char **out);

static inline int64_t dtx_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t dtx_round_up(int64_t a, int64_t b)
{
    return dtx_div_up(a, b) * b;
}
static inline int64_t dtx_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t dtx_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
