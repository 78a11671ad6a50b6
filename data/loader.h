/*
 * Batches for one data rank, read ahead by a thread or inline. A global batch of G samples is the next G samples of the
 * stream's sequence that are not passed over; data rank r of p gets samples floor(G·r/p) … floor(G·(r+1)/p) − 1 of it,
 * so the ranks' parts in rank order are the global sequence, whatever p is. Batches read ahead but not handed out are
 * no part of the position.
 *
 * The loader belongs to one thread; the stream must outlive it. Not collective.
 */
#ifndef DTX_DATA_LOADER_H
#define DTX_DATA_LOADER_H

#include "data/stream.h"

struct dtx_loader_config {
    int64_t first_sample; /* where to begin; −1: where the stream's ledger stands */
    int64_t global_batch; /* samples a step, all data ranks together, ≥ dp_size */
    int dp_rank, dp_size;
    int depth;   /* batches read ahead, ≥ 1 */
    bool thread; /* false: each batch is read when it is asked for */
    bool advise; /* the system is told of all samples of a batch before the first is read */
};

struct dtx_batch {
    int64_t n, length;
    const int32_t *tokens, *targets; /* [n][length]; targets −1: none */
    const int32_t *doc_start;        /* [n][length]; all 0 without document reset, but in packed rows */
    bool packed;                     /* a row is: doc_start counts whatever doc_reset is */
    int64_t first_sample;            /* of this rank's part, in the global sequence */
    double wait_seconds;             /* how long dtx_loader_next waited for it */
};

struct dtx_loader;

enum dtx_status dtx_loader_open(struct dtx_ctx *ctx, const struct dtx_stream *stream,
                                const struct dtx_loader_config *config, struct dtx_loader **out);
/* The next batch, valid until the next call. A failed read is reported once the batches before it are handed out, with
 * its cause; after it the loader gives nothing more. */
enum dtx_status dtx_loader_next(struct dtx_ctx *ctx, struct dtx_loader *l, struct dtx_batch *out);
/* Samples consumed by the whole run up to and including the last batch handed out. */
int64_t dtx_loader_position(const struct dtx_loader *l);
/* The ledger at that position, as text (free with dtx_mem_free): what a checkpoint keeps. */
enum dtx_status dtx_loader_ledger(struct dtx_ctx *ctx, struct dtx_loader *l, char **text);
/* Samples first … end − 1 of the run are passed over and noted in the ledger: for text that a run choked on. What was
 * read ahead is read again. The loader goes on at its position, or at `back` ≥ 0 before it (weights of an earlier
 * checkpoint were loaded; not before the stream's start). */
enum dtx_status dtx_loader_skip(struct dtx_ctx *ctx, struct dtx_loader *l, int64_t first, int64_t end, int64_t back);
void dtx_loader_close(struct dtx_loader *l); /* stops the thread, also in the middle of a batch; accepts NULL */

#endif
