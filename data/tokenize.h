/*
 * Text files to token files: PREFIX.bin and PREFIX.idx, or with a shard size PREFIX-00000.bin …, and
 * PREFIX.manifest.json. The output depends on texts, tokenizer and options alone: not on threads, nor on kills.
 *
 * One thread reads, decompresses, splits and writes; the others encode batches of about a megabyte, which are written
 * in the order of reading. Memory is bounded by a few batches a thread, and by the longest line of JSON (with
 * tokenizers whose text may not be cut, the longest document).
 *
 * Work on regular files can be killed at any instant and continued: every save_seconds the partial files are brought to
 * disk and PREFIX.progress.json says where to go on; the same call then goes on there. Pipes are read from their start.
 */
#ifndef DTX_DATA_TOKENIZE_H
#define DTX_DATA_TOKENIZE_H

#include "data/textfile.h"
#include "data/tokenize_state.h"
#include "data/tokenizer.h"
#include "kernels/base/meter.h"

enum dtx_text_format { DTX_TEXT_BY_NAME, DTX_TEXT_PLAIN, DTX_TEXT_JSONL };
#define DTX_TEXT_FORMAT_NAMES "auto|text|jsonl" /* in that order; by name: .jsonl, .ndjson, .json is JSON lines */

struct dtx_tokenize_config {
    const struct dtx_tokenizer *tokenizer;
    const char *out;
    const char *const *paths; /* "-" is standard input */
    int n_paths;
    enum dtx_split split;   /* of plain text */
    const char *split_name; /* the same, for the manifest */
    enum dtx_text_format format;
    const char *field;   /* of JSON lines */
    int32_t separator;   /* behind each document; −1: none */
    int threads;         /* 1: no thread is started */
    int64_t shard_bytes; /* a shard ends with the document that brings its .bin to this size; 0: one pair */
    double save_seconds; /* 0: after every batch */
    bool strict;         /* the first invalid UTF-8 or bad line of JSON is an error */
    bool restart;        /* what an earlier call has done is forgotten */
};

struct dtx_tokenize_result {
    struct dtx_tokenize_input total;
    int64_t shards, text_bytes; /* text_bytes: of this call */
    bool complete_before;       /* nothing was left to do */
};

/* DTX_E_REQUEUE when SIGTERM, SIGINT or SIGUSR1 came and all was saved. Where the inputs are files these signals wait
 * from here to the end of the calling thread: one that comes when all is done has nothing to stop. */
enum dtx_status dtx_tokenize_run(struct dtx_ctx *ctx, const struct dtx_tokenize_config *config,
                                 struct dtx_tokenize_result *out);

#endif
