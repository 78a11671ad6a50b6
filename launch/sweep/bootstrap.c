#include "launch/sweep/bootstrap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

enum { ATTEMPTS = 32 };

static void measure(const struct dtx_samples *s, const struct dtx_law_fit *fit, struct dtx_goodness *out)
{
    double gradient[DTX_LAW_PARAMETERS], mean = 0, sum = 0, squares = 0, spread = 0;
    *out = (struct dtx_goodness){0};
    for (int64_t i = 0; i < s->n; i++)
        mean += s->ln_loss[i] / (double)s->n;
    for (int64_t i = 0; i < s->n; i++) {
        double r = fit->law->ln_loss(fit->p, s->x[i], s->y[i], s->group[i], gradient) - s->ln_loss[i];
        sum += fabs(r);
        squares += r * r;
        spread += (s->ln_loss[i] - mean) * (s->ln_loss[i] - mean);
        if (fabs(r) > out->worst) {
            out->worst = fabs(r);
            out->worst_at = i;
        }
    }
    out->rms = sqrt(squares / (double)s->n);
    out->mean = sum / (double)s->n;
    out->r2 = spread > 0 ? 1 - squares / spread : NAN;
}

/* Draws one resample of a group's samples, which lie together, as weights; the number of different ones. */
static int64_t draw_group(const struct dtx_samples *s, int group, uint64_t key, uint64_t turn, double *weight)
{
    int64_t first = 0, n = 0, different = 0;
    while (first < s->n && s->group[first] != group)
        first++;
    while (first + n < s->n && s->group[first + n] == group)
        weight[first + n++] = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = first + (int64_t)(dtx_rng_uniform(key, turn * (uint64_t)n + (uint64_t)k) * (double)n);
        different += weight[i] == 0;
        weight[i] += 1;
    }
    return different;
}

/* The same turn for all groups, so that pairs stay pairs. */
static void draw(const struct dtx_samples *s, const struct dtx_law_fit *fit, const uint64_t *keys, int64_t r,
                 double *weight)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int64_t different = 0, least = INT64_MAX;
        for (int g = 0; g < s->groups; g++) {
            int64_t n = draw_group(s, g, keys[g], (uint64_t)r * ATTEMPTS + (uint64_t)attempt, weight);
            different += n;
            least = dtx_min64(least, n);
        }
        if (different >= fit->n && least >= 2)
            break;
    }
}

enum dtx_status dtx_estimate_make(struct dtx_ctx *ctx, const struct dtx_samples *s, const struct dtx_law_fit *fit,
                                  int64_t draws, const uint64_t *keys, int threads, struct dtx_estimate *out)
{
    void *memory, *weights;
    struct dtx_estimate e = {.fit = *fit, .n_draws = draws};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, draws * fit->n, sizeof(double), &memory));
    e.draws = memory;
    enum dtx_status status = dtx_mem_alloc(ctx, threads * s->n, sizeof(double), &weights);
    if (status != DTX_OK) {
        dtx_mem_free(memory);
        return status;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        struct dtx_samples own = *s;
        own.weight = (double *)weights + t * s->n;
        for (int64_t r = t; r < draws; r += threads) {
            double *p = e.draws + r * fit->n;
            draw(s, fit, keys, DTX_MUTANT(bootstrap_same_draw) ? 0 : r, own.weight);
            if (!isfinite(dtx_law_refit(fit, &own, p)))
                for (int i = 0; i < fit->n; i++)
                    p[i] = NAN;
        }
    }
    dtx_mem_free(weights);
    measure(s, fit, &e.goodness);
    *out = e;
    return DTX_OK;
}

void dtx_estimate_free(struct dtx_estimate *e)
{
    dtx_mem_free(e->draws);
    e->draws = NULL;
    e->n_draws = 0;
}
