/* test: label=unit timeout=60 */
/* 1.2·10^12 tokens in 3·10^9 documents: sparse files, on which only what is read was written. */
#include <sys/resource.h>

#include "data/order.h"
#include "data/stream.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "tests/unit/data_support.h"

enum { LENGTH = 1024, SEED = 11, HELD = 60000000 };
static const int64_t TOKENS = INT64_C(1200000000000), DOCUMENTS = INT64_C(3000000000);

static void put(int fd, const void *value, size_t bytes, int64_t at)
{
    assert_int_equal(pwrite(fd, value, bytes, at), bytes);
}

/* Both ends of the index, and the document at which the held-out part begins: token `cut`. */
static void make_index(struct data_fixture *f, int64_t cut)
{
    int fd = open(data_path(f, "t.idx"), O_RDWR | O_CREAT, 0600);
    uint64_t head[3] = {1, (uint64_t)DOCUMENTS, (uint64_t)DOCUMENTS + 1};
    int64_t lengths = 34, offsets = lengths + 4 * DOCUMENTS, documents = offsets + 8 * DOCUMENTS;
    int64_t first_held = DOCUMENTS - HELD, cut_at = 2 * cut, last_at = 2 * (TOKENS - 7);
    int32_t last_length = 7;
    uint8_t type = 8;
    assert_true(fd >= 0);
    put(fd, "MMIDIDX\0\0", 9, 0);
    put(fd, &head[0], 8, 9);
    put(fd, &type, 1, 17);
    put(fd, &head[1], 8, 18);
    put(fd, &head[2], 8, 26);
    put(fd, &last_length, 4, lengths + 4 * (DOCUMENTS - 1));
    put(fd, &cut_at, 8, offsets + 8 * first_held);
    put(fd, &last_at, 8, offsets + 8 * (DOCUMENTS - 1));
    put(fd, &first_held, 8, documents + 8 * first_held);
    put(fd, &DOCUMENTS, 8, documents + 8 * DOCUMENTS);
    close(fd);
}

static double resident_megabytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* Opens, seeks, reads sample i: seconds. */
static double visit(struct data_fixture *f, const struct dtx_stream_config *config, int64_t i, int32_t *tokens,
                    char **ledger)
{
    static const int64_t most = 65536;
    struct dtx_rows rows = {tokens, malloc((size_t)most * sizeof *tokens), NULL, false};
    struct dtx_stream *s;
    struct dtx_walk *walk;
    double start = dtx_clock_now();
    data_ok(f, dtx_stream_open(&f->ctx, config, &s));
    data_ok(f, dtx_walk_open(&f->ctx, s, &walk));
    data_ok(f, dtx_stream_read(&f->ctx, s, walk, i, 1, &rows));
    double seconds = dtx_clock_now() - start;
    if (ledger)
        data_ok(f, dtx_stream_ledger(&f->ctx, s, walk, i + 1, NULL, 0, ledger));
    dtx_walk_close(walk);
    dtx_stream_close(s);
    free(rows.targets);
    return seconds;
}

static void seeks_in_a_trillion_tokens(void **state)
{
    struct data_fixture *f = *state;
    int64_t cut = INT64_C(1176000000001), samples = (cut - 1) / LENGTH;
    make_index(f, cut);
    int fd = open(data_path(f, "t.bin"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 2 * TOKENS), 0);
    struct dtx_stream_config config = {
        .paths = data_path(f, "t"), .length = LENGTH, .seed = SEED, .heldout = 0.02, .vocab = 60000, .separator = -1};
    static const int64_t where[] = {0, 1000000000, 1148437498, 1148437499, 1148437500, INT64_C(10000000000000)};
    int32_t *tokens = malloc(65536 * sizeof *tokens);
    struct dtx_order order;
    char *ledger = NULL;
    data_ok(f, dtx_order_init(&f->ctx, &order, SEED, 0, samples));
    for (size_t k = 0; k < sizeof where / sizeof *where; k++) {
        int64_t first = dtx_order_sample(&order, where[k]) * LENGTH;
        uint16_t ids[3] = {(uint16_t)(1000 + k), 7, (uint16_t)(2000 + k)};
        put(fd, ids, 6, 2 * first);
        double seconds = visit(f, &config, where[k], tokens, where[k] == 1000000000 ? &ledger : NULL);
        print_message("sample %lld: opened, found and read in %.2f ms\n", (long long)where[k], 1e3 * seconds);
        assert_true(seconds < 0.05);
        assert_int_equal(tokens[0], 1000 + k);
        assert_int_equal(tokens[1], 7);
        assert_int_equal(tokens[2], 2000 + k);
    }
    /* 64 times as long from there on: the first sample that is whole is searched for; so is the next after a resume. */
    char *after = NULL;
    config.ledger = ledger;
    config.length = 65536;
    for (int k = 0; k < 2; k++) {
        char early[512]; /* a fiftieth of the epoch is through */
        if (k == 0) {
            char *at = strstr(ledger, "course 0 0 0 1024 ");
            assert_non_null(at);
            snprintf(early, sizeof early, "%.*scourse 0 0 0 1024 20000000 0 0 0 0\nend\n", (int)(at - ledger), ledger);
            config.ledger = early;
        }
        double seconds = visit(f, &config, 1000000001 + k, tokens, k == 0 ? &after : NULL);
        print_message("length 65,536, sample %d after the change: %.2f ms\n", k, 1e3 * seconds);
        config.ledger = after;
        assert_true(seconds < 0.5);
    }
    print_message("resident: %.0f MB\n", resident_megabytes());
    assert_true(resident_megabytes() < 100);
    dtx_mem_free(ledger);
    dtx_mem_free(after);
    free(tokens);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(seeks_in_a_trillion_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
