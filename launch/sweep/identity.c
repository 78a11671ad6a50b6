#include <stdio.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/sweep/trial.h"
#include "trainer/config.h"

static const char *const passed_over[] = {"cpu.threads", "cuda.graphs",   "log.",          "comm.",
                                          "check.",      "checkpoint.",   "device",        "data.mmap",
                                          "data.advise", "data.prefetch", "data.cache_dir"};

bool dtx_sweep_counts(const char *line)
{
    if (DTX_MUTANT(sweep_identity_ignores_lr) && strncmp(line, "lr.", 3) == 0)
        return false;
    for (size_t i = 0; i < sizeof passed_over / sizeof *passed_over; i++)
        if (strncmp(line, passed_over[i], strlen(passed_over[i])) == 0)
            return false;
    return true;
}

/* Both texts have a line an option in the same order. Defaults are left out, so that a new option of a later version
 * changes no id. */
static void hash_differences(struct dtx_hasher *hasher, const char *text, const char *defaults)
{
    while (*text && *defaults) {
        size_t a = strcspn(text, "\n"), b = strcspn(defaults, "\n");
        if (dtx_sweep_counts(text) && (a != b || strncmp(text, defaults, a) != 0)) {
            dtx_hasher_add(hasher, text, a);
            dtx_hasher_add(hasher, "\n", 1);
        }
        text += a + (text[a] == '\n');
        defaults += b + (defaults[b] == '\n');
    }
}

enum dtx_status dtx_sweep_identify(struct dtx_ctx *ctx, const char *config, const char *start, int64_t start_step,
                                   int64_t until, char id[DTX_SWEEP_ID])
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct dtx_opt *opt = NULL;
    char *defaults = NULL, *text = NULL, where[128];
    enum dtx_status status = dtx_opt_create(ctx, tables, 1, &opt);
    if (status == DTX_OK)
        status = dtx_opt_dump_stored(ctx, opt, &defaults);
    if (status == DTX_OK)
        status = dtx_opt_load_known(ctx, opt, config, "configuration", DTX_OPT_FLAG);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    if (status == DTX_OK)
        status = dtx_opt_dump_stored(ctx, opt, &text);
    struct dtx_hasher *hasher = status == DTX_OK ? dtx_hasher_begin(0) : NULL;
    if (status == DTX_OK && !hasher)
        status = dtx_fail(ctx, DTX_E_MEMORY, "sweep: no memory");
    if (hasher) {
        hash_differences(hasher, text, defaults);
        snprintf(where, sizeof where, "start %s %lld until %lld", start, (long long)start_step, (long long)until);
        dtx_hasher_add(hasher, where, strlen(where));
        snprintf(id, DTX_SWEEP_ID, "%016llx", (unsigned long long)dtx_hasher_end(hasher));
    }
    dtx_mem_free(defaults);
    dtx_mem_free(text);
    dtx_opt_free(opt);
    return status;
}
