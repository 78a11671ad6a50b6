/*
 * Where pieces of one range of bytes lie: offsets only, the memory is somebody else's. A piece begins at a multiple of
 * DTX_PIECE_ALIGN, at the first place from the beginning that fits; only pieces in use are listed, so what is given
 * back is one with the free bytes on both sides of it. Pieces given back in another order leave no other holes than
 * those between pieces in use. Not for several threads at once.
 */
#ifndef DTX_KERNELS_BASE_ARENA_H
#define DTX_KERNELS_BASE_ARENA_H

#include "kernels/base/status.h"

enum { DTX_PIECE_ALIGN = 256 };
#define DTX_ARENA_FULL SIZE_MAX

struct dtx_piece {
    size_t first, bytes;
};

/* All zero: an arena of no bytes, in which nothing fits. */
struct dtx_arena {
    size_t bytes;
    struct dtx_piece *piece; /* in use, ascending */
    int64_t n, room;
};

/* What a piece for so many bytes takes: multiples of the alignment, one at least. */
static inline size_t dtx_piece_bytes(size_t bytes)
{
    return ((bytes ? bytes : 1) + DTX_PIECE_ALIGN - 1) / DTX_PIECE_ALIGN * DTX_PIECE_ALIGN;
}

/* *first: where the piece begins, or DTX_ARENA_FULL. */
enum dtx_status dtx_arena_cut(struct dtx_ctx *ctx, struct dtx_arena *arena, size_t bytes, size_t *first);
/* Gives a piece back; false: none begins there. */
bool dtx_arena_join(struct dtx_arena *arena, size_t first);
/* The list; the arena has no bytes then. */
void dtx_arena_free(struct dtx_arena *arena);

#endif
