/* test: label=unit timeout=60 */
/* CASES 14 and 21: sizes at which 32 bits end, in files that take little or no disk. */
#include <sys/resource.h>

#include "kernels/base/clock.h"
#include "tests/unit/data_support.h"

static int64_t peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static void sparse(const char *path, int64_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
}

/* 1.2·10^12 tokens of u16 in 2.4 TB, raw: opened and read anywhere in no time and no memory. */
static void a_trillion_raw_tokens(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = INT64_C(1200000000000), places[] = {0, INT64_C(1) << 32, INT64_C(1000000000000), tokens - 1};
    sparse(data_path(f, "t.npy"), 2 * tokens);
    for (int i = 0; i < 4; i++)
        data_patch(data_path(f, "t.npy"), 2 * places[i], &(uint16_t){(uint16_t)(100 + i)}, 2);
    for (int map = 0; map < 2; map++) {
        struct dtx_filepool *pool;
        struct dtx_source *s;
        data_ok(f, dtx_filepool_create(&f->ctx, map, 0, &pool));
        struct dtx_source_config config = {.files = pool, .vocab = 1000, .separator = 102, .type = "u16"};
        double start = dtx_clock_now();
        data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t.npy"), &s));
        assert_int_equal(dtx_source_info(s)->tokens, tokens);
        for (int i = 0; i < 4; i++) {
            int32_t id;
            data_ok(f, dtx_source_read(&f->ctx, s, places[i], 1, &id));
            assert_int_equal(id, 100 + i);
        }
        int64_t next;
        data_ok(f, dtx_source_next_document(&f->ctx, s, places[2] - 100000, 200000, &next));
        assert_int_equal(next, places[2] + 1);
        double seconds = dtx_clock_now() - start;
        printf("2.4 TB %s: opened and read in %.2f ms\n", map ? "mapped" : "read", seconds * 1e3);
        assert_true(seconds < 0.05);
        dtx_source_close(s);
        dtx_filepool_free(pool);
    }
    assert_true(peak_bytes() < 100 << 20);
}

/* 3·10^9 documents of 400 tokens: 1.2·10^12 tokens behind an index of 24 GB, of which the entries that the search will
 * meet are written. */
static void billions_of_documents(void **state)
{
    struct data_fixture *f = *state;
    const int64_t documents = INT64_C(3000000000), length = 400, wanted = INT64_C(2500000001);
    sparse(data_path(f, "t.ds"), 2 * documents * length);
    sparse(data_path(f, "t.ds.index"), 8 * documents);
    int fd = open(data_path(f, "t.ds.index"), O_RDWR);
    int64_t end = documents * length, low = 0, high = documents;
    assert_int_equal(pwrite(fd, &end, 8, 8 * (documents - 1)), 8);
    while (high - low > 1) { /* the way of a binary search */
        int64_t middle = low + (high - low) / 2;
        end = middle * length;
        assert_int_equal(pwrite(fd, &end, 8, 8 * (middle - 1)), 8);
        *(middle <= wanted ? &low : &high) = middle;
    }
    for (int64_t d = wanted - 1; d <= wanted + 1; d++) {
        end = d * length;
        assert_int_equal(pwrite(fd, &end, 8, 8 * (d - 1)), 8);
    }
    close(fd);
    double start = dtx_clock_now();
    struct dtx_source *s = data_open_source(f, data_path(f, "t.ds"), 50000);
    int64_t d, first, next;
    data_ok(f, dtx_source_find(&f->ctx, s, wanted * length + 17, &d));
    assert_int_equal(d, wanted);
    data_ok(f, dtx_source_document(&f->ctx, s, d, &first));
    assert_int_equal(first, wanted * length);
    data_ok(f, dtx_source_next_document(&f->ctx, s, wanted * length + 17, INT64_MAX, &next));
    assert_int_equal(next, (wanted + 1) * length);
    double seconds = dtx_clock_now() - start;
    printf("3·10^9 documents: found in %.2f ms\n", seconds * 1e3);
    assert_true(seconds < 0.05);
    assert_true(peak_bytes() < 100 << 20);
    dtx_source_close(s);
}

/* 2^31 + 8 documents in Megatron's index, all empty but the last; of its boundaries those are written that the search
 * meets. */
static void more_documents_than_an_int(void **state)
{
    struct data_fixture *f = *state;
    const int64_t documents = (INT64_C(1) << 31) + 8;
    const int64_t n = documents, m = documents + 1, version = 1;
    sparse(data_path(f, "t.idx"), 34 + 12 * n + 8 * m);
    sparse(data_path(f, "t.bin"), 2 * 5);
    data_patch(data_path(f, "t.idx"), 0, "MMIDIDX\0\0", 9);
    data_patch(data_path(f, "t.idx"), 9, &version, 8);
    data_patch(data_path(f, "t.idx"), 17, "\10", 1);
    data_patch(data_path(f, "t.idx"), 18, &n, 8);
    data_patch(data_path(f, "t.idx"), 26, &m, 8);
    data_patch(data_path(f, "t.idx"), 34 + 4 * (n - 1), &(int32_t){5}, 4);
    const int64_t places[] = {n - 1, n, (INT64_C(1) << 31) + 1};
    for (int i = 0; i < 3; i++)
        data_patch(data_path(f, "t.idx"), 34 + 12 * n + 8 * places[i], &places[i], 8);
    struct dtx_source *s = data_open_source(f, data_path(f, "t"), 50000);
    int64_t first, d;
    assert_int_equal(dtx_source_info(s)->documents, documents);
    assert_int_equal(dtx_source_info(s)->tokens, 5);
    data_ok(f, dtx_source_document(&f->ctx, s, documents, &first));
    assert_int_equal(first, 5);
    data_ok(f, dtx_source_document(&f->ctx, s, (INT64_C(1) << 31) + 1, &first));
    assert_int_equal(first, 0);
    data_ok(f, dtx_source_find(&f->ctx, s, 2, &d));
    assert_int_equal(d, documents - 1);
    dtx_source_close(s);
    assert_true(peak_bytes() < 100 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(a_trillion_raw_tokens),
        DATA_TEST(billions_of_documents),
        DATA_TEST(more_documents_than_an_int),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
