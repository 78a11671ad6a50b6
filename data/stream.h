/*
 * Samples of token files. A sample is length + 1 tokens; sample i of a source covers tokens i·length … i·length +
 * length of its training or held-out part, so the next sample starts at the last one's target and every token but the
 * first is a target once. A part of T tokens has floor((T − 1) / length) samples; the tail under one sample is unused.
 *
 * The held-out part of a source is its last documents, cut from the index alone. Training samples of all sources
 * together come in the order of data/order.h: epoch after epoch, each sample once an epoch, the same for every number
 * of ranks. Held-out samples come in plain order, again from the first after the last.
 *
 * Opening reads no data; a read costs O(log sources + length). Not collective. Reading is safe on several threads.
 */
#ifndef DTX_DATA_STREAM_H
#define DTX_DATA_STREAM_H

#include "kernels/base/status.h"

struct dtx_stream_config {
    const char *paths; /* prefixes of .bin/.idx pairs, separated by commas */
    int64_t length;    /* tokens of a sample, the last target not counted */
    uint64_t seed;
    double heldout;    /* share of each source's documents, the last ones, in [0, 1) */
    bool use_heldout;  /* read the held-out part, else the rest */
    int64_t vocab;     /* ids at or beyond it are refused */
    int32_t separator; /* id that ends a document, or −1 */
    bool doc_reset;    /* report the documents' starts */
    bool trusted;      /* another rank goes through the indexes at opening: not all of 10^4 need to */
};

struct dtx_stream;

enum dtx_status dtx_stream_open(struct dtx_ctx *ctx, const struct dtx_stream_config *config, struct dtx_stream **out);
void dtx_stream_close(struct dtx_stream *s); /* accepts NULL */

int64_t dtx_stream_samples(const struct dtx_stream *s); /* of one epoch */
int64_t dtx_stream_tokens(const struct dtx_stream *s);  /* of the part that is read, over all sources */
int64_t dtx_stream_tail(const struct dtx_stream *s);    /* of these, those in no sample */
int64_t dtx_stream_length(const struct dtx_stream *s);

/* Samples first … first + n − 1 of the endless sequence: tokens[n][length + 1] and, unless NULL,
 * doc_start[n][length]: the position in the sample where the document of token t starts (after the last separator
 * before t), 0 when that lies before the sample; all 0 without doc_reset. */
enum dtx_status dtx_stream_read(struct dtx_ctx *ctx, const struct dtx_stream *s, int64_t first, int64_t n,
                                int32_t *tokens, int32_t *doc_start);

/* Entropy in nats of the empirical distribution of the part's tokens: the loss of the best model that ignores all
 * context. Reads the whole part. */
enum dtx_status dtx_stream_entropy(struct dtx_ctx *ctx, const struct dtx_stream *s, double *nats);

#endif
