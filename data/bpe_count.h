/* Private to the learner: a table of pieces and how often they occur. */
#ifndef DTX_DATA_BPE_COUNT_H
#define DTX_DATA_BPE_COUNT_H

#include "data/buffer.h"
#include "data/pretokenize.h"

/* Longer pieces are no words: they are counted in slices, so that no merge walks over megabytes. */
enum { DTX_PIECE_MOST = 256 };

struct dtx_piece {
    int64_t first; /* offset into text */
    int64_t count;
    uint64_t hash;
    int32_t n; /* bytes */
};

struct dtx_counter {
    struct dtx_bytes text;
    struct dtx_piece *pieces;
    int64_t n, capacity;
    int32_t *table; /* indices of pieces, −1 empty */
    int64_t mask;
};

void dtx_counter_free(struct dtx_counter *c);
/* Counts piece[n] `times` times. A zeroed struct is an empty table. */
enum dtx_status dtx_counter_add(struct dtx_ctx *ctx, struct dtx_counter *c, const char *piece, int64_t n,
                                int64_t times);
/* Counts all pieces of text[n]. */
enum dtx_status dtx_counter_text(struct dtx_ctx *ctx, struct dtx_counter *c, struct dtx_splitter *splitter,
                                 const char *text, int64_t n);
/* Adds all of `from`. */
enum dtx_status dtx_counter_merge(struct dtx_ctx *ctx, struct dtx_counter *c, const struct dtx_counter *from);

#endif
