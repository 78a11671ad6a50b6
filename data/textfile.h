/*
 * Text files read as a sequence of documents in bounded memory. A long document comes in several parts, cut where no
 * piece of a tokenizer can be cut (dtx_split_point), so that its parts' ids in a row are the document's ids.
 */
#ifndef DTX_DATA_TEXTFILE_H
#define DTX_DATA_TEXTFILE_H

#include "kernels/base/status.h"

enum dtx_split {
    DTX_SPLIT_NONE,       /* a file is a document */
    DTX_SPLIT_LINE,       /* a line is, without its end */
    DTX_SPLIT_BLANK_LINE, /* what stands between blank lines */
    DTX_SPLIT_ENTRY,      /* a line that starts with no space, tab or line end, and all up to the next such line */
    DTX_SPLIT_FORM_FEED   /* what stands between form feeds */
};
#define DTX_SPLIT_NAMES "none|line|blank-line|entry|form-feed" /* in that order */

struct dtx_text_part {
    const char *text; /* valid until the next call */
    int64_t n;
    bool ends; /* the document ends with this part */
};

struct dtx_textfile;

/* "-" is standard input. part_bytes: about the longest part, 0 for 16 MiB. */
enum dtx_status dtx_textfile_open(struct dtx_ctx *ctx, const char *path, enum dtx_split split, int64_t part_bytes,
                                  struct dtx_textfile **out);
void dtx_textfile_close(struct dtx_textfile *f); /* accepts NULL */
/* *more = false at the end. Empty documents are left out, except that an empty file without splitting is one. */
enum dtx_status dtx_textfile_next(struct dtx_ctx *ctx, struct dtx_textfile *f, struct dtx_text_part *part, bool *more);
/* Bytes handed out so far. */
int64_t dtx_textfile_position(const struct dtx_textfile *f);

#endif
