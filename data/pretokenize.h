/*
 * Cuts text into the pieces that BPE merges within, by a pattern run on PCRE2 with Unicode classes. A compiled pattern
 * never changes and may be shared; a splitter belongs to one thread. Text must be valid UTF-8: PCRE2's own check would
 * scan all of it at every piece.
 */
#ifndef DTX_DATA_PRETOKENIZE_H
#define DTX_DATA_PRETOKENIZE_H

#include "kernels/base/status.h"

struct dtx_pattern;
struct dtx_splitter;

/* GPT-2's pattern, which ByteLevel in tokenizer.json means. */
enum dtx_status dtx_pattern_gpt2(struct dtx_ctx *ctx, struct dtx_pattern **out);
void dtx_pattern_free(struct dtx_pattern *p); /* accepts NULL */

enum dtx_status dtx_splitter_create(struct dtx_ctx *ctx, const struct dtx_pattern *pattern, struct dtx_splitter **out);
void dtx_splitter_free(struct dtx_splitter *s); /* accepts NULL */
/* The piece that starts at `start` < n ends at *end > start. What no alternative matches is a piece of its own. */
enum dtx_status dtx_splitter_next(struct dtx_ctx *ctx, struct dtx_splitter *s, const char *text, int64_t n,
                                  int64_t start, int64_t *end);

/* The last place in text[0..n) where it may be cut without changing any piece, 0 when there is none: between an ASCII
 * letter, digit or sign and an ASCII space or newline. No pattern joins these two. */
int64_t dtx_split_point(const char *text, int64_t n);

#endif
