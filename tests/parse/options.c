/* Options from YAML. What was read and has no fault comes out of a dump and in again as the same text. */
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"
#include "tests/parse/parse.h"

static const struct dtx_opt_row rows[] = {{"a.whole", DTX_OPT_INT, "3", "-5..1000000", DTX_OPT_FREE, "a number"},
                                          {"a.real", DTX_OPT_REAL, "0.5", "0..", DTX_OPT_FREE, "a number"},
                                          {"a.truth", DTX_OPT_BOOL, "true", NULL, DTX_OPT_FIXED, "yes or no"},
                                          {"b.text", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "anything"},
                                          {"b.choice", DTX_OPT_CHOICE, "x", "x|y|zed", DTX_OPT_FREE, "one of them"},
                                          {"single", DTX_OPT_TEXT, "t", NULL, DTX_OPT_CALL, "without a group"},
                                          {NULL, 0, NULL, NULL, 0, NULL}};
static const struct dtx_opt_row *const tables[] = {rows};

/* The options as text, or NULL when `text` is refused. */
static char *through(struct dtx_ctx *ctx, const char *text)
{
    struct dtx_opt *opt;
    char *out = NULL;
    PROMISE(dtx_opt_create(ctx, tables, 1, &opt) == DTX_OK);
    enum dtx_status status = dtx_opt_load_text(ctx, opt, text, "input", DTX_OPT_FILE);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    PROMISE(status == DTX_OK || status == DTX_E_CONFIG);
    PROMISE((status == DTX_OK) == (ctx->error.text[0] == '\0'));
    if (status == DTX_OK)
        PROMISE(dtx_opt_dump(ctx, opt, &out) == DTX_OK);
    dtx_opt_free(opt);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    char *text = malloc(n + 1);
    memcpy(text, data, n);
    text[n] = '\0';
    char *once = through(&ctx, text);
    if (once) {
        char *twice = through(&ctx, once);
        PROMISE(twice && strcmp(once, twice) == 0);
        dtx_mem_free(twice);
    }
    dtx_mem_free(once);
    free(text);
    return 0;
}
