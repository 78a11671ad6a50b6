#include "trainer/split.h"

#include <stdlib.h>

#include "kernels/base/mutant.h"
#include "trainer/layer.h"

bool dtx_split_parse(const char *layout, int parts, int64_t layers, int64_t *counts)
{
    int64_t sum = 0;
    for (int p = 0; p < parts; p++) {
        char *end;
        long n = strtol(layout, &end, 10);
        bool inside = p > 0 && p < parts - 1;
        if (end == layout || n < (inside || parts == 1) || n > layers)
            return false;
        if (*end != (p < parts - 1 ? ',' : '\0'))
            return false;
        layout = end + 1;
        sum += n;
        if (counts)
            counts[p] = n;
    }
    return sum == layers || DTX_MUTANT(layout_sum_unchecked);
}

void dtx_split_blocks(const struct dtx_model_config *model, const struct dtx_split *split, int parts, double keys,
                      int64_t *counts)
{
    if (split->layout && split->layout[0] && dtx_split_parse(split->layout, parts, model->layers, counts))
        return;
    double block = dtx_attn_layer.flops(model, keys) + dtx_ffn_layer.flops(model, keys);
    double first = split->by_flops ? dtx_embed_layer.flops(model, keys) : 0;
    double last = split->by_flops && !DTX_MUTANT(head_not_balanced) ? dtx_head_layer.flops(model, keys) : 0;
    for (int p = 0; p < parts; p++)
        counts[p] = 0;
    for (int64_t i = 0; i < model->layers; i++) {
        int least = 0;
        double least_cost = 0;
        for (int p = 0; p < parts; p++) {
            double cost = (double)counts[p] * block + (p == 0 ? first : 0) + (p == parts - 1 ? last : 0);
            if (p > 0 && cost >= least_cost)
                continue;
            least = p;
            least_cost = cost;
        }
        counts[least]++;
    }
}
