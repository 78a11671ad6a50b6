/* test: label=unit timeout=60 */
/* The writer of Megatron's pairs. */
#include "tests/unit/data_support.h"

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

/* CASES 10 */
static void refuses_ids_beyond_the_vocabulary(void **state)
{
    struct data_fixture *f = *state;
    int32_t ids[1];
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

/* A document longer than a sequence may be becomes several sequences; empty documents stay documents. */
static void splits_long_documents(void **state)
{
    struct data_fixture *f = *state;
    static const int lengths[] = {0, 1, 9, 10, 11, 20, 21, 0};
    struct dtx_tokenwriter *w;
    struct dtx_source *file;
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
    file = data_open_source(f, data_path(f, "w"), 70000);
    assert_int_equal(dtx_source_info(file)->documents, 8);
    assert_int_equal(dtx_source_info(file)->sequences, 1 + 1 + 1 + 1 + 2 + 2 + 3 + 1);
    assert_int_equal(dtx_source_info(file)->tokens, next);
    int64_t expected = 0, first;
    for (int d = 0; d < 8; expected += lengths[d++]) {
        data_ok(f, dtx_source_document(&f->ctx, file, d, &first));
        assert_int_equal(first, expected);
        data_ok(f, dtx_source_read(&f->ctx, file, first, lengths[d], ids));
        for (int t = 0; t < lengths[d]; t++)
            assert_int_equal(ids[t], expected + t);
    }
    dtx_source_close(file);
}

/* CASES 15 */
static void empty_corpora_are_files_too(void **state)
{
    struct data_fixture *f = *state;
    for (int documents = 0; documents < 3; documents++) {
        static const int64_t lengths[2] = {0, 0};
        struct dtx_source *file;
        int64_t largest;
        data_make_tokens(f, data_path(f, "w"), 10, lengths, documents);
        file = data_open_source(f, data_path(f, "w"), 10);
        assert_int_equal(dtx_source_info(file)->documents, documents);
        assert_int_equal(dtx_source_info(file)->tokens, 0);
        data_ok(f, dtx_source_verify(&f->ctx, file, NULL, &largest));
        assert_int_equal(largest, -1);
        dtx_source_close(file);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(writes_golden_files),        DATA_TEST(refuses_ids_beyond_the_vocabulary),
        DATA_TEST(splits_long_documents),      DATA_TEST(empty_corpora_are_files_too),
        DATA_TEST(a_second_writer_is_refused), DATA_TEST(a_failed_publication_leaves_no_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
