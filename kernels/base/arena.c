#include "kernels/base/arena.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum dtx_status dtx_arena_cut(struct dtx_ctx *ctx, struct dtx_arena *a, size_t bytes, size_t *first)
{
    size_t takes = DTX_MUTANT(arena_piece_unrounded) ? bytes : dtx_piece_bytes(bytes), at = 0;
    int64_t i = 0;
    void *memory;
    *first = DTX_ARENA_FULL;
    if (bytes > a->bytes)
        return DTX_OK;
    for (; i < a->n && a->piece[i].first - at < takes; i++)
        at = a->piece[i].first + a->piece[i].bytes;
    if (i == a->n && a->bytes - at < takes && !DTX_MUTANT(arena_end_unseen))
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_grow(ctx, a->piece, a->n, sizeof *a->piece, &a->room, &memory));
    a->piece = memory;
    memmove(a->piece + i + 1, a->piece + i, (size_t)(a->n - i) * sizeof *a->piece);
    a->piece[i] = (struct dtx_piece){at, takes};
    a->n++;
    *first = at;
    return DTX_OK;
}

bool dtx_arena_join(struct dtx_arena *a, size_t first)
{
    for (int64_t i = a->n - 1; i >= 0; i--)
        if (a->piece[i].first == first) {
            a->n--;
            memmove(a->piece + i, a->piece + i + 1, (size_t)(a->n - i) * sizeof *a->piece);
            return true;
        }
    return false;
}

void dtx_arena_free(struct dtx_arena *a)
{
    dtx_mem_free(a->piece);
    *a = (struct dtx_arena){0};
}
