#include "trainer/memory_check.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/estimate.h"

static const double gib = 1073741824.0;

static enum dtx_status estimate(struct dtx_comm *world, const struct dtx_engine_config *config,
                                struct dtx_backend *backend, struct dtx_estimate *out)
{
    struct dtx_queue *queue;
    int place[DTX_AXES];
    dtx_mesh_place(config->mesh, world->rank, place);
    DTX_TRY(world->ctx, backend->queues->create(backend, &queue));
    enum dtx_status status = dtx_estimate_rank(world->ctx, config, queue, place, out);
    backend->queues->free(queue);
    return status;
}

/* What all ranks of this rank's host take. */
static enum dtx_status sum_of_host(struct dtx_comm *world, double bytes, int *ranks, double *sum)
{
    struct {
        char host[sizeof world->ctx->host];
        double bytes;
    } mine = {.bytes = bytes}, *all;
    void *memory;
    memcpy(mine.host, world->ctx->host, sizeof mine.host);
    DTX_TRY(world->ctx, dtx_mem_alloc(world->ctx, world->size, sizeof mine, &memory));
    all = memory;
    enum dtx_status status = dtx_comm_gather_bytes(world, &mine, sizeof mine, all);
    *ranks = 0;
    *sum = 0;
    for (int r = 0; r < world->size && status == DTX_OK; r++)
        if (strncmp(all[r].host, mine.host, sizeof mine.host) == 0) {
            *sum += all[r].bytes;
            ++*ranks;
        }
    dtx_mem_free(memory);
    return status;
}

/* Of this rank's device, which it has for itself: what is free now against what will be taken. */
static enum dtx_status check_device(struct dtx_comm *world, const struct dtx_estimate *e, size_t left, size_t total)
{
    char causes[DTX_MEMORY_TEXT];
    size_t bytes = dtx_memory_total(&e->memory) + e->allowance;
    if (bytes <= left || DTX_MUTANT(device_memory_unchecked))
        return DTX_OK;
    dtx_memory_text(&e->memory, causes);
    return dtx_fail(world->ctx, DTX_E_CONFIG,
                    "this rank will take %.1f GiB of its device on %s, which has %.1f GiB free of %.1f: %s, NCCL's own "
                    "buffers up to %.1f. What helps: another process off the device, more devices with parallel.tp or "
                    "parallel.pp, parallel.zero 1, a smaller train.micro_batch, train.recompute block (dtx plan shows "
                    "what fits); for NCCL's buffers the variables NCCL_MAX_CTAS=4 or NCCL_BUFFSIZE=1048576",
                    (double)bytes / gib, world->ctx->host, (double)left / gib, (double)total / gib, causes,
                    (double)e->allowance / gib);
}

/* Of the host: all of it, or what ranks with devices need there. */
static enum dtx_status check(struct dtx_comm *world, const struct dtx_estimate *e, bool device)
{
    double bytes = (device ? 0 : (double)dtx_memory_total(&e->memory)) + (double)dtx_estimate_host(e), sum;
    struct dtx_host host;
    int ranks;
    char causes[DTX_MEMORY_TEXT];
    DTX_TRY(world->ctx, sum_of_host(world, bytes, &ranks, &sum));
    dtx_host_read("", &host);
    double allowed = (double)host.memory_allowed_bytes;
    if (allowed == 0 || sum <= allowed || DTX_MUTANT(memory_unchecked))
        return DTX_OK;
    if (device)
        snprintf(causes, sizeof causes, "its device's memory apart");
    else
        dtx_memory_text(&e->memory, causes);
    return dtx_fail(
        world->ctx, DTX_E_CONFIG,
        "the %d rank(s) on %s will take %.1f GiB of the %.1f GiB that they may have; this one %.1f: %s, host "
        "%.1f, a copy of the state for checkpoints %.1f, one to roll back to %.1f. What helps: more hosts, parallel.tp "
        "or parallel.pp, "
        "parallel.zero 1, a smaller "
        "train.micro_batch, train.recompute block; dtx plan shows what fits",
        ranks, world->ctx->host, sum / gib, allowed / gib, bytes / gib, causes, (double)e->host / gib,
        (double)e->staging / gib, (double)e->snapshot / gib);
}

enum dtx_status dtx_memory_check(struct dtx_comm *world, const struct dtx_engine_config *config,
                                 struct dtx_backend *backend, bool saves, size_t *bytes)
{
    struct dtx_estimate e;
    DTX_TRY(world->ctx, dtx_comm_agree(world, estimate(world, config, backend, &e)));
    if (!saves)
        e.staging = e.snapshot = 0;
    size_t left, total;
    DTX_TRY(world->ctx, dtx_comm_agree(world, backend->memory->left(backend, &left, &total)));
    enum dtx_status status = total > 0 ? check_device(world, &e, left, total) : DTX_OK;
    DTX_TRY(world->ctx, dtx_comm_agree(world, status));
    DTX_TRY(world->ctx, dtx_comm_agree(world, check(world, &e, total > 0)));
    *bytes = dtx_memory_total(&e.memory);
    return DTX_OK;
}
