#include "data/utf8.h"

#include <string.h>

#include "kernels/base/mutant.h"

/* Examines the sequence at p: its length when valid; else 0 and *bad = length of the maximal invalid part. */
static int sequence(const unsigned char *p, int64_t n, int *bad)
{
    unsigned char first = p[0], low = 0x80, high = 0xbf;
    int length;
    *bad = 1;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first < 0xe0) {
        length = 2;
    } else if (first < 0xf0) {
        length = 3;
        low = first == 0xe0 ? 0xa0 : 0x80;
        high = first == 0xed ? 0x9f : 0xbf;
    } else {
        length = 4;
        low = first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xf4 ? 0x8f : 0xbf;
    }
    for (int i = 1; i < length; i++) {
        if (i >= n || p[i] < low || p[i] > high) {
            *bad = i;
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

int64_t dtx_utf8_valid(const char *text, int64_t n)
{
    int64_t i = 0;
    int bad;
    while (i < n) {
        uint64_t eight;
        while (i + 8 <= n && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080u) == 0))
            i += 8;
        if (i >= n)
            break;
        int length = sequence((const unsigned char *)text + i, n - i, &bad);
        if (length == 0)
            return i;
        i += length;
    }
    return i;
}

enum dtx_status dtx_utf8_repair(struct dtx_ctx *ctx, const char *text, int64_t n, struct dtx_bytes *out,
                                int64_t *replaced)
{
    for (int64_t i = 0; i < n;) {
        int64_t valid = dtx_utf8_valid(text + i, n - i);
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, text + i, valid));
        i += valid;
        if (i == n)
            break;
        int bad;
        sequence((const unsigned char *)text + i, n - i, &bad);
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, "\xef\xbf\xbd", 3));
        i += DTX_MUTANT(utf8_replace_per_byte) ? 1 : bad;
        *replaced += 1;
    }
    return DTX_OK;
}

uint32_t dtx_utf8_get(const char *text, int *length)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *length = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *length = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *length = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *length = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

int dtx_utf8_put(uint32_t code, char *out)
{
    unsigned char *p = (unsigned char *)out;
    if (code < 0x80) {
        p[0] = (unsigned char)code;
        return 1;
    }
    if (code < 0x800) {
        p[0] = (unsigned char)(0xc0 | code >> 6);
        p[1] = (unsigned char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        p[0] = (unsigned char)(0xe0 | code >> 12);
        p[1] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        p[2] = (unsigned char)(0x80 | (code & 0x3f));
        return 3;
    }
    p[0] = (unsigned char)(0xf0 | code >> 18);
    p[1] = (unsigned char)(0x80 | (code >> 12 & 0x3f));
    p[2] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
    p[3] = (unsigned char)(0x80 | (code & 0x3f));
    return 4;
}
