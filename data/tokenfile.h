/*
 * Megatron token files: PREFIX.bin holds tokens, PREFIX.idx says where sequences and documents start (bytes:
 * README.md).
 *
 * Reader: one descriptor each for data and index, pread at 64-bit offsets, no scan of the data. Tokens are addressed as
 * one array, the concatenation of all sequences. The header, all sizes and both ends of the index are checked at open,
 * every entry too when there are at most DTX_TOKENFILE_CHECKED; beyond that entries are checked where they are used
 * and by dtx_tokenfile_verify. Functions that take a const file may run on several threads at once.
 *
 * Writer: memory does not grow with the output; nothing has its final name before dtx_tokenwriter_publish.
 */
#ifndef DTX_DATA_TOKENFILE_H
#define DTX_DATA_TOKENFILE_H

#include "kernels/base/status.h"

enum { DTX_TOKENFILE_CHECKED = 1 << 20 };

struct dtx_tokenfile_info {
    int64_t tokens, sequences, documents;
    int64_t data_bytes, index_bytes;
    int token_bytes;
    const char *type; /* "u16", "i32", … */
    const char *data_path, *index_path;
};

struct dtx_tokenfile;

/* vocab > 0: ids at or beyond it are refused when read, and a type too small for it at once; 0: any id ≥ 0 passes. */
enum dtx_status dtx_tokenfile_open(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, struct dtx_tokenfile **out);
/* The same without going through the index: for ranks beside one that does. */
enum dtx_status dtx_tokenfile_open_trusted(struct dtx_ctx *ctx, const char *prefix, int64_t vocab,
                                           struct dtx_tokenfile **out);
void dtx_tokenfile_close(struct dtx_tokenfile *f); /* accepts NULL */
const struct dtx_tokenfile_info *dtx_tokenfile_info(const struct dtx_tokenfile *f);
/* Tokens [first, first + n) of the concatenation, out[n]. */
enum dtx_status dtx_tokenfile_read(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t first, int64_t n,
                                   int32_t *out);
/* First token of document d; d = documents gives the number of tokens. */
enum dtx_status dtx_tokenfile_document(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t d, int64_t *first);
/* The last document that starts at or before `token`: O(log documents). */
enum dtx_status dtx_tokenfile_find(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t token, int64_t *d);
/* Reads the whole index and every token. *largest = the largest id, -1 without tokens. */
enum dtx_status dtx_tokenfile_verify(struct dtx_ctx *ctx, const struct dtx_tokenfile *f, int64_t *largest);

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
