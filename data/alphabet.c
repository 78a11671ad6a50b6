#include "data/alphabet.h"

#include "data/utf8.h"

static bool printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Bytes that do not print take U+0100, U+0101, … in their order. */
uint32_t dtx_byte_to_char(int byte)
{
    if (printable(byte))
        return (uint32_t)byte;
    uint32_t k = 0;
    for (int b = 0; b < byte; b++)
        k += !printable(b);
    return 256 + k;
}

int dtx_char_to_byte(uint32_t code)
{
    if (code < 256)
        return printable((int)code) ? (int)code : -1;
    uint32_t k = 256;
    for (int b = 0; b < 256; b++)
        if (!printable(b) && k++ == code)
            return b;
    return -1;
}

enum dtx_status dtx_alphabet_decode(struct dtx_ctx *ctx, const char *text, int64_t n, struct dtx_bytes *out, bool *ok)
{
    *ok = dtx_utf8_valid(text, n) == n;
    for (int64_t i = 0; i < n && *ok;) {
        int length, byte = dtx_char_to_byte(dtx_utf8_get(text + i, &length));
        *ok = byte >= 0;
        char c = (char)byte;
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, &c, 1));
        i += length;
    }
    return DTX_OK;
}

enum dtx_status dtx_alphabet_encode(struct dtx_ctx *ctx, const char *bytes, int64_t n, struct dtx_bytes *out)
{
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, out, 2 * n));
    for (int64_t i = 0; i < n; i++)
        out->n += dtx_utf8_put(dtx_byte_to_char((unsigned char)bytes[i]), out->data + out->n);
    return DTX_OK;
}
