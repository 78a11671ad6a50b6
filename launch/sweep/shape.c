/* Shapes: what a model of a shape counts, and which shapes an isoFLOP budget gets. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/trial.h"
#include "trainer/engine.h"

static void set_int(struct dtx_opt *opt, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    dtx_opt_set(opt, key, text, DTX_OPT_FLAG, "sweep");
}

/* Widths that heads of both kinds can share: multiples of two maps of the head's width or, where the number of heads is
 * fixed, of two even maps of each. */
static int64_t width_unit(const struct dtx_opt *opt, const struct dtx_attn_variant *base)
{
    int64_t head_dim = dtx_opt_int(opt, "model.head_dim");
    return head_dim ? 2 * head_dim : 2 * base->softmax_heads * dtx_opt_int(opt, "model.heads");
}

/* Heads of a shape, as `base` counts them, and of keys: in the proportion of the configuration. */
static void set_heads(struct dtx_opt *opt, const struct dtx_sweep_shape *shape, const struct dtx_attn_variant *base)
{
    int64_t head_dim = dtx_opt_int(opt, "model.head_dim"), heads = dtx_opt_int(opt, "model.heads");
    int64_t kv = dtx_opt_int(opt, "model.kv_heads"), group = kv > 0 && heads % kv == 0 ? heads / kv : 0;
    if (shape->heads) {
        heads = shape->heads;
        set_int(opt, "model.head_dim", 0);
    } else if (head_dim) {
        heads = dtx_max64(1, shape->width / (base->softmax_heads * head_dim));
    }
    set_int(opt, "model.heads", heads);
    if (group)
        set_int(opt, "model.kv_heads", heads % group == 0 ? heads / group : heads);
}

enum dtx_status dtx_sweep_model_make(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec,
                                     const struct dtx_sweep_shape *shape, const struct dtx_attn_variant *variant,
                                     struct dtx_sweep_model *out, bool *good)
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    const struct dtx_attn_variant *base = dtx_attn_find(dtx_opt_text(spec->opt, "model.attention"));
    struct dtx_engine_config config;
    struct dtx_opt *opt;
    *out = (struct dtx_sweep_model){0};
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_known(ctx, opt, spec->base, "spec", DTX_OPT_FILE);
    set_int(opt, "model.width", shape->width);
    set_int(opt, "model.layers", shape->layers);
    if (shape->ffn)
        set_int(opt, "model.ffn", shape->ffn);
    set_heads(opt, shape, base);
    set_int(opt, "lr.warmup", 0); /* of a training whose length is not known yet */
    dtx_engine_config_read(opt, spec->ranks, &config);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    *good = status == DTX_OK;
    if (status == DTX_E_CONFIG) {
        dtx_opt_fault(spec->opt, "%s: shape %lldx%lld: %s", dtx_opt_from(spec->opt, "sweep.shapes"),
                      (long long)shape->width, (long long)shape->layers, ctx->error.text);
        dtx_error_clear(ctx);
        status = DTX_OK;
    }
    out->config = config.model;
    if (*good && variant != base && !dtx_attn_match(&config.model, variant, &out->config)) {
        dtx_opt_fault(spec->opt, "%s: shape %lldx%lld: %lld heads of %s have no counterpart in %s; give an even number",
                      dtx_opt_from(spec->opt, "sweep.shapes"), (long long)shape->width, (long long)shape->layers,
                      (long long)config.model.heads, base->name, variant->name);
        *good = false;
    }
    dtx_opt_free(opt);
    DTX_TRY(ctx, status);
    if (!*good)
        return DTX_OK;
    const struct dtx_model_config *m = &out->config;
    double length = (double)dtx_opt_int(spec->opt, "train.length");
    const struct dtx_mesh alone = {.size = {1, 1, 1, 1}};
    DTX_TRY(ctx, dtx_model_count(ctx, m, &alone, &out->n[DTX_SWEEP_TOTAL]));
    out->n[DTX_SWEEP_NONEMBEDDING] = out->n[DTX_SWEEP_TOTAL] - (m->tied ? 1 : 2) * m->vocab * m->width;
    out->n[DTX_SWEEP_MATMUL] = (int64_t)(dtx_model_flops(m, 0) / 2);
    out->flops_per_token[0] = 3 * dtx_model_flops(m, (length + 1) / 2);
    out->flops_per_token[1] = 3 * dtx_model_flops(m, length);
    return DTX_OK;
}

double dtx_sweep_token_flops(const struct dtx_sweep_model *model, enum dtx_sweep_flops convention)
{
    if (DTX_MUTANT(sweep_budget_without_attention))
        return 6 * (double)model->n[DTX_SWEEP_MATMUL];
    return convention == DTX_SWEEP_6ND ? 6 * (double)model->n[DTX_SWEEP_TOTAL]
                                       : model->flops_per_token[convention == DTX_SWEEP_PALM];
}

/* The next width, its layers by the aspect, and what the model counts. */
static enum dtx_status add_candidate(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec, int64_t step,
                                     struct dtx_sweep_candidates *c, bool *good)
{
    const struct dtx_attn_variant *base = dtx_attn_find(dtx_opt_text(spec->opt, "model.attention"));
    struct dtx_sweep_model model;
    struct dtx_sweep_candidate *next = &c->item[c->n];
    int64_t width = step * (c->n + 1);
    next->shape = (struct dtx_sweep_shape){.width = width,
                                           .layers = dtx_max64(1, (int64_t)llround((double)width / spec->aspect))};
    DTX_TRY(ctx, dtx_sweep_model_make(ctx, spec, &next->shape, base, &model, good));
    if (*good) {
        next->n = (double)model.n[spec->count];
        next->token_flops = dtx_sweep_token_flops(&model, spec->flops);
        c->n++;
    }
    return DTX_OK;
}

/* Tokens a weight that the budget leaves a candidate. */
static double ratio(const struct dtx_sweep_candidate *c, double budget)
{
    return budget / c->token_flops / c->n;
}

/* N, between the candidates' in logarithms, at which the budget leaves spec->centre tokens a weight. */
static double middle_size(const struct dtx_sweep_spec *spec, const struct dtx_sweep_candidates *c, double budget)
{
    int i = 1;
    while (i < c->n - 1 && ratio(&c->item[i], budget) > spec->centre)
        i++;
    double n0 = log(c->item[i - 1].n), n1 = log(c->item[i].n);
    double r0 = log(ratio(&c->item[i - 1], budget)), r1 = log(ratio(&c->item[i], budget));
    return exp(n0 + (n1 - n0) * (log(spec->centre) - r0) / (r1 - r0));
}

static const struct dtx_sweep_candidate *nearest(const struct dtx_sweep_candidates *c, double n)
{
    const struct dtx_sweep_candidate *best = &c->item[0];
    for (int i = 1; i < c->n; i++)
        if (fabs(log(c->item[i].n / n)) < fabs(log(best->n / n)))
            best = &c->item[i];
    return best;
}

enum dtx_status dtx_sweep_choose_shapes(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec,
                                        struct dtx_sweep_candidates *c, double budget, struct dtx_sweep_shape *out,
                                        int *n)
{
    const struct dtx_attn_variant *base = dtx_attn_find(dtx_opt_text(spec->opt, "model.attention"));
    int64_t unit = width_unit(spec->opt, base), step = spec->width_step ? spec->width_step : unit;
    bool good = true;
    *n = 0;
    if (step % unit) {
        dtx_opt_fault(spec->opt, "%s: sweep.width_step %lld is not a multiple of %lld, which the heads need",
                      dtx_opt_from(spec->opt, "sweep.width_step"), (long long)step, (long long)unit);
        return DTX_OK;
    }
    /* The largest model has about centre / spread² tokens a weight. */
    double last = spec->centre / (spec->spread * spec->spread) / 4;
    while (good && c->n < DTX_SWEEP_CANDIDATES && (c->n < 2 || ratio(&c->item[c->n - 1], budget) > last))
        DTX_TRY(ctx, add_candidate(ctx, spec, step, c, &good));
    if (!good)
        return DTX_OK;
    double middle = middle_size(spec, c, budget);
    for (int64_t i = 0; i < spec->sizes; i++) {
        double place = spec->sizes == 1 ? 0 : 2.0 * (double)i / (double)(spec->sizes - 1) - 1; /* −1 … 1 */
        const struct dtx_sweep_candidate *best = nearest(c, middle * pow(spec->spread, place));
        if (*n == 0 || out[*n - 1].width != best->shape.width)
            out[(*n)++] = best->shape;
    }
    return DTX_OK;
}
