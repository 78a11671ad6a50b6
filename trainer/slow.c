#include "trainer/slow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static const double least_seconds = 5e-3; /* a step: what is less slow than that is noise of short steps */
enum { LISTED = 8 };                      /* other slow ranks that a line names */

enum dtx_status dtx_slow_open(const struct dtx_mesh *mesh, double factor, int intervals, int64_t every,
                              struct dtx_slow *out)
{
    struct dtx_comm *world = mesh->world;
    int size = world->size;
    void *memory;
    *out = (struct dtx_slow){.world = world,
                             .factor = factor,
                             .intervals = intervals,
                             .every = every,
                             .steps = -1,
                             .peers = size / mesh->size[DTX_AXIS_PP]};
    enum dtx_status status = dtx_mem_alloc(world->ctx, size, sizeof *out->all, &memory);
    if (status == DTX_OK) {
        out->all = memory;
        status = dtx_mem_alloc(world->ctx, size, sizeof *out->in_a_row, &memory);
    }
    if (status == DTX_OK) {
        out->in_a_row = memory;
        status = dtx_mem_alloc(world->ctx, out->peers, sizeof *out->sorted, &memory);
    }
    if (status == DTX_OK)
        out->sorted = memory;
    return dtx_comm_agree(world, status);
}

void dtx_slow_close(struct dtx_slow *s)
{
    dtx_mem_free(s->all);
    dtx_mem_free(s->in_a_row);
    dtx_mem_free(s->sorted);
    *s = (struct dtx_slow){0};
}

void dtx_slow_begin(struct dtx_slow *s)
{
    s->waited = s->world->ctx->waited;
    s->began = dtx_clock_now();
}

void dtx_slow_end(struct dtx_slow *s, double data_seconds)
{
    double waited = DTX_MUTANT(slow_counts_waiting) ? 0 : s->world->ctx->waited - s->waited;
    if (s->steps++ < 0)
        return;
    s->mine.own += dtx_clock_now() - s->began - waited;
    s->mine.data += data_seconds;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a rank's stage; of an even number the lower of the two in the middle, so that one of two is seen. */
static double median_of(struct dtx_slow *s, int rank)
{
    int first = DTX_MUTANT(slow_beside_all_stages) ? 0 : rank / s->peers * s->peers;
    for (int r = 0; r < s->peers; r++)
        s->sorted[r] = s->all[first + r].own;
    qsort(s->sorted, (size_t)s->peers, sizeof *s->sorted, ascending);
    return s->sorted[(s->peers - 1) / 2];
}

/* Is it time to name a rank that is slow for so many intervals? After n, 2n, 4n, … */
static bool due(const struct dtx_slow *s, int in_a_row)
{
    int at = s->intervals;
    while (at < in_a_row && at < 1 << 29)
        at *= 2;
    return at == in_a_row || (DTX_MUTANT(slow_never_silent) && in_a_row >= s->intervals);
}

static void describe(const struct dtx_slow *s, double median, struct dtx_slow_report *out)
{
    const struct dtx_slow_times *t = &s->all[out->named];
    double steps = (double)s->every;
    int others = 0;
    size_t used = (size_t)snprintf(
        out->text, sizeof out->text,
        "is slow: %.3g s a step of its own work, %.3g s of that waiting for samples; the median of the %d ranks of its "
        "stage is %.3g s, for %lld steps now",
        t->own / steps, t->data / steps, s->peers, median / steps, (long long)(s->in_a_row[out->named] * s->every));
    for (int r = 0; r < s->world->size; r++)
        if (r != out->named && s->in_a_row[r] >= s->intervals && others++ < LISTED)
            used +=
                (size_t)snprintf(out->text + used, sizeof out->text - used, "%s %d", others > 1 ? "," : "; so are", r);
    if (others > LISTED)
        snprintf(out->text + used, sizeof out->text - used, " and %d more", others - LISTED);
}

void dtx_slow_compare(struct dtx_slow *s, struct dtx_slow_report *out)
{
    double worst = 0, named_median = 0, median = 0;
    *out = (struct dtx_slow_report){.named = -1};
    for (int r = 0; r < s->world->size && s->peers > 1; r++) {
        if (r % s->peers == 0)
            median = median_of(s, r);
        double ratio = median > 0 ? s->all[r].own / median : 0;
        bool slow = ratio > s->factor && s->all[r].own - median > least_seconds * (double)s->every;
        if (ratio > out->ratio) {
            out->slowest = r;
            out->ratio = ratio;
        }
        s->in_a_row[r] = slow ? s->in_a_row[r] + 1 : 0;
        if (slow && ratio > worst && due(s, s->in_a_row[r])) {
            worst = ratio;
            out->named = r;
            named_median = median;
        }
    }
    if (out->named >= 0)
        describe(s, named_median, out);
}

enum dtx_status dtx_slow_ask(struct dtx_slow *s, struct dtx_slow_report *out)
{
    struct dtx_ctx *ctx = s->world->ctx;
    char host[sizeof ctx->host], text[sizeof out->text];
    *out = (struct dtx_slow_report){.named = -1};
    if (s->factor == 0 || s->peers == 1 || s->steps < s->every)
        return DTX_OK;
    DTX_TRY(ctx, dtx_comm_gather_bytes(s->world, &s->mine, sizeof s->mine, s->all));
    s->mine = (struct dtx_slow_times){0};
    s->steps = 0;
    dtx_slow_compare(s, out);
    if (out->named < 0)
        return DTX_OK;
    memcpy(host, ctx->host, sizeof host);
    DTX_TRY(ctx, dtx_comm_broadcast_bytes(s->world, host, sizeof host, out->named));
    memcpy(text, out->text, sizeof text);
    snprintf(out->text, sizeof out->text, "rank %d (%.63s) %.500s", out->named, host, text);
    return DTX_OK;
}
