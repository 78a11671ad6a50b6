/* test: label=unit timeout=60 */
/* Text out of plain, gzip and zstd files and pipes, JSON lines, and encoding on several threads. */
#include <jansson.h>
#include <zlib.h>
#include <zstd.h>

#include "data/inflow.h"
#include "data/jsonline.h"
#include "data/tokenize_pool.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

enum { TEXT = 700000, ROOM = 2 * TEXT };

/* A text that packs to about half. */
static void make_text(char *text)
{
    for (uint64_t i = 0; i < TEXT; i++)
        text[i] = (char)('a' + (int)(dtx_rng_uniform(1, i) * 16));
}

static size_t pack_gzip(const char *text, size_t n, char *out)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = (unsigned)n;
    z.next_out = (unsigned char *)out;
    z.avail_out = ROOM;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t packed = ROOM - z.avail_out;
    deflateEnd(&z);
    return packed;
}

static size_t pack_zstd(const char *text, size_t n, char *out)
{
    return ZSTD_compress(out, ROOM, text, n, 1);
}

/* The file's text in reads of `bytes`; its length, −1 for a failure that stays in the context. */
static int64_t read_all(struct data_fixture *f, const char *path, size_t bytes, char *out)
{
    struct dtx_inflow *in;
    int64_t n = 0, got = 1;
    if (dtx_inflow_open(&f->ctx, path, &in) != DTX_OK)
        return -1;
    while (got > 0) {
        if (dtx_inflow_read(&f->ctx, in, out + n, bytes, &got) != DTX_OK) {
            n = -1;
            break;
        }
        n += got;
    }
    dtx_inflow_close(in);
    return n;
}

static void reads_packed_files(void **state)
{
    struct data_fixture *f = *state;
    static char text[TEXT], packed[2 * ROOM], got[2 * TEXT + (1 << 20)];
    make_text(text);
    for (int kind = 0; kind < 2; kind++) {
        size_t (*pack)(const char *, size_t, char *) = kind ? pack_zstd : pack_gzip;
        static const size_t cuts[] = {0, 1, 5, TEXT / 3, TEXT}; /* two members in a row, either may be empty */
        for (int c = 0; c < 5; c++) {
            size_t n = pack(text, cuts[c], packed);
            n += pack(text + cuts[c], TEXT - cuts[c], packed + n);
            data_write(data_path(f, "t"), packed, n);
            static const size_t reads[] = {1 << 20, 4096, 77};
            for (int r = 0; r < 3; r++) {
                assert_int_equal(read_all(f, data_path(f, "t"), reads[r], got), TEXT);
                assert_memory_equal(got, text, TEXT);
            }
            struct dtx_inflow *in;
            int64_t part;
            data_ok(f, dtx_inflow_open(&f->ctx, data_path(f, "t"), &in));
            data_ok(f, dtx_inflow_skip(&f->ctx, in, 300001));
            data_ok(f, dtx_inflow_read(&f->ctx, in, got, 1000, &part));
            assert_memory_equal(got, text + 300001, (size_t)part);
            dtx_inflow_close(in);
            data_ok(f, dtx_inflow_open(&f->ctx, data_path(f, "t"), &in));
            data_fails(f, dtx_inflow_skip(&f->ctx, in, TEXT + 1), DTX_E_FORMAT, "700000 bytes", NULL);
            dtx_inflow_close(in);
        }
    }
}

static void refuses_damaged_files(void **state)
{
    struct data_fixture *f = *state;
    static char text[TEXT], packed[2 * ROOM], got[2 * TEXT + (1 << 20)];
    make_text(text);
    for (int kind = 0; kind < 2; kind++) {
        size_t n = (kind ? pack_zstd : pack_gzip)(text, TEXT, packed);
        const size_t cuts[] = {n - 1, n - 8, n / 2, 30};
        for (int c = 0; c < 4; c++) {
            char place[32];
            snprintf(place, sizeof place, "byte %zu", cuts[c]);
            data_write(data_path(f, "t"), packed, cuts[c]);
            assert_int_equal(read_all(f, data_path(f, "t"), 1 << 20, got), -1);
            data_fails(f, f->ctx.error.status, DTX_E_FORMAT, "cut off", place, NULL);
        }
        packed[n / 2] ^= 0x55;
        packed[n / 2 + 1] ^= 0x55;
        data_write(data_path(f, "t"), packed, n);
        if (kind == 0) { /* zstd files of this program have no checksum: damage may go unseen */
            assert_int_equal(read_all(f, data_path(f, "t"), 1 << 20, got), -1);
            data_fails(f, f->ctx.error.status, DTX_E_FORMAT, "damaged", NULL);
        }
        packed[n / 2] ^= 0x55;
        packed[n / 2 + 1] ^= 0x55;
        memcpy(packed + n, "garbage", 7);
        data_write(data_path(f, "t"), packed, n + 7);
        assert_int_equal(read_all(f, data_path(f, "t"), 1 << 20, got), -1);
        data_fails(f, f->ctx.error.status, DTX_E_FORMAT, "t: ", NULL);
        memset(packed + n, 0, 512);
        data_write(data_path(f, "t"), packed, n + 512);
        if (kind == 0) /* tapes and block devices pad with zeros */
            assert_int_equal(read_all(f, data_path(f, "t"), 1 << 20, got), TEXT);
    }
}

static void reads_plain_files(void **state)
{
    struct data_fixture *f = *state;
    static char got[1 << 20];
    static const char *const texts[] = {"", "a", "\x1f", "(\xb5/", "some text", "P*M"};
    for (int i = 0; i < 6; i++) {
        data_write(data_path(f, "t"), texts[i], strlen(texts[i]));
        for (size_t bytes = 1; bytes < 1 << 20; bytes *= 100) {
            assert_int_equal(read_all(f, data_path(f, "t"), bytes, got), strlen(texts[i]));
            assert_memory_equal(got, texts[i], strlen(texts[i]));
        }
    }
}

static void takes_the_text_of_a_line(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        const char *line, *text, *why;
        int64_t invalid;
    } cases[] = {
        {"{\"text\":\"a\\u0000b\\ud83d\\ude00\"}", "a\0b\xf0\x9f\x98\x80", NULL, 0},
        {"{\"id\":[1,{\"text\":\"no\"}],\"text\":\"yes\"}", "yes", NULL, 0},
        {"{\"text\":\"\"}", "", NULL, 0},
        {"{\"text\":\"\xff\xe2\x82x\"}", "\xef\xbf\xbd\xef\xbf\xbdx", NULL, 2},
        {"{\"text\":\"<|endoftext|>\"}", "<|endoftext|>", NULL, 0},
        {"{\"Text\":\"a\"}", "", "'text' is not there", 0},
        {"{\"text\":null}", "", "is not a string", 0},
        {"[\"text\"]", "", "not an object", 0},
        {"\"text\"", "", "not an object", 0},
        {"{\"text\":\"a\"} x", "", "not JSON", 0},
        {"{\"text\":\"a", "", "not JSON", 0},
        {"{\"text\":\"a\\ud800\\u0041\\ufffd\\udc00\"}",
         "a\xef\xbf\xbd"
         "A\xef\xbf\xbd\xef\xbf\xbd",
         NULL, 2},
        {" {\"text\" : \"a\", \"text\":\"b\" , \"x\":[ ]} \t", "b", NULL, 0},
        {"{\"te\\u0078t\":\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "a\"\\/\b\f\n\r\t", NULL, 0},
        {"{\"text\":\"a\",\"text\":1}", "", "is not a string", 0},
        {"{\"text\":\"a\",}", "", "no key", 0},
        {"{\"text\":\"a\" \"b\":1}", "", "no ','", 0},
        {"{\"text\":\"a\tb\"}", "", "control character", 0},
        {"{\"text\":\"\\x\"}", "", "escape", 0},
        {"{\"text\":\"\\u12g4\"}", "", "escape", 0},
        {"{\"n\":01,\"text\":\"a\"}", "", "not JSON", 0},
        {"{\"n\":1.,\"text\":\"a\"}", "", "digit", 0},
        {"{\"n\":[1,],\"text\":\"a\"}", "", "no value", 0},
        {"", "", "not JSON", 0},
        {"\xff", "", "not JSON", 1},
    };
    struct dtx_bytes text = {0};
    char why[DTX_JSONLINE_WHY];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t invalid = 0, n = i == 0 ? 7 : (int64_t)strlen(cases[i].text);
        text.n = 0;
        data_ok(f, dtx_bytes_append(&f->ctx, &text, "before", 6));
        data_ok(
            f, dtx_jsonline_text(&f->ctx, cases[i].line, (int64_t)strlen(cases[i].line), "text", &text, &invalid, why));
        assert_int_equal(text.n, 6 + n);
        assert_memory_equal(text.data + 6, cases[i].text, (size_t)n);
        assert_int_equal(invalid, cases[i].invalid);
        if (cases[i].why)
            assert_non_null(strstr(why, cases[i].why));
        else
            assert_int_equal(why[0], '\0');
    }
    dtx_bytes_free(&text);
}

/* What our scanner takes and refuses, against jansson: JSON with random damage. */
static void agrees_with_a_json_library(void **state)
{
    struct data_fixture *f = *state;
    static const char good[] = "{\"id\": 12, \"a\": [1, -2.5e+3, {\"b\": null}, [], {}, true, false], \"text\": \"one "
                               "\\\"two\\\" \\u00e9\\n three\", \"z\": \"\\\\\"}";
    static const char bytes[] = "{}[]\",:\\0123456789.eE+-tfnu \n\ta/x";
    struct dtx_bytes text = {0};
    int taken = 0;
    for (uint64_t k = 0; k < 30000; k++) {
        char line[sizeof good], why[DTX_JSONLINE_WHY];
        int64_t invalid = 0, n = (int64_t)sizeof good - 1;
        memcpy(line, good, sizeof good);
        for (uint64_t i = 0; i < k % 3; i++)
            line[(int)(dtx_rng_uniform(8, 6 * k + i) * (double)n)] =
                bytes[(int)(dtx_rng_uniform(9, 6 * k + i) * (double)(sizeof bytes - 1))];
        if (k % 7 == 0) /* a part left out */
            n -= (int64_t)(dtx_rng_uniform(10, k) * (double)n);
        text.n = 0;
        data_ok(f, dtx_jsonline_text(&f->ctx, line, n, "text", &text, &invalid, why));
        json_t *root = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        json_t *string = json_object_get(root, "text");
        if (json_is_string(string) && invalid == 0) {
            assert_string_equal(why, "");
            assert_int_equal(text.n, json_string_length(string));
            assert_memory_equal(text.data, json_string_value(string), (size_t)text.n);
            taken++;
        } else if (invalid == 0 && !why[0]) {
            fail_msg("taken, but not by the library: %.*s", (int)n, line);
        }
        json_decref(root);
    }
    assert_in_range(taken, 3000, 29000);
    dtx_bytes_free(&text);
}

/* Batches come back in the order in which they were filled, whatever the threads do. */
static void batches_keep_their_order(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenizer *t;
    data_ok(f, dtx_tokenizer_load(&f->ctx, data_source("tests/golden/tokenizer/gpt2_vocab.bpe"), &t));
    for (int threads = 1; threads <= 5; threads += 2) {
        struct dtx_tokenize_pool *pool;
        struct dtx_text_batch *b;
        int filled = 0, emptied = 0;
        data_ok(f, dtx_tokenize_pool_create(&f->ctx, t, threads, &pool));
        while (emptied < 60) {
            while (filled < 60 && (b = dtx_tokenize_pool_empty(pool))) {
                static char text[400000];
                int n = 0; /* the first of seven takes long: others overtake it */
                for (int i = 0; i < (filled % 7 == 0 ? 100000 : 10); i++)
                    n += snprintf(text + n, sizeof text - (size_t)n, " %d", filled);
                data_write(data_path(f, "t"), text, (size_t)n);
                struct dtx_textfile *file;
                data_ok(f, dtx_textfile_open(&f->ctx, data_path(f, "t"), DTX_SPLIT_NONE, 0, &file));
                dtx_ctx_init_child(&b->ctx, &f->ctx);
                data_ok(f, dtx_text_batch_fill(&f->ctx, b, file));
                dtx_textfile_close(file);
                assert_true(b->file_ends);
                b->input = filled++;
                dtx_tokenize_pool_filled(pool);
            }
            b = dtx_tokenize_pool_encoded(pool);
            assert_non_null(b);
            assert_int_equal(b->status, DTX_OK);
            assert_int_equal(b->input, emptied);
            assert_int_equal(b->n, 1);
            assert_true(b->pieces[0].ends);
            struct dtx_bytes text = {0};
            data_ok(f, dtx_tokenizer_decode(&f->ctx, t, b->ids.data, 1, &text));
            char want[16];
            int n = snprintf(want, sizeof want, " %d", emptied);
            assert_int_equal(text.n, n);
            assert_memory_equal(text.data, want, (size_t)n);
            dtx_bytes_free(&text);
            emptied++;
            dtx_tokenize_pool_emptied(pool);
        }
        assert_null(dtx_tokenize_pool_encoded(pool));
        dtx_tokenize_pool_free(pool);
    }
    dtx_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(reads_packed_files),       DATA_TEST(refuses_damaged_files),      DATA_TEST(reads_plain_files),
        DATA_TEST(takes_the_text_of_a_line), DATA_TEST(agrees_with_a_json_library), DATA_TEST(batches_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
