#include "trainer/lr.h"

#include <stddef.h>
#include <string.h>

#include "kernels/base/mutant.h"

#define DTX_VARIANT(name) extern const struct dtx_lr_variant dtx_lr_##name;
#include "trainer/lr.inc"
#undef DTX_VARIANT

static const struct dtx_lr_variant *const variants[] = {
#define DTX_VARIANT(name) &dtx_lr_##name,
#include "trainer/lr.inc"
#undef DTX_VARIANT
    NULL};

const char dtx_lr_names[] =
#define DTX_VARIANT(name) "|" #name
#include "trainer/lr.inc"
#undef DTX_VARIANT
    ;

const struct dtx_lr_variant *dtx_lr_find(const char *name)
{
    for (int i = 0; variants[i]; i++)
        if (strcmp(variants[i]->name, name) == 0)
            return variants[i];
    return NULL;
}

double dtx_lr_at(const struct dtx_lr *lr, int64_t step)
{
    if (DTX_MUTANT(lr_step_from_zero))
        step--;
    if (step < lr->warmup)
        return step <= 0 ? 0 : lr->peak * ((double)step / (double)lr->warmup);
    if (step <= lr->warmup)
        return lr->peak;
    if (step >= lr->steps)
        return lr->min;
    double f = lr->variant->factor(step - lr->warmup, lr->steps - lr->warmup, lr->decay_steps);
    /* Not min + f·(peak − min), which rounds away from the peak at f = 1. */
    return f * lr->peak + (1 - f) * lr->min;
}
