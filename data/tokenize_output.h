/*
 * The writing side of `dtx tokenize`: batches into shards, and the state that says how far it has come, which moves at
 * the ends of documents only. One thread.
 */
#ifndef DTX_DATA_TOKENIZE_OUTPUT_H
#define DTX_DATA_TOKENIZE_OUTPUT_H

#include "data/tokenize.h"
#include "data/tokenize_batch.h"

struct dtx_tokenize_output {
    const struct dtx_tokenize_config *config;
    struct dtx_tokenize_state state;
    char *progress;     /* path of the state's file */
    bool regular;       /* all inputs are files: the work can be continued, and the state is kept */
    bool saved;         /* there is something to continue */
    bool inside;        /* a document has begun and not ended */
    int64_t text_bytes; /* of this call */
    int64_t consumed;   /* bytes of the input being written, as it lies on disk */
    double last_save;
    struct dtx_meter meter;
    /* the module's own */
    struct dtx_tokenwriter *writer; /* of shard n_shards; NULL: not begun */
    int64_t document_tokens;
    int named;
};

/* Writes an encoded batch; saves when it is time. */
enum dtx_status dtx_tokenize_output_write(struct dtx_ctx *ctx, struct dtx_tokenize_output *o, struct dtx_text_batch *b);
/* Brings everything up to the last document to disk; not inside one. */
enum dtx_status dtx_tokenize_output_save(struct dtx_ctx *ctx, struct dtx_tokenize_output *o);
/* Does the renames of the last shard that a killed call had not come to. */
enum dtx_status dtx_tokenize_output_rename(struct dtx_ctx *ctx, struct dtx_tokenize_output *o);
/* Ends the last shard; without any document an empty one. */
enum dtx_status dtx_tokenize_output_end(struct dtx_ctx *ctx, struct dtx_tokenize_output *o);
/* Closes the shard that was not ended: partial files stay where something was saved. Frees what the module holds. */
void dtx_tokenize_output_close(struct dtx_tokenize_output *o);

#endif
