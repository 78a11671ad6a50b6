#include "trainer/optim.h"

#include <string.h>

#define DTX_VARIANT(variant) extern const struct dtx_optim_variant dtx_optim_##variant;
#include "trainer/optim.inc"
#undef DTX_VARIANT

const struct dtx_optim_variant *dtx_optim_find(const char *name)
{
    static const struct dtx_optim_variant *const list[] = {
#define DTX_VARIANT(variant) &dtx_optim_##variant,
#include "trainer/optim.inc"
#undef DTX_VARIANT
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}
