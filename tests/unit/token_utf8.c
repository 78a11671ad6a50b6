/* test: label=unit timeout=60 */
#include "data/textfile.h"
#include "data/utf8.h"
#include "tests/unit/data_support.h"

/* R stands for one U+FFFD. */
static void one_replacement_for_each_maximal_part(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        const char *bytes, *expected;
        int replaced;
    } cases[] = {
        {"", "", 0},
        {"plain ASCII, longer than one word", "plain ASCII, longer than one word", 0},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 0},
        {"\x80", "R", 1},
        {"\xff\xfe", "RR", 2},
        {"a\xc3", "aR", 1},
        {"a\xc3z", "aRz", 1},
        {"\xe2\x82", "R", 1},
        {"\xe2\x82z", "Rz", 1},
        {"\xf0\x9f\x98", "R", 1},
        {"\xf0\x9f\x98z", "Rz", 1},
        {"\xf0\x9fz\x98", "RzR", 2},
        {"\xc0\xaf", "RR", 2},               /* overlong '/' */
        {"\xe0\x80\xaf", "RRR", 3},          /* overlong */
        {"\xe0\x9f\xbf", "RRR", 3},          /* overlong */
        {"\xf0\x8f\xbf\xbf", "RRRR", 4},     /* overlong */
        {"\xed\xa0\x80", "RRR", 3},          /* surrogate */
        {"\xed\x9f\xbf", "\xed\x9f\xbf", 0}, /* U+D7FF */
        {"\xee\x80\x80", "\xee\x80\x80", 0}, /* U+E000 */
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf", 0},
        {"\xf4\x90\x80\x80", "RRRR", 4},      /* above U+10FFFF */
        {"\xf8\x88\x80\x80\x80", "RRRRR", 5}, /* five bytes */
        /* Unicode 15, table 3-8 and 3-11 */
        {"\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "RRRbRcRRd", 6},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "RRRRRRRRA", 8},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "RRRRA", 4},
        {"12345678\x80"
         "90123456789\xe2\x82",
         "12345678R90123456789R", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtx_bytes out = {0};
        char expected[128] = "", *to = expected;
        int64_t replaced = 0, n = (int64_t)strlen(cases[i].bytes);
        for (const char *p = cases[i].expected; *p; p++)
            to += *p == 'R' ? sprintf(to, "\xef\xbf\xbd") : sprintf(to, "%c", *p);
        data_ok(f, dtx_utf8_repair(&f->ctx, cases[i].bytes, n, &out, &replaced));
        assert_int_equal(replaced, cases[i].replaced);
        assert_int_equal(out.n, strlen(expected));
        assert_memory_equal(out.data ? out.data : "", expected, (size_t)out.n);
        assert_int_equal(dtx_utf8_valid(cases[i].bytes, n) == n, replaced == 0);
        assert_int_equal(dtx_utf8_valid(out.data, out.n), out.n);
        dtx_bytes_free(&out);
    }
}

static void every_code_point_survives(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char bytes[4];
        int n = dtx_utf8_put(code, bytes), length;
        assert_int_equal(dtx_utf8_get(bytes, &length), code);
        assert_int_equal(length, n);
        bool surrogate = code >= 0xd800 && code < 0xe000;
        assert_int_equal(dtx_utf8_valid(bytes, n) == n, !surrogate);
    }
}

/* Documents of a text, joined with '|'; parts of a document are joined without. */
static void read_documents(struct data_fixture *f, const char *text, enum dtx_split split, int64_t part, char *out)
{
    struct dtx_textfile *file;
    struct dtx_text_part p;
    bool more;
    data_write(data_path(f, "text"), text, strlen(text));
    data_ok(f, dtx_textfile_open(&f->ctx, data_path(f, "text"), split, part, &file));
    *out = '\0';
    for (;;) {
        data_ok(f, dtx_textfile_next(&f->ctx, file, &p, &more));
        if (!more)
            break;
        strncat(out, p.text, (size_t)p.n);
        strcat(out, p.ends ? "|" : "");
    }
    assert_int_equal(dtx_textfile_position(file), strlen(text));
    dtx_textfile_close(file);
}

static void documents_of_every_split(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        enum dtx_split split;
        const char *text, *expected;
    } cases[] = {
        {DTX_SPLIT_NONE, "", "|"},
        {DTX_SPLIT_NONE, "a b\n\nc\n", "a b\n\nc\n|"},
        {DTX_SPLIT_LINE, "", ""},
        {DTX_SPLIT_LINE, "one two\r\n\n\nthree\nfour", "one two|three|four|"},
        {DTX_SPLIT_LINE, "\n", ""},
        {DTX_SPLIT_BLANK_LINE, "\n\na b\nc d\n\n\r\n\ne f\r\n\r\ng", "a b\nc d\n|e f\r\n|g|"},
        {DTX_SPLIT_BLANK_LINE, "a\n\n", "a\n|"},
        {DTX_SPLIT_BLANK_LINE, "a\n\n\n\n\n\n\n\n\n\nb", "a\n|b|"},
        {DTX_SPLIT_ENTRY, "\nabc\n   def ghi\n\n   more\nxyz\n\tq r\n", "abc\n   def ghi\n\n   more\n|xyz\n\tq r\n|"},
        {DTX_SPLIT_ENTRY, "a\nb\nc", "a\n|b\n|c|"},
        {DTX_SPLIT_FORM_FEED, "\fa\n\nb\f\fc\f", "a\n\nb|c|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int64_t part = 1; part < 40; part += 1 + part / 4) {
            char got[256];
            read_documents(f, cases[i].text, cases[i].split, part, got);
            assert_string_equal(got, cases[i].expected);
        }
    struct dtx_textfile *file;
    data_fails(f, dtx_textfile_open(&f->ctx, data_path(f, "missing"), DTX_SPLIT_NONE, 0, &file), DTX_E_CONFIG,
               "missing", NULL);
    data_fails(f, dtx_textfile_open(&f->ctx, f->folder, DTX_SPLIT_NONE, 0, &file), DTX_E_CONFIG, "directory", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(one_replacement_for_each_maximal_part),
        DATA_TEST(every_code_point_survives),
        DATA_TEST(documents_of_every_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
