/* test: label=unit timeout=60 */
/* Sources copied into Megatron pairs: nothing lost, nothing moved, documents whole. */
#include "data/rewrite.h"
#include "kernels/base/rng.h"
#include "tests/unit/data_support.h"

enum { VOCAB = 60000, SEPARATOR = 7, MOST = 400 };

/* A text as the test knows it. */
struct text {
    int32_t ids[20000];
    int64_t starts[MOST + 1]; /* of documents */
    int n;
    int64_t tokens;
};

/* n documents, some empty; with `separated` each ends with the separator, and none is empty. */
static void make_text(struct text *x, uint64_t seed, int n, bool separated)
{
    *x = (struct text){.n = n};
    for (int d = 0; d < n; d++) {
        int length = (int)(dtx_rng_uniform(seed, (uint64_t)d) * 60) - 10;
        x->starts[d] = x->tokens;
        for (int t = 0; t < length; t++, x->tokens++)
            x->ids[x->tokens] = 10 + (int32_t)(dtx_rng_uniform(seed, 100000 + (uint64_t)x->tokens) * (VOCAB - 10));
        if (separated)
            x->ids[x->tokens++] = SEPARATOR;
    }
    x->starts[n] = x->tokens;
}

/* Megatron's pair, datatrove's with an index, raw tokens: by `kind`. */
static const char *write_text(struct data_fixture *f, const struct text *x, int kind, const char *name)
{
    char file[64];
    static uint16_t raw[20000];
    for (int64_t t = 0; t < x->tokens; t++)
        raw[t] = (uint16_t)x->ids[t];
    if (kind == 0) {
        struct dtx_tokenwriter *w;
        data_ok(f, dtx_tokenwriter_create(&f->ctx, data_path(f, name), VOCAB, 13, &w));
        for (int d = 0; d < x->n; d++) {
            data_ok(f, dtx_tokenwriter_add(&f->ctx, w, x->ids + x->starts[d], x->starts[d + 1] - x->starts[d]));
            data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
        }
        data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
        return data_path(f, name);
    }
    snprintf(file, sizeof file, kind == 1 ? "%s.ds" : "%s.npy", name);
    data_write(data_path(f, file), raw, 2 * (size_t)x->tokens);
    if (kind == 1) {
        snprintf(file, sizeof file, "%s.ds.index", name);
        data_write(data_path(f, file), x->starts + 1, 8 * (size_t)x->n);
        snprintf(file, sizeof file, "%s.ds", name);
    }
    return data_path(f, file);
}

static struct dtx_source *open_text(struct data_fixture *f, const char *path)
{
    struct dtx_source *s;
    struct dtx_source_config config = {.files = f->files, .vocab = VOCAB, .separator = SEPARATOR};
    data_ok(f, dtx_source_open(&f->ctx, &config, path, &s));
    return s;
}

/* The pair has exactly documents first … last − 1 of the text. */
static void same_documents(struct data_fixture *f, const char *path, const struct text *x, int first, int last)
{
    struct dtx_source *s = open_text(f, path);
    static int32_t ids[20000];
    assert_int_equal(dtx_source_info(s)->documents, last - first);
    assert_int_equal(dtx_source_info(s)->tokens, x->starts[last] - x->starts[first]);
    assert_string_equal(dtx_source_info(s)->type, "u16");
    for (int d = first; d <= last; d++) {
        int64_t start;
        data_ok(f, dtx_source_document(&f->ctx, s, d - first, &start));
        assert_int_equal(start, x->starts[d] - x->starts[first]);
    }
    data_ok(f, dtx_source_read(&f->ctx, s, 0, dtx_source_info(s)->tokens, ids));
    assert_memory_equal(ids, x->ids + x->starts[first], 4 * (size_t)dtx_source_info(s)->tokens);
    dtx_source_close(s);
}

static void converts_every_format(void **state)
{
    struct data_fixture *f = *state;
    static struct text x;
    for (int kind = 0; kind < 3; kind++)
        for (int n = 0; n < MOST; n += 1 + 199 * (n > 1)) {
            make_text(&x, (uint64_t)(kind + 1), n, kind == 2);
            char out[48];
            snprintf(out, sizeof out, "out%d.%d", kind, n);
            struct dtx_source *s = open_text(f, write_text(f, &x, kind, "in"));
            struct dtx_rewrite r = {&s, 1, VOCAB, NULL};
            struct dtx_rewrite_part part;
            data_ok(f, dtx_rewrite_merge(&f->ctx, &r, data_path(f, out), &part));
            assert_int_equal(part.documents, n);
            assert_int_equal(part.tokens, x.tokens);
            dtx_source_close(s);
            same_documents(f, data_path(f, out), &x, 0, n);
        }
}

static void merges_in_order(void **state)
{
    struct data_fixture *f = *state;
    static struct text whole, x;
    struct dtx_source *sources[3];
    static const char *const names[] = {"a", "b", "c"};
    whole.n = 0;
    for (int kind = 0; kind < 3; kind++) {
        make_text(&x, (uint64_t)(10 + kind), 100, kind == 2);
        sources[kind] = open_text(f, write_text(f, &x, kind, names[kind]));
        for (int d = 0; d < x.n; d++)
            whole.starts[whole.n++] = whole.tokens + x.starts[d];
        memcpy(whole.ids + whole.tokens, x.ids, 4 * (size_t)x.tokens);
        whole.tokens += x.tokens;
        whole.starts[whole.n] = whole.tokens;
    }
    struct dtx_rewrite r = {sources, 3, 0, NULL};
    struct dtx_rewrite_part part;
    data_ok(f, dtx_rewrite_merge(&f->ctx, &r, data_path(f, "m"), &part));
    same_documents(f, data_path(f, "m"), &whole, 0, whole.n);
    data_fails(f, dtx_rewrite_merge(&f->ctx, &r, data_path(f, "m"), &part), DTX_E_CONFIG, "m.bin", "exists", NULL);
    for (int i = 0; i < 3; i++)
        dtx_source_close(sources[i]);
    same_documents(f, data_path(f, "m"), &whole, 0, whole.n);
}

/* A document goes where its first token is; the parts in a row are the text. */
static void splits_between_documents(void **state)
{
    struct data_fixture *f = *state;
    static struct text x;
    for (int kind = 0; kind < 3; kind++) {
        make_text(&x, (uint64_t)(20 + kind), 300, kind == 2);
        struct dtx_source *s = open_text(f, write_text(f, &x, kind, "in"));
        struct dtx_rewrite r = {&s, 1, VOCAB, NULL};
        int64_t ends[4] = {x.tokens / 3, x.tokens / 3, x.starts[200], x.tokens};
        struct dtx_rewrite_part parts[4];
        char prefix[32], name[DTX_REWRITE_PATH];
        snprintf(prefix, sizeof prefix, "p%d", kind);
        data_ok(f, dtx_rewrite_split(&f->ctx, &r, data_path(f, prefix), ends, 4, parts));
        dtx_source_close(s);
        int first = 0;
        for (int k = 0; k < 4; k++) {
            int last = first;
            while (last < x.n && (x.starts[last] < ends[k] || k == 3))
                last++;
            dtx_rewrite_name(data_path(f, prefix), k, 4, name);
            same_documents(f, name, &x, first, last);
            assert_int_equal(parts[k].documents, last - first);
            first = last;
        }
        assert_int_equal(parts[1].documents, 0);
    }
    /* Without documents the cut is exact. */
    make_text(&x, 30, 300, false);
    struct dtx_source *s;
    struct dtx_source_config config = {.files = f->files, .vocab = VOCAB, .separator = -1};
    data_ok(f, dtx_source_open(&f->ctx, &config, write_text(f, &x, 2, "in"), &s));
    struct dtx_rewrite r = {&s, 1, VOCAB, NULL};
    const int64_t ends[2] = {101, x.tokens};
    struct dtx_rewrite_part parts[2];
    data_ok(f, dtx_rewrite_split(&f->ctx, &r, data_path(f, "exact"), ends, 2, parts));
    assert_int_equal(parts[0].tokens, 101);
    assert_int_equal(parts[1].tokens, x.tokens - 101);
    assert_int_equal(parts[0].documents + parts[1].documents, 2);
    dtx_source_close(s);
}

/* A fault in the middle names its place and leaves nothing. */
static void a_fault_leaves_nothing(void **state)
{
    struct data_fixture *f = *state;
    static struct text x;
    make_text(&x, 40, 300, false);
    write_text(f, &x, 0, "in");
    data_patch(data_path(f, "in.bin"), 4000, "\377\377", 2);
    struct dtx_source *s = open_text(f, data_path(f, "in"));
    struct dtx_rewrite r = {&s, 1, VOCAB, NULL};
    struct dtx_rewrite_part part;
    data_fails(f, dtx_rewrite_merge(&f->ctx, &r, data_path(f, "out"), &part), DTX_E_FORMAT, "in.bin", "id 65535",
               "offset 4000", NULL);
    dtx_source_close(s);
    assert_int_equal(access(data_path(f, "out.bin"), F_OK), -1);
    assert_int_equal(access(data_path(f, "out.bin.partial"), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(converts_every_format),
        DATA_TEST(merges_in_order),
        DATA_TEST(splits_between_documents),
        DATA_TEST(a_fault_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
