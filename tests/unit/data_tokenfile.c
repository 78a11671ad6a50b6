/* test: label=unit timeout=60 */
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

/* Overwrites n bytes of a file, or cuts or grows it to `at` bytes when n is 0. */
static void patch(const char *path, off_t at, const void *bytes, size_t n)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (n)
        assert_int_equal(pwrite(fd, bytes, n, at), n);
    else
        assert_int_equal(ftruncate(fd, at), 0);
    close(fd);
}

static void reads_golden_files(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t expected[2][9] = {{1, 2, 3, 65535, 10, 11, 12, 13, 14}, {1, 2, 3, 100256, 10, 11, 12, 13, 14}};
    static const int64_t starts[] = {0, 3, 3, 4, 9};
    for (int k = 0; k < 2; k++) {
        struct dtx_tokenfile *file;
        char prefix[1100];
        snprintf(prefix, sizeof prefix, "%s%s", data_source("tests/golden/formats/tiny_"), k ? "i32" : "u16");
        data_ok(f, dtx_tokenfile_open(&f->ctx, prefix, 0, &file));
        const struct dtx_tokenfile_info *info = dtx_tokenfile_info(file);
        assert_int_equal(info->tokens, 9);
        assert_int_equal(info->sequences, 4);
        assert_int_equal(info->documents, 4);
        assert_string_equal(info->type, k ? "i32" : "u16");
        int32_t ids[9];
        data_ok(f, dtx_tokenfile_read(&f->ctx, file, 0, 9, ids));
        assert_memory_equal(ids, expected[k], sizeof ids);
        data_ok(f, dtx_tokenfile_read(&f->ctx, file, 3, 2, ids));
        assert_memory_equal(ids, expected[k] + 3, 8);
        for (int d = 0; d <= 4; d++) {
            int64_t first;
            data_ok(f, dtx_tokenfile_document(&f->ctx, file, d, &first));
            assert_int_equal(first, starts[d]);
        }
        static const int64_t document_of[] = {0, 0, 0, 2, 3, 3, 3, 3, 3};
        for (int t = 0; t < 9; t++) {
            int64_t d;
            data_ok(f, dtx_tokenfile_find(&f->ctx, file, t, &d));
            assert_int_equal(d, document_of[t]);
        }
        int64_t largest;
        data_ok(f, dtx_tokenfile_verify(&f->ctx, file, &largest));
        assert_int_equal(largest, expected[k][3]);
        data_fails(f, dtx_tokenfile_read(&f->ctx, file, 8, 2, ids), DTX_E_RANGE, "9", NULL);
        data_fails(f, dtx_tokenfile_read(&f->ctx, file, -1, 2, ids), DTX_E_RANGE, "-1", NULL);
        data_fails(f, dtx_tokenfile_read(&f->ctx, file, 2, INT64_MAX, ids), DTX_E_RANGE, NULL);
        dtx_tokenfile_close(file);
    }
}

/* Written by us from the same tokens, the golden files come out byte for byte. */
static void writes_golden_files(void **state)
{
    struct data_fixture *f = *state;
    static const int lengths[] = {3, 0, 1, 5};
    for (int k = 0; k < 2; k++) {
        int32_t ids[] = {1, 2, 3, k ? 100256 : 65498, 10, 11, 12, 13, 14}, *next = ids;
        struct dtx_tokenwriter *w;
        data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), k ? 100257 : 65499, 0, &w));
        for (int d = 0; d < 4; next += lengths[d++]) {
            data_ok(f, dtx_tokenwriter_add(&f->ctx, w, next, lengths[d]));
            data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
        }
        assert_int_equal(access(data_path(f, "w.idx"), F_OK), k ? 0 : -1); /* the first round's file in the second */
        data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
        for (int i = 0; i < 2; i++) {
            char name[64];
            size_t n, n_golden;
            snprintf(name, sizeof name, "tests/golden/formats/tiny_%s.%s", k ? "i32" : "u16", i ? "idx" : "bin");
            char *golden = data_read(data_source(name), &n_golden);
            char *mine = data_read(data_path(f, i ? "w.idx" : "w.bin"), &n);
            assert_int_equal(n, n_golden);
            if (!k && !i) { /* 65,535 is no id of a vocabulary that is written as u16 */
                golden[6] = (char)(65498 & 0xff);
                golden[7] = (char)(65498 >> 8);
            }
            assert_memory_equal(mine, golden, n);
            free(mine);
            free(golden);
        }
        assert_int_equal(access(data_path(f, "w.idx.lengths.partial"), F_OK), -1);
        assert_int_equal(access(data_path(f, "w.idx.documents.partial"), F_OK), -1);
        assert_int_equal(access(data_path(f, "w.bin.partial"), F_OK), -1);
    }
}

static enum dtx_status try_open(struct data_fixture *f, int64_t vocab)
{
    struct dtx_tokenfile *file = NULL;
    enum dtx_status status = dtx_tokenfile_open(&f->ctx, data_path(f, "t"), vocab, &file);
    dtx_tokenfile_close(file);
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
        patch(data_path(f, "t.idx"), faults[i].at, faults[i].bytes, faults[i].n);
        data_fails(f, try_open(f, 0), DTX_E_FORMAT, "t.idx", faults[i].word, faults[i].value, NULL);
    }
    copy_tiny(f, "tiny_u16", "t");
    patch(data_path(f, "t.idx"), 126, NULL, 0); /* modes of multimodal data: n bytes more are fine */
    data_ok(f, try_open(f, 0));
}

/* A rank that trusts another one's reading of the index still checks what costs nothing. */
static void trusts_the_index(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenfile *file;
    copy_tiny(f, "tiny_u16", "t");
    patch(data_path(f, "t.idx"), OFFSETS_AT + 16, "\4\0\0\0", 4);
    data_fails(f, try_open(f, 0), DTX_E_FORMAT, "sequence 2", NULL);
    data_ok(f, dtx_tokenfile_open_trusted(&f->ctx, data_path(f, "t"), 0, &file));
    dtx_tokenfile_close(file);
    patch(data_path(f, "t.idx"), 121, NULL, 0);
    data_fails(f, dtx_tokenfile_open_trusted(&f->ctx, data_path(f, "t"), 0, &file), DTX_E_FORMAT, "truncated", NULL);
}

static void refuses_wrong_data(void **state)
{
    struct data_fixture *f = *state;
    static const off_t sizes[] = {0, 17, 16, 19, 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char value[32];
        copy_tiny(f, "tiny_u16", "t");
        patch(data_path(f, "t.bin"), sizes[i], NULL, 0);
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
    struct dtx_tokenfile *file;
    int32_t ids[9];
    copy_tiny(f, "tiny_u16", "t");
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 65535, &file));
    data_ok(f, dtx_tokenfile_read(&f->ctx, file, 0, 3, ids));
    data_fails(f, dtx_tokenfile_read(&f->ctx, file, 1, 5, ids), DTX_E_FORMAT, "t.bin", "id 65535", "offset 6",
               "token 3", "document 2", "65535", NULL);
    dtx_tokenfile_close(file);
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 65536, &file));
    data_ok(f, dtx_tokenfile_read(&f->ctx, file, 1, 5, ids));
    dtx_tokenfile_close(file);
    copy_tiny(f, "tiny_i32", "t");
    patch(data_path(f, "t.bin"), 20, "\377\377\377\377", 4);
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 0, &file));
    data_fails(f, dtx_tokenfile_read(&f->ctx, file, 0, 9, ids), DTX_E_FORMAT, "id -1", "offset 20", NULL);
    dtx_tokenfile_close(file);
    struct dtx_tokenwriter *w;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 50, 0, &w));
    ids[0] = 49;
    data_ok(f, dtx_tokenwriter_add(&f->ctx, w, ids, 1));
    ids[0] = 50;
    data_fails(f, dtx_tokenwriter_add(&f->ctx, w, ids, 1), DTX_E_RANGE, "50", NULL);
    ids[0] = -1;
    data_fails(f, dtx_tokenwriter_add(&f->ctx, w, ids, 1), DTX_E_RANGE, "-1", NULL);
    dtx_tokenwriter_discard(w);
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
        struct dtx_tokenfile *file;
        int32_t ids[100];
        data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 100, &file));
        data_ok(f, dtx_tokenfile_read(&f->ctx, file, 0, 100, ids));
        for (int t = 0; t < 100; t++)
            assert_int_equal(ids[t], t);
        dtx_tokenfile_close(file);
        data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 99, &file));
        data_fails(f, dtx_tokenfile_read(&f->ctx, file, 0, 100, ids), DTX_E_FORMAT, "id 99", "token 99", NULL);
        dtx_tokenfile_close(file);
    }
}

/* A document longer than a sequence may be becomes several sequences; empty documents stay documents. */
static void splits_long_documents(void **state)
{
    struct data_fixture *f = *state;
    static const int lengths[] = {0, 1, 9, 10, 11, 20, 21, 0};
    struct dtx_tokenwriter *w;
    struct dtx_tokenfile *file;
    int32_t ids[21];
    int next = 0;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 70000, 10, &w));
    for (int d = 0; d < 8; d++) {
        for (int t = 0; t < lengths[d]; t++)
            ids[t] = next++;
        data_ok(f, dtx_tokenwriter_add(&f->ctx, w, ids, lengths[d]));
        data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    }
    data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "w"), 70000, &file));
    assert_int_equal(dtx_tokenfile_info(file)->documents, 8);
    assert_int_equal(dtx_tokenfile_info(file)->sequences, 1 + 1 + 1 + 1 + 2 + 2 + 3 + 1);
    assert_int_equal(dtx_tokenfile_info(file)->tokens, next);
    int64_t expected = 0, first;
    for (int d = 0; d < 8; expected += lengths[d++]) {
        data_ok(f, dtx_tokenfile_document(&f->ctx, file, d, &first));
        assert_int_equal(first, expected);
        data_ok(f, dtx_tokenfile_read(&f->ctx, file, first, lengths[d], ids));
        for (int t = 0; t < lengths[d]; t++)
            assert_int_equal(ids[t], expected + t);
    }
    dtx_tokenfile_close(file);
}

/* CASES 15 */
static void empty_corpora_are_files_too(void **state)
{
    struct data_fixture *f = *state;
    for (int documents = 0; documents < 3; documents++) {
        static const int64_t lengths[2] = {0, 0};
        struct dtx_tokenfile *file;
        int64_t largest;
        data_make_tokens(f, data_path(f, "w"), 10, lengths, documents);
        data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "w"), 10, &file));
        assert_int_equal(dtx_tokenfile_info(file)->documents, documents);
        assert_int_equal(dtx_tokenfile_info(file)->tokens, 0);
        data_ok(f, dtx_tokenfile_verify(&f->ctx, file, &largest));
        assert_int_equal(largest, -1);
        dtx_tokenfile_close(file);
    }
}

static void a_second_writer_is_refused(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_tokenwriter *w, *second;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 10, 0, &w));
    data_fails(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 10, 0, &second), DTX_E_IO, "w.bin",
               "another process", NULL);
    dtx_tokenwriter_discard(w);
    assert_int_equal(access(data_path(f, "w.bin"), F_OK), -1);
    assert_int_equal(access(data_path(f, "w.bin.partial"), F_OK), -1);
    data_write(data_path(f, "w.bin.partial"), "left by a killed run", 20);
    static const int64_t length = 3;
    data_make_tokens(f, data_path(f, "w"), 10, &length, 1);
    struct stat st;
    assert_int_equal(stat(data_path(f, "w.bin"), &st), 0);
    assert_int_equal(st.st_size, 6);
    data_fails(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "no/such/folder"), 10, 0, &w), DTX_E_CONFIG,
               "no/such/folder.bin", NULL);
}

/* When the data cannot get its name, no index may stand there as if it had. */
static void a_failed_publication_leaves_no_index(void **state)
{
    struct data_fixture *f = *state;
    static const int64_t length = 3;
    struct dtx_tokenwriter *w;
    data_make_tokens(f, data_path(f, "w"), 10, &length, 1);
    assert_int_equal(remove(data_path(f, "w.bin")), 0);
    assert_int_equal(mkdir(data_path(f, "w.bin"), 0777), 0);
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 10, 0, &w));
    data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    data_fails(f, dtx_tokenwriter_publish(&f->ctx, w), DTX_E_IO, "cannot rename", "w.bin", NULL);
    assert_int_equal(access(data_path(f, "w.idx"), F_OK), -1);
    assert_int_equal(access(data_path(f, "w.idx.partial"), F_OK), -1);
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "w"), 10, 0, &w));
    const int32_t id = 1;
    data_ok(f, dtx_tokenwriter_add(&f->ctx, w, &id, 1));
    data_fails(f, dtx_tokenwriter_publish(&f->ctx, w), DTX_E_INTERNAL, "inside a document", NULL);
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
    struct dtx_tokenfile *file;
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "big"), 1000, &file));
    assert_int_equal(dtx_tokenfile_info(file)->tokens, tokens);
    for (int i = 0; i < 6; i++) {
        int32_t ids[3];
        int64_t first = places[i] > 0 ? places[i] - 1 : 0, count = places[i] + 1 < tokens ? 3 : 2;
        data_ok(f, dtx_tokenfile_read(&f->ctx, file, first, count, ids));
        assert_int_equal(ids[places[i] - first], 100 + i);
    }
    dtx_tokenfile_close(file);
    uint16_t id = 1000;
    fd = open(data_path(f, "big.bin"), O_RDWR);
    assert_int_equal(pwrite(fd, &id, 2, 2 * tokens - 2), 2);
    close(fd);
    int32_t last;
    data_ok(f, dtx_tokenfile_open(&f->ctx, data_path(f, "big"), 1000, &file));
    data_fails(f, dtx_tokenfile_read(&f->ctx, file, tokens - 1, 1, &last), DTX_E_FORMAT, "id 1000", "2199023255550",
               "1099511627775", NULL);
    dtx_tokenfile_close(file);
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
        struct dtx_tokenfile *file = NULL;
        if (dtx_tokenfile_open(&f->ctx, data_path(f, "t"), 0, &file) == DTX_OK) {
            int32_t ids[64];
            int64_t first, d;
            assert_true(dtx_tokenfile_info(file)->tokens <= 18);
            for (int64_t t = 0; t < dtx_tokenfile_info(file)->tokens; t++) {
                (void)dtx_tokenfile_find(&f->ctx, file, t, &d);
                (void)dtx_tokenfile_read(&f->ctx, file, t, 1, ids);
            }
            for (d = 0; d <= dtx_tokenfile_info(file)->documents; d++)
                if (dtx_tokenfile_document(&f->ctx, file, d, &first) == DTX_OK)
                    assert_in_range(first, 0, dtx_tokenfile_info(file)->tokens);
        }
        dtx_tokenfile_close(file);
        dtx_error_clear(&f->ctx);
    }
    free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(reads_golden_files),
        DATA_TEST(writes_golden_files),
        DATA_TEST(refuses_broken_index),
        DATA_TEST(trusts_the_index),
        DATA_TEST(refuses_wrong_data),
        DATA_TEST(refuses_ids_beyond_the_vocabulary),
        DATA_TEST(reads_every_type),
        DATA_TEST(splits_long_documents),
        DATA_TEST(empty_corpora_are_files_too),
        DATA_TEST(a_second_writer_is_refused),
        DATA_TEST(a_failed_publication_leaves_no_index),
        DATA_TEST(offsets_beyond_two_terabytes),
        DATA_TEST(survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
