/* test: label=unit timeout=120 */
/* The hand-written scanners cut as PCRE2 does with the same regular expressions: every short text over the characters
 * that matter, long random ones, real ones. And the table of characters against PCRE2's, which knows Unicode 14. */
#include "data/pretokenize.h"
#include "data/regex.h"
#include "data/utf8.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

static const char *const letters[] = {"'",
                                      " ",
                                      "\n",
                                      "\r",
                                      "\t",
                                      "s",
                                      "L",
                                      "l",
                                      "E",
                                      "1",
                                      "\xd9\xa1",
                                      "!",
                                      "/",
                                      "\xcc\x81" /* mark */,
                                      "\xe6\x97\xa5" /* Lo */,
                                      "\xc7\x85" /* Lt */,
                                      "\xca\xb0" /* Lm */,
                                      "\xc2\xa0",
                                      "\xe2\x80\xa8",
                                      "\xc5\xbf",
                                      "\xc3\xa9",
                                      "\xf0\x9f\x98\x80",
                                      "\xe1\xa0\x8e" /* U+180E */};
enum { LETTERS = sizeof letters / sizeof *letters };

struct compare {
    struct dtx_unicode *unicode;
    struct dtx_matcher *matcher;
    struct dtx_regex *regex[DTX_SCANS];
};

static void setup_compare(struct data_fixture *f, struct compare *c)
{
    data_ok(f, dtx_unicode_create(&f->ctx, &c->unicode));
    data_ok(f, dtx_matcher_create(&f->ctx, &c->matcher));
    for (int scan = 0; scan < DTX_SCANS; scan++) {
        char text[1024];
        snprintf(text, sizeof text, "%s", dtx_scan_pattern(scan));
        char *possessive = strstr(text, "{1,3}+"); /* what follows never gives back: the same without */
        if (possessive)
            memmove(possessive + 5, possessive + 6, strlen(possessive + 6) + 1);
        data_ok(f, dtx_regex_create(&f->ctx, "scan", text, (int64_t)strlen(text), false, &c->regex[scan]));
    }
}

static void free_compare(struct compare *c)
{
    for (int scan = 0; scan < DTX_SCANS; scan++)
        dtx_regex_free(c->regex[scan]);
    dtx_matcher_free(c->matcher);
    dtx_unicode_free(c->unicode);
}

static void compare_text(struct data_fixture *f, const struct compare *c, const char *text, int64_t n)
{
    for (int scan = 0; scan < DTX_SCANS; scan++)
        for (int64_t at = 0, from = 0, to = 0; at < n; at = to) {
            bool found;
            data_ok(f, dtx_matcher_find(&f->ctx, c->matcher, c->regex[scan], text, n, at, &found, &from, &to));
            assert_true(found && from == at && to > at);
            int64_t end = dtx_scan_function(scan)(c->unicode, text, n, at);
            if (end != to)
                fail_msg("pattern %d: '%.*s' from byte %lld: scanned to %lld, PCRE2 to %lld", scan,
                         (int)(n < 200 ? n : 200), text, (long long)at, (long long)end, (long long)to);
        }
}

static void every_short_text(void **state)
{
    struct data_fixture *f = *state;
    struct compare c = {0};
    setup_compare(f, &c);
    for (int length = 1; length <= 4; length++) {
        int64_t count = 1;
        for (int i = 0; i < length; i++)
            count *= LETTERS;
        for (int64_t k = 0; k < count; k += length == 4 ? 3 : 1) {
            char text[64] = "";
            int64_t rest = k;
            for (int i = 0; i < length; i++, rest /= LETTERS)
                strcat(text, letters[rest % LETTERS]);
            compare_text(f, &c, text, (int64_t)strlen(text));
        }
    }
    free_compare(&c);
}

static void random_texts(void **state)
{
    struct data_fixture *f = *state;
    struct compare c = {0};
    setup_compare(f, &c);
    for (uint64_t round = 0, at = 0; round < 30000; round++) {
        char text[512] = "";
        int64_t n = 0;
        int pieces = 5 + (int)(dtx_rng_uniform(21, at++) * 25);
        for (int i = 0; i < pieces; i++) {
            const char *letter = letters[(int)(dtx_rng_uniform(21, at++) * LETTERS)];
            int times = dtx_rng_uniform(21, at++) < 0.2 ? 4 : 1;
            for (; times > 0; times--, n += (int64_t)strlen(letter))
                strcpy(text + n, letter);
        }
        compare_text(f, &c, text, n);
    }
    free_compare(&c);
}

static void real_texts(void **state)
{
    struct data_fixture *f = *state;
    struct compare c = {0};
    static const char *const files[] = {"README.md", "tests/golden/make_components.py", "data/scan.c",
                                        "tests/golden/tokenizer/components.jsonl", "launch/quickstart.sh"};
    setup_compare(f, &c);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        char *text = data_read(data_source(files[i]), &n);
        compare_text(f, &c, text, (int64_t)n);
        free(text);
    }
    free_compare(&c);
}

/* Marks all code points in runs of the pattern over a text of all code points, by their byte offsets. */
static void mark_kind(struct data_fixture *f, struct dtx_matcher *m, const struct dtx_bytes *text, const char *pattern,
                      uint8_t kind, uint8_t *kinds)
{
    struct dtx_regex *regex;
    bool found;
    int64_t from, to = 0;
    data_ok(f, dtx_regex_create(&f->ctx, "kinds", pattern, (int64_t)strlen(pattern), false, &regex));
    for (;;) {
        data_ok(f, dtx_matcher_find(&f->ctx, m, regex, text->data, text->n, to, &found, &from, &to));
        if (!found)
            break;
        for (int length; from < to; from += length)
            kinds[dtx_utf8_get(text->data + from, &length)] |= kind;
    }
    dtx_regex_free(regex);
}

static void kinds_of_all_characters(void **state)
{
    struct data_fixture *f = *state;
    enum { CODES = 0x110000, UNKNOWN = 128 };
    struct dtx_unicode *u;
    struct dtx_matcher *m;
    struct dtx_bytes text = {0};
    uint8_t *kinds = calloc(CODES, 1);
    data_ok(f, dtx_unicode_create(&f->ctx, &u));
    data_ok(f, dtx_matcher_create(&f->ctx, &m));
    data_ok(f, dtx_bytes_reserve(&f->ctx, &text, 4 * CODES));
    for (uint32_t code = 0; code < CODES; code++)
        if (code < 0xd800 || code >= 0xe000)
            text.n += dtx_utf8_put(code, text.data + text.n);
    mark_kind(f, m, &text, "\\p{L}+", DTX_CH_LETTER, kinds);
    mark_kind(f, m, &text, "\\p{N}+", DTX_CH_NUMBER, kinds);
    mark_kind(f, m, &text, "\\s+", DTX_CH_SPACE, kinds);
    mark_kind(f, m, &text, "[\\r\\n]+", DTX_CH_BREAK, kinds);
    mark_kind(f, m, &text, "\\p{M}+", DTX_CH_MARK, kinds);
    mark_kind(f, m, &text, "[\\p{Lu}\\p{Lt}]+", DTX_CH_UPPER, kinds);
    mark_kind(f, m, &text, "\\p{Ll}+", DTX_CH_LOWER, kinds);
    mark_kind(f, m, &text, "\\p{Cn}+", UNKNOWN, kinds);
    int known = 0, letters_since = 0;
    for (int64_t i = 0, length; i < text.n; i += length) {
        int size, kind = dtx_unicode_kind(u, text.data + i, &length);
        uint32_t code = dtx_utf8_get(text.data + i, &size);
        assert_int_equal(size, length);
        letters_since += (kinds[code] & UNKNOWN) && (kind & DTX_CH_LETTER);
        if (kinds[code] & UNKNOWN)
            continue;
        known++;
        if ((kind & ~DTX_CH_UNSTABLE) != kinds[code])
            fail_msg("U+%04X is of kind %d, not %d", code, kind, kinds[code]);
    }
    assert_true(known > 280000);
    assert_true(letters_since > 8000 && letters_since < 9500); /* of Unicode 15, 15.1 and 16 */
    dtx_bytes_free(&text);
    dtx_matcher_free(m);
    dtx_unicode_free(u);
    free(kinds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(every_short_text),
        DATA_TEST(random_texts),
        DATA_TEST(real_texts),
        DATA_TEST(kinds_of_all_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
