/* test: label=long timeout=900 */
/* CASES 14: a document of more than 2^31 tokens through the writer (4.3 GB of disk): several sequences, one document.
 */
#include "tests/unit/data_support.h"

static void a_document_longer_than_an_int(void **state)
{
    struct data_fixture *f = *state;
    enum { BLOCK = 1 << 20 };
    const int64_t tokens = (INT64_C(1) << 31) + 5;
    static int32_t ids[BLOCK];
    struct dtx_tokenwriter *w;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, "t"), 50000, 0, &w));
    for (int document = 0; document < 2; document++) {
        int64_t n = document ? 3 : tokens;
        for (int64_t t = 0; t < n; t += BLOCK) {
            int64_t part = n - t < BLOCK ? n - t : BLOCK;
            for (int64_t i = 0; i < part; i++)
                ids[i] = (int32_t)((t + i) % 49999);
            data_ok(f, dtx_tokenwriter_add(&f->ctx, w, ids, part));
        }
        data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    }
    data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
    struct dtx_source *s = data_open_source(f, data_path(f, "t"), 50000);
    int64_t first;
    assert_int_equal(dtx_source_info(s)->documents, 2);
    assert_int_equal(dtx_source_info(s)->sequences, 3);
    assert_int_equal(dtx_source_info(s)->tokens, tokens + 3);
    data_ok(f, dtx_source_document(&f->ctx, s, 1, &first));
    assert_int_equal(first, tokens);
    const int64_t places[] = {0, INT64_C(1) << 30, (INT64_C(1) << 31) - 2, INT64_C(1) << 31, tokens - 3};
    for (int i = 0; i < 5; i++) {
        data_ok(f, dtx_source_read(&f->ctx, s, places[i], 3, ids));
        for (int64_t t = 0; t < 3; t++)
            assert_int_equal(ids[t], (places[i] + t) % 49999);
    }
    dtx_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {DATA_TEST(a_document_longer_than_an_int)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
