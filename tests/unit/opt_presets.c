/* test: label=unit timeout=60 */
/* Every shipped preset loads without a fault: known keys, values in range, no contradiction; and its dump loads back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/base/mem.h"
#include "trainer/config.h"

static const struct dtx_opt_row *const tables[] = {dtx_train_options};

/* The dump of a preset's resolved options, after all checks. */
static char *resolve(struct dtx_ctx *ctx, const char *path, const char *text)
{
    struct dtx_opt *opt = NULL;
    struct dtx_engine_config config;
    char *dump = NULL;
    assert_int_equal(dtx_opt_create(ctx, tables, 1, &opt), DTX_OK);
    enum dtx_status status = text ? dtx_opt_load_text(ctx, opt, text, path, DTX_OPT_PRESET)
                                  : dtx_opt_load_file(ctx, opt, path, DTX_OPT_PRESET);
    if (status == DTX_OK) {
        dtx_engine_config_read(opt, 0, &config);
        status = dtx_opt_check(ctx, opt);
    }
    if (status != DTX_OK)
        fail_msg("%s: %s", path, ctx->error.text);
    assert_int_equal(dtx_opt_dump(ctx, opt, &dump), DTX_OK);
    dtx_opt_free(opt);
    return dump;
}

static void presets(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    const char *source = getenv("DTX_SOURCE");
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/launch/presets/*.yaml", source ? source : ".");
    glob_t files;
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 8);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char *first = resolve(&ctx, files.gl_pathv[i], NULL), *second = resolve(&ctx, files.gl_pathv[i], first);
        assert_string_equal(first, second);
        dtx_mem_free(first);
        dtx_mem_free(second);
    }
    globfree(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(presets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
