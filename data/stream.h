/*
 * Samples of a blend of sources, each one or several token files (data/blend.h has how they are written). A sample has
 * `length` inputs and as many targets, one token further on; sample m of a file has targets m·length … (m + 1)·length −
 * 1, so that every token but the first is a target once an epoch. A file of T tokens has floor((T − 1) / length)
 * samples; the tail under one sample is reported.
 *
 * The held-out part of a file is its last documents; its samples come in plain order, source by source as the weights
 * say, again from the first after the last. Training samples: the blend says which source sample i is of, the source's
 * course (data/course.h) which of its samples it is: the same sequence for any number of ranks, continued from a ledger
 * after any change of sources, weights or length.
 *
 * Opening reads no data but the ends of each file. Sample i costs O(log sources + log files + length), i up to 10^13
 * as 0; after a change within an epoch, until that epoch ends, samples are walked through one after another. A stream
 * is constant; where a reader is it keeps in a walk of its own, so that several threads may read. Not collective.
 */
#ifndef DTX_DATA_STREAM_H
#define DTX_DATA_STREAM_H

#include "data/ledger.h"

struct dtx_stream_config {
    const char *paths; /* sources, with weights or without */
    int64_t length;    /* targets of a sample */
    uint64_t seed;
    double heldout;        /* share of each file's documents, the last ones, in [0, 1) */
    bool use_heldout;      /* read the held-out part, else the rest */
    int64_t vocab;         /* ids at or beyond it are refused */
    int32_t separator;     /* id that ends a document, or −1 */
    bool doc_reset;        /* report the documents' starts */
    bool trusted;          /* another rank goes through indexes and made the ledger for these very sources */
    bool mmap;             /* map files instead of reading them */
    const char *type;      /* of raw tokens, NULL: found out */
    const char *cache_dir; /* folder of this node for copies of files, NULL or "": none */
    const char *ledger;    /* where the run stands, or NULL: */
    int64_t samples_before, length_before; /* it took so many samples of that length, of all files as one source */
};

struct dtx_stream;
struct dtx_walk;

enum dtx_status dtx_stream_open(struct dtx_ctx *ctx, const struct dtx_stream_config *config, struct dtx_stream **out);
void dtx_stream_close(struct dtx_stream *s); /* accepts NULL */

int64_t dtx_stream_samples(const struct dtx_stream *s); /* of one epoch of every source */
int64_t dtx_stream_tokens(const struct dtx_stream *s);  /* of the part that is read, over all files */
int64_t dtx_stream_tail(const struct dtx_stream *s);    /* of these, those in no sample */
int64_t dtx_stream_length(const struct dtx_stream *s);
int64_t dtx_stream_first(const struct dtx_stream *s);                       /* the sample at which the run stands */
const struct dtx_data_ledger *dtx_stream_start(const struct dtx_stream *s); /* the ledger at that sample */

/* A walk belongs to one reader at a time. */
enum dtx_status dtx_walk_open(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk **out);
void dtx_walk_close(struct dtx_walk *walk); /* accepts NULL */

/* Rows [n][length]. targets: −1 where there is none. doc_start, unless NULL: position in the row where the document of
 * token t starts (behind the last separator before t); 0 when that lies before the row, and everywhere without
 * doc_reset, but in packed rows, which are made of pieces that must not see each other. */
struct dtx_rows {
    int32_t *tokens, *targets, *doc_start;
    bool packed; /* set when one of the rows is */
};
/* Samples first … first + n − 1 of the run. */
enum dtx_status dtx_stream_read(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk *walk, int64_t first,
                                int64_t n, struct dtx_rows *rows);
/* Tells the system that sample i will be read soon. */
void dtx_stream_advise(const struct dtx_stream *s, const struct dtx_walk *walk, int64_t i);
/* The ledger of the run at sample `position`, as text. */
enum dtx_status dtx_stream_ledger(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk *walk,
                                  int64_t position, const struct dtx_skip *skips, int n_skips, char **text);

/* Entropy in nats of the empirical distribution of the part's tokens: the loss of the best model that ignores all
 * context. Reads the whole part. */
enum dtx_status dtx_stream_entropy(struct dtx_ctx *ctx, const struct dtx_stream *s, double *nats);

#endif
