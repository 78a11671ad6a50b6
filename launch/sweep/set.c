#include "launch/sweep/set.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"

enum { DIFFERENT = 256 };

static const double near = 0.01; /* of a logarithm: 1 % */

static void put(struct dtx_set *set, int64_t i, const struct dtx_point *point)
{
    set->point[i] = point;
    set->ln_n[i] = log(point->n);
    set->ln_d[i] = log(point->d);
    set->ln_c[i] = log(point->c);
    set->loss[i] = point->loss;
}

enum dtx_status dtx_set_make(struct dtx_ctx *ctx, const struct dtx_points *points, int variant, struct dtx_set *out)
{
    int64_t n = 0;
    void *reals, *point;
    for (int64_t i = 0; i < points->n; i++)
        n += !points->at[i].dropped[0] && points->at[i].variant == variant;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 4 * n, sizeof(double), &reals));
    enum dtx_status status = dtx_mem_alloc(ctx, n, sizeof *out->point, &point);
    if (status != DTX_OK) {
        dtx_mem_free(reals);
        return status;
    }
    double *x = reals;
    *out = (struct dtx_set){points->variants[variant], n, x, x + n, x + 2 * n, x + 3 * n, point};
    for (int64_t i = 0, k = 0; i < points->n; i++)
        if (!points->at[i].dropped[0] && points->at[i].variant == variant)
            put(out, k++, &points->at[i]);
    return DTX_OK;
}

void dtx_set_free(struct dtx_set *set)
{
    dtx_mem_free(set->ln_n);
    dtx_mem_free(set->point);
    *set = (struct dtx_set){0};
}

static bool partners(const struct dtx_set *a, int64_t i, const struct dtx_set *b, int64_t j)
{
    return fabs(a->ln_n[i] - b->ln_n[j]) <= near && fabs(a->ln_d[i] - b->ln_d[j]) <= near &&
           strcmp(a->point[i]->seed, b->point[j]->seed) == 0;
}

/* The only partner of point i; -1: none or several. */
static int64_t partner_of(const struct dtx_set *a, int64_t i, const struct dtx_set *b)
{
    int64_t found = -1;
    for (int64_t j = 0; j < b->n; j++)
        if (partners(a, i, b, j)) {
            if (found >= 0)
                return -1;
            found = j;
        }
    return found;
}

bool dtx_set_pair(const struct dtx_set *base, struct dtx_set *other)
{
    if (base->n != other->n)
        return false;
    for (int64_t i = 0; i < base->n; i++) {
        int64_t j = partner_of(base, i, other);
        if (j < 0 || partner_of(other, j, base) != i)
            return false;
    }
    for (int64_t i = 0; i < base->n; i++) {
        int64_t j = partner_of(base, i, other);
        const struct dtx_point *mine = other->point[j], *there = other->point[i];
        put(other, i, mine);
        put(other, j, there);
    }
    return true;
}

void dtx_set_extent_6nd(const struct dtx_set *set, double *low, double *high)
{
    for (int64_t i = 0; i < set->n; i++) {
        *low = fmin(*low, log(6) + set->ln_n[i] + set->ln_d[i]);
        *high = fmax(*high, log(6) + set->ln_n[i] + set->ln_d[i]);
    }
}

int dtx_set_different(int64_t n, const double *values, double tolerance)
{
    double first[DIFFERENT];
    int found = 0;
    for (int64_t i = 0; i < n && found < DIFFERENT; i++) {
        int k = 0;
        while (k < found && fabs(values[i] - first[k]) > tolerance)
            k++;
        if (k == found)
            first[found++] = values[i];
    }
    return found;
}
