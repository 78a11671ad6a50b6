#include "launch/sweep/needs.h"

#include <string.h>

#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "trainer/estimate.h"

enum dtx_status dtx_sweep_counter_open(struct dtx_ctx *ctx, struct dtx_sweep_counter *out)
{
    struct dtx_host host;
    dtx_host_read("", &host);
    *out = (struct dtx_sweep_counter){0};
    DTX_TRY(ctx, dtx_backend_open(ctx, "cpu", host.cores_allowed, dtx_isa_detect(), &out->backend));
    return out->backend->queues->create(out->backend, &out->queue);
}

void dtx_sweep_counter_close(struct dtx_sweep_counter *c)
{
    if (c->queue)
        c->backend->queues->free(c->queue);
    dtx_backend_close(c->backend);
    *c = (struct dtx_sweep_counter){0};
}

/* Checkpoints that are left when all steps of the trial are done. */
static int64_t checkpoints_left(const struct dtx_opt *opt, const struct dtx_sweep_trial *t)
{
    int64_t every = dtx_opt_int(opt, "checkpoint.every"), keep = dtx_opt_int(opt, "checkpoint.keep");
    int64_t first = t->start_step, last = dtx_sweep_last_step(t), made = 1;
    if (every > 0)
        made = last / every - first / every + (last % every != 0);
    return keep > 0 ? dtx_min64(keep, made) : made;
}

static enum dtx_status count(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, const struct dtx_sweep_trial *t,
                             const struct dtx_sweep_counter *counter, struct dtx_opt *opt, struct dtx_sweep_needs *out)
{
    struct dtx_engine_config config, alone;
    struct dtx_estimate e;
    *out = (struct dtx_sweep_needs){.threads = (int)dtx_opt_int(opt, "cpu.threads"),
                                    .cpu = strcmp(dtx_opt_text(opt, "device"), "cpu") == 0};
    dtx_engine_config_read(opt, sweep->ranks, &config);
    DTX_TRY(ctx, dtx_opt_check(ctx, opt));
    for (int stage = 0; stage < config.mesh[DTX_AXIS_PP]; stage++) {
        int rank[DTX_AXES] = {[DTX_AXIS_PP] = stage};
        DTX_TRY(ctx, dtx_estimate_rank(ctx, &config, counter->queue, rank, &e));
        double bytes = (double)(dtx_memory_total(&e.memory) + dtx_estimate_host(&e)) * sweep->ranks;
        out->memory_bytes = bytes > out->memory_bytes ? bytes : out->memory_bytes;
    }
    alone = config; /* one rank's copy of the state is the whole checkpoint */
    for (int axis = 0; axis < DTX_AXES; axis++)
        alone.mesh[axis] = 1;
    alone.split = (struct dtx_split){.chunks = 1};
    DTX_TRY(ctx, dtx_estimate_rank(ctx, &alone, counter->queue, (int[DTX_AXES]){0}, &e));
    out->disk_bytes = (double)e.staging * (double)checkpoints_left(opt, t);
    return DTX_OK;
}

enum dtx_status dtx_sweep_needs(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                const struct dtx_sweep_counter *counter, struct dtx_sweep_needs *out)
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    const struct dtx_sweep_trial *t = &sweep->trials.item[trial];
    char path[DTX_SWEEP_PATH];
    struct dtx_opt *opt;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    dtx_sweep_config_path(sweep, trial, path);
    enum dtx_status status = t->config ? dtx_opt_load_text(ctx, opt, t->config, t->label, DTX_OPT_FILE)
                                       : dtx_opt_load_file(ctx, opt, path, DTX_OPT_FILE);
    if (status == DTX_OK)
        status = count(ctx, sweep, t, counter, opt, out);
    dtx_opt_free(opt);
    return status;
}
