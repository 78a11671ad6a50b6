/*
 * What a format of token files provides: one file in data/readers exporting dtx_reader_<name>. Every format here keeps
 * its tokens as one array of one type in one file, so a reader only finds out where that array is and where documents
 * start; reading, checking ids and searching are the same for all (data/source.c).
 */
#ifndef DTX_DATA_READER_H
#define DTX_DATA_READER_H

#include "data/source.h"

/* An index with at most this many entries is checked whole at opening, a larger one where it is used and by verify. */
enum { DTX_READER_CHECKED = 1 << 16 };

struct dtx_token_type {
    const char *name;
    int bytes;
    int64_t ids; /* ids 0 … ids − 1 can be stored */
};

/* NULL when there is none of that name: u8 i8 i16 u16 i32 u32 i64 u64. */
const struct dtx_token_type *dtx_token_type_find(const char *name);

struct dtx_reader;

struct dtx_source {
    struct dtx_source_info info; /* a reader sets tokens, documents, sequences; source.c the rest */
    const struct dtx_reader *reader;
    const struct dtx_token_type *type;
    struct dtx_poolfile data, index;
    int64_t data_at; /* byte offset of token 0 */
    int64_t at[3];   /* the reader's own: offsets in its index */
    int64_t vocab;
    int32_t separator;
};

struct dtx_reader {
    const char *name, *help;
    /* Does the path, by its name and by what stands beside it, belong to this format? */
    bool (*owns)(const char *path);
    /* Adds the files, checks headers and sizes, sets what the source needs (source.c closes after a failure). */
    enum dtx_status (*open)(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                            struct dtx_source *s);
    /* First token of document d, 0 ≤ d < documents; NULL: the format has no index. The entries are checked. */
    enum dtx_status (*document)(struct dtx_ctx *ctx, struct dtx_source *s, int64_t d, int64_t *first);
    /* Reads the whole index. NULL: there is nothing to check but what open did. */
    enum dtx_status (*check)(struct dtx_ctx *ctx, struct dtx_source *s);
};

/* Opens PATH followed by suffix. */
enum dtx_status dtx_reader_add(struct dtx_ctx *ctx, const struct dtx_source_config *config, const char *path,
                               const char *suffix, struct dtx_poolfile *f);
bool dtx_reader_exists(const char *path, const char *suffix);
bool dtx_reader_ends(const char *path, const char *suffix);
/* The type of raw tokens: the configured one, else u16 where the vocabulary fits, else u32. A file of u32 that would be
 * read as u16 shows in its first tokens and is refused. */
enum dtx_status dtx_reader_raw_type(struct dtx_ctx *ctx, const struct dtx_source_config *config, struct dtx_source *s);

#endif
