/* Warm-up, stable, decay: the peak until the last `decay` updates, then a straight line. */
#include "kernels/base/mem.h"
#include "trainer/lr.h"

static double factor(int64_t done, int64_t total, int64_t decay)
{
    int64_t left = total - done, down = dtx_min64(decay, total);
    return left >= down ? 1 : (double)left / (double)down;
}

const struct dtx_lr_variant dtx_lr_wsd = {"wsd", factor};
