/*
 * What kind of character a code point is, in one table look-up: what the patterns of tokenizers and normalization ask.
 * The table is built once from utf8proc's data and what Unicode 16 added, and never changes.
 */
#ifndef DTX_DATA_UNICODE_H
#define DTX_DATA_UNICODE_H

#include "kernels/base/status.h"

/* General categories L, N, M; White_Space; \r and \n; Lu and Lt; Ll. */
enum {
    DTX_CH_LETTER = 1,
    DTX_CH_NUMBER = 2,
    DTX_CH_SPACE = 4,
    DTX_CH_BREAK = 8,
    DTX_CH_MARK = 16,
    DTX_CH_UPPER = 32,
    DTX_CH_LOWER = 64,
    DTX_CH_UNSTABLE = 128 /* NFC may change it or join it to what stands before */
};

struct dtx_unicode {
    uint8_t ascii[128];
    uint8_t *kinds; /* blocks of 128 code points; the first block is all zero */
    uint16_t block[0x110000 >> 7];
};

enum dtx_status dtx_unicode_create(struct dtx_ctx *ctx, struct dtx_unicode **out);
void dtx_unicode_free(struct dtx_unicode *u); /* accepts NULL */
/* \w of Unicode's regular expressions: letters, marks, decimal and letter numbers, connectors, joiners. */
bool dtx_unicode_is_word(uint32_t code);

/* Kind of the character at p (valid UTF-8) and its length. */
static inline int dtx_unicode_kind(const struct dtx_unicode *u, const char *p, int64_t *length)
{
    const unsigned char *s = (const unsigned char *)p;
    uint32_t code;
    if (s[0] < 0x80) {
        *length = 1;
        return u->ascii[s[0]];
    }
    if (s[0] < 0xe0) {
        *length = 2;
        code = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    } else if (s[0] < 0xf0) {
        *length = 3;
        code = (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    } else {
        *length = 4;
        code = (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
    return u->kinds[(uint32_t)u->block[code >> 7] << 7 | (code & 127)];
}

#endif
