/*
 * How far `dtx tokenize` has come: counts of each input, the finished shards, and where to go on. The same object is
 * the manifest of finished work (PREFIX.manifest.json) and the state of unfinished work (PREFIX.progress.json); both
 * are replaced atomically. It holds no time and no host: equal work gives equal bytes.
 */
#ifndef DTX_DATA_TOKENIZE_STATE_H
#define DTX_DATA_TOKENIZE_STATE_H

#include "data/tokenwriter.h"

struct dtx_tokenize_input {
    const char *path;       /* the caller's */
    int64_t size, modified; /* as it lies on disk; ns since 1970; both 0 for pipes */
    int64_t text_bytes, documents, tokens, invalid, bad_lines, empty;
};

struct dtx_tokenize_shard {
    struct dtx_tokenwriter_mark counts;
    struct dtx_tokenwriter_sums sums;
};

struct dtx_tokenize_state {
    /* What the work is: equal, or it is other work. */
    uint64_t tokenizer, inputs_hash;
    int64_t vocab, separator, shard_bytes;
    const char *split, *field;
    /* What is done. */
    struct dtx_tokenize_input *inputs; /* [n_inputs], the caller's */
    int n_inputs;
    struct dtx_tokenize_shard *shards;
    int64_t n_shards, capacity;
    /* Where to go on: in this input, behind its text_bytes and so many lines, with this much in the shard that is being
     * written. renaming: the last of the shards may still have its partial names. */
    int input;
    int64_t lines;
    struct dtx_tokenwriter_mark mark;
    bool renaming;
};

void dtx_tokenize_state_free(struct dtx_tokenize_state *s);
/* Over the inputs' paths, sizes and times. */
uint64_t dtx_tokenize_inputs_hash(const struct dtx_tokenize_state *s);
enum dtx_status dtx_tokenize_add_shard(struct dtx_ctx *ctx, struct dtx_tokenize_state *s,
                                       const struct dtx_tokenize_shard *shard);
/* The prefix of shard k; free with dtx_mem_free. */
enum dtx_status dtx_tokenize_shard_prefix(struct dtx_ctx *ctx, const struct dtx_tokenize_state *s, const char *out,
                                          int64_t k, char **prefix);
/* Writes to `path`; `finished`: without where to go on. */
enum dtx_status dtx_tokenize_state_write(struct dtx_ctx *ctx, const struct dtx_tokenize_state *s, const char *path,
                                         bool finished);
/* Takes what is done from the file at `path` when its work is the same, and then *same = true; else says in `why` how
 * it differs. A file that cannot be read as a state fails. */
enum dtx_status dtx_tokenize_state_read(struct dtx_ctx *ctx, struct dtx_tokenize_state *s, const char *path,
                                        bool finished, bool *same, char why[200]);

#endif
