/* UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef DTX_DATA_UTF8_H
#define DTX_DATA_UTF8_H

#include "data/buffer.h"

/* Length of the longest valid prefix of text[0..n). */
int64_t dtx_utf8_valid(const char *text, int64_t n);
/* Appends text to `out` with one U+FFFD for each maximal invalid part (Unicode 15, section 3.9); *replaced grows by
 * their number. */
enum dtx_status dtx_utf8_repair(struct dtx_ctx *ctx, const char *text, int64_t n, struct dtx_bytes *out,
                                int64_t *replaced);
/* Code point at text (valid UTF-8) and its length; and back (out has room for 4 bytes, the length is returned). */
uint32_t dtx_utf8_get(const char *text, int *length);
int dtx_utf8_put(uint32_t code, char *out);

#endif
