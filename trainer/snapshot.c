#include "trainer/snapshot.h"

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { PARTS = 1 + DTX_PARAM_STATES };

static void list_parts(const struct dtx_params *p, const struct dtx_tensor *parts[PARTS])
{
    parts[0] = &p->flat_master;
    for (int k = 0; k < DTX_PARAM_STATES; k++)
        parts[1 + k] = &p->flat_state[k];
}

size_t dtx_snapshot_bytes(const struct dtx_params *p)
{
    const struct dtx_tensor *parts[PARTS];
    size_t bytes = 0;
    list_parts(p, parts);
    for (int k = 0; k < PARTS; k++)
        bytes += dtx_tensor_bytes(parts[k]);
    return bytes;
}

enum dtx_status dtx_snapshot_open(struct dtx_ctx *ctx, struct dtx_engine *engine, struct dtx_snapshot *out)
{
    void *copy;
    struct dtx_params *p = dtx_engine_params(engine);
    DTX_TRY(ctx, p->backend->memory->host_alloc(p->backend, dtx_snapshot_bytes(p), &copy));
    *out = (struct dtx_snapshot){engine, copy};
    return DTX_OK;
}

void dtx_snapshot_close(struct dtx_snapshot *s)
{
    if (s->copy) {
        struct dtx_backend *backend = dtx_engine_params(s->engine)->backend;
        backend->memory->host_free(backend, s->copy);
    }
    *s = (struct dtx_snapshot){0};
}

static enum dtx_status copy_parts(struct dtx_snapshot *s, bool back)
{
    struct dtx_params *p = dtx_engine_params(s->engine);
    struct dtx_queue *queue = dtx_engine_queue(s->engine);
    const struct dtx_tensor *parts[PARTS];
    char *at = s->copy;
    DTX_TRY(p->ctx, dtx_engine_settle(s->engine)); /* nobody writes what is copied */
    list_parts(p, parts);
    for (int k = 0; k < PARTS - DTX_MUTANT(snapshot_without_second_moment); k++) {
        size_t bytes = dtx_tensor_bytes(parts[k]);
        if (bytes > 0)
            DTX_TRY(p->ctx, back ? dtx_tensor_set(queue, parts[k], at) : dtx_tensor_get(queue, parts[k], at));
        at += bytes;
    }
    return DTX_OK;
}

enum dtx_status dtx_snapshot_take(struct dtx_snapshot *s)
{
    return copy_parts(s, false);
}

enum dtx_status dtx_snapshot_restore(struct dtx_snapshot *s)
{
    struct dtx_params *p = dtx_engine_params(s->engine);
    DTX_TRY(p->ctx, copy_parts(s, true));
    return dtx_params_refresh(p, dtx_engine_queue(s->engine));
}
