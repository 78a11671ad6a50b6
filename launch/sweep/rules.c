#include "launch/sweep/rules.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mutant.h"

/* Step Law (arXiv 2503.04715): N without embeddings, D in tokens. */
static double step_law_lr(const struct dtx_sweep_point *p)
{
    double n = DTX_MUTANT(step_law_counts_embedding) ? p->n_total : p->n_nonembedding;
    return 1.79 * pow(n, -0.713) * pow(p->tokens, 0.307);
}

static double step_law_batch(const struct dtx_sweep_point *p)
{
    return 0.58 * pow(p->tokens, 0.571);
}

/* DeepSeek LLM (arXiv 2401.02954): C in FLOPs, attention included. */
static double deepseek_lr(const struct dtx_sweep_point *p)
{
    return 0.3118 * pow(p->flops, -0.125);
}

static double deepseek_batch(const struct dtx_sweep_point *p)
{
    return 0.292 * pow(p->flops, 0.3271);
}

static const struct dtx_sweep_rule rules[] = {
    {"fixed", NULL, NULL, NULL},
    {"step_law", step_law_lr, step_law_batch, NULL},
    {"deepseek", deepseek_lr, deepseek_batch, NULL},
    {"mup", NULL, NULL, "mup"},
    {"completep", NULL, NULL, "completep"},
};

const struct dtx_sweep_rule *dtx_sweep_rule_find(const char *name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}
