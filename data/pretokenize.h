/*
 * Cuts text into the pieces that BPE merges within. A pattern is a list of steps, each cutting the pieces of the step
 * before (which are all that it sees) at the matches of a regular expression: the well-known ones by data/scan.h,
 * others by data/regex.h. A pattern never changes once its steps are added and may be shared; a splitter belongs to one
 * thread. Text must be valid UTF-8.
 */
#ifndef DTX_DATA_PRETOKENIZE_H
#define DTX_DATA_PRETOKENIZE_H

#include "data/scan.h"

struct dtx_pattern;
struct dtx_splitter;

/* What a step does with its matches: pieces of their own, dropped, joined to the piece before or behind, or to each
 * other. */
enum dtx_behavior {
    DTX_SPLIT_ISOLATED,
    DTX_SPLIT_REMOVED,
    DTX_SPLIT_MERGED_WITH_PREVIOUS,
    DTX_SPLIT_MERGED_WITH_NEXT,
    DTX_SPLIT_CONTIGUOUS
};

struct dtx_piece_span {
    int64_t first, n;
};

/* Without steps: all text is one piece. */
enum dtx_status dtx_pattern_create(struct dtx_ctx *ctx, struct dtx_pattern **out);
enum dtx_status dtx_pattern_add_scan(struct dtx_ctx *ctx, struct dtx_pattern *p, enum dtx_scan scan);
/* A well-known regex becomes its scanner. `where` stands in messages. invert: what lies between is the match. */
enum dtx_status dtx_pattern_add_regex(struct dtx_ctx *ctx, struct dtx_pattern *p, const char *where, const char *regex,
                                      int64_t n, bool literal, enum dtx_behavior behavior, bool invert);
void dtx_pattern_free(struct dtx_pattern *p); /* accepts NULL */
const struct dtx_unicode *dtx_pattern_unicode(const struct dtx_pattern *p);
/* The steps in a row, for a hash and for people: "cl100k", "Split …". */
const char *dtx_pattern_text(const struct dtx_pattern *p);
/* The one step is this scanner. */
bool dtx_pattern_is(const struct dtx_pattern *p, enum dtx_scan scan);

enum dtx_status dtx_splitter_create(struct dtx_ctx *ctx, const struct dtx_pattern *pattern, struct dtx_splitter **out);
void dtx_splitter_free(struct dtx_splitter *s); /* accepts NULL */
/* Begins with text[n], which must stay until the last piece is taken. */
void dtx_splitter_start(struct dtx_splitter *s, const char *text, int64_t n);
/* The next pieces, at most `most`; *n = 0 at the end. None is empty; what steps removed is missing between them. */
enum dtx_status dtx_splitter_next(struct dtx_ctx *ctx, struct dtx_splitter *s, struct dtx_piece_span *pieces,
                                  int64_t most, int64_t *n);

/* The last place in text[0..n) where it may be cut without changing any piece, 0 when there is none: between an ASCII
 * letter or digit and an ASCII space or newline. No well-known pattern joins these two. */
int64_t dtx_split_point(const char *text, int64_t n);

#endif
