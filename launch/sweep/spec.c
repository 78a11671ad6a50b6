#include "launch/sweep/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"

const struct dtx_opt_row dtx_sweep_options[] = {
    {"preset", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "a shipped configuration that all trials begin from, or a path"},
    {"sweep.design", DTX_OPT_CHOICE, "grid", "grid|isoflop", DTX_OPT_CALL,
     "grid: every shape with every number of tokens; isoflop: several shapes for every budget of FLOPs"},
    {"sweep.shapes", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "'128x4, 256x8x4, 1536x24x8x4096@1.5e-4': width x layers [x heads [x ffn]] [@ peak learning rate]"},
    {"sweep.tokens", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "grid: training tokens, '1e6, 2e6'"},
    {"sweep.tokens_per_weight", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "grid: training tokens as multiples of N"},
    {"sweep.budgets", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "isoflop: training FLOPs, '1e14, 3e14, 1e15'"},
    {"sweep.sizes", DTX_OPT_INT, "5", "1..64", DTX_OPT_CALL, "isoflop without shapes: models chosen for each budget"},
    {"sweep.spread", DTX_OPT_REAL, "3", "1..1000", DTX_OPT_CALL,
     "isoflop: the largest model of a budget is so many times the middle one, which is so many times the smallest"},
    {"sweep.centre", DTX_OPT_REAL, "20", "0.001..1e6", DTX_OPT_CALL, "isoflop: tokens per weight of the middle model"},
    {"sweep.aspect", DTX_OPT_REAL, "64", "0.1..10000", DTX_OPT_CALL,
     "isoflop: width of a chosen model over its layers"},
    {"sweep.width_step", DTX_OPT_INT, "0", "0..100000", DTX_OPT_CALL,
     "isoflop: chosen widths are multiples of it; 0: what heads need"},
    {"sweep.count", DTX_OPT_CHOICE, "total", "total|nonembedding|matmul", DTX_OPT_CALL,
     "the N of tokens_per_weight and centre: all weights, those of the layers, those that multiply a token"},
    {"sweep.flops", DTX_OPT_CHOICE, "exact", "exact|palm|6nd", DTX_OPT_CALL,
     "the C of budgets: causal attention as computed, PaLM's convention, 6 N D of all weights"},
    {"sweep.variants", DTX_OPT_TEXT, "diff, softmax", NULL, DTX_OPT_CALL,
     "attention variants, each of every shape, of the same size"},
    {"sweep.seeds", DTX_OPT_TEXT, "1", NULL, DTX_OPT_CALL, "seeds of weights and data order, '1, 2, 3'"},
    {"sweep.lr_rule", DTX_OPT_CHOICE, "fixed", DTX_SWEEP_LR_RULES, DTX_OPT_CALL,
     "peak learning rate of each trial; mup, completep: lr.peak is for model.base_width and transfers"},
    {"sweep.batch_rule", DTX_OPT_CHOICE, "fixed", DTX_SWEEP_BATCH_RULES, DTX_OPT_CALL, "tokens a step of each trial"},
    {"sweep.lr_scales", DTX_OPT_TEXT, "1", NULL, DTX_OPT_CALL, "the rule's rate times these: an axis, '0.5, 1, 2'"},
    {"sweep.warmup_share", DTX_OPT_REAL, "-1", "-1..0.9", DTX_OPT_CALL,
     "warm-up as a share of the steps; -1: lr.warmup"},
    {"sweep.lr_min_share", DTX_OPT_REAL, "-1", "-1..1", DTX_OPT_CALL, "last rate as a share of the peak; -1: lr.min"},
    {"sweep.decay_share", DTX_OPT_REAL, "0.1", "0.001..1", DTX_OPT_CALL, "wsd: the descent as a share of the steps"},
    {"sweep.branch", DTX_OPT_BOOL, "true", NULL, DTX_OPT_CALL,
     "wsd: trials that differ in tokens alone share their stable part, each descends from a checkpoint of it"},
    {"sweep.ranks", DTX_OPT_INT, "1", "1..1000000", DTX_OPT_CALL, "ranks of each trial"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

/* The items of a list one after another, without blanks around them; false at the end. */
static bool next_item(const char **rest, char *item, size_t bytes)
{
    const char *p = *rest + strspn(*rest, " \t");
    if (*p == '\0')
        return false;
    size_t length = strcspn(p, ","), used = length;
    while (used > 0 && (p[used - 1] == ' ' || p[used - 1] == '\t'))
        used--;
    snprintf(item, bytes, "%.*s", (int)used, p);
    *rest = p + length + (p[length] == ',');
    return true;
}

static void fault(struct dtx_opt *opt, const char *key, const char *item, const char *what)
{
    dtx_opt_fault(opt, "%s: %s: '%s' %s", dtx_opt_from(opt, key), key, item, what);
}

static const double MOST = 0x1p53; /* every whole number up to it is a double */

static void read_numbers(struct dtx_opt *opt, const char *key, bool whole, struct dtx_sweep_numbers *out)
{
    char item[128], *end;
    const char *rest = dtx_opt_text(opt, key);
    while (next_item(&rest, item, sizeof item)) {
        double value = strtod(item, &end);
        bool good = end != item && *end == '\0' && isfinite(value);
        if (!good || (whole ? value < 0 || value > MOST || value != floor(value) : value <= 0))
            fault(opt, key, item, whole ? "is no whole number from 0 to 2^53" : "is no number above 0");
        else if (out->n == DTX_SWEEP_LIST) {
            fault(opt, key, item, "is one item too many (at most 256)");
            return;
        } else
            out->value[out->n++] = value;
        for (int i = 0; i < out->n - 1; i++)
            if (out->value[i] == out->value[out->n - 1]) {
                fault(opt, key, item, "stands there twice");
                out->n--;
                break;
            }
    }
}

static void read_shapes(struct dtx_sweep_spec *spec)
{
    static const char key[] = "sweep.shapes";
    char item[128];
    const char *rest = dtx_opt_text(spec->opt, key);
    while (next_item(&rest, item, sizeof item)) {
        struct dtx_sweep_shape s = {0};
        long long part[4] = {0};
        int used = 0, end = 0;
        int n = sscanf(item, "%lldx%lld%nx%lld%nx%lld%n", &part[0], &part[1], &used, &part[2], &used, &part[3], &used);
        bool good = n >= 2;
        if (good && item[used] == '@')
            good = sscanf(item + used, "@%lf%n", &s.lr, &end) == 1 && s.lr > 0 && isfinite(s.lr);
        for (int i = 0; i < n; i++)
            good = good && part[i] > 0;
        if (!good || item[used + end] != '\0')
            fault(spec->opt, key, item, "is no shape: width x layers, as 256x8, then x heads, x ffn, @ learning rate");
        else if (spec->n_shapes == DTX_SWEEP_LIST)
            fault(spec->opt, key, item, "is one item too many (at most 256)");
        else {
            s.width = part[0];
            s.layers = part[1];
            s.heads = part[2];
            s.ffn = part[3];
            spec->shape[spec->n_shapes++] = s;
        }
    }
}

static void read_variants(struct dtx_sweep_spec *spec)
{
    static const char key[] = "sweep.variants";
    char item[128];
    const char *rest = dtx_opt_text(spec->opt, key);
    while (next_item(&rest, item, sizeof item)) {
        const struct dtx_attn_variant *variant = dtx_attn_find(item);
        for (int i = 0; i < spec->n_variants; i++)
            if (spec->variant[i] == variant && variant)
                fault(spec->opt, key, item, "stands there twice");
        if (!variant)
            fault(spec->opt, key, item, "is no attention variant (model.attention in dtx train --help lists them)");
        else if (spec->n_variants < (int)(sizeof spec->variant / sizeof *spec->variant))
            spec->variant[spec->n_variants++] = variant;
    }
    if (*dtx_opt_text(spec->opt, key) == '\0')
        dtx_opt_fault(spec->opt, "%s: %s is empty", dtx_opt_from(spec->opt, key), key);
}

static int choice(const struct dtx_opt *opt, const char *key, const char *const *names)
{
    const char *text = dtx_opt_text(opt, key);
    int i = 0;
    while (strcmp(names[i], text) != 0)
        i++;
    return i;
}

/* What must be there, and what nobody would read. */
static void check_axes(struct dtx_sweep_spec *spec)
{
    struct dtx_opt *opt = spec->opt;
    bool grid = spec->design == DTX_SWEEP_GRID;
    static const char *const grid_keys[] = {"sweep.tokens", "sweep.tokens_per_weight"};
    static const char *const isoflop_keys[] = {"sweep.budgets", "sweep.sizes",  "sweep.spread",
                                               "sweep.centre",  "sweep.aspect", "sweep.width_step"};
    const char *const *unused = grid ? isoflop_keys : grid_keys;
    size_t n = grid ? sizeof isoflop_keys / sizeof *isoflop_keys : sizeof grid_keys / sizeof *grid_keys;
    for (size_t i = 0; i < n; i++)
        if (dtx_opt_is_given(opt, unused[i]))
            dtx_opt_fault(opt, "%s: %s means nothing to sweep.design %s", dtx_opt_from(opt, unused[i]), unused[i],
                          grid ? "grid" : "isoflop");
    if (grid && *dtx_opt_text(opt, "sweep.shapes") == '\0')
        dtx_opt_fault(opt, "sweep.shapes is not set: a grid needs shapes ('128x4, 256x8')");
    if (grid && *dtx_opt_text(opt, "sweep.tokens") == '\0' && *dtx_opt_text(opt, "sweep.tokens_per_weight") == '\0')
        dtx_opt_fault(opt, "sweep.tokens is not set: a grid needs sweep.tokens or sweep.tokens_per_weight");
    if (!grid && *dtx_opt_text(opt, "sweep.budgets") == '\0')
        dtx_opt_fault(opt, "sweep.budgets is not set: isoflop needs budgets ('1e14, 1e15')");
    if (*dtx_opt_text(opt, "sweep.seeds") == '\0' || *dtx_opt_text(opt, "sweep.lr_scales") == '\0')
        dtx_opt_fault(opt, "sweep.seeds and sweep.lr_scales need one item at least");
    if (dtx_opt_int(opt, "eval.samples") == 0 || dtx_opt_real(opt, "data.heldout") == 0)
        dtx_opt_fault(opt, "a trial's result is its held-out loss: eval.samples and data.heldout must be above 0");
}

void dtx_sweep_spec_refuse(struct dtx_opt *opt)
{
    static const char *const own[] = {"train.steps",  "train.seed",  "train.until", "train.stages",
                                      "model.layers", "model.width", "run.dir",     "checkpoint.dir"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (dtx_opt_is_given(opt, own[i]))
            dtx_opt_fault(opt, "%s: %s is the sweep's to choose (sweep.shapes, tokens, budgets, seeds)",
                          dtx_opt_from(opt, own[i]), own[i]);
}

void dtx_sweep_spec_read(struct dtx_sweep_spec *spec)
{
    static const char *const designs[] = {"grid", "isoflop"};
    static const char *const counts[] = {"total", "nonembedding", "matmul"};
    static const char *const flops[] = {"exact", "palm", "6nd"};
    struct dtx_opt *opt = spec->opt;
    spec->design = (enum dtx_sweep_design)choice(opt, "sweep.design", designs);
    spec->count = (enum dtx_sweep_count)choice(opt, "sweep.count", counts);
    spec->flops = (enum dtx_sweep_flops)choice(opt, "sweep.flops", flops);
    spec->lr_rule = dtx_sweep_rule_find(dtx_opt_text(opt, "sweep.lr_rule"));
    spec->batch_rule = dtx_sweep_rule_find(dtx_opt_text(opt, "sweep.batch_rule"));
    read_shapes(spec);
    read_variants(spec);
    read_numbers(opt, "sweep.tokens", false, &spec->tokens);
    read_numbers(opt, "sweep.tokens_per_weight", false, &spec->ratios);
    read_numbers(opt, "sweep.budgets", false, &spec->budgets);
    read_numbers(opt, "sweep.seeds", true, &spec->seeds);
    read_numbers(opt, "sweep.lr_scales", false, &spec->lr_scales);
    spec->sizes = dtx_opt_int(opt, "sweep.sizes");
    spec->width_step = dtx_opt_int(opt, "sweep.width_step");
    spec->spread = dtx_opt_real(opt, "sweep.spread");
    spec->centre = dtx_opt_real(opt, "sweep.centre");
    spec->aspect = dtx_opt_real(opt, "sweep.aspect");
    spec->warmup_share = dtx_opt_real(opt, "sweep.warmup_share");
    spec->lr_min_share = dtx_opt_real(opt, "sweep.lr_min_share");
    spec->decay_share = dtx_opt_real(opt, "sweep.decay_share");
    spec->branch = dtx_opt_bool(opt, "sweep.branch");
    spec->ranks = (int)dtx_opt_int(opt, "sweep.ranks");
    check_axes(spec);
}

void dtx_sweep_spec_free(struct dtx_sweep_spec *spec)
{
    dtx_opt_free(spec->opt);
    dtx_mem_free(spec->base);
}
