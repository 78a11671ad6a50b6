#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/runner.h"

static const char variable[] = "CUDA_VISIBLE_DEVICES";

static enum dtx_status take(struct dtx_sweep_runner *r, const char *word, size_t length)
{
    if (r->gpus == DTX_SWEEP_GPUS || length == 0 || length >= sizeof r->gpu[0])
        return dtx_fail(r->ctx, DTX_E_CONFIG, "gpus: '%.*s': at most %d GPUs by index or UUID, as in 0,1,3",
                        (int)length, word, DTX_SWEEP_GPUS);
    for (int i = 0; i < r->gpus; i++)
        if (strlen(r->gpu[i]) == length && strncmp(r->gpu[i], word, length) == 0)
            return dtx_fail(r->ctx, DTX_E_CONFIG, "gpus: %s is named twice", r->gpu[i]);
    memcpy(r->gpu[r->gpus++], word, length);
    return DTX_OK;
}

enum dtx_status dtx_sweep_gpus_choose(struct dtx_sweep_runner *r, const char *list)
{
    const char *seen = getenv(variable);
    int count = strcmp(list, "auto") == 0 ? dtx_backend_device_count() : 0;
    if (strcmp(list, "none") == 0 || (strcmp(list, "auto") == 0 && count == 0))
        return DTX_OK;
    for (int i = 0; i < count && !(seen && *seen); i++) {
        char number[16];
        DTX_TRY(r->ctx, take(r, number, (size_t)snprintf(number, sizeof number, "%d", i)));
    }
    if (r->gpus > 0)
        return DTX_OK;
    for (const char *word = count ? seen : list;; word++) {
        size_t length = strcspn(word, ",");
        DTX_TRY(r->ctx, take(r, word, length));
        word += length;
        if (!*word)
            return DTX_OK;
    }
}

void dtx_sweep_gpus_deal(const struct dtx_sweep_runner *r, int place)
{
    char text[sizeof r->gpu] = "";
    int each = r->gpus < r->sweep.ranks ? r->gpus : r->sweep.ranks;
    if (r->gpus == 0)
        return;
    for (int i = 0; i < each; i++) {
        strcat(text, i ? "," : "");
        strcat(text, r->gpu[((DTX_MUTANT(sweep_gpu_shared) ? 0 : place) * each + i) % r->gpus]);
    }
    setenv(variable, text, 1);
}
