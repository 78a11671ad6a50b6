/* A scanner of its own: it checks the line and copies one string. A library that builds the whole object takes as long
 * as encoding the text. */
#include "data/jsonline.h"

#include <stdio.h>
#include <string.h>

#include "data/utf8.h"
#include "kernels/base/mutant.h"

enum { DEPTH_MOST = 512 };

struct scan {
    const char *text;
    int64_t at, n;
    const char *why; /* what is wrong at `at`; NULL: nothing */
};

static bool fail(struct scan *s, const char *why)
{
    if (!s->why)
        s->why = why;
    return false;
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->n &&
           (s->text[s->at] == ' ' || s->text[s->at] == '\t' || s->text[s->at] == '\r' || s->text[s->at] == '\n'))
        s->at++;
}

static bool take(struct scan *s, char c)
{
    bool there = s->at < s->n && s->text[s->at] == c;
    s->at += there;
    return there;
}

/* Four hexadecimal digits at p, −1 when they are not. */
static int hex4(const char *p, int64_t n)
{
    int value = 0;
    if (n < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int c = p[i], lower = c | 0x20;
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* A quote, a backslash or a control character among eight bytes? */
static bool has_special(uint64_t eight)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t quote = eight ^ (ones * '"'), slash = eight ^ (ones * '\\');
    return (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((eight - ones * 0x20) & ~eight)) & high;
}

/* A string, behind its opening quote: [*first, *end) is what stands between the quotes, *escapes whether there is a
 * backslash in it. */
static bool scan_string(struct scan *s, int64_t *first, int64_t *end, bool *escapes)
{
    *first = s->at;
    *escapes = false;
    for (;;) {
        uint64_t eight;
        while (s->n - s->at >= 8 && (memcpy(&eight, s->text + s->at, 8), !has_special(eight)))
            s->at += 8;
        if (s->at == s->n)
            return fail(s, "a string does not end");
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            *end = s->at++;
            return true;
        }
        if (c < 0x20)
            return fail(s, "a control character in a string");
        s->at++;
        if (c != '\\')
            continue;
        *escapes = true;
        char escaped = s->at < s->n ? s->text[s->at] : '\0';
        if (escaped == '\0' || !strchr("\"\\/bfnrtu", escaped) ||
            (escaped == 'u' && hex4(s->text + s->at + 1, s->n - s->at - 1) < 0))
            return fail(s, "an unknown escape in a string");
        s->at += escaped == 'u' ? 5 : 1;
    }
}

/* The character that the digits behind \u mean; *used: these and what is behind them. Half a pair of surrogates is no
 * character: U+FFFD, and *invalid grows. */
static uint32_t unescape_code(const char *text, int64_t n, int *used, int64_t *invalid)
{
    uint32_t code = (uint32_t)hex4(text, n);
    *used = 4;
    if (code < 0xd800 || code > 0xdfff)
        return code;
    int low = n >= 10 && text[4] == '\\' && text[5] == 'u' ? hex4(text + 6, n - 6) : -1;
    if (code > 0xdbff || low < 0xdc00 || low > 0xdfff) {
        *invalid += 1;
        return 0xfffd;
    }
    *used = 10;
    return 0x10000 + ((code - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
}

/* Appends the string between the quotes, text[n], which was scanned. */
static enum dtx_status unescape(struct dtx_ctx *ctx, const char *text, int64_t n, struct dtx_bytes *out,
                                int64_t *invalid)
{
    static const char letters[] = "bfnrt", meanings[] = "\b\f\n\r\t";
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, out, n));
    for (int64_t i = 0; i < n;) {
        const char *slash = memchr(text + i, '\\', (size_t)(n - i));
        int64_t plain = slash ? slash - text - i : n - i;
        memcpy(out->data + out->n, text + i, (size_t)plain);
        out->n += plain;
        i += plain + 1;
        if (!slash)
            break;
        const char *letter = strchr(letters, text[i]);
        if (text[i] == 'u') {
            int used;
            out->n += dtx_utf8_put(unescape_code(text + i + 1, n - i - 1, &used, invalid), out->data + out->n);
            i += used + 1;
        } else {
            out->data[out->n++] = letter ? meanings[letter - letters] : text[i];
            i++;
        }
    }
    return DTX_OK;
}

static bool scan_digits(struct scan *s)
{
    int64_t first = s->at;
    while (s->at < s->n && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at > first || fail(s, "a digit is missing in a number");
}

static bool scan_number(struct scan *s)
{
    take(s, '-');
    if (!take(s, '0') && !scan_digits(s))
        return false;
    if (take(s, '.') && !scan_digits(s))
        return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '-'))
            take(s, '+');
        return scan_digits(s);
    }
    return true;
}

static bool scan_word(struct scan *s, const char *word)
{
    int64_t n = (int64_t)strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, (size_t)n) != 0)
        return fail(s, "no value");
    s->at += n;
    return true;
}

static bool scan_value(struct scan *s, int depth);

/* The elements of an array or the members of an object, behind its opening bracket. */
static bool scan_list(struct scan *s, bool members, int depth)
{
    int64_t first, end;
    bool escapes;
    char close = members ? '}' : ']';
    if (depth == DEPTH_MOST)
        return fail(s, "too many brackets in brackets");
    skip_blanks(s);
    if (take(s, close))
        return true;
    do {
        skip_blanks(s);
        if (members) {
            if (!take(s, '"'))
                return fail(s, "no key");
            if (!scan_string(s, &first, &end, &escapes))
                return false;
            skip_blanks(s);
            if (!take(s, ':'))
                return fail(s, "no ':' behind a key");
        }
        if (!scan_value(s, depth + 1))
            return false;
        skip_blanks(s);
    } while (take(s, ','));
    return take(s, close) || fail(s, "no ',' and no closing bracket");
}

static bool scan_value(struct scan *s, int depth)
{
    int64_t first, end;
    bool escapes;
    skip_blanks(s);
    char c = s->at < s->n ? s->text[s->at] : '\0';
    switch (c) {
    case '"':
        s->at++;
        return scan_string(s, &first, &end, &escapes);
    case '{':
    case '[':
        s->at++;
        return scan_list(s, c == '{', depth);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return c == '-' || (c >= '0' && c <= '9') ? scan_number(s) : fail(s, "no value");
    }
}

/* The value of the key, where it is a string: of several the last one. */
struct found {
    bool key, string, escapes;
    int64_t first, end;
};

static enum dtx_status same_key(struct dtx_ctx *ctx, const struct scan *s, int64_t first, int64_t end, bool escapes,
                                const char *field, bool *same)
{
    size_t n = strlen(field);
    *same = (size_t)(end - first) == n && memcmp(s->text + first, field, n) == 0;
    if (!escapes)
        return DTX_OK;
    struct dtx_bytes key = {0};
    int64_t invalid = 0;
    enum dtx_status status = unescape(ctx, s->text + first, end - first, &key, &invalid);
    *same = (size_t)key.n == n && memcmp(key.data, field, n) == 0;
    dtx_bytes_free(&key);
    return status;
}

/* One member of the outermost object; faults of the line are in s->why. */
static enum dtx_status scan_member(struct dtx_ctx *ctx, struct scan *s, const char *field, struct found *found)
{
    int64_t first, end;
    bool escapes, same;
    skip_blanks(s);
    if (!take(s, '"')) {
        fail(s, "no key");
        return DTX_OK;
    }
    if (!scan_string(s, &first, &end, &escapes))
        return DTX_OK;
    DTX_TRY(ctx, same_key(ctx, s, first, end, escapes, field, &same));
    skip_blanks(s);
    if (!take(s, ':')) {
        fail(s, "no ':' behind a key");
        return DTX_OK;
    }
    skip_blanks(s);
    if (same && s->at < s->n && s->text[s->at] == '"') {
        *found = (struct found){.key = true, .string = true};
        s->at++;
        scan_string(s, &found->first, &found->end, &found->escapes);
    } else {
        scan_value(s, 1);
        *found = same ? (struct found){.key = true} : *found;
    }
    return DTX_OK;
}

static enum dtx_status scan_object(struct dtx_ctx *ctx, struct scan *s, const char *field, struct found *found)
{
    skip_blanks(s);
    if (take(s, '}'))
        return DTX_OK;
    do {
        DTX_TRY(ctx, scan_member(ctx, s, field, found));
        skip_blanks(s);
    } while (!s->why && take(s, ','));
    if (!s->why && !take(s, '}'))
        fail(s, "no ',' and no closing bracket");
    return DTX_OK;
}

static enum dtx_status take_text(struct dtx_ctx *ctx, const char *line, int64_t n, const char *field,
                                 struct dtx_bytes *text, int64_t *invalid, char why[DTX_JSONLINE_WHY])
{
    struct scan s = {.text = line, .n = n};
    struct found found = {0};
    bool object;
    skip_blanks(&s);
    object = take(&s, '{');
    if (object)
        DTX_TRY(ctx, scan_object(ctx, &s, field, &found));
    else
        scan_value(&s, 0);
    skip_blanks(&s);
    if (!s.why && s.at < n && !DTX_MUTANT(jsonline_tail_unseen))
        fail(&s, "something behind the end");
    if (s.why)
        snprintf(why, DTX_JSONLINE_WHY, "not JSON at byte %lld: %s", (long long)s.at, s.why);
    else if (!object)
        snprintf(why, DTX_JSONLINE_WHY, "not an object");
    else if (!found.string)
        snprintf(why, DTX_JSONLINE_WHY, "'%.60s' %s", field, found.key ? "is not a string" : "is not there");
    else if (found.escapes)
        return unescape(ctx, line + found.first, found.end - found.first, text, invalid);
    else
        return dtx_bytes_append(ctx, text, line + found.first, found.end - found.first);
    return DTX_OK;
}

enum dtx_status dtx_jsonline_text(struct dtx_ctx *ctx, const char *line, int64_t n, const char *field,
                                  struct dtx_bytes *text, int64_t *invalid, char why[DTX_JSONLINE_WHY])
{
    why[0] = '\0';
    if (dtx_utf8_valid(line, n) == n)
        return take_text(ctx, line, n, field, text, invalid, why);
    struct dtx_bytes repaired = {0};
    enum dtx_status status = dtx_utf8_repair(ctx, line, n, &repaired, invalid);
    if (status == DTX_OK)
        status = take_text(ctx, repaired.data, repaired.n, field, text, invalid, why);
    dtx_bytes_free(&repaired);
    return status;
}
