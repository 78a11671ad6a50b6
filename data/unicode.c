#include "data/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "kernels/base/mem.h"

enum { BLOCK = 128, MOST_BLOCKS = 1024, HANGUL_FIRST = 0xac00, HANGUL_LAST = 0xd7a3 };

/* Outside these all is unassigned or private: kind 0. */
static const uint32_t used[][2] = {{0, 0x34000}, {0xe0000, 0xe1000}};

enum { L = DTX_CH_LETTER, LU = DTX_CH_LETTER | DTX_CH_UPPER, LL = DTX_CH_LETTER | DTX_CH_LOWER, N = DTX_CH_NUMBER };
enum { M = DTX_CH_MARK | DTX_CH_UNSTABLE };

/* What Unicode 15.1 and 16 added, first and last: the references' tables are those of 16. Taken where utf8proc knows
 * nothing. */
static const struct {
    uint32_t first, last;
    uint8_t kind;
} newer[] = {
    {0x897, 0x897, M},     {0x1c89, 0x1c89, LU},   {0x1c8a, 0x1c8a, LL},  {0xa7cb, 0xa7cc, LU},  {0xa7cd, 0xa7cd, LL},
    {0xa7da, 0xa7da, LU},  {0xa7db, 0xa7db, LL},   {0xa7dc, 0xa7dc, LU},  {0x105c0, 0x105f3, L}, {0x10d40, 0x10d49, N},
    {0x10d4a, 0x10d4f, L}, {0x10d50, 0x10d65, LU}, {0x10d69, 0x10d6d, M}, {0x10d6f, 0x10d6f, L}, {0x10d70, 0x10d85, LL},
    {0x10ec2, 0x10ec4, L}, {0x10efc, 0x10efc, M},  {0x11380, 0x11389, L}, {0x1138b, 0x1138b, L}, {0x1138e, 0x1138e, L},
    {0x11390, 0x113b5, L}, {0x113b7, 0x113b7, L},  {0x113b8, 0x113c0, M}, {0x113c2, 0x113c2, M}, {0x113c5, 0x113c5, M},
    {0x113c7, 0x113ca, M}, {0x113cc, 0x113d0, M},  {0x113d1, 0x113d1, L}, {0x113d2, 0x113d2, M}, {0x113d3, 0x113d3, L},
    {0x113e1, 0x113e2, M}, {0x116d0, 0x116e3, N},  {0x11bc0, 0x11be0, L}, {0x11bf0, 0x11bf9, N}, {0x11f5a, 0x11f5a, M},
    {0x13460, 0x143fa, L}, {0x16100, 0x1611d, L},  {0x1611e, 0x1612f, M}, {0x16130, 0x16139, N}, {0x16d40, 0x16d6c, L},
    {0x16d70, 0x16d79, N}, {0x18cff, 0x18cff, L},  {0x1ccf0, 0x1ccf9, N}, {0x1e5d0, 0x1e5ed, L}, {0x1e5ee, 0x1e5ef, M},
    {0x1e5f0, 0x1e5f0, L}, {0x1e5f1, 0x1e5fa, N},  {0x2ebf0, 0x2ee5d, L},
};

/* NFC gives the lone character back. */
static bool composes_to_itself(uint32_t code)
{
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)code);
    /* None, of Hangul (computed, not listed), or one of compatibility, which is not NFC's. */
    if (p->decomp_seqindex == UINT16_MAX || (code >= HANGUL_FIRST && code <= HANGUL_LAST) || p->decomp_type != 0)
        return true;
    utf8proc_int32_t parts[32];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, parts, 32, UTF8PROC_COMPOSE, &last);
    if (n < 1 || n > 32)
        return false;
    n = utf8proc_normalize_utf32(parts, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return n == 1 && parts[0] == (utf8proc_int32_t)code;
}

/* Vowels and final consonants of Hangul join the letter before; so do some marks, and nothing else. */
static bool joins_before(uint32_t code, int category)
{
    return (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) ||
           (code >= 0x1161 && code <= 0x1175) || (code >= 0x11a8 && code <= 0x11c2);
}

static uint8_t find_newer(uint32_t code)
{
    for (size_t i = 0; i < sizeof newer / sizeof *newer && newer[i].first <= code; i++)
        if (code <= newer[i].last)
            return newer[i].kind;
    return 0;
}

static uint8_t find_kind(uint32_t code)
{
    if (code >= 0xd800 && code < 0xe000)
        return 0;
    int c = utf8proc_category((utf8proc_int32_t)code), kind = 0;
    if (c == UTF8PROC_CATEGORY_CN)
        return find_newer(code);
    if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO)
        kind |= DTX_CH_LETTER;
    if (c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT)
        kind |= DTX_CH_UPPER;
    if (c == UTF8PROC_CATEGORY_LL)
        kind |= DTX_CH_LOWER;
    if (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME)
        kind |= DTX_CH_MARK;
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO)
        kind |= DTX_CH_NUMBER;
    if ((c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP) || (code >= 9 && code <= 13) || code == 0x85)
        kind |= DTX_CH_SPACE;
    if (code == '\r' || code == '\n')
        kind |= DTX_CH_BREAK;
    if (joins_before(code, c) || !composes_to_itself(code))
        kind |= DTX_CH_UNSTABLE;
    return (uint8_t)kind;
}

/* The number of a block with these kinds: an old one, or the new one behind the n that exist. */
static uint16_t place_block(uint8_t *kinds, int *n, const uint8_t *block)
{
    for (int i = *n - 1; i >= 0; i--)
        if (memcmp(kinds + (size_t)i * BLOCK, block, BLOCK) == 0)
            return (uint16_t)i;
    memcpy(kinds + (size_t)*n * BLOCK, block, BLOCK);
    return (uint16_t)(*n)++;
}

enum dtx_status dtx_unicode_create(struct dtx_ctx *ctx, struct dtx_unicode **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_unicode), &p));
    struct dtx_unicode *u = p;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, MOST_BLOCKS, BLOCK, &p), fail);
    u->kinds = p;
    int n = 1;
    for (size_t range = 0; range < sizeof used / sizeof *used; range++)
        for (uint32_t first = used[range][0]; first < used[range][1]; first += BLOCK) {
            uint8_t block[BLOCK];
            for (uint32_t k = 0; k < BLOCK; k++)
                block[k] = find_kind(first + k);
            if (n == MOST_BLOCKS) {
                status = dtx_fail(ctx, DTX_E_INTERNAL, "more than %d kinds of Unicode blocks", MOST_BLOCKS);
                goto fail;
            }
            u->block[first >> 7] = place_block(u->kinds, &n, block);
        }
    memcpy(u->ascii, u->kinds + (size_t)u->block[0] * BLOCK, BLOCK);
    *out = u;
    return DTX_OK;
fail:
    dtx_unicode_free(u);
    return status;
}

void dtx_unicode_free(struct dtx_unicode *u)
{
    if (!u)
        return;
    dtx_mem_free(u->kinds);
    dtx_mem_free(u);
}

bool dtx_unicode_is_word(uint32_t code)
{
    int c = utf8proc_category((utf8proc_int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC || code == 0x200c ||
           code == 0x200d;
}
