/* What all versions of attention share: which heads and keys belong together. */
#ifndef DTX_KERNELS_CPU_ATTN_H
#define DTX_KERNELS_CPU_ATTN_H

#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* The shape of one call. heads counts outputs; q has maps·heads sub-heads, k maps·kv_heads. */
struct dtx_cpu_attn_shape {
    int64_t b, tq, tk, heads, kv_heads, group, d, dv;
    int64_t q_first, k_first;
    const int32_t *doc_start; /* [b,tq] or NULL */
    int maps;
};

static inline struct dtx_cpu_attn_shape dtx_cpu_attn_shape(const struct dtx_tensor *q, const struct dtx_tensor *k,
                                                           const struct dtx_tensor *v, int maps, int64_t q_first,
                                                           int64_t k_first, const struct dtx_tensor *doc_start)
{
    int64_t heads = q->dim[2] / maps, kv_heads = v->dim[2];
    return (struct dtx_cpu_attn_shape){.b = q->dim[0],
                                       .tq = q->dim[1],
                                       .tk = k->dim[1],
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .group = heads / kv_heads,
                                       .d = q->dim[3],
                                       .dv = v->dim[3],
                                       .q_first = q_first,
                                       .k_first = k_first,
                                       .doc_start = doc_start->data,
                                       .maps = maps};
}

static inline int64_t dtx_cpu_attn_kv_head(const struct dtx_cpu_attn_shape *s, int64_t head)
{
    return DTX_MUTANT(attn_kv_head) ? head % s->kv_heads : head / s->group;
}

/* Rows [*first, *last) of the key piece that query row i of sample b sees; empty when *first ≥ *last. */
static inline void dtx_cpu_attn_visible(const struct dtx_cpu_attn_shape *s, int64_t b, int64_t i, int64_t *first,
                                        int64_t *last)
{
    int64_t start = s->doc_start && !DTX_MUTANT(attn_documents_ignored) ? s->doc_start[b * s->tq + i] : 0;
    int64_t end = s->q_first + i + (DTX_MUTANT(attn_no_diagonal) ? 0 : 1);
    *first = dtx_max64(0, start - s->k_first);
    *last = dtx_min64(s->tk, end - s->k_first);
}

/*
 * The tiled version: TILE_Q queries × TILE_K keys at a time, with workspace in floats (doubles for f64). Widths are
 * padded to TILE_WIDTH with zeros.
 *
 * Forward: all keys and values are packed first (attn_pack), then each (sample, head, query tile) is a unit.
 * Backward: each (sample, kv head, piece of the keys) is a unit; it makes dk and dv of its keys and its share of dq, in
 * fp32; attn_tiles_dq adds the shares in order. The number of pieces depends on the shape alone.
 */
enum { TILE_Q = 64, TILE_K = 64, TILE_WIDTH = 16, TILE_PIECES = 4, TILE_AHEAD = 2 };

struct dtx_cpu_attn_tiles {
    const void *args; /* dtx_attn_fwd_args or dtx_attn_bwd_args */
    struct dtx_cpu_attn_shape s;
    int64_t dp, dvp;             /* padded d and dv */
    int64_t q_tiles, k_tiles;    /* of one sample and head */
    int64_t pieces, piece_tiles; /* backward: pieces of the keys, key tiles in each */
    int64_t packed_tile;         /* forward: elements of one packed key tile, maps·dp·TILE_K + TILE_K·dvp */
    int64_t thread_elements;     /* of one thread's buffers */
    void *packed, *dq, *threads; /* parts of work */
    size_t work_bytes;
};

#endif
