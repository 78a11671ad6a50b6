#include "launch/sweep/curves.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "trainer/metrics.h"

enum { CURVE_POINTS = 1000, HELDOUT_LEAST = 8, PATH_BYTES = 4096 };

static const double piece = 1.03; /* of steps: 10⁹ of them make 600 pieces */

static bool metrics_path(const char *folder, const struct dtx_point *point, char *path)
{
    return point->run[0] && !point->dropped[0] &&
           snprintf(path, PATH_BYTES, "%s/runs/%s/metrics.jsonl", folder, point->run) < PATH_BYTES &&
           access(path, R_OK) == 0;
}

static const double *choose_losses(const struct dtx_losses *l)
{
    int64_t heldout = 0;
    for (int64_t i = 0; i < l->n; i++)
        heldout += isfinite(l->heldout[i]);
    return heldout >= HELDOUT_LEAST ? l->heldout : l->loss;
}

/* Means over steps that are a piece of the curve's logarithm apart, at most CURVE_POINTS of them. */
static void append(const struct dtx_point *end, const struct dtx_losses *l, struct dtx_points *out)
{
    const double *losses = choose_losses(l);
    int64_t kept = 0;
    for (int64_t i = 0; i < l->n && kept < CURVE_POINTS;) {
        double begin = (double)l->step[i], steps = 0, sum = 0, n = 0;
        for (; i < l->n && (double)l->step[i] < begin * piece; i++)
            if (isfinite(losses[i]) && losses[i] > 0) {
                steps += (double)l->step[i];
                sum += losses[i];
                n++;
            }
        if (n == 0)
            continue;
        double share = steps / n / (double)l->step[l->n - 1];
        struct dtx_point *p = &out->at[out->n++];
        *p = *end;
        p->d = end->d * share;
        p->c = end->c * share;
        p->loss = sum / n;
        kept++;
    }
}

enum dtx_status dtx_curves_of_sweep(struct dtx_ctx *ctx, const char *folder, const struct dtx_points *points,
                                    struct dtx_points *out)
{
    char path[PATH_BYTES];
    void *memory;
    struct dtx_points curves = {
        .path = points->path, .n_variants = points->n_variants, .has_c = points->has_c, .has_run = true};
    memcpy(curves.variants, points->variants, sizeof curves.variants);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)CURVE_POINTS * points->n, sizeof *curves.at, &memory));
    curves.at = memory;
    for (int64_t i = 0; i < points->n; i++) {
        struct dtx_losses losses;
        if (!metrics_path(folder, &points->at[i], path))
            continue;
        enum dtx_status status = dtx_metrics_read_losses(ctx, path, &losses);
        if (status != DTX_OK) {
            dtx_mem_free(memory);
            return status;
        }
        if (losses.n > 0)
            append(&points->at[i], &losses, &curves);
        dtx_losses_free(&losses);
    }
    curves.used = curves.n;
    *out = curves;
    return DTX_OK;
}
