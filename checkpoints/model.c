#include "checkpoints/model.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/opt.h"

#define SIZE "1..16777216"
static const struct dtx_opt_row rows[] = {
    {"model.layers", DTX_OPT_INT, "1", "1..10000", DTX_OPT_FIXED, ""},
    {"model.width", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.heads", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.kv_heads", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.head_dim", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.ffn", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.vocab", DTX_OPT_INT, "1", SIZE, DTX_OPT_FIXED, ""},
    {"model.attention", DTX_OPT_TEXT, "", NULL, DTX_OPT_FIXED, ""},
    {"model.tied", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FIXED, ""},
    {"model.rope_theta", DTX_OPT_REAL, "0", NULL, DTX_OPT_FIXED, ""},
    {"model.norm_eps", DTX_OPT_REAL, "0", NULL, DTX_OPT_FIXED, ""},
    {"model.subnorm", DTX_OPT_CHOICE, "none", "affine|plain|none", DTX_OPT_FIXED, ""},
    {"model.lambda_init", DTX_OPT_TEXT, "", NULL, DTX_OPT_FIXED, ""},
    {"train.length", DTX_OPT_INT, "1", SIZE, DTX_OPT_FREE, ""},
    /* older checkpoints lack what follows */
    {"train.dtype", DTX_OPT_CHOICE, "f32", "f32|bf16|f64", DTX_OPT_FREE, ""},
    {"model.transfer", DTX_OPT_CHOICE, "none", DTX_TRANSFER_CHOICES, DTX_OPT_FIXED, ""},
    {"model.base_width", DTX_OPT_INT, "0", NULL, DTX_OPT_FIXED, ""},
    {"model.base_layers", DTX_OPT_INT, "0", NULL, DTX_OPT_FIXED, ""},
    {"model.base_head_dim", DTX_OPT_INT, "0", NULL, DTX_OPT_FIXED, ""},
    {"model.embed_mult", DTX_OPT_REAL, "1", NULL, DTX_OPT_FIXED, ""},
    {"model.output_mult", DTX_OPT_REAL, "1", NULL, DTX_OPT_FIXED, ""},
    {NULL, 0, NULL, NULL, 0, NULL},
};
#undef SIZE

static enum dtx_status load(struct dtx_ctx *ctx, const char *config, const char *name, struct dtx_opt **out)
{
    const struct dtx_opt_row *const tables[] = {rows};
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, out));
    enum dtx_status status = dtx_opt_load_known(ctx, *out, config, name, DTX_OPT_STORED);
    for (const struct dtx_opt_row *row = rows; strcmp(row->key, "train.dtype") != 0; row++)
        if (!dtx_opt_is_set(*out, row->key))
            dtx_opt_fault(*out, "%s: its options lack %s", name, row->key);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, *out);
    if (status != DTX_OK)
        dtx_opt_free(*out);
    return status;
}

static enum dtx_status check(struct dtx_ctx *ctx, const char *name, const char *attention,
                             const struct dtx_ckpt_model *m)
{
    int64_t maps = m->diff ? 2 : 1;
    if (!m->diff && strcmp(attention, "softmax") != 0)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: model.attention '%s' can be neither exported nor imported", name,
                        attention);
    if (m->width != m->heads * maps * m->head_dim || m->head_dim % 2 || m->heads % m->kv_heads)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "%s: %lld heads, %lld key/value heads and head_dim %lld do not make width %lld", name,
                        (long long)m->heads, (long long)m->kv_heads, (long long)m->head_dim, (long long)m->width);
    return DTX_OK;
}

enum dtx_status dtx_ckpt_model_read(struct dtx_ctx *ctx, const char *config, const char *name,
                                    struct dtx_ckpt_model *out)
{
    struct dtx_opt *opt;
    DTX_TRY(ctx, load(ctx, config, name, &opt));
    const char *attention = dtx_opt_text(opt, "model.attention");
    struct dtx_ckpt_model m = {.diff = strcmp(attention, "diff") == 0,
                               .layers = dtx_opt_int(opt, "model.layers"),
                               .width = dtx_opt_int(opt, "model.width"),
                               .heads = dtx_opt_int(opt, "model.heads"),
                               .kv_heads = dtx_opt_int(opt, "model.kv_heads"),
                               .head_dim = dtx_opt_int(opt, "model.head_dim"),
                               .ffn = dtx_opt_int(opt, "model.ffn"),
                               .vocab = dtx_opt_int(opt, "model.vocab"),
                               .length = dtx_opt_int(opt, "train.length"),
                               .tied = dtx_opt_bool(opt, "model.tied"),
                               .rope_theta = dtx_opt_real(opt, "model.rope_theta"),
                               .norm_eps = dtx_opt_real(opt, "model.norm_eps")};
    snprintf(m.subnorm, sizeof m.subnorm, "%s", dtx_opt_text(opt, "model.subnorm"));
    snprintf(m.lambda_init, sizeof m.lambda_init, "%s", dtx_opt_text(opt, "model.lambda_init"));
    dtx_dtype_parse(dtx_opt_text(opt, "train.dtype"), &m.dtype);
    m.transfer = dtx_transfer_read(opt, m.width, m.layers, m.head_dim);
    enum dtx_status status = dtx_opt_check(ctx, opt);
    if (status == DTX_OK)
        status = check(ctx, name, attention, &m);
    dtx_opt_free(opt);
    if (status == DTX_OK)
        *out = m;
    return status;
}

static void set_int(struct dtx_opt *opt, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    dtx_opt_set(opt, key, text, DTX_OPT_STORED, "model");
}

static void set_real(struct dtx_opt *opt, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    dtx_opt_set(opt, key, text, DTX_OPT_STORED, "model");
}

enum dtx_status dtx_ckpt_model_write(struct dtx_ctx *ctx, const struct dtx_ckpt_model *m, char **config)
{
    const struct dtx_opt_row *const tables[] = {rows};
    struct dtx_opt *opt;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    set_int(opt, "model.layers", m->layers);
    set_int(opt, "model.width", m->width);
    set_int(opt, "model.heads", m->heads);
    set_int(opt, "model.kv_heads", m->kv_heads);
    set_int(opt, "model.head_dim", m->head_dim);
    set_int(opt, "model.ffn", m->ffn);
    set_int(opt, "model.vocab", m->vocab);
    set_int(opt, "train.length", m->length);
    set_real(opt, "model.rope_theta", m->rope_theta);
    set_real(opt, "model.norm_eps", m->norm_eps);
    const struct {
        const char *key, *text;
    } texts[] = {{"model.attention", m->diff ? "diff" : "softmax"},
                 {"model.tied", m->tied ? "true" : "false"},
                 {"model.subnorm", m->subnorm},
                 {"model.lambda_init", m->lambda_init},
                 {"train.dtype", dtx_dtype_name(m->dtype)}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        dtx_opt_set(opt, texts[i].key, texts[i].text, DTX_OPT_STORED, "model");
    enum dtx_status status = dtx_opt_check(ctx, opt);
    if (status == DTX_OK)
        status = dtx_opt_dump(ctx, opt, config);
    dtx_opt_free(opt);
    return status;
}

enum dtx_status dtx_ckpt_model_compare(struct dtx_ctx *ctx, const char *config, const char *name, const char *other,
                                       const char *other_name)
{
    struct dtx_opt *a, *b;
    DTX_TRY(ctx, load(ctx, config, name, &a));
    enum dtx_status status = load(ctx, other, other_name, &b);
    if (status == DTX_OK) {
        dtx_opt_compare_fixed(a, b, "model.", other_name);
        status = dtx_opt_check(ctx, a);
        dtx_opt_free(b);
    }
    dtx_opt_free(a);
    return status;
}
