#include "trainer/lr.h"

static double factor(int64_t done, int64_t total, int64_t decay)
{
    (void)decay;
    return (double)(total - done) / (double)total;
}

const struct dtx_lr_variant dtx_lr_linear = {"linear", factor};
