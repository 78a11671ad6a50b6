/* test: label=unit timeout=30 */
/* Where rows go between dtx and Hugging Face, against the lists of blocks and rows written out; inverse; names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "checkpoints/hf/map.h"
#include "kernels/base/mem.h"

static struct dtx_ckpt_model model(bool diff, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    return (struct dtx_ckpt_model){.diff = diff,
                                   .layers = 2,
                                   .width = heads * head_dim * (diff ? 2 : 1),
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = head_dim,
                                   .ffn = 24,
                                   .vocab = 11,
                                   .subnorm = "affine"};
}

/* Their rows in order as a list of ours: the even blocks then the odd ones, rows 0, 2, … then 1, 3, … of each. */
static void list_rows(int64_t blocks, int64_t d, bool pairs, bool rotary, int64_t *ours)
{
    int64_t n = 0;
    for (int odd_block = 0; odd_block < (pairs ? 2 : 1); odd_block++)
        for (int64_t b = odd_block; b < blocks; b += pairs ? 2 : 1)
            for (int odd_row = 0; odd_row < (rotary ? 2 : 1); odd_row++)
                for (int64_t r = odd_row; r < d; r += rotary ? 2 : 1)
                    ours[n++] = b * d + r;
    assert_int_equal(n, blocks * d);
}

static const struct dtx_hf_tensor *find(const struct dtx_hf_tensor *t, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(t[i].ours, name) == 0)
            return &t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void check_rows(const struct dtx_hf_tensor *t, int64_t d, bool pairs, bool rotary)
{
    int64_t rows = t->shape[0], *ours = malloc((size_t)rows * sizeof *ours);
    list_rows(rows / d, d, pairs, rotary, ours);
    for (int64_t r = 0; r < rows; r++) {
        if (dtx_hf_row_back(t, r) != ours[r] || dtx_hf_row(t, ours[r]) != r)
            fail_msg("%s: their row %lld is our row %lld; got %lld and back %lld", t->ours, (long long)r,
                     (long long)ours[r], (long long)dtx_hf_row_back(t, r), (long long)dtx_hf_row(t, ours[r]));
        int64_t run = dtx_hf_run(t, r, rows - r);
        assert_in_range(run, 1, rows - r);
        for (int64_t i = 0; i < run; i++)
            assert_int_equal(dtx_hf_row(t, r + i), dtx_hf_row(t, r) + i);
    }
    free(ours);
}

static void test_rows(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {{1, 4, 4, 2}, {1, 4, 2, 8}, {1, 6, 1, 4}, {0, 4, 2, 6}, {0, 5, 5, 2}};
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *c = cases[i], d = c[3];
        struct dtx_ckpt_model m = model(c[0], c[1], c[2], d);
        struct dtx_hf_tensor *t;
        int n;
        assert_int_equal(dtx_hf_tensors(&ctx, &m, &t, &n), DTX_OK);
        check_rows(find(t, n, "layers.01.attn.q"), d, m.diff, true);
        check_rows(find(t, n, "layers.01.attn.k"), d, m.diff, true);
        check_rows(find(t, n, "layers.01.attn.v"), d, m.diff, false);
        check_rows(find(t, n, "layers.01.attn.out"), m.width, false, false);
        check_rows(find(t, n, "embed.tokens"), m.vocab, false, false);
        dtx_mem_free(t);
    }
}

static void test_names(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_ckpt_model m = model(true, 4, 2, 8);
    struct dtx_hf_tensor *t;
    int n;
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_hf_tensors(&ctx, &m, &t, &n), DTX_OK);
    assert_int_equal(n, 1 + 2 * 14 + 2);
    const struct dtx_hf_tensor *k = find(t, n, "layers.01.attn.k"), *out = find(t, n, "layers.00.attn.out");
    assert_string_equal(k->theirs, "model.layers.1.self_attn.k_proj.weight");
    assert_int_equal(k->shape[0], 2 * 2 * 8);
    assert_string_equal(out->gain, "layers.00.attn.subnorm");
    assert_int_equal(out->gain_n, 16);
    assert_string_equal(find(t, n, "layers.00.attn.subnorm")->theirs, "");
    assert_string_equal(find(t, n, "head.out")->theirs, "lm_head.weight");
    dtx_mem_free(t);
    m = model(false, 4, 2, 8);
    m.tied = true;
    assert_int_equal(dtx_hf_tensors(&ctx, &m, &t, &n), DTX_OK);
    assert_int_equal(n, 1 + 2 * 9 + 1);
    assert_int_equal(find(t, n, "layers.00.attn.out")->gain_n, 0);
    dtx_mem_free(t);
    m = model(true, 4, 2, 8);
    strcpy(m.subnorm, "plain");
    assert_int_equal(dtx_hf_tensors(&ctx, &m, &t, &n), DTX_OK);
    assert_int_equal(n, 1 + 2 * 13 + 2);
    assert_int_equal(find(t, n, "layers.00.attn.out")->gain_n, 0);
    dtx_mem_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
