/*
 * A batch: some documents of one text file, or some parts of a long one, on their way through `dtx tokenize`. It is
 * filled by the thread that reads, encoded by any thread, and emptied by the thread that writes.
 */
#ifndef DTX_DATA_TOKENIZE_BATCH_H
#define DTX_DATA_TOKENIZE_BATCH_H

#include "data/textfile.h"
#include "data/tokenizer.h"

struct dtx_batch_piece {
    int64_t first, n;        /* of the text */
    int64_t position, lines; /* of the file, behind this piece: where reading may begin again if it ends a document */
    bool ends;
    int64_t line;    /* JSON lines: its number */
    int64_t ids_end; /* the piece's ids end here, and begin where the one before it ends */
    int64_t invalid; /* parts that were replaced */
    int64_t why;     /* offset into notes of what is wrong with the line, −1: nothing */
};

struct dtx_text_batch {
    int input; /* which file */
    bool json, file_ends;
    const char *field;
    int64_t consumed; /* bytes of the file read so far, as it lies on disk */
    struct dtx_bytes text, notes;
    struct dtx_batch_piece *pieces;
    int64_t n, capacity;
    struct dtx_ids ids;
    enum dtx_status status; /* of encoding, with its report in ctx */
    struct dtx_ctx ctx;
};

void dtx_text_batch_free(struct dtx_text_batch *b);
/* The next megabyte, about, of the file. */
enum dtx_status dtx_text_batch_fill(struct dtx_ctx *ctx, struct dtx_text_batch *b, struct dtx_textfile *file);
/* Sets ids, and status instead of returning it. */
void dtx_text_batch_encode(struct dtx_text_batch *b, struct dtx_encoder *encoder);

#endif
