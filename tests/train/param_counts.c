/* test: label=train timeout=60 */
/*
 * Parameter counts of the shipped presets against the published recipes, from the table of weights alone: nothing is
 * allocated, so the largest model costs nothing. The count does not depend on the mesh.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "trainer/attn.h"
#include "trainer/config.h"
#include "trainer/model.h"

static const struct {
    const char *preset;
    int64_t parameters;
} published[] = {
    {"diff-830m", 833608704},  {"diff-1.4b", 1413271552}, {"diff-2.8b", 2794482176}, {"diff-6.8b", 6836744192},
    {"diff-13b", 13123046400}, {"diff-3b", 3479175168},   {"bench-124m", 123591936},
};

static void read_preset(struct dtx_ctx *ctx, const char *preset, const char *attention, struct dtx_engine_config *out)
{
    struct dtx_opt *opt;
    char path[1024];
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    const char *source = getenv("DTX_SOURCE");
    assert_non_null(source);
    snprintf(path, sizeof path, "%s/launch/presets/%s.yaml", source, preset);
    assert_int_equal(dtx_opt_create(ctx, tables, 1, &opt), DTX_OK);
    assert_int_equal(dtx_opt_load_file(ctx, opt, path, DTX_OPT_PRESET), DTX_OK);
    if (strcmp(attention, "softmax") == 0) { /* the matched baseline: twice the heads */
        char heads[32];
        snprintf(heads, sizeof heads, "%lld", 2 * (long long)dtx_opt_int(opt, "model.heads"));
        dtx_opt_set(opt, "model.attention", "softmax", DTX_OPT_FLAG, "test");
        dtx_opt_set(opt, "model.heads", heads, DTX_OPT_FLAG, "test");
    }
    dtx_engine_config_read(opt, 0, out);
    if (dtx_opt_check(ctx, opt) != DTX_OK)
        fail_msg("%s: %s", preset, ctx->error.text);
    dtx_opt_free(opt);
}

static int64_t count(struct dtx_ctx *ctx, const struct dtx_model_config *model, int tp, int pp)
{
    const struct dtx_mesh mesh = {.size = {tp, 1, pp, 1}};
    int64_t total;
    assert_int_equal(dtx_model_count(ctx, model, &mesh, &total), DTX_OK);
    return total;
}

/* L·(2D² + 2D²/r + 3·D·ffn + 2D + 4d + 2d) + D + V·D (+ V·D untied); softmax has no λ and no sub-norm gain. */
static int64_t formula(const struct dtx_model_config *m)
{
    int64_t w = m->width, own = strcmp(m->attention->name, "diff") == 0 ? 6 * m->head_dim : 0;
    int64_t block = 2 * w * w + 2 * w * w * m->kv_heads / m->heads + 3 * w * m->ffn + 2 * w + own;
    return m->layers * block + w + (m->tied ? 1 : 2) * m->vocab * w;
}

static void test_presets(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_engine_config config;
    dtx_ctx_init(&ctx);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        read_preset(&ctx, published[i].preset, "diff", &config);
        int64_t got = count(&ctx, &config.model, 1, 1);
        if (got != published[i].parameters)
            fail_msg("%s has %lld parameters, not %lld", published[i].preset, (long long)got,
                     (long long)published[i].parameters);
        assert_int_equal(got, formula(&config.model));
        assert_int_equal(count(&ctx, &config.model, 2, 4), got);
        int64_t width = config.model.width, head_dim = config.model.head_dim;
        read_preset(&ctx, published[i].preset, "softmax", &config);
        assert_int_equal(config.model.width, width);
        assert_int_equal(config.model.head_dim, head_dim);
        assert_int_equal(count(&ctx, &config.model, 1, 1), got - 6 * head_dim * config.model.layers);
    }
}

static void test_formula(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_engine_config config;
    dtx_ctx_init(&ctx);
    read_preset(&ctx, "laptop", "diff", &config);
    struct dtx_model_config *m = &config.model;
    assert_int_equal(count(&ctx, m, 1, 1), formula(m));
    m->tied = !m->tied;
    assert_int_equal(count(&ctx, m, 2, 2), formula(m));
    m->kv_heads = m->heads / 2;
    m->vocab = 8191; /* padding is in no count */
    m->ffn = 683;
    assert_int_equal(count(&ctx, m, 2, 1), formula(m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_presets), cmocka_unit_test(test_formula)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
