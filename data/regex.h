/*
 * Regular expressions on PCRE2 as tokenizer.json means them (Oniguruma's Ruby syntax): \s and \w by Unicode's
 * properties, ^ and $ at every line. Constructs that mean something else there are refused by name. A compiled one
 * never changes and may be shared; a matcher belongs to one thread. Text must be valid UTF-8: PCRE2's own check would
 * scan all of it at every match.
 */
#ifndef DTX_DATA_REGEX_H
#define DTX_DATA_REGEX_H

#include "kernels/base/status.h"

struct dtx_regex;
struct dtx_matcher;

/* `where` stands in messages. literal: the pattern is a plain text. */
enum dtx_status dtx_regex_create(struct dtx_ctx *ctx, const char *where, const char *pattern, int64_t n, bool literal,
                                 struct dtx_regex **out);
void dtx_regex_free(struct dtx_regex *r); /* accepts NULL */

enum dtx_status dtx_matcher_create(struct dtx_ctx *ctx, struct dtx_matcher **out);
void dtx_matcher_free(struct dtx_matcher *m); /* accepts NULL */
/* The first match in text[n] that starts at `start` or later: *found, and if so [*from, *to). */
enum dtx_status dtx_matcher_find(struct dtx_ctx *ctx, struct dtx_matcher *m, const struct dtx_regex *r,
                                 const char *text, int64_t n, int64_t start, bool *found, int64_t *from, int64_t *to);

#endif
