#include "data/scan.h"

#include "kernels/base/mutant.h"

static const char *const patterns[DTX_SCANS] = {
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|"
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};

enum { NOT_OTHER = DTX_CH_LETTER | DTX_CH_NUMBER | DTX_CH_SPACE };

/* End of the characters from `at` on that have a bit of `mask`. */
static int64_t run_of(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, int mask)
{
    for (int64_t length; at < n; at += length)
        if (!(dtx_unicode_kind(u, text + at, &length) & mask))
            break;
    return at;
}

/* End of the characters that are neither letters, numbers nor space. */
static int64_t run_of_others(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    for (int64_t length; at < n; at += length)
        if (dtx_unicode_kind(u, text + at, &length) & NOT_OTHER)
            break;
    return at;
}

/* 's 't 'd 'm 'll 've 're: its length with the apostrophe at `at`, or 0. Caseless, s is also U+017F. */
static int64_t contraction(const char *text, int64_t n, int64_t at, bool caseless)
{
    if (at + 1 >= n || text[at] != '\'')
        return 0;
    int fold = caseless ? 0x20 : 0, c = text[at + 1] | fold;
    if (c == 's' || c == 't' || c == 'd' || c == 'm')
        return 2;
    if (caseless && at + 2 < n && text[at + 1] == '\xc5' && text[at + 2] == '\xbf')
        return 3;
    if (at + 2 >= n)
        return 0;
    int d = text[at + 2] | fold;
    return (c == 'l' && d == 'l') || ((c == 'v' || c == 'r') && d == 'e') ? 3 : 0;
}

/* \s+(?!\S)|\s+ from a space on: a run leaves its last character to the word behind it, if it has more than one. */
static int64_t spaces(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    int64_t last = at, end = at, length;
    for (; end < n && (dtx_unicode_kind(u, text + end, &length) & DTX_CH_SPACE); end += length)
        last = end;
    if (DTX_MUTANT(scan_spaces_to_the_end))
        return end;
    return end < n && last > at ? last : end;
}

static int64_t scan_gpt2(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    int64_t skip = contraction(text, n, at, false), length;
    if (skip > 0)
        return at + skip;
    int64_t word = at + (text[at] == ' ');
    if (word == n)
        return n;
    int kind = dtx_unicode_kind(u, text + word, &length);
    if (kind & (DTX_CH_LETTER | DTX_CH_NUMBER))
        return run_of(u, text, n, word + length, kind & (DTX_CH_LETTER | DTX_CH_NUMBER));
    if (!(kind & DTX_CH_SPACE))
        return run_of_others(u, text, n, word + length);
    return spaces(u, text, n, at);
}

static int64_t numbers(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, int most)
{
    for (int64_t length; at < n && most > 0; at += length, most--)
        if (!(dtx_unicode_kind(u, text + at, &length) & DTX_CH_NUMBER))
            break;
    return at;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+`; `tail`: `\s+$` before all. */
static int64_t lines(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, bool tail)
{
    int64_t last = at, end = at, line = at, length;
    for (; end < n; end += length) {
        int kind = dtx_unicode_kind(u, text + end, &length);
        if (!(kind & DTX_CH_SPACE))
            break;
        last = end;
        if (kind & DTX_CH_BREAK)
            line = end + 1;
    }
    if (tail && end == n && !DTX_MUTANT(scan_tail_like_llama))
        return n;
    if (line > at)
        return line;
    return end < n && last > at ? last : end;
}

/* Signs and spaces, from `at` on; `also` is a byte that may follow signs like a line break. */
static int64_t signs_or_spaces(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, bool tail,
                               char also)
{
    int64_t sign = at + (text[at] == ' '), length;
    if (sign < n && !(dtx_unicode_kind(u, text + sign, &length) & NOT_OTHER)) {
        int64_t end = run_of_others(u, text, n, sign + length);
        while (end < n && (text[end] == '\r' || text[end] == '\n' || text[end] == also))
            end++;
        return end;
    }
    return lines(u, text, n, at, tail);
}

static inline int64_t scan_words(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, int digits,
                                 bool tail)
{
    int64_t skip = contraction(text, n, at, true), length, second;
    if (skip > 0)
        return at + skip;
    int kind = dtx_unicode_kind(u, text + at, &length);
    if (kind & DTX_CH_LETTER)
        return run_of(u, text, n, at + length, DTX_CH_LETTER);
    if (kind & DTX_CH_NUMBER)
        return numbers(u, text, n, at + length, digits - 1);
    int64_t word = at + length;
    if (!(kind & DTX_CH_BREAK) && word < n && (dtx_unicode_kind(u, text + word, &second) & DTX_CH_LETTER))
        return run_of(u, text, n, word + second, DTX_CH_LETTER);
    return signs_or_spaces(u, text, n, at, tail, '\n');
}

static int64_t scan_cl100k(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    return scan_words(u, text, n, at, 3, true);
}

static int64_t scan_llama3(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    return scan_words(u, text, n, at, 3, false);
}

static int64_t scan_qwen2(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    return scan_words(u, text, n, at, 1, false);
}

/* Of o200k's two sets of letters the first lacks Ll, the second Lu and Lt; both have Lm, Lo and M. */
static bool in_first(int kind)
{
    return (kind & (DTX_CH_LETTER | DTX_CH_MARK)) && !(kind & DTX_CH_LOWER);
}
static bool in_second(int kind)
{
    return (kind & (DTX_CH_LETTER | DTX_CH_MARK)) && !(kind & DTX_CH_UPPER);
}

/* First*Second+ at `at`, or 0. `*capitals` gets the end of First*: when there is no match, all of it lies outside
 * Second. Where no character of Second follows First*, the last one inside gives way. */
static int64_t small_word(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at, int64_t *capitals)
{
    int64_t end = at, length, last = 0;
    for (; end < n; end += length) {
        int kind = dtx_unicode_kind(u, text + end, &length);
        if (!in_first(kind))
            break;
        if (in_second(kind))
            last = end + length;
    }
    *capitals = end;
    int64_t word = end;
    for (; end < n && in_second(dtx_unicode_kind(u, text + end, &length)); end += length)
        ;
    return end > word ? end : last;
}

/* A mark may stand before a word like any sign, or begin one. */
static int64_t scan_o200k(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at)
{
    int64_t length, capitals = 0;
    int kind = dtx_unicode_kind(u, text + at, &length);
    if (kind & DTX_CH_NUMBER)
        return numbers(u, text, n, at + length, 2);
    if (!(kind & DTX_CH_BREAK)) {
        int64_t word = kind & DTX_CH_LETTER ? at : at + length;
        int64_t end = word < n ? small_word(u, text, n, word, &capitals) : 0;
        if (end == 0 && (kind & DTX_CH_MARK))
            end = at + length;
        if (end == 0 && capitals > word)
            end = capitals;
        if (end > 0)
            return end + contraction(text, n, end, true);
    }
    return signs_or_spaces(u, text, n, at, false, '/');
}

dtx_scanner dtx_scan_function(enum dtx_scan scan)
{
    static const dtx_scanner functions[DTX_SCANS] = {scan_gpt2, scan_cl100k, scan_llama3, scan_qwen2, scan_o200k};
    return functions[scan];
}

const char *dtx_scan_pattern(enum dtx_scan scan)
{
    return patterns[scan];
}
