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
    bool ends;    /* the document ends with this part */
    int64_t line; /* DTX_SPLIT_LINE: its number in the file, from 1 */
};

struct dtx_textfile;

/* "-" is standard input; gzip and zstd are decompressed. part_bytes: about the longest part; 0: 16 MiB; negative:
 * documents are never cut, however long. */
enum dtx_status dtx_textfile_open(struct dtx_ctx *ctx, const char *path, enum dtx_split split, int64_t part_bytes,
                                  struct dtx_textfile **out);
void dtx_textfile_close(struct dtx_textfile *f); /* accepts NULL */
/* *more = false at the end. Empty documents are left out, except that an empty file without splitting is one. */
enum dtx_status dtx_textfile_next(struct dtx_ctx *ctx, struct dtx_textfile *f, struct dtx_text_part *part, bool *more);
/* Bytes of text handed out so far; behind a document's end, where dtx_textfile_skip may take another reader. */
int64_t dtx_textfile_position(const struct dtx_textfile *f);
/* Passes over what was handed out before, `lines` lines: between opening and the first dtx_textfile_next. */
enum dtx_status dtx_textfile_skip(struct dtx_ctx *ctx, struct dtx_textfile *f, int64_t bytes, int64_t lines);
/* Bytes of the file read so far, as it lies on disk: for progress. */
int64_t dtx_textfile_consumed(const struct dtx_textfile *f);

#endif
