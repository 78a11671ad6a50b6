/* test: label=unit timeout=60 */
/* The readers of llm.c, datatrove and OLMo or NumPy files, boundaries of documents, and the pool of files. */
#include <pthread.h>
#include <sys/resource.h>

#include "kernels/base/clock.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

static enum dtx_status try_typed(struct data_fixture *f, const char *name, const char *type, int64_t vocab)
{
    struct dtx_source *s = NULL;
    struct dtx_source_config config = {.files = f->files, .vocab = vocab, .separator = -1, .type = type};
    enum dtx_status status = dtx_source_open(&f->ctx, &config, data_path(f, name), &s);
    dtx_source_close(s);
    return status;
}

/* The source's tokens are ids[n], read in one go and one by one. */
static void same_ids(struct data_fixture *f, struct dtx_source *s, const int32_t *ids, int64_t n)
{
    int32_t got[64];
    assert_int_equal(dtx_source_info(s)->tokens, n);
    data_ok(f, dtx_source_read(&f->ctx, s, 0, n, got));
    assert_memory_equal(got, ids, (size_t)n * sizeof *ids);
    for (int64_t t = 0; t < n; t++) {
        data_ok(f, dtx_source_read(&f->ctx, s, t, 1, got));
        assert_int_equal(got[0], ids[t]);
    }
}

static const int32_t llmc_ids[5] = {50256, 15496, 995, 50256, 40};

static void copy_llmc(struct data_fixture *f, int kind)
{
    size_t n;
    char *bytes = data_read(
        data_source(kind ? "tests/golden/formats/llmc_llama3.bin" : "tests/golden/formats/llmc_gpt2.bin"), &n);
    data_write(data_path(f, "t.bin"), bytes, n);
    free(bytes);
}

static void reads_llmc(void **state)
{
    struct data_fixture *f = *state;
    for (int kind = 0; kind < 2; kind++) {
        copy_llmc(f, kind);
        struct dtx_source *s = data_open_source(f, data_path(f, "t.bin"), 0);
        const struct dtx_source_info *info = dtx_source_info(s);
        assert_string_equal(info->format, "llmc");
        assert_string_equal(info->type, kind ? "u32" : "u16");
        assert_int_equal(info->documents, -1);
        same_ids(f, s, llmc_ids, 5);
        dtx_source_close(s);
    }
    struct dtx_source *s = data_open_source(f, data_path(f, "t.bin"), 50256);
    int32_t ids[5];
    data_fails(f, dtx_source_read(&f->ctx, s, 1, 4, ids), DTX_E_FORMAT, "id 50256", "offset 1036", "token 3", NULL);
    dtx_source_close(s);
}

static void refuses_broken_llmc(void **state)
{
    struct data_fixture *f = *state;
    static const struct {
        off_t at;
        const char *bytes;
        size_t n;
        const char *word, *value;
    } faults[] = {
        {0, "\1", 1, "magic", "offset 0"},
        {0, "\1\64\330\210", 4, "big-endian", "20240520"},
        {0, "\1\64\331\241", 4, "big-endian", "20240801"},
        {0, "\212", 1, "evaluation", "20240522"},
        {4, "\2", 1, "version", "2"},
        {4, "\7", 1, "version", "7"}, /* llama 3's, under the other magic */
        {8, "\6", 1, "truncated", "1036"},
        {8, "\4", 1, "oversized", "1034"},
        {8, "\377\377\377\377", 4, "-1 tokens", "offset 8"},
        {8, "\377\377\377\177", 4, "truncated", "4294968318"},
        {1033, NULL, 0, "truncated", "1033"},
        {1035, NULL, 0, "oversized", "1035"},
        {1023, NULL, 0, "truncated", "1023"},
        {0, NULL, 0, "truncated", "0 bytes"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        copy_llmc(f, 0);
        data_patch(data_path(f, "t.bin"), faults[i].at, faults[i].bytes, faults[i].n);
        data_fails(f, try_typed(f, "t.bin", NULL, 0), DTX_E_FORMAT, "t.bin", faults[i].word, faults[i].value, NULL);
    }
    copy_llmc(f, 0);
    data_fails(f, try_typed(f, "t.bin", NULL, 65537), DTX_E_FORMAT, "u16", "65536", "65537", NULL);
    data_fails(f, try_typed(f, "none.bin", NULL, 0), DTX_E_CONFIG, "none.bin", f->ctx.host, NULL);
}

static void write_ds(struct data_fixture *f, int token_bytes, const char *metadata, bool index)
{
    static const int64_t ends[] = {3, 3, 4, 9};
    char data[36];
    for (uint32_t t = 0; t < 9; t++)
        memcpy(data + t * (size_t)token_bytes, &(uint32_t){100 + t}, (size_t)token_bytes);
    data_write(data_path(f, "t.ds"), data, 9 * (size_t)token_bytes);
    remove(data_path(f, "t.ds.index"));
    remove(data_path(f, "t.ds.metadata"));
    if (index)
        data_write(data_path(f, "t.ds.index"), ends, sizeof ends);
    if (metadata)
        data_write(data_path(f, "t.ds.metadata"), metadata, strlen(metadata));
}

static void reads_datatrove(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t ids[] = {100, 101, 102, 103, 104, 105, 106, 107, 108};
    static const int64_t starts[] = {0, 3, 3, 4, 9}, next[] = {0, 3, 3, 3, 4, 9, 9, 9, 9, 9};
    for (int k = 0; k < 12; k++) {
        int bytes = k % 2 ? 4 : 2;
        bool index = k % 4 < 2, whole = k < 8;
        const char *metadata = k < 4 ? k % 2 ? "org/llama|4\n9\n9 T" : "gpt2|2\n9\n9 T" : k < 8 ? "gpt2\n9\n9 T" : NULL;
        write_ds(f, bytes, metadata, index);
        /* Without both, nothing says the type but the configuration. */
        struct dtx_source *s;
        struct dtx_source_config config = {
            .files = f->files, .separator = -1, .type = !index && !whole ? k % 2 ? "u32" : "u16" : "auto"};
        data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t.ds"), &s));
        same_ids(f, s, ids, 9);
        assert_int_equal(dtx_source_info(s)->documents, index ? 4 : -1);
        int64_t got;
        for (int d = 0; d <= 4 && index; d++) {
            data_ok(f, dtx_source_document(&f->ctx, s, d, &got));
            assert_int_equal(got, starts[d]);
        }
        for (int t = 0; t <= 9 && index; t++) {
            data_ok(f, dtx_source_next_document(&f->ctx, s, t, 100, &got));
            assert_int_equal(got, next[t]);
        }
        dtx_source_close(s);
    }
    write_ds(f, 2, NULL, false);
    data_fails(f, try_typed(f, "t.ds", NULL, 0), DTX_E_CONFIG, "t.ds", "type", NULL);
    data_ok(f, try_typed(f, "t.ds", NULL, 50257));
}

static void refuses_broken_datatrove(void **state)
{
    struct data_fixture *f = *state;
    write_ds(f, 2, NULL, true);
    data_patch(data_path(f, "t.ds"), 17, NULL, 0);
    data_fails(f, try_typed(f, "t.ds", "u16", 0), DTX_E_FORMAT, "17 bytes", "truncated", NULL);
    data_patch(data_path(f, "t.ds"), 16, NULL, 0);
    data_fails(f, try_typed(f, "t.ds", "u16", 0), DTX_E_FORMAT, "t.ds.index", "token 9", "8 tokens", NULL);
    data_patch(data_path(f, "t.ds"), 20, NULL, 0);
    data_fails(f, try_typed(f, "t.ds", "u16", 0), DTX_E_FORMAT, "t.ds.index", "token 9", "10 tokens", NULL);
    write_ds(f, 2, NULL, true);
    data_patch(data_path(f, "t.ds.index"), 31, NULL, 0);
    data_fails(f, try_typed(f, "t.ds", NULL, 0), DTX_E_FORMAT, "t.ds.index", "31 bytes", NULL);
    write_ds(f, 2, NULL, true);
    data_patch(data_path(f, "t.ds.index"), 8, "\5", 1);
    data_fails(f, try_typed(f, "t.ds", NULL, 0), DTX_E_FORMAT, "document 2", "token 4", "offset 16", "after 5", NULL);
    write_ds(f, 2, NULL, true);
    data_patch(data_path(f, "t.ds.index"), 31, "\377", 1);
    data_fails(f, try_typed(f, "t.ds", "u16", 0), DTX_E_FORMAT, "t.ds.index", "offset 24", NULL);
    static const char *const wrong[][2] = {{"gpt2|2\n8\n", "8 tokens"},
                                           {"gpt2|4\n9\n", "18 bytes"},
                                           {"gpt2|8\n9\n", "8"},
                                           {"gpt2|2\nmany\n", "many"},
                                           {"gpt2", "second line"},
                                           {"gpt2|2\n-9\n", "-9"},
                                           {"gpt2|2\n99999999999999999999\n", "9223372036854775807"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_ds(f, 2, wrong[i][0], false);
        data_fails(f, try_typed(f, "t.ds", NULL, 0), DTX_E_FORMAT, "t.ds", wrong[i][1], NULL);
    }
    write_ds(f, 2, "gpt2|2\n9\n", true);
    data_fails(f, try_typed(f, "t.ds", "u32", 0), DTX_E_CONFIG, "u16", "u32", NULL);
}

static void reads_olmo(void **state)
{
    struct data_fixture *f = *state;
    int32_t ids[40];
    char data[160];
    for (int k = 0; k < 2; k++) {
        for (int t = 0; t < 40; t++) {
            ids[t] = 1000 + t;
            memcpy(data + t * (k ? 4 : 2), &ids[t], k ? 4 : 2);
        }
        data_write(data_path(f, "t.npy"), data, k ? 160 : 80);
        struct dtx_source *s;
        struct dtx_source_config config = {
            .files = f->files, .separator = -1, .type = k ? "u32" : "u16", .vocab = 50304};
        data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t.npy"), &s));
        same_ids(f, s, ids, 40);
        assert_int_equal(dtx_source_info(s)->documents, -1);
        assert_string_equal(dtx_source_info(s)->format, "npy");
        dtx_source_close(s);
    }
    /* u32 on disk, and a vocabulary that fits u16: the zeros show. */
    data_fails(f, try_typed(f, "t.npy", "auto", 50304), DTX_E_FORMAT, "t.npy", "u32", "u16", NULL);
    data_ok(f, try_typed(f, "t.npy", "auto", 100000));
    data_fails(f, try_typed(f, "t.npy", "auto", 0), DTX_E_CONFIG, "t.npy", "type", NULL);
    data_fails(f, try_typed(f, "t.npy", "f32", 0), DTX_E_CONFIG, "f32", NULL);
    data_patch(data_path(f, "t.npy"), 79, NULL, 0);
    data_fails(f, try_typed(f, "t.npy", "u16", 0), DTX_E_FORMAT, "79 bytes", "truncated", NULL);
    /* A name without a meaning, with the format before it. */
    assert_int_equal(rename(data_path(f, "t.npy"), data_path(f, "part-7")), 0);
    for (int t = 0; t < 39; t++)
        memcpy(data + 2 * t, &ids[t], 2);
    data_patch(data_path(f, "part-7"), 0, data, 78);
    data_patch(data_path(f, "part-7"), 78, NULL, 0);
    char path[600];
    snprintf(path, sizeof path, "npy:%s", data_path(f, "part-7"));
    struct dtx_source *s;
    data_ok(f, data_try_source(f, path, 60000, &s));
    assert_int_equal(dtx_source_info(s)->tokens, 39);
    dtx_source_close(s);
    snprintf(path, sizeof path, "numpy:%s", data_path(f, "part-7"));
    data_fails(f, data_try_source(f, path, 60000, &s), DTX_E_CONFIG, "numpy", "datatrove|llmc|megatron|npy", NULL);
}

/* NumPy's own header, padded to a multiple of 64 as NumPy does; 10 tokens. */
static void write_npy(struct data_fixture *f, int version, const char *dictionary, int token_bytes, int64_t data_bytes)
{
    char file[512] = "\x93NUMPY";
    size_t head = version == 1 ? 10 : 12, n = strlen(dictionary), total = (head + n + 1 + 63) / 64 * 64;
    uint32_t length = (uint32_t)(total - head);
    file[6] = (char)version;
    memcpy(file + 8, &length, version == 1 ? 2 : 4);
    memset(file + head, ' ', length);
    memcpy(file + head, dictionary, n);
    file[total - 1] = '\n';
    for (uint64_t t = 0; t < 10; t++)
        memcpy(file + total + t * (size_t)token_bytes, &(uint64_t){7 + t}, (size_t)token_bytes);
    data_write(data_path(f, "t.npy"), file, total + (size_t)data_bytes);
}

static void reads_numpy(void **state)
{
    struct data_fixture *f = *state;
    static const int32_t ids[] = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const struct {
        const char *descr, *type;
        int bytes;
    } types[] = {{"<u2", "u16", 2}, {"<i4", "i32", 4}, {"<u4", "u32", 4}, {"<i8", "i64", 8}, {"|u1", "u8", 1}};
    for (int version = 1; version <= 3; version++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            char text[128];
            snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (10,), }", types[k].descr);
            write_npy(f, version, text, types[k].bytes, 10 * types[k].bytes);
            struct dtx_source *s = data_open_source(f, data_path(f, "t.npy"), 0);
            assert_string_equal(dtx_source_info(s)->type, types[k].type);
            same_ids(f, s, ids, 10);
            dtx_source_close(s);
        }
    static const struct {
        const char *dictionary, *word;
        int version;
        int64_t bytes;
    } faults[] = {
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (10,), }", "big endian", 1, 20},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (10,), }", "<f4", 1, 40},
        {"{'descr': '<u99', 'fortran_order': False, 'shape': (10,), }", "<u99", 1, 40},
        {"{'descr': [('a', '<u2')], 'shape': (10,), }", "descr", 1, 20},
        {"{'fortran_order': False, 'shape': (10,), }", "descr", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, }", "shape", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (5, 2), }", "shape", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }", "shape", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (-1,), }", "shape", 1, 20},
        {"{'descr': '<u2', 'shape': (9223372036854775807,), }", "9223372036854775807", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (11,), }", "truncated", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }", "oversized", 1, 20},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (10,), }", "version 4", 4, 20},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_npy(f, faults[i].version, faults[i].dictionary, 2, faults[i].bytes);
        data_fails(f, try_typed(f, "t.npy", NULL, 0), DTX_E_FORMAT, "t.npy", faults[i].word, NULL);
    }
    write_npy(f, 1, "{'descr': '<u2', 'shape': (10,), }", 2, 20);
    data_patch(data_path(f, "t.npy"), 20, NULL, 0);
    data_fails(f, try_typed(f, "t.npy", NULL, 0), DTX_E_FORMAT, "truncated", "54", NULL);
}

/* Boundaries by the separator alone, searched where they are asked for. */
static void finds_documents_by_separator(void **state)
{
    struct data_fixture *f = *state;
    enum { TOKENS = 20000 };
    static uint16_t ids[TOKENS];
    static int64_t expected[TOKENS + 1];
    for (int t = 0; t < TOKENS; t++)
        ids[t] = dtx_rng_uniform(3, (uint64_t)t) < 0.001 || t == 4095 || t == 4096 || t == TOKENS - 1 ? 9 : 5;
    expected[TOKENS] = TOKENS;
    for (int t = TOKENS - 1; t > 0; t--)
        expected[t] = ids[t - 1] == 9 ? t : expected[t + 1];
    expected[0] = 0;
    data_write(data_path(f, "t.npy"), ids, sizeof ids);
    struct dtx_source_config config = {.files = f->files, .vocab = 10, .separator = 9};
    struct dtx_source *s;
    int64_t got;
    data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t.npy"), &s));
    for (int64_t t = 0; t <= TOKENS; t += 1 + t % 3) {
        data_ok(f, dtx_source_next_document(&f->ctx, s, t, INT64_MAX, &got));
        assert_int_equal(got, expected[t]);
        data_ok(f, dtx_source_next_document(&f->ctx, s, t, 50, &got));
        assert_int_equal(got, expected[t] <= t + 50 ? expected[t] : -1);
    }
    data_fails(f, dtx_source_document(&f->ctx, s, 0, &got), DTX_E_RANGE, "no index", NULL);
    dtx_source_close(s);
    config.separator = -1;
    data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, "t.npy"), &s));
    data_ok(f, dtx_source_next_document(&f->ctx, s, 1, 50, &got));
    assert_int_equal(got, -1);
    data_ok(f, dtx_source_next_document(&f->ctx, s, 1, TOKENS, &got));
    assert_int_equal(got, TOKENS);
    dtx_source_close(s);
}

/* CASES 21: a thousand sources under a limit of 256 descriptors, in less than a second; each is opened again when it is
 * read. */
static void a_thousand_sources_under_a_low_limit(void **state)
{
    enum { SOURCES = 1000 };
    struct data_fixture *f = *state;
    struct rlimit before, low;
    static const int64_t lengths[] = {3, 4};
    static struct dtx_source *sources[SOURCES];
    char name[32];
    for (int i = 0; i < 2; i++) { /* the pairs are two files with a thousand names */
        snprintf(name, sizeof name, "original%d", i);
        data_make_tokens(f, data_path(f, name), 10, lengths, 1 + i);
    }
    for (int i = 0; i < SOURCES; i++)
        for (int k = 0; k < 2; k++) {
            char from[32];
            snprintf(from, sizeof from, "original%d.%s", i % 2, k ? "idx" : "bin");
            snprintf(name, sizeof name, "s%d.%s", i, k ? "idx" : "bin");
            assert_int_equal(symlink(data_path(f, from), data_path(f, name)), 0);
        }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    double best = 1e9;
    for (int map = 0; map < 2; map++) {
        struct dtx_filepool *pool;
        data_ok(f, dtx_filepool_create(&f->ctx, map, 0, &pool));
        struct dtx_source_config config = {.files = pool, .vocab = 10, .separator = -1};
        double start = dtx_clock_now();
        for (int i = 0; i < SOURCES; i++) {
            snprintf(name, sizeof name, "s%d", i);
            data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, name), &sources[i]));
        }
        double seconds = dtx_clock_now() - start;
        best = seconds < best ? seconds : best;
        assert_true(map || dtx_filepool_open_files(pool) <= 64);
        for (uint64_t k = 0; k < 3000; k++) {
            int i = (int)(dtx_rng_uniform(5, k) * SOURCES);
            int32_t ids[7];
            int64_t d;
            data_ok(f, dtx_source_read(&f->ctx, sources[i], 0, i % 2 ? 7 : 3, ids));
            assert_int_equal(ids[2], 2);
            data_ok(f, dtx_source_find(&f->ctx, sources[i], i % 2 ? 3 : 2, &d));
            assert_int_equal(d, i % 2);
        }
        for (int i = 0; i < SOURCES; i++)
            dtx_source_close(sources[i]);
        assert_int_equal(dtx_filepool_open_files(pool), 0);
        dtx_filepool_free(pool);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(best < 1);
}

/* What is replaced under the reader's feet is said, not read. */
static void notices_a_replaced_file(void **state)
{
    struct data_fixture *f = *state;
    struct dtx_filepool *pool;
    struct dtx_poolfile a, b;
    char byte;
    data_write(data_path(f, "a"), "abc", 3);
    data_write(data_path(f, "b"), "de", 2);
    data_ok(f, dtx_filepool_create(&f->ctx, false, 1, &pool));
    data_ok(f, dtx_poolfile_add(&f->ctx, pool, data_path(f, "a"), &a));
    data_ok(f, dtx_poolfile_add(&f->ctx, pool, data_path(f, "b"), &b));
    assert_int_equal(dtx_filepool_open_files(pool), 1);
    data_ok(f, dtx_poolfile_read(&f->ctx, &a, &byte, 1, 2));
    assert_int_equal(byte, 'c');
    data_ok(f, dtx_poolfile_read(&f->ctx, &b, &byte, 1, 1));
    data_write(data_path(f, "a"), "abcd", 4);
    data_fails(f, dtx_poolfile_read(&f->ctx, &a, &byte, 1, 2), DTX_E_FORMAT, "3 bytes", "4", "replaced", NULL);
    data_fails(f, dtx_poolfile_read(&f->ctx, &b, &byte, 1, 2), DTX_E_FORMAT, "ends at byte 2", "offset 2", NULL);
    assert_int_equal(remove(data_path(f, "a")), 0);
    data_fails(f, dtx_poolfile_read(&f->ctx, &a, &byte, 1, 0), DTX_E_CONFIG, "cannot open", f->ctx.host, NULL);
    dtx_poolfile_close(&a);
    dtx_poolfile_close(&b);
    dtx_filepool_free(pool);
}

struct reading {
    struct data_fixture *f;
    struct dtx_source **sources;
    uint64_t seed;
    int wrong;
};

static void *read_many(void *p)
{
    struct reading *r = p;
    struct dtx_ctx ctx;
    dtx_ctx_init_child(&ctx, &r->f->ctx);
    for (uint64_t k = 0; k < 4000; k++) {
        int i = (int)(dtx_rng_uniform(r->seed, k) * 20);
        int32_t id[2] = {-1, -1};
        r->wrong += dtx_source_read(&ctx, r->sources[i], i, 2, id) != DTX_OK || id[0] != i || id[1] != i + 1;
    }
    return NULL;
}

/* Several threads, more files than may be open. */
static void reads_on_several_threads(void **state)
{
    struct data_fixture *f = *state;
    for (int map = 0; map < 2; map++) {
        struct dtx_filepool *pool;
        struct dtx_source *sources[20];
        data_ok(f, dtx_filepool_create(&f->ctx, map, 4, &pool));
        struct dtx_source_config config = {.files = pool, .vocab = 100, .separator = -1};
        for (int i = 0; i < 20; i++) {
            static const int64_t length = 30;
            char name[16];
            snprintf(name, sizeof name, "s%d", i);
            data_make_tokens(f, data_path(f, name), 100, &length, 1);
            data_ok(f, dtx_source_open(&f->ctx, &config, data_path(f, name), &sources[i]));
        }
        pthread_t threads[3];
        struct reading reading[3];
        for (int t = 0; t < 3; t++) {
            reading[t] = (struct reading){f, sources, (uint64_t)t, 0};
            assert_int_equal(pthread_create(&threads[t], NULL, read_many, &reading[t]), 0);
        }
        for (int t = 0; t < 3; t++) {
            pthread_join(threads[t], NULL);
            assert_int_equal(reading[t].wrong, 0);
        }
        assert_in_range(dtx_filepool_open_files(pool), 1, 6);
        for (int i = 0; i < 20; i++)
            dtx_source_close(sources[i]);
        dtx_filepool_free(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(reads_llmc),
        DATA_TEST(refuses_broken_llmc),
        DATA_TEST(reads_datatrove),
        DATA_TEST(refuses_broken_datatrove),
        DATA_TEST(reads_olmo),
        DATA_TEST(reads_numpy),
        DATA_TEST(finds_documents_by_separator),
        DATA_TEST(a_thousand_sources_under_a_low_limit),
        DATA_TEST(notices_a_replaced_file),
        DATA_TEST(reads_on_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
