/* test: label=unit ranks=1 timeout=60 */
/* How blocks are cut into parts: evenly, by FLOPs with the head, by a layout; and what the options refuse, with what
 * would fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/attn.h"
#include "trainer/layer.h"
#include "trainer/split.h"

enum { MOST = 16 };
static const struct dtx_opt_row *const tables[] = {dtx_train_options};

static struct dtx_model_config model_of(int64_t layers, int64_t vocab)
{
    return (struct dtx_model_config){.layers = layers,
                                     .width = 64,
                                     .heads = 4,
                                     .kv_heads = 4,
                                     .head_dim = 8,
                                     .ffn = 192,
                                     .vocab = vocab,
                                     .attention = dtx_attn_find("diff")};
}

static void check_split(const struct dtx_model_config *m, bool by_flops, const char *layout, int parts,
                        const int64_t *want)
{
    int64_t got[MOST];
    struct dtx_split split = {1, layout, by_flops};
    dtx_split_blocks(m, &split, parts, 33, got);
    for (int p = 0; p < parts; p++)
        assert_int_equal(got[p], want[p]);
}

static void even(void **state)
{
    (void)state;
    struct dtx_model_config m = model_of(10, 50000);
    check_split(&m, false, "", 4, (int64_t[]){3, 3, 2, 2});
    check_split(&m, false, NULL, 1, (int64_t[]){10});
    check_split(&m, false, "1,2,3,4", 4, (int64_t[]){1, 2, 3, 4});
    check_split(&m, true, "0,2,8,0", 4, (int64_t[]){0, 2, 8, 0});
}

/* The head costs 2·D·V FLOPs: here as much as some blocks. */
static void by_flops(void **state)
{
    (void)state;
    struct dtx_model_config m = model_of(10, 64);
    double block = dtx_attn_layer.flops(&m, 33) + dtx_ffn_layer.flops(&m, 33);
    check_split(&m, true, "", 4, (int64_t[]){3, 3, 2, 2});
    m.vocab = (int64_t)(2.1 * block / (2 * 64)); /* the head weighs a little more than two blocks */
    check_split(&m, true, "", 4, (int64_t[]){3, 3, 3, 1});
    m.vocab = (int64_t)(5.1 * block / (2 * 64));
    check_split(&m, true, "", 4, (int64_t[]){4, 3, 3, 0});
    /* No other cut has a cheaper dearest part. */
    for (int layers = 4; layers <= 12; layers++)
        for (double weight = 0; weight < 6; weight += 0.7) {
            m.layers = layers;
            m.vocab = (int64_t)(weight * block / (2 * 64));
            int64_t got[3];
            dtx_split_blocks(&m, &(struct dtx_split){1, "", true}, 3, 33, got);
            double head = dtx_head_layer.flops(&m, 33) / block, worst = (double)got[2] + head, best = 1e9;
            worst = worst > (double)got[0] ? worst : (double)got[0];
            for (int a = 0; a <= layers; a++)
                for (int b = 1; a + b <= layers; b++) {
                    double c = layers - a - b + head, most = a > b ? a : b;
                    most = c > most ? c : most;
                    best = most < best ? most : best;
                }
            assert_true(got[0] + got[1] + got[2] == layers && got[1] >= 1);
            assert_true(worst <= best + 1e-9);
        }
}

static void layouts(void **state)
{
    (void)state;
    int64_t counts[MOST];
    assert_true(dtx_split_parse("3,5,4,4", 4, 16, counts));
    assert_int_equal(counts[1], 5);
    assert_true(dtx_split_parse("0,16,0", 3, 16, NULL));
    assert_true(dtx_split_parse("16", 1, 16, NULL));
    static const char *const wrong[] = {
        "3,5,4",   "3,5,4,4,0", "3,5,4,5", "3,0,9,4", "3,5,4,4,", "3,5,4,",    "3,5,,8",
        "3,5,4,x", "-1,9,4,4",  "",        "3 5 4 4", "3,5,4,4 ", "3,5,4,4.0", "99999999999999999999,5,4,4"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (dtx_split_parse(wrong[i], 4, 16, NULL))
            fail_msg("'%s' was taken", wrong[i]);
}

/* Faults of the options, with the numbers that fit. */
static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *options[8];
        const char *text; /* NULL: no fault */
    } rows[] = {
        {{"parallel.pp", "2", "parallel.chunks", "2"},
         "parallel.schedule 1f1b takes 1 chunk a stage, parallel.chunks is 2; what fits: schedule interleaved, or 1 "
         "chunk"},
        {{"parallel.chunks", "2", "parallel.schedule", "interleaved"}, "parallel.pp of at least 2"},
        {{"parallel.pp", "4", "parallel.chunks", "3", "parallel.schedule", "interleaved"},
         "parallel.pp 4 × parallel.chunks 3 is more than the model's 8 layers; what fits: 1 to 2 chunks"},
        {{"parallel.pp", "9"}, "what fits: 1 to 8"},
        {{"parallel.pp", "2", "parallel.dp", "2", "parallel.zero", "2", "parallel.schedule", "zb_h1"},
         "which schedule zb_h1 makes in two parts; what fits: schedule 1f1b, gpipe, interleaved, or parallel.zero 1"},
        {{"parallel.cp", "2", "parallel.zero", "2", "parallel.schedule", "zb_h1"},
         "which schedule zb_h1 makes in two parts; what fits: schedule 1f1b, gpipe, interleaved, or parallel.zero 1"},
        {{"parallel.pp", "2", "parallel.zero", "2", "parallel.schedule", "zb_h1"}, NULL},
        {{"parallel.pp", "2", "parallel.chunks", "2", "parallel.schedule", "interleaved", "train.batch", "7"},
         "takes micro-batches in multiples of the 2 stages, not 7; what fits: train.batch 6 or 8"},
        {{"parallel.pp", "4", "parallel.chunks", "2", "parallel.schedule", "interleaved", "train.batch", "3"},
         "not 3; what fits: train.batch 4 or 8"},
        {{"parallel.pp", "3", "parallel.layout", "2,4,3"},
         "parallel.layout '2,4,3' is not 3 numbers (parallel.pp × parallel.chunks) that add up to model.layers 8, with "
         "0 "
         "only at the first or the last; what fits: 3,3,2"},
        {{"parallel.pp", "2", "parallel.layout", "8"}, "is not 2 numbers"},
        {{"parallel.pp", "3", "parallel.layout", "2,4,2", "parallel.schedule", "zb_h1"}, NULL},
        {{"parallel.pp", "2", "parallel.chunks", "2", "parallel.schedule", "interleaved", "parallel.layout", "1,2,5,0"},
         NULL},
        {{"parallel.pp", "4", "parallel.balance", "flops"}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtx_ctx ctx;
        struct dtx_opt *opt;
        struct dtx_engine_config config;
        dtx_ctx_init(&ctx);
        assert_int_equal(dtx_opt_create(&ctx, tables, 1, &opt), DTX_OK);
        dtx_opt_set(opt, "model.layers", "8", DTX_OPT_FLAG, "test");
        for (int k = 0; k < 8 && rows[i].options[k]; k += 2)
            dtx_opt_set(opt, rows[i].options[k], rows[i].options[k + 1], DTX_OPT_FLAG, "test");
        dtx_engine_config_read(opt, 0, &config);
        enum dtx_status status = dtx_opt_check(&ctx, opt);
        assert_int_equal(status, rows[i].text ? DTX_E_CONFIG : DTX_OK);
        if (rows[i].text && !strstr(ctx.error.text, rows[i].text))
            fail_msg("wanted \"%s\", got \"%s\"", rows[i].text, ctx.error.text);
        dtx_opt_free(opt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(even), cmocka_unit_test(by_flops), cmocka_unit_test(layouts),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
