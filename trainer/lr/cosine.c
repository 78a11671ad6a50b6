#include <math.h>

#include "trainer/lr.h"

static double factor(int64_t done, int64_t total, int64_t decay)
{
    static const double pi = 3.14159265358979323846;
    (void)decay;
    return 0.5 * (1 + cos(pi * ((double)done / (double)total)));
}

const struct dtx_lr_variant dtx_lr_cosine = {"cosine", factor};
