/* Text is cut in front of characters that no form joins to what stands before; only parts with others are worked on. */
#include "data/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "data/utf8.h"
#include "kernels/base/mutant.h"

enum { MOST_PARTS = 32, FEW = 16, CLASSES = 256 };

/* NFC leaves most characters alone; for the other forms only ASCII is sure. */
static bool stable(const struct dtx_unicode *u, enum dtx_normal_form form, const char *p, int64_t *length)
{
    int kind = dtx_unicode_kind(u, p, length);
    return form == DTX_NFC ? !(kind & DTX_CH_UNSTABLE) : *length == 1;
}

/* From `at` on: where the stable characters end, and where the last of them begins. */
static int64_t skip_stable(const struct dtx_unicode *u, enum dtx_normal_form form, const char *text, int64_t n,
                           int64_t at, int64_t *last)
{
    *last = at;
    for (int64_t length; at < n; at += length) {
        uint64_t eight;
        length = 8;
        if (at + 8 <= n && (memcpy(&eight, text + at, 8), (eight & 0x8080808080808080u) == 0)) {
            *last = at + 7;
            continue;
        }
        if (!stable(u, form, text + at, &length))
            return at;
        *last = at;
    }
    return n;
}

int64_t dtx_normal_prefix(const struct dtx_unicode *u, enum dtx_normal_form form, const char *text, int64_t n)
{
    int64_t last, end = skip_stable(u, form, text, n, 0, &last);
    return end == n ? n : last;
}

static int class_of(int32_t code)
{
    return (int)utf8proc_get_property(code)->combining_class;
}

/* A run of marks in the order of their classes, equal ones as they were. */
static enum dtx_status sort_run(struct dtx_ctx *ctx, int32_t *codes, int64_t n, struct dtx_ids *sorted)
{
    if (n <= FEW) {
        for (int64_t i = 1; i < n; i++) {
            int32_t code = codes[i];
            int64_t k = i;
            for (; k > 0 && class_of(codes[k - 1]) > class_of(code); k--)
                codes[k] = codes[k - 1];
            codes[k] = code;
        }
        return DTX_OK;
    }
    int64_t first[CLASSES + 1] = {0};
    sorted->n = 0;
    DTX_TRY(ctx, dtx_ids_reserve(ctx, sorted, n));
    for (int64_t i = 0; i < n; i++)
        first[class_of(codes[i]) + 1]++;
    for (int c = 0; c < CLASSES; c++)
        first[c + 1] += first[c];
    for (int64_t i = 0; i < n; i++)
        sorted->data[first[class_of(codes[i])]++] = codes[i];
    memcpy(codes, sorted->data, (size_t)n * sizeof *codes);
    return DTX_OK;
}

static enum dtx_status sort_marks(struct dtx_ctx *ctx, struct dtx_normal_scratch *s)
{
    for (int64_t i = 0, end; i < s->codes.n; i = end + 1) {
        for (end = i; end < s->codes.n && class_of(s->codes.data[end]) > 0; end++)
            ;
        if (end - i > 1 && !DTX_MUTANT(normalize_marks_unsorted))
            DTX_TRY(ctx, sort_run(ctx, s->codes.data + i, end - i, &s->sorted));
    }
    return DTX_OK;
}

static enum dtx_status normalize_part(struct dtx_ctx *ctx, enum dtx_normal_form form, const char *text, int64_t n,
                                      struct dtx_normal_scratch *s, struct dtx_bytes *out)
{
    bool compose = form == DTX_NFC || form == DTX_NFKC, compat = form == DTX_NFKC || form == DTX_NFKD;
    int options = (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compat ? UTF8PROC_COMPAT : 0);
    s->codes.n = 0;
    for (int64_t i = 0; i < n;) {
        int length, last = 0;
        int32_t code = (int32_t)dtx_utf8_get(text + i, &length);
        DTX_TRY(ctx, dtx_ids_reserve(ctx, &s->codes, MOST_PARTS));
        utf8proc_ssize_t parts =
            utf8proc_decompose_char(code, s->codes.data + s->codes.n, MOST_PARTS, (utf8proc_option_t)options, &last);
        if (parts < 1 || parts > MOST_PARTS)
            return dtx_fail(ctx, DTX_E_LIBRARY, "utf8proc cannot decompose U+%04X", (unsigned)code);
        s->codes.n += parts;
        i += length;
    }
    DTX_TRY(ctx, sort_marks(ctx, s));
    if (compose) {
        utf8proc_ssize_t left = utf8proc_normalize_utf32(s->codes.data, s->codes.n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (left < 0)
            return dtx_fail(ctx, DTX_E_LIBRARY, "utf8proc cannot compose: %s", utf8proc_errmsg(left));
        s->codes.n = left;
    }
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, out, 4 * s->codes.n));
    for (int64_t i = 0; i < s->codes.n; i++)
        out->n += dtx_utf8_put((uint32_t)s->codes.data[i], out->data + out->n);
    return DTX_OK;
}

enum dtx_status dtx_normalize(struct dtx_ctx *ctx, const struct dtx_unicode *u, enum dtx_normal_form form,
                              const char *text, int64_t n, struct dtx_normal_scratch *scratch, struct dtx_bytes *out)
{
    for (int64_t at = 0; at < n;) {
        int64_t last, end = skip_stable(u, form, text, n, at, &last), next = end, length;
        if (end == n)
            return dtx_bytes_append(ctx, out, text + at, n - at);
        DTX_TRY(ctx, dtx_bytes_append(ctx, out, text + at, last - at));
        while (next < n && !stable(u, form, text + next, &length))
            next += length;
        DTX_TRY(ctx, normalize_part(ctx, form, text + last, next - last, scratch, out));
        at = next;
    }
    return DTX_OK;
}

void dtx_normal_scratch_free(struct dtx_normal_scratch *scratch)
{
    dtx_ids_free(&scratch->codes);
    dtx_ids_free(&scratch->sorted);
}
