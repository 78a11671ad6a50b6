/* Private to the tokenizer: finds added tokens in text, leftmost first, of several at one place the longest. */
#ifndef DTX_DATA_ADDED_H
#define DTX_DATA_ADDED_H

#include "data/tokenizer_build.h"

struct dtx_added_set; /* never changes: may be shared, though each encoder has its own */

struct dtx_added_match {
    int64_t from, to; /* with the spaces that the token strips */
    int32_t id;
};

/* The set of tokens that are looked for in normalized text, or of those looked for before. *out = NULL when no token of
 * it can ever be found: none, or special ones only while `special` is plain text. */
enum dtx_status dtx_added_set_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, bool normalized,
                                     enum dtx_special_text special, struct dtx_added_set **out);
void dtx_added_set_free(struct dtx_added_set *s); /* accepts NULL */
/* The next match from *at on in text[n], whose part before `done` is used up; moves *at. False: none. */
bool dtx_added_find(const struct dtx_added_set *s, const char *text, int64_t n, int64_t done, int64_t *at,
                    struct dtx_added_match *match);

#endif
