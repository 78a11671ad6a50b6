/*
 * The writer of Megatron's PREFIX.bin and PREFIX.idx (bytes: README.md). Memory does not grow with the output; nothing
 * has its final name before it is complete and on disk. Not collective.
 */
#ifndef DTX_DATA_TOKENWRITER_H
#define DTX_DATA_TOKENWRITER_H

#include "kernels/base/status.h"

struct dtx_tokenwriter;

/* Tokens are u16 when vocab < 65,500, else i32. A sequence has at most max_sequence tokens (0: 2^31 − 1): a longer
 * document becomes several sequences of one document. */
enum dtx_status dtx_tokenwriter_create(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t max_sequence,
                                       struct dtx_tokenwriter **out);
/* The width, whatever the vocabulary says; before the first token. */
void dtx_tokenwriter_use_u16(struct dtx_tokenwriter *w, bool narrow);
/* Adds tokens to the current document; ids outside [0, vocab) are refused. */
enum dtx_status dtx_tokenwriter_add(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, const int32_t *ids, int64_t n);
/* Ends the current document, which may be empty. */
enum dtx_status dtx_tokenwriter_end(struct dtx_ctx *ctx, struct dtx_tokenwriter *w);
/* Brings both files to disk, then gives them their names, the index last; a file of an older run is replaced. Frees the
 * writer, also on failure. The current document must have been ended. */
enum dtx_status dtx_tokenwriter_publish(struct dtx_ctx *ctx, struct dtx_tokenwriter *w);

/* For work that can be killed and continued: what the partial files hold at the end of a document. */
struct dtx_tokenwriter_mark {
    int64_t tokens, sequences, documents;
};
/* All written so far is on disk and described by *mark. */
enum dtx_status dtx_tokenwriter_save(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, struct dtx_tokenwriter_mark *mark);
/* As dtx_tokenwriter_create, with what a killed writer had saved. Reads the data once, for its checksum. */
enum dtx_status dtx_tokenwriter_continue(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t max_sequence,
                                         const struct dtx_tokenwriter_mark *mark, struct dtx_tokenwriter **out);
/* What was written so far. */
struct dtx_tokenwriter_mark dtx_tokenwriter_written(const struct dtx_tokenwriter *w);
int dtx_tokenwriter_token_bytes(const struct dtx_tokenwriter *w);

struct dtx_tokenwriter_sums {
    int64_t data_bytes, index_bytes;
    uint64_t data_hash, index_hash; /* xxh3 */
};
/* Writes the index and brings both files to disk under their partial names: only the renames are left, which
 * dtx_tokenwriter_publish does, or after a kill dtx_tokenwriter_rename. */
enum dtx_status dtx_tokenwriter_seal(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, struct dtx_tokenwriter_sums *sums);
/* Does those renames that are left of a sealed pair, and removes what only the writer needed; nothing, when all is
 * done. */
enum dtx_status dtx_tokenwriter_rename(struct dtx_ctx *ctx, const char *prefix);
void dtx_tokenwriter_keep(struct dtx_tokenwriter *w);    /* closes, the partial files stay; accepts NULL */
void dtx_tokenwriter_discard(struct dtx_tokenwriter *w); /* leaves nothing behind; accepts NULL */

#endif
