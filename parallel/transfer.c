#include "parallel/transfer.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mutant.h"

/* this / base; a base that is not given is a fault. */
static double ratio(struct dtx_opt *opt, const char *key, int64_t value, const char *what)
{
    int64_t base = dtx_opt_int(opt, key);
    if (base < 1) {
        dtx_opt_fault(opt, "model.transfer %s needs %s: %s of the model on which lr.peak and the rest were tuned",
                      dtx_opt_text(opt, "model.transfer"), key, what);
        return 1;
    }
    return (double)value / (double)base;
}

struct dtx_transfer dtx_transfer_read(struct dtx_opt *opt, int64_t width, int64_t layers, int64_t head_dim)
{
    const char *rule = dtx_opt_text(opt, "model.transfer");
    struct dtx_transfer t = {.embed = dtx_opt_real(opt, "model.embed_mult"),
                             .output = dtx_opt_real(opt, "model.output_mult"),
                             .width = 1,
                             .depth = 1,
                             .head_dim = 1};
    if (strcmp(rule, "none") == 0)
        return t;
    t.rule = strcmp(rule, "mup") == 0 ? DTX_TRANSFER_MUP : DTX_TRANSFER_COMPLETEP;
    t.width = ratio(opt, "model.base_width", width, "the width");
    if (t.rule == DTX_TRANSFER_COMPLETEP)
        t.depth = ratio(opt, "model.base_layers", layers, "the number of layers");
    if (dtx_opt_int(opt, "model.base_head_dim") > 0)
        t.head_dim = ratio(opt, "model.base_head_dim", head_dim, "the width of a map's head");
    return t;
}

/* How many times wider, deeper, wider in a head than the base model, as far as the rule goes by it. */
static double wider(const struct dtx_transfer *t)
{
    return t->rule == DTX_TRANSFER_NONE ? 1 : t->width;
}

static double deeper(const struct dtx_transfer *t)
{
    return t->rule == DTX_TRANSFER_COMPLETEP ? t->depth : 1;
}

static double wider_head(const struct dtx_transfer *t)
{
    return t->rule == DTX_TRANSFER_NONE ? 1 : t->head_dim;
}

void dtx_transfer_row(const struct dtx_transfer *t, enum dtx_weight_class class, struct dtx_param_row *row)
{
    double n = wider(t), l = deeper(t), d = wider_head(t);
    if (class == DTX_WEIGHT_LAMBDA && DTX_MUTANT(transfer_lambda_as_matrix))
        class = DTX_WEIGHT_HIDDEN;
    switch (class) {
    case DTX_WEIGHT_HIDDEN:
    case DTX_WEIGHT_BRANCH_END:
        /* the forward pass shares a branch's end out over the depth: not its initial values too */
        row->std *= sqrt(class == DTX_WEIGHT_BRANCH_END ? l / n : 1 / n);
        row->lr_mult /= DTX_MUTANT(transfer_lr_unscaled) ? 1 : n;
        row->decay_mult *= DTX_MUTANT(transfer_decay_unscaled) ? 1 : n;
        row->eps_mult /= n * l;
        break;
    case DTX_WEIGHT_GAIN:
        row->eps_mult /= n * l;
        break;
    case DTX_WEIGHT_VOCABULARY:
    case DTX_WEIGHT_FINAL_GAIN:
        row->eps_mult /= n;
        break;
    case DTX_WEIGHT_HEAD_GAIN: /* a sum over n/d heads */
        row->eps_mult /= d * l;
        break;
    case DTX_WEIGHT_LAMBDA: /* a sum over all n columns; λ adds up d products */
        row->lr_mult /= d;
        row->eps_mult /= l;
        break;
    }
    if (DTX_MUTANT(transfer_eps_unscaled))
        row->eps_mult = 1;
}

double dtx_transfer_embed(const struct dtx_transfer *t)
{
    return t->embed > 0 ? t->embed : 1;
}

double dtx_transfer_branch(const struct dtx_transfer *t)
{
    return 1 / deeper(t);
}

double dtx_transfer_scores(const struct dtx_transfer *t)
{
    return 1 / sqrt(wider_head(t));
}

double dtx_transfer_output(const struct dtx_transfer *t)
{
    return (t->output > 0 ? t->output : 1) / wider(t);
}

void dtx_transfer_log(const struct dtx_ctx *ctx, const struct dtx_transfer *t)
{
    struct dtx_param_row row = {.std = 1, .lr_mult = 1, .eps_mult = 1, .decay_mult = 1};
    if (t->rule == DTX_TRANSFER_NONE)
        return;
    dtx_transfer_row(t, DTX_WEIGHT_HIDDEN, &row);
    dtx_log(
        ctx, DTX_LOG_INFO,
        "model.transfer: width %.4g times the base model's, layers %.4g times; matrices of blocks: lr × %.4g, decay × "
        "%.4g, eps × %.4g, initial spread × %.4g; branches × %.4g, scores × %.4g, logits × %.4g",
        wider(t), deeper(t), row.lr_mult, row.decay_mult, row.eps_mult, row.std, dtx_transfer_branch(t),
        dtx_transfer_scores(t), dtx_transfer_output(t));
}
