/* From the axes of a spec to its trials. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/trial.h"

enum dtx_status dtx_sweep_trials_add(struct dtx_ctx *ctx, struct dtx_sweep_trials *t, struct dtx_sweep_trial **out)
{
    void *item;
    DTX_TRY(ctx, dtx_mem_grow(ctx, t->item, t->n, sizeof *t->item, &t->capacity, &item));
    t->item = item;
    *out = &t->item[t->n++];
    memset(*out, 0, sizeof **out);
    (*out)->start = -1;
    return DTX_OK;
}

void dtx_sweep_trials_free(struct dtx_sweep_trials *t)
{
    for (int i = 0; i < t->n; i++)
        dtx_mem_free(t->item[i].config);
    dtx_mem_free(t->item);
    *t = (struct dtx_sweep_trials){0};
}

static const double MOST_TOKENS = 0x1p53; /* far from where products of whole numbers overflow */

/* What the axes but tokens have chosen. */
struct expansion {
    struct dtx_ctx *ctx;
    struct dtx_sweep_spec *spec;
    struct dtx_sweep_trials *trials;
    const struct dtx_sweep_shape *shape;
    struct dtx_sweep_model base; /* of the configuration's own variant: both variants are trained alike */
    double budget;
    bool wsd;
};

/* Rate, batch and steps for about `tokens` tokens: the same for all variants and seeds. */
static void plan_training(const struct expansion *e, double tokens, struct dtx_sweep_trial *t)
{
    const struct dtx_sweep_spec *spec = e->spec;
    struct dtx_sweep_point point = {.n_total = (double)e->base.n[DTX_SWEEP_TOTAL],
                                    .n_nonembedding = (double)e->base.n[DTX_SWEEP_NONEMBEDDING],
                                    .tokens = tokens,
                                    .flops = tokens * e->base.flops_per_token[0]};
    t->length = dtx_opt_int(spec->opt, "train.length");
    t->batch = dtx_opt_int(spec->opt, "train.batch");
    if (spec->batch_rule->batch_tokens) { /* whole sequences, as many for each rank and forward pass */
        int64_t unit = spec->ranks * dtx_max64(1, dtx_opt_int(spec->opt, "train.micro_batch"));
        t->batch = unit * dtx_max64(1, llround(spec->batch_rule->batch_tokens(&point) / (double)(t->length * unit)));
    }
    t->steps = dtx_max64(1, llround(tokens / (double)(t->batch * t->length)));
    t->tokens = t->steps * t->batch * t->length;
    t->lr = spec->lr_rule->lr  ? spec->lr_rule->lr(&point)
            : e->shape->lr > 0 ? e->shape->lr
                               : dtx_opt_real(spec->opt, "lr.peak");
    t->budget = e->budget;
}

static void describe(struct dtx_sweep_trial *t)
{
    char tokens[16], scale[32] = "";
    dtx_format_count((double)t->tokens, tokens);
    if (t->lr_scale != 1)
        snprintf(scale, sizeof scale, "-lr%g", t->lr_scale);
    snprintf(t->label, sizeof t->label, "%s-%lldx%lld-%s-s%lld%s%s", t->variant, (long long)t->width,
             (long long)t->layers, tokens, (long long)t->seed, scale, t->stem ? "-stem" : "");
}

/* The trials of one shape and number of tokens: variants × seeds × rates. */
static enum dtx_status add_trials(const struct expansion *e, double tokens)
{
    struct dtx_sweep_spec *spec = e->spec;
    struct dtx_sweep_trial common = {.start = -1}, *t;
    if (!(tokens <= MOST_TOKENS)) {
        dtx_opt_fault(spec->opt, "shape %lldx%lld: a training on %.3g tokens: more than 2^53 cannot be counted",
                      (long long)e->shape->width, (long long)e->shape->layers, tokens);
        return DTX_OK;
    }
    plan_training(e, tokens, &common);
    for (int v = 0; v < spec->n_variants; v++) {
        struct dtx_sweep_model model;
        bool good;
        DTX_TRY(e->ctx, dtx_sweep_model_make(e->ctx, spec, e->shape, spec->variant[v], &model, &good));
        if (!good)
            return DTX_OK;
        for (int s = 0; s < spec->seeds.n; s++)
            for (int r = 0; r < spec->lr_scales.n; r++) {
                const struct dtx_model_config *m = &model.config;
                DTX_TRY(e->ctx, dtx_sweep_trials_add(e->ctx, e->trials, &t));
                *t = common;
                snprintf(t->variant, sizeof t->variant, "%s", spec->variant[v]->name);
                t->layers = m->layers;
                t->width = m->width;
                t->heads = m->heads;
                t->kv_heads = m->kv_heads;
                t->head_dim = m->head_dim;
                t->ffn = m->ffn;
                t->vocab = m->vocab;
                t->seed = (int64_t)spec->seeds.value[s];
                t->lr_scale = spec->lr_scales.value[r];
                t->lr = common.lr * t->lr_scale;
                memcpy(t->n, model.n, sizeof t->n);
                for (int c = 0; c < DTX_SWEEP_FLOPS; c++)
                    t->flops[c] = (double)t->tokens * dtx_sweep_token_flops(&model, (enum dtx_sweep_flops)c);
                describe(t);
            }
    }
    return DTX_OK;
}

/* Every number of tokens that the shape gets. */
static enum dtx_status add_shape(struct expansion *e, const struct dtx_sweep_shape *shape)
{
    struct dtx_sweep_spec *spec = e->spec;
    const struct dtx_attn_variant *own = dtx_attn_find(dtx_opt_text(spec->opt, "model.attention"));
    bool good;
    e->shape = shape;
    DTX_TRY(e->ctx, dtx_sweep_model_make(e->ctx, spec, shape, own, &e->base, &good));
    if (!good)
        return DTX_OK;
    if (e->budget > 0)
        return add_trials(e, e->budget / dtx_sweep_token_flops(&e->base, spec->flops));
    for (int i = 0; i < spec->tokens.n; i++)
        DTX_TRY(e->ctx, add_trials(e, spec->tokens.value[i]));
    for (int i = 0; i < spec->ratios.n; i++)
        DTX_TRY(e->ctx, add_trials(e, spec->ratios.value[i] * (double)e->base.n[spec->count]));
    return DTX_OK;
}

static enum dtx_status add_isoflop(struct expansion *e)
{
    struct dtx_sweep_spec *spec = e->spec;
    void *memory;
    DTX_TRY(e->ctx, dtx_mem_alloc(e->ctx, 1, sizeof(struct dtx_sweep_candidates), &memory));
    struct dtx_sweep_candidates *candidates = memory;
    enum dtx_status status = DTX_OK;
    for (int b = 0; b < spec->budgets.n && status == DTX_OK; b++) {
        struct dtx_sweep_shape chosen[DTX_SWEEP_LIST];
        int n = spec->n_shapes;
        e->budget = spec->budgets.value[b];
        if (n == 0)
            status = dtx_sweep_choose_shapes(e->ctx, spec, candidates, e->budget, chosen, &n);
        for (int i = 0; i < n && status == DTX_OK; i++)
            status = add_shape(e, spec->n_shapes ? &spec->shape[i] : &chosen[i]);
    }
    dtx_mem_free(memory);
    return status;
}

/* Do two trials differ in nothing but their tokens? Then one's stable part can be the other's. */
static bool same_but_tokens(const struct dtx_sweep_trial *a, const struct dtx_sweep_trial *b)
{
    return strcmp(a->variant, b->variant) == 0 && a->width == b->width && a->layers == b->layers &&
           a->heads == b->heads && a->ffn == b->ffn && a->batch == b->batch && a->seed == b->seed && a->lr == b->lr;
}

static int by_family(const void *x, const void *y)
{
    const struct dtx_sweep_trial *a = x, *b = y;
    const double keys[][2] = {{a->flops[0] / (double)a->tokens, b->flops[0] / (double)b->tokens},
                              {(double)a->width, (double)b->width},
                              {(double)a->layers, (double)b->layers},
                              {(double)a->heads, (double)b->heads},
                              {(double)a->ffn, (double)b->ffn},
                              {(double)a->seed, (double)b->seed},
                              {a->lr, b->lr},
                              {(double)a->batch, (double)b->batch}};
    int variant = strcmp(a->variant, b->variant);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (i == 5 && variant)
            return variant;
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return (a->steps > b->steps) - (a->steps < b->steps);
}

static int64_t decay_steps(const struct dtx_sweep_spec *spec, const struct dtx_sweep_trial *t)
{
    return dtx_max64(1, llround(spec->decay_share * (double)t->steps));
}

static int64_t warmup_steps(const struct dtx_sweep_spec *spec, int64_t steps)
{
    return spec->warmup_share < 0 ? dtx_opt_int(spec->opt, "lr.warmup") : llround(spec->warmup_share * (double)steps);
}

/* The trial's options in full, and its id. */
static enum dtx_status configure(const struct expansion *e, struct dtx_sweep_trial *t, int64_t warmup)
{
    struct dtx_sweep_spec *spec = e->spec;
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct dtx_engine_config config;
    struct dtx_opt *opt;
    DTX_TRY(e->ctx, dtx_opt_create(e->ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_known(e->ctx, opt, spec->base, "spec", DTX_OPT_FILE);
    const struct {
        const char *key;
        int64_t value;
    } whole[] = {{"model.width", t->width},
                 {"model.layers", t->layers},
                 {"model.heads", t->heads},
                 {"model.kv_heads", t->kv_heads},
                 {"model.head_dim", t->head_dim},
                 {"model.ffn", t->ffn},
                 {"train.batch", t->batch},
                 {"train.steps", t->steps},
                 {"train.seed", t->seed},
                 {"lr.warmup", warmup},
                 {"lr.decay_steps", e->wsd ? decay_steps(spec, t) : 0}};
    char text[64];
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        snprintf(text, sizeof text, "%lld", (long long)whole[i].value);
        dtx_opt_set(opt, whole[i].key, text, DTX_OPT_FLAG, "sweep");
    }
    dtx_opt_set(opt, "model.attention", t->variant, DTX_OPT_FLAG, "sweep");
    snprintf(text, sizeof text, "%.17g", t->lr);
    dtx_opt_set(opt, "lr.peak", text, DTX_OPT_FLAG, "sweep");
    if (spec->lr_min_share >= 0) {
        snprintf(text, sizeof text, "%.17g", spec->lr_min_share * t->lr);
        dtx_opt_set(opt, "lr.min", text, DTX_OPT_FLAG, "sweep");
    }
    if (t->stem) /* only results need an evaluation */
        dtx_opt_set(opt, "eval.samples", "0", DTX_OPT_FLAG, "sweep");
    if (!dtx_opt_is_given(spec->opt, "checkpoint.keep"))
        dtx_opt_set(opt, "checkpoint.keep", "1", DTX_OPT_FLAG, "sweep");
    dtx_engine_config_read(opt, spec->ranks, &config);
    if (status == DTX_OK)
        status = dtx_opt_check(e->ctx, opt);
    if (status == DTX_E_CONFIG) {
        dtx_opt_fault(spec->opt, "trial %s: %s", t->label, e->ctx->error.text);
        dtx_error_clear(e->ctx);
        dtx_opt_free(opt);
        return DTX_OK;
    }
    if (status == DTX_OK)
        status = dtx_opt_dump_stored(e->ctx, opt, &t->config);
    dtx_opt_free(opt);
    const char *start = t->start >= 0 ? e->trials->item[t->start].id : "";
    DTX_TRY(e->ctx, status);
    return dtx_sweep_identify(e->ctx, t->config, start, t->start_step, t->until, t->id);
}

/* Trials [first, end) of `made` differ in tokens alone: each goes to the table behind a stem that ends where its
 * descent begins, and begins where the stem before ended; the longest needs none. */
static enum dtx_status branch(const struct expansion *e, const struct dtx_sweep_trials *made, int first, int end)
{
    struct dtx_sweep_trial *t;
    int64_t warmup = warmup_steps(e->spec, made->item[first].steps), reached = 0; /* all have the shortest one's */
    int stem = -1;
    for (int i = first; i < end; i++) {
        const struct dtx_sweep_trial *own = &made->item[i];
        int64_t fork = own->steps - decay_steps(e->spec, own);
        if (DTX_MUTANT(sweep_branch_one_step_late))
            fork++;
        if (i + 1 < end && fork > reached) {
            DTX_TRY(e->ctx, dtx_sweep_trials_add(e->ctx, e->trials, &t));
            *t = *own;
            t->stem = true;
            t->until = fork;
            t->start = stem;
            t->start_step = reached;
            describe(t);
            DTX_TRY(e->ctx, configure(e, t, warmup));
            stem = e->trials->n - 1;
            reached = fork;
        }
        DTX_TRY(e->ctx, dtx_sweep_trials_add(e->ctx, e->trials, &t));
        *t = *own;
        t->start = stem;
        t->start_step = reached;
        DTX_TRY(e->ctx, configure(e, t, warmup));
    }
    return DTX_OK;
}

/* Families one after another; of trials that are the same one. */
static enum dtx_status add_families(struct expansion *e, struct dtx_sweep_trials *made)
{
    int n = 0;
    qsort(made->item, (size_t)made->n, sizeof *made->item, by_family);
    for (int i = 0; i < made->n; i++)
        if (n == 0 || made->item[i].steps != made->item[n - 1].steps ||
            !same_but_tokens(&made->item[i], &made->item[n - 1]))
            made->item[n++] = made->item[i];
    made->n = n;
    for (int first = 0, end; first < n; first = end) {
        end = first + 1;
        while (e->wsd && e->spec->branch && end < n && same_but_tokens(&made->item[first], &made->item[end]))
            end++;
        DTX_TRY(e->ctx, branch(e, made, first, end));
    }
    return DTX_OK;
}

enum dtx_status dtx_sweep_expand(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec, struct dtx_sweep_trials *out)
{
    struct dtx_sweep_trials made = {0};
    struct expansion e = {
        .ctx = ctx, .spec = spec, .trials = &made, .wsd = strcmp(dtx_opt_text(spec->opt, "lr.schedule"), "wsd") == 0};
    enum dtx_status status = DTX_OK;
    if (spec->design == DTX_SWEEP_ISOFLOP)
        status = add_isoflop(&e);
    else
        for (int i = 0; i < spec->n_shapes && status == DTX_OK; i++)
            status = add_shape(&e, &spec->shape[i]);
    e.trials = out;
    if (status == DTX_OK)
        status = add_families(&e, &made);
    dtx_sweep_trials_free(&made);
    return status;
}
