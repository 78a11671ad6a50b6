/* test: label=unit timeout=60 */
/* The reader of Megatron's pairs (data/readers/megatron.c) and what all sources share. */
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

/* CASES 20: what a reader of other people's files must refuse, each as a change of one good file. */
enum { SEQUENCES_AT = 34, TINY_N = 4, OFFSETS_AT = SEQUENCES_AT + 4 * TINY_N, DOCUMENTS_AT = OFFSETS_AT + 8 * TINY_N };

static void copy_tiny(struct data_fixture *f, const char *name, const char *to)
{
    char from[64], target[64];
    for (int i = 0; i < 2; i++) {
        size_t n;
        snprintf(from, sizeof from, "tests/golden/formats/%s.%s", name, i ? "idx" : "bin");
        snprintf(target, sizeof target, "%s.%s", to, i ? "idx" : "bin");
        char *bytes = data_read(data_source(from), &n);
        data_write(data_path(f, target), bytes, n);
        free(bytes);
    }
}

static void reads_golden_files(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t expected[2][9] = {{1, 2, 3, 65535, 10, 11, 12, 13, 14}, {1, 2, 3, 100256, 10, 11, 12, 13, 14}};
    static const int64_t starts[] = {0, 3, 3, 4, 9};
    for (int k = 0; k < 2; k++) {
        struct dtx_source *file;
        char prefix[1100];
        snprintf(prefix, sizeof prefix, "%s%s", data_source("tests/golden/formats/tiny_"), k ? "i32" : "u16");
        file = data_open_source(f, prefix, 0);
        const struct dtx_source_info *info = dtx_source_info(file);
        assert_int_equal(info->tokens, 9);
        assert_int_equal(info->sequences, 4);
        assert_int_equal(info->documents, 4);
        assert_string_equal(info->type, k ? "i32" : "u16");
        int32_t ids[9];
        data_ok(f, dtx_source_read(&f->ctx, file, 0, 9, ids));
        assert_memory_equal(ids, expected[k], sizeof ids);
        data_ok(f, dtx_source_read(&f->ctx, file, 3, 2, ids));
        assert_memory_equal(ids, expected[k] + 3, 8);
        for (int d = 0; d <= 4; d++) {
            int64_t first;
            data_ok(f, dtx_source_document(&f->ctx, file, d, &first));
            assert_int_equal(first, starts[d]);
        }
        static const int64_t document_of[] = {0, 0, 0, 2, 3, 3, 3, 3, 3};
        for (int t = 0; t < 9; t++) {
            int64_t d;
            data_ok(f, dtx_source_find(&f->ctx, file, t, &d));
            assert_int_equal(d, document_of[t]);
        }
        int64_t largest;
        data_ok(f, dtx_source_verify(&f->ctx, file, NULL, &largest));
        assert_int_equal(largest, expected[k][3]);
        data_fails(f, dtx_source_read(&f->ctx, file, 8, 2, ids), DTX_E_RANGE, "9", NULL);
        data_fails(f, dtx_source_read(&f->ctx, file, -1, 2, ids), DTX_E_RANGE, "-1", NULL);
        data_fails(f, dtx_source_read(&f->ctx, file, 2, INT64_MAX, ids), DTX_E_RANGE, NULL);
        dtx_source_close(file);
    }
}

static enum dtx_status try_open(struct data_fixture *f, int64_t vocab)
{
    struct dtx_source *s;
    enum dtx_status status = data_try_source(f, data_path(f, "t"), vocab, &s);
    dtx_source_close(s);
    return status;
}

static void refuses_broken_index(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        off_t at;
        const char *bytes;
        size_t n;
        const char *word, *value;
    } faults[] = {
        {0, "MMIDIDY", 7, "magic", "4d 4d 49 44"},
        {9, "\0\0\0\0\0\0\0\1", 8, "big-endian", "offset 9"},
        {9, "\3\0\0\0\0\0\0\0", 8, "version", "3"},
        {17, "\0", 1, "type code 0", "offset 17"},
        {17, "\11", 1, "type code 9", "offset 17"},
        {17, "\7", 1, "f32", "cannot hold"},
        {17, "\4", 1, "i32", "18"},                      /* the data has half the bytes that this type needs */
        {18, "\3\0\0\0\0\0\0\0", 8, "oversized", "122"}, /* one sequence fewer than there are */
        {18, "\5\0\0\0\0\0\0\0", 8, "truncated", "5 sequences"},
        {18, "\377\377\377\377\377\377\377\377", 8, "truncated", "18446744073709551615"},
        {26, "\0\0\0\0\0\0\0\40", 8, "truncated", "boundaries"},
        {26, "\0\0\0\0\0\0\0\0", 8, "oversized", "122"},
        {SEQUENCES_AT + 12, "\6\0\0\0", 4, "20 bytes", "18"},
        {SEQUENCES_AT + 12, "\377\377\377\377", 4, "length -1", "last sequence"},
        {SEQUENCES_AT, "\377\377\377\377", 4, "length -1", "offset 34"},
        {SEQUENCES_AT + 4, "\1\0\0\0", 4, "sequence 2", "byte 6"},
        {OFFSETS_AT, "\2\0\0\0", 4, "sequence 0", "byte 2"},
        {OFFSETS_AT + 16, "\4\0\0\0", 4, "sequence 2", "byte 4"},
        {OFFSETS_AT + 24, "\11\0\0\0", 4, "19 bytes", "18"},
        {OFFSETS_AT + 31, "\200", 1, "last sequence", "-"},
        {DOCUMENTS_AT, "\1", 1, "boundaries", "from 1"},
        {DOCUMENTS_AT + 8, "\3", 1, "boundary 2", "is 2"},
        {DOCUMENTS_AT + 16, "\377", 1, "boundary 2", "255"},
        {DOCUMENTS_AT + 23, "\200", 1, "boundary 2", "-"},
        {DOCUMENTS_AT + 32, "\3", 1, "to 3", "4"},
        {0, NULL, 0, "truncated", "0 bytes"},
        {33, NULL, 0, "truncated", "33"},
        {121, NULL, 0, "truncated", "121"},
        {123, NULL, 0, "oversized", "123"},
        {127, NULL, 0, "oversized", "127"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        copy_tiny(f, "tiny_u16", "t");
        data_ok(f, try_open(f, 0));
        data_patch(data_path(f, "t.idx"), faults[i].at, faults[i].bytes, faults[i].n);
        data_fails(f, try_open(f, 0), DTX_E_FORMAT, "t.idx", faults[i].word, faults[i].value, NULL);
    }
    copy_tiny(f, "tiny_u16", "t");
    data_patch(data_path(f, "t.idx"), 126, NULL, 0); /* modes of multimodal data: n bytes more are fine */
    data_ok(f, try_open(f, 0));
}

/* A rank that trusts another one's reading of the index still checks what costs nothing. */
static void trusts_the_index(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_source *s;
    struct dtx_source_config config = {.files = f->files, .separator = -1, .trusted = true};
    copy_tiny(f, "tiny_u16", "t");
    data_patch(data_path(f, "t.idx"), OFFSETS_AT + 16, "\4\0\0\0", 4);
    data_fails(f, try_open(f, 0), DTX_E_FORMAT, "sequence 2", NULL);
    data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t"), &s));
    dtx_source_close(s);
    data_patch(data_path(f, "t.idx"), 121, NULL, 0);
    data_fails(f, dtx_source_open(&f->ctx, &config, data_path(f, "t"), &s), DTX_E_FORMAT, "truncated", NULL);
}

static void refuses_wrong_data(void **state)
{
    struct data_fixture *f = *state;
    static const off_t sizes[] = {0, 17, 16, 19, 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char value[32];
        copy_tiny(f, "tiny_u16", "t");
        data_patch(data_path(f, "t.bin"), sizes[i], NULL, 0);
        snprintf(value, sizeof value, "%lld", (long long)sizes[i]);
        data_fails(f, try_open(f, 0), DTX_E_FORMAT, "t.bin", value, "18", NULL);
    }
    copy_tiny(f, "tiny_u16", "t");
    data_fails(f, try_open(f, 100288), DTX_E_FORMAT, "u16", "65536", "100288", NULL);
    assert_int_equal(remove(data_path(f, "t.bin")), 0);
    data_fails(f, try_open(f, 0), DTX_E_CONFIG, "t.bin", f->ctx.host, "No such file", NULL);
    assert_int_equal(remove(data_path(f, "t.idx")), 0);
    data_fails(f, try_open(f, 0), DTX_E_CONFIG, "t.idx", f->ctx.host, "No such file", NULL);
}

/* CASES 10 */
static void refuses_ids_beyond_the_vocabulary(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_source *file;
    int32_t ids[9];
    copy_tiny(f, "tiny_u16", "t");
    file = data_open_source(f, data_path(f, "t"), 65535);
    data_ok(f, dtx_source_read(&f->ctx, file, 0, 3, ids));
    data_fails(f, dtx_source_read(&f->ctx, file, 1, 5, ids), DTX_E_FORMAT, "t.bin", "id 65535", "offset 6", "token 3",
               "document 2", "65535", NULL);
    dtx_source_close(file);
    file = data_open_source(f, data_path(f, "t"), 65536);
    data_ok(f, dtx_source_read(&f->ctx, file, 1, 5, ids));
    dtx_source_close(file);
    copy_tiny(f, "tiny_i32", "t");
    data_patch(data_path(f, "t.bin"), 20, "\377\377\377\377", 4);
    file = data_open_source(f, data_path(f, "t"), 0);
    data_fails(f, dtx_source_read(&f->ctx, file, 0, 9, ids), DTX_E_FORMAT, "id -1", "offset 20", NULL);
    dtx_source_close(file);
}

static void put(FILE *file, const void *value, size_t bytes)
{
    assert_int_equal(fwrite(value, 1, bytes, file), bytes);
}

/* All integer types; signed ones by way of a hand-written index. */
static void reads_every_type(void **state)
{
    struct data_fixture *f = *state;
    static const int codes[] = {1, 2, 3, 4, 5, 8}, bytes[] = {1, 1, 2, 4, 8, 2};
    for (int k = 0; k < 6; k++) {
        FILE *index = fopen(data_path(f, "t.idx"), "wb"), *data = fopen(data_path(f, "t.bin"), "wb");
        const int64_t version = 1, n = 1, m = 2, offset = 0, bounds[2] = {0, 1};
        const int32_t length = 100;
        char code = (char)codes[k];
        put(index, "MMIDIDX\0\0", 9);
        put(index, &version, 8);
        put(index, &code, 1);
        put(index, &n, 8);
        put(index, &m, 8);
        put(index, &length, 4);
        put(index, &offset, 8);
        put(index, bounds, 16);
        for (int64_t t = 0; t < length; t++)
            put(data, &t, (size_t)bytes[k]);
        fclose(index);
        fclose(data);
        struct dtx_source *file;
        int32_t ids[100];
        file = data_open_source(f, data_path(f, "t"), 100);
        data_ok(f, dtx_source_read(&f->ctx, file, 0, 100, ids));
        for (int t = 0; t < 100; t++)
            assert_int_equal(ids[t], t);
        dtx_source_close(file);
        file = data_open_source(f, data_path(f, "t"), 99);
        data_fails(f, dtx_source_read(&f->ctx, file, 0, 100, ids), DTX_E_FORMAT, "id 99", "token 99", NULL);
        dtx_source_close(file);
    }
}

/* CASES 14: 2^40 tokens of two bytes each, in a file that takes no disk. */
static void offsets_beyond_two_terabytes(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = INT64_C(1) << 40, most = INT32_MAX, version = 1, m = 2;
    const int64_t n = (tokens + most - 1) / most, bounds[2] = {0, n};
    FILE *index = fopen(data_path(f, "big.idx"), "wb");
    put(index, "MMIDIDX\0\0", 9);
    put(index, &version, 8);
    put(index, "\10", 1);
    put(index, &n, 8);
    put(index, &m, 8);
    for (int64_t s = 0; s < n; s++) {
        int32_t length = (int32_t)(s + 1 < n ? most : tokens - most * (n - 1));
        put(index, &length, 4);
    }
    for (int64_t s = 0; s < n; s++) {
        int64_t offset = 2 * most * s;
        put(index, &offset, 8);
    }
    put(index, bounds, 16);
    fclose(index);
    const int64_t places[] = {
        0, (INT64_C(1) << 31) - 1, INT64_C(1) << 31, INT64_C(1) << 32, (INT64_C(1) << 39) + 5, tokens - 1};
    int fd = open(data_path(f, "big.bin"), O_RDWR | O_CREAT, 0666);
    assert_int_equal(ftruncate(fd, 2 * tokens), 0);
    for (int i = 0; i < 6; i++) {
        uint16_t id = (uint16_t)(100 + i);
        assert_int_equal(pwrite(fd, &id, 2, 2 * places[i]), 2);
    }
    close(fd);
    struct dtx_source *file;
    file = data_open_source(f, data_path(f, "big"), 1000);
    assert_int_equal(dtx_source_info(file)->tokens, tokens);
    for (int i = 0; i < 6; i++) {
        int32_t ids[3];
        int64_t first = places[i] > 0 ? places[i] - 1 : 0, count = places[i] + 1 < tokens ? 3 : 2;
        data_ok(f, dtx_source_read(&f->ctx, file, first, count, ids));
        assert_int_equal(ids[places[i] - first], 100 + i);
    }
    dtx_source_close(file);
    uint16_t id = 1000;
    fd = open(data_path(f, "big.bin"), O_RDWR);
    assert_int_equal(pwrite(fd, &id, 2, 2 * tokens - 2), 2);
    close(fd);
    int32_t last;
    file = data_open_source(f, data_path(f, "big"), 1000);
    data_fails(f, dtx_source_read(&f->ctx, file, tokens - 1, 1, &last), DTX_E_FORMAT, "id 1000", "2199023255550",
               "1099511627775", NULL);
    dtx_source_close(file);
}

/* Random damage to an index is refused or leaves a file whose every read is in bounds; the sanitizers watch. */
static void survives_damage(void **state)
{
    struct data_fixture *f = *state;
    size_t n;
    copy_tiny(f, "tiny_u16", "t");
    char *good = data_read(data_path(f, "t.idx"), &n), bad[256];
    for (uint64_t round = 0; round < 3000; round++) {
        memcpy(bad, good, n);
        for (uint64_t k = 0; k < 1 + round % 2; k++)
            bad[(size_t)(dtx_rng_uniform(1, 8 * round + k) * (double)n)] =
                (char)(dtx_rng_uniform(2, 8 * round + k) * 256);
        data_write(data_path(f, "t.idx"), bad, n);
        struct dtx_source *file = NULL;
        if (data_try_source(f, data_path(f, "t"), 0, &file) == DTX_OK) {
            int32_t ids[64];
            int64_t first, d;
            assert_true(dtx_source_info(file)->tokens <= 18);
            for (int64_t t = 0; t < dtx_source_info(file)->tokens; t++) {
                (void)dtx_source_find(&f->ctx, file, t, &d);
                (void)dtx_source_read(&f->ctx, file, t, 1, ids);
            }
            for (d = 0; d <= dtx_source_info(file)->documents; d++)
                if (dtx_source_document(&f->ctx, file, d, &first) == DTX_OK)
                    assert_in_range(first, 0, dtx_source_info(file)->tokens);
        }
        dtx_source_close(file);
        dtx_error_clear(&f->ctx);
    }
    free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(reads_golden_files),
        DATA_TEST(refuses_broken_index),
        DATA_TEST(trusts_the_index),
        DATA_TEST(refuses_wrong_data),
        DATA_TEST(refuses_ids_beyond_the_vocabulary),
        DATA_TEST(reads_every_type),
        DATA_TEST(offsets_beyond_two_terabytes),
        DATA_TEST(survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
