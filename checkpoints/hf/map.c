#include "checkpoints/hf/map.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum size { NONE, VOCAB, WIDTH, KV, FFN, HEAD, SUBNORM };
enum { PAIRS = 1, ROTARY = 2, GAIN = 4, DIFF = 8 /* differential attention only */ };
enum { EMBED = 16, SCORES = 32, BRANCH = 64, OUTPUT = 128 }; /* factors of the forward pass that it carries */

struct part {
    const char *ours, *theirs;
    enum size rows, columns;
    int flags;
};

static const struct part first[] = {{"embed.tokens", "model.embed_tokens.weight", VOCAB, WIDTH, EMBED}};
static const struct part layer[] = {
    {"attn_norm.gain", "input_layernorm.weight", WIDTH, NONE, 0},
    {"attn.q", "self_attn.q_proj.weight", WIDTH, WIDTH, PAIRS | ROTARY | SCORES},
    {"attn.k", "self_attn.k_proj.weight", KV, WIDTH, PAIRS | ROTARY},
    {"attn.v", "self_attn.v_proj.weight", KV, WIDTH, PAIRS},
    {"attn.out", "self_attn.o_proj.weight", WIDTH, WIDTH, GAIN | BRANCH},
    {"attn.lambda_q1", "self_attn.lambda_q1", HEAD, NONE, DIFF},
    {"attn.lambda_k1", "self_attn.lambda_k1", HEAD, NONE, DIFF},
    {"attn.lambda_q2", "self_attn.lambda_q2", HEAD, NONE, DIFF},
    {"attn.lambda_k2", "self_attn.lambda_k2", HEAD, NONE, DIFF},
    {"attn.subnorm", "", SUBNORM, NONE, DIFF},
    {"ffn_norm.gain", "post_attention_layernorm.weight", WIDTH, NONE, 0},
    {"ffn.gate", "mlp.gate_proj.weight", FFN, WIDTH, 0},
    {"ffn.up", "mlp.up_proj.weight", FFN, WIDTH, 0},
    {"ffn.down", "mlp.down_proj.weight", WIDTH, FFN, BRANCH},
};
static const struct part last[] = {{"final_norm.gain", "model.norm.weight", WIDTH, NONE, OUTPUT},
                                   {"head.out", "lm_head.weight", VOCAB, WIDTH, 0}};
enum { PARTS = sizeof layer / sizeof *layer };

static int64_t size_of(const struct dtx_ckpt_model *m, enum size size)
{
    switch (size) {
    case VOCAB:
        return m->vocab;
    case WIDTH:
        return m->width;
    case KV:
        return m->kv_heads * m->head_dim * (m->diff ? 2 : 1);
    case FFN:
        return m->ffn;
    case HEAD:
        return m->head_dim;
    case SUBNORM:
        return 2 * m->head_dim;
    case NONE:
        break;
    }
    return 0;
}

/* What the final norm's gain carries: a tied head is the embedding's matrix, which has the embedding's factor. */
static double output_scale(const struct dtx_ckpt_model *m)
{
    return dtx_transfer_output(&m->transfer) / (m->tied ? dtx_transfer_embed(&m->transfer) : 1);
}

static double scale_of(const struct dtx_ckpt_model *m, int flags)
{
    return DTX_MUTANT(hf_factors_not_folded) ? 1
           : flags & EMBED                   ? dtx_transfer_embed(&m->transfer)
           : flags & SCORES                  ? dtx_transfer_scores(&m->transfer)
           : flags & BRANCH                  ? dtx_transfer_branch(&m->transfer)
           : flags & OUTPUT                  ? output_scale(m)
                                             : 1;
}

/* One row of the table, for layer i or (−1) outside the layers. */
static void fill(const struct dtx_ckpt_model *m, const struct part *part, int64_t i, struct dtx_hf_tensor *t)
{
    char ours[24] = "", theirs[32] = "";
    bool gain = m->diff && (part->flags & GAIN) && strcmp(m->subnorm, "affine") == 0;
    if (i >= 0) {
        snprintf(ours, sizeof ours, "layers.%02d.", (int)i);
        snprintf(theirs, sizeof theirs, "model.layers.%d.", (int)i);
    }
    *t = (struct dtx_hf_tensor){.ndim = part->columns == NONE ? 1 : 2,
                                .shape = {size_of(m, part->rows), size_of(m, part->columns)},
                                .pairs = m->diff && (part->flags & PAIRS) && !DTX_MUTANT(hf_pairs_kept),
                                .rotary = (part->flags & ROTARY) && !DTX_MUTANT(hf_rotary_kept),
                                .gain_n = gain ? 2 * m->head_dim : 0,
                                .scale = scale_of(m, part->flags)};
    t->block = t->pairs || t->rotary ? m->head_dim : 0;
    snprintf(t->ours, sizeof t->ours, "%s%s", ours, part->ours);
    if (part->theirs[0])
        snprintf(t->theirs, sizeof t->theirs, "%s%s", theirs, part->theirs);
    if (gain)
        snprintf(t->gain, sizeof t->gain, "%sattn.subnorm", ours);
}

enum dtx_status dtx_hf_tensors(struct dtx_ctx *ctx, const struct dtx_ckpt_model *model, struct dtx_hf_tensor **out,
                               int *n)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 3 + model->layers * PARTS, sizeof **out, &memory));
    struct dtx_hf_tensor *t = memory;
    fill(model, &first[0], -1, t++);
    for (int64_t i = 0; i < model->layers; i++)
        for (int p = 0; p < PARTS; p++) {
            bool gain = layer[p].rows == SUBNORM;
            if ((layer[p].flags & DIFF && !model->diff) || (gain && strcmp(model->subnorm, "affine") != 0))
                continue;
            fill(model, &layer[p], i, t++);
        }
    for (int p = 0; p < (model->tied ? 1 : 2); p++)
        fill(model, &last[p], -1, t++);
    *out = memory;
    *n = (int)(t - *out);
    return DTX_OK;
}

int64_t dtx_hf_row(const struct dtx_hf_tensor *t, int64_t ours)
{
    if (t->block == 0)
        return ours;
    int64_t block = ours / t->block, row = ours % t->block, blocks = t->shape[0] / t->block;
    if (t->pairs)
        block = block % 2 * (blocks / 2) + block / 2;
    if (t->rotary)
        row = row % 2 * (t->block / 2) + row / 2;
    return block * t->block + row;
}

int64_t dtx_hf_row_back(const struct dtx_hf_tensor *t, int64_t theirs)
{
    if (t->block == 0)
        return theirs;
    int64_t block = theirs / t->block, row = theirs % t->block, half = t->shape[0] / t->block / 2;
    if (t->pairs)
        block = block < half ? 2 * block : 2 * (block - half) + 1;
    if (t->rotary)
        row = row < t->block / 2 ? 2 * row : 2 * (row - t->block / 2) + 1;
    return block * t->block + row;
}

int64_t dtx_hf_run(const struct dtx_hf_tensor *t, int64_t row, int64_t limit)
{
    int64_t n = 1;
    if (t->block == 0)
        return limit;
    while (n < limit && dtx_hf_row(t, row + n) == dtx_hf_row(t, row) + n)
        n++;
    return n;
}
