/* What the tests of sweep fits share: published tables as samples. */
#ifndef DTX_TESTS_UNIT_SWEEP_SUPPORT_H
#define DTX_TESTS_UNIT_SWEEP_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "launch/sweep/law.h"
#include "launch/sweep/set.h"

#define SUCCEEDS(ctx, call)                                                                                            \
    do {                                                                                                               \
        if ((call) != DTX_OK) {                                                                                        \
            dtx_error_print(ctx);                                                                                      \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static inline void read_golden(struct dtx_ctx *ctx, const char *name, int64_t drop_highest, struct dtx_points *points,
                               struct dtx_set *set)
{
    char path[4096];
    const char *source = getenv("DTX_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/scaling/%s", source ? source : ".", name);
    struct dtx_points_options options = {.path = path, .highest = drop_highest};
    SUCCEEDS(ctx, dtx_points_read(ctx, &options, points));
    points->path = NULL;
    SUCCEEDS(ctx, dtx_set_make(ctx, points, 0, set));
}

static inline void make_samples(struct dtx_ctx *ctx, const struct dtx_set *set, struct dtx_samples *s)
{
    SUCCEEDS(ctx, dtx_samples_make(ctx, set->n, 1, s));
    for (int64_t i = 0; i < set->n; i++) {
        s->x[i] = set->ln_n[i];
        s->y[i] = set->ln_d[i];
        s->ln_loss[i] = log(set->loss[i]);
    }
}

static inline void is_near(const char *what, double got, double wanted, double relative)
{
    if (!(fabs(got - wanted) <= relative * fabs(wanted))) {
        print_error("%s: %.17g, expected %.17g to %g\n", what, got, wanted, relative);
        fail();
    }
}

#endif
