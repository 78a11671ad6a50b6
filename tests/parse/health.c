/* What a checkpoint keeps of the losses before. What is accepted is finite, writes and reads back alike, and steps are
 * judged by it. */
#include <math.h>

#include "kernels/base/mem.h"
#include "tests/parse/parse.h"
#include "trainer/health.h"

enum { WINDOW = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    double values[4][WINDOW];
    struct dtx_health h = {.window = WINDOW, .losses = values[0], .norms = values[1], .spike = DTX_HEALTH_WARN, .z = 6};
    struct dtx_health again = {.window = WINDOW, .losses = values[2], .norms = values[3]};
    struct dtx_step_result result = {.loss = 1, .grad_norm = 1, .targets = 1};
    struct dtx_health_verdict verdict;
    char *text = malloc(n + 1), *one, *two;
    dtx_ctx_init(&ctx);
    memcpy(text, data, n);
    text[n] = '\0';
    enum dtx_status status = dtx_health_read(&ctx, text, &h);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
    bool any = *text != '\0';
    free(text);
    if (status != DTX_OK || !any)
        return 0;
    PROMISE(h.skipped >= 0 && h.all_rollbacks >= 0 && h.seen >= 0);
    for (int64_t k = 0; k < h.seen && k < WINDOW; k++)
        PROMISE(isfinite(h.losses[k]) && isfinite(h.norms[k]));
    PROMISE(dtx_health_write(&ctx, &h, &one) == DTX_OK);
    PROMISE(dtx_health_read(&ctx, one, &again) == DTX_OK);
    PROMISE(dtx_health_write(&ctx, &again, &two) == DTX_OK && strcmp(one, two) == 0);
    dtx_health_judge(&h, &result, &verdict);
    dtx_mem_free(one);
    dtx_mem_free(two);
    return 0;
}
