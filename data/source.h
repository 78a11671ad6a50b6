/*
 * A source: a file of tokens in one of the formats of data/readers, seen as one array of ids and, where it is known,
 * the documents in it. Opening reads headers and the ends of indexes, never the tokens: O(1), whatever the size.
 *
 * Documents come from the format's index. A source without one has documents = −1; the separator, where given, then
 * marks their ends, and boundaries are searched locally, when they are asked for (dtx_source_next_document).
 *
 * Every id is checked against the vocabulary when it is read; messages name file, byte offset, token and document.
 * Functions that take a source may run on several threads at once. Not collective.
 */
#ifndef DTX_DATA_SOURCE_H
#define DTX_DATA_SOURCE_H

#include "data/filepool.h"

struct dtx_source_config {
    struct dtx_filepool *files; /* of all sources together; outlives them */
    int64_t vocab;     /* > 0: ids at or beyond it, and types too small for it, are refused; 0: any id ≥ 0 passes */
    int32_t separator; /* id that ends a document where there is no index; −1: none */
    const char *type;  /* of raw tokens: "u16", "u32", …; NULL or "auto": by index, metadata or vocabulary */
    bool trusted;      /* another rank goes through small indexes at opening: not all of 10^4 need to */
};

struct dtx_source_info {
    int64_t tokens;
    int64_t documents; /* −1: no index */
    int64_t sequences; /* of Megatron files, else as documents */
    int64_t data_bytes, index_bytes;
    int token_bytes;
    const char *format, *type;          /* "megatron"; "u16" */
    const char *data_path, *index_path; /* index_path NULL: no index */
};

struct dtx_source;

/* path: [FORMAT:]PATH. Without FORMAT: PATH.idx beside PATH.bin (also PATH ending in either) is Megatron's, *.ds
 * datatrove's, *.npy OLMo's or NumPy's, another *.bin llm.c's. */
enum dtx_status dtx_source_open(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                                struct dtx_source **out);
void dtx_source_close(struct dtx_source *s); /* accepts NULL */
const struct dtx_source_info *dtx_source_info(const struct dtx_source *s);
const char *dtx_source_formats(void); /* "datatrove|llmc|megatron|npy" */

/* Tokens [first, first + n): out[n]. */
enum dtx_status dtx_source_read(struct dtx_ctx *ctx, struct dtx_source *s, int64_t first, int64_t n, int32_t *out);
/* Tokens are read from a copy in folder `dir` of this node from now on, made at the first call. */
void dtx_source_cache(struct dtx_ctx *ctx, struct dtx_source *s, const char *dir);
/* Tells the system that they will be read soon. */
void dtx_source_advise(struct dtx_source *s, int64_t first, int64_t n);
/* First token of document d of an index; d = documents gives the number of tokens. */
enum dtx_status dtx_source_document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t d, int64_t *first);
/* The last document of an index that starts at or before `token`: O(log documents). */
enum dtx_status dtx_source_find(struct dtx_ctx *ctx, struct dtx_source *s, int64_t token, int64_t *d);
/* The first start of a document at or after `token` (the end of the tokens is one): by the index, else behind the
 * separator, which is searched for in the tokens up to token + within. −1: there is none that near. */
enum dtx_status dtx_source_next_document(struct dtx_ctx *ctx, struct dtx_source *s, int64_t token, int64_t within,
                                         int64_t *start);
/* Reads the whole index and every token. *largest = the largest id, −1 without tokens. `progress`, unless NULL, is told
 * the bytes as they are read. */
struct dtx_meter;
enum dtx_status dtx_source_verify(struct dtx_ctx *ctx, struct dtx_source *s, struct dtx_meter *progress,
                                  int64_t *largest);

#endif
