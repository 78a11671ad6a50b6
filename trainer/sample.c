#include "trainer/sample.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"

enum dtx_status dtx_sampler_create(struct dtx_ctx *ctx, double temperature, double top_p, uint64_t seed, int64_t vocab,
                                   struct dtx_sampler *out)
{
    void *p, *order;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, vocab, sizeof(double), &p));
    enum dtx_status status = dtx_mem_alloc(ctx, vocab, sizeof(int32_t), &order);
    if (status != DTX_OK) {
        dtx_mem_free(p);
        return status;
    }
    *out = (struct dtx_sampler){temperature, top_p, seed, vocab, p, order};
    return DTX_OK;
}

void dtx_sampler_free(struct dtx_sampler *s)
{
    dtx_mem_free(s->probability);
    dtx_mem_free(s->order);
    *s = (struct dtx_sampler){0};
}

static int more_likely(const void *a, const void *b, void *probability)
{
    const double *p = probability;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (p[x] != p[y])
        return p[x] > p[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int32_t most_likely(const double *logits, int64_t vocab)
{
    int32_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (logits[v] > logits[best])
            best = (int32_t)v;
    return best;
}

int32_t dtx_sampler_draw(struct dtx_sampler *s, const double *logits, int64_t i)
{
    int32_t best = most_likely(logits, s->vocab);
    if (s->temperature <= 0)
        return best;
    double total = 0;
    for (int64_t v = 0; v < s->vocab; v++) {
        s->probability[v] = exp((logits[v] - logits[best]) / s->temperature);
        s->order[v] = (int32_t)v;
        total += s->probability[v];
    }
    qsort_r(s->order, (size_t)s->vocab, sizeof *s->order, more_likely, s->probability);
    int64_t kept = 0;
    double mass = 0;
    do
        mass += s->probability[s->order[kept++]];
    while (kept < s->vocab && mass < s->top_p * total);
    double left = dtx_rng_uniform(dtx_rng_key(s->seed, "generate"), (uint64_t)i) * mass;
    for (int64_t k = 0; k < kept; k++) {
        left -= s->probability[s->order[k]];
        if (left < 0)
            return s->order[k];
    }
    return s->order[kept - 1];
}
