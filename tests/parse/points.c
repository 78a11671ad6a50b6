/* Tables of losses (CSV): what is accepted is positive and finite, what is not says why. */
#include <math.h>

#include "launch/sweep/points.h"
#include "tests/parse/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    for (int drop = 0; drop < 2; drop++) {
        struct dtx_ctx ctx;
        struct dtx_csv csv;
        struct dtx_points points;
        struct dtx_points_options options = {.path = "t.csv", .drop_faults = drop, .where = drop ? "" : "seed=1"};
        dtx_ctx_init(&ctx);
        if (dtx_csv_parse(&ctx, "t.csv", (const char *)data, n, &csv) != DTX_OK)
            return 0;
        enum dtx_status status = dtx_points_take(&ctx, &options, &csv, &points);
        PROMISE(status == DTX_OK || status == DTX_E_FORMAT || status == DTX_E_CONFIG);
        if (status != DTX_OK)
            continue;
        int64_t used = 0;
        for (int64_t i = 0; i < points.n; i++) {
            const struct dtx_point *p = &points.at[i];
            used += !p->dropped[0];
            PROMISE(p->dropped[0] || (p->n > 0 && p->d > 0 && p->c > 0 && p->loss > 0 && isfinite(p->n * p->d * p->c)));
        }
        PROMISE(used == points.used && used > 0);
        dtx_points_free(&points);
    }
    return 0;
}
