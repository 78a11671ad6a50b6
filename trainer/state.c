#include "trainer/state.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/optim.h"

struct state {
    struct dtx_engine *engine;
    struct dtx_ctx *ctx;
    int n, capacity;
    struct dtx_ckpt_item *items;
    struct dtx_tensor *tensors; /* [n]: this rank's part of each item, in the backend's memory */
    int64_t *skip;              /* [n]: where the part begins in the item's rows */
    char *staging;              /* host copies of all items, one after another */
};

/* This rank's part of one tensor of one weight as an item: the rows that the part touches. Of ranks that hold the same
 * elements the first one writes them. */
static void add_item(struct state *s, const char *group, const struct dtx_param *p, const struct dtx_tensor *part,
                     bool loading)
{
    const struct dtx_mesh *mesh = dtx_engine_mesh(s->engine);
    struct dtx_ckpt_item *item = &s->items[s->n];
    struct dtx_shard_rows rows;
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "/%s/%s", group, p->row.name);
    item->dtype = part->dtype;
    item->ndim = p->row.ndim;
    item->n_boxes =
        dtx_shard_range_boxes(&p->row.place, p->row.ndim, p->row.shape, p->row.padded, mesh->rank[DTX_AXIS_TP],
                              mesh->size[DTX_AXIS_TP], p->part_first, p->part_count, &rows, item->boxes);
    for (int i = 0; i < item->ndim; i++) {
        item->whole[i] = p->row.shape[i];
        item->local[i] = rows.shape[i];
    }
    bool first = dtx_mesh_data_rank(mesh) == 0 || (p->cut && !DTX_MUTANT(pieces_of_other_ranks_not_saved));
    item->writer = first && p->row.stage == mesh->rank[DTX_AXIS_PP] &&
                   (p->row.place.kind == DTX_SPLIT || mesh->rank[DTX_AXIS_TP] == 0);
    if (item->n_boxes == 0 || !(loading || item->writer)) /* a save needs nothing of ranks that only hold copies */
        return;
    s->skip[s->n] = rows.skip;
    s->tensors[s->n++] = *part;
}

static int64_t item_bytes(const struct dtx_ckpt_item *item)
{
    int64_t bytes = (int64_t)dtx_dtype_bytes(item->dtype);
    for (int i = 0; i < item->ndim; i++)
        bytes *= item->local[i];
    return dtx_round_up(bytes, 64);
}

static enum dtx_status list_items(struct state *s, bool loading, bool weights_only)
{
    struct dtx_params *p = dtx_engine_params(s->engine);
    const struct dtx_optim_variant *optim = dtx_engine_config_of(s->engine)->optim.variant;
    void *memory;
    s->capacity = p->n * (2 + optim->n_states);
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->capacity, sizeof *s->items, &memory));
    s->items = memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->capacity, sizeof *s->tensors, &memory));
    s->tensors = memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->capacity, sizeof *s->skip, &memory));
    s->skip = memory;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held || (loading && DTX_MUTANT(tied_copy_not_loaded) &&
                            item->row.stage != dtx_engine_mesh(s->engine)->rank[DTX_AXIS_PP]))
            continue;
        bool rounded = item->weight.dtype != item->master.dtype;
        struct dtx_tensor weight = dtx_param_part(item, &item->weight);
        if (!(loading && rounded) || DTX_MUTANT(master_not_loaded))
            add_item(s, "model", item, &weight, loading);
        if (rounded && !(loading && DTX_MUTANT(master_not_loaded)))
            add_item(s, "optimizer/master", item, &item->master, loading);
        for (int k = 0; k < optim->n_states - DTX_MUTANT(second_moment_not_kept) && !weights_only; k++) {
            char group[64];
            snprintf(group, sizeof group, "optimizer/%s", optim->states[k]);
            add_item(s, group, item, &item->state[k], loading);
        }
    }
    return DTX_OK;
}

static enum dtx_status open_state(struct dtx_engine *engine, bool loading, bool weights_only, struct state *s)
{
    *s = (struct state){.engine = engine, .ctx = dtx_engine_params(engine)->ctx};
    DTX_TRY(s->ctx, list_items(s, loading, weights_only));
    int64_t bytes = 0;
    for (int i = 0; i < s->n; i++)
        bytes += item_bytes(&s->items[i]);
    void *memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, bytes, 1, &memory));
    s->staging = memory;
    for (int64_t i = 0, at = 0; i < s->n; i++) {
        s->items[i].data = s->staging + at;
        at += item_bytes(&s->items[i]);
    }
    return DTX_OK;
}

static void close_state(struct state *s)
{
    dtx_mem_free(s->items);
    dtx_mem_free(s->tensors);
    dtx_mem_free(s->skip);
    dtx_mem_free(s->staging);
}

/* Every item between host copy and tensor: out of the backend's memory, or into it. */
static enum dtx_status copy_items(struct state *s, bool into)
{
    struct dtx_queue *queue = dtx_engine_queue(s->engine);
    for (int i = 0; i < s->n; i++) {
        char *host = (char *)s->items[i].data + s->skip[i] * (int64_t)dtx_dtype_bytes(s->items[i].dtype);
        if (s->items[i].n_boxes > 0)
            DTX_TRY(s->ctx,
                    into ? dtx_tensor_set(queue, &s->tensors[i], host) : dtx_tensor_get(queue, &s->tensors[i], host));
    }
    return DTX_OK;
}

enum dtx_status dtx_state_save(struct dtx_engine *engine, const char *dir, const struct dtx_ckpt_meta *meta,
                               const struct dtx_ckpt_save_options *options)
{
    struct state s;
    struct dtx_comm *world = dtx_engine_mesh(engine)->world;
    enum dtx_status status = open_state(engine, false, false, &s);
    if (status == DTX_OK)
        status = dtx_engine_settle(engine);
    if (status == DTX_OK)
        status = copy_items(&s, false);
    status = dtx_comm_agree(world, status);
    if (status == DTX_OK)
        status = dtx_ckpt_save(s.ctx, world, dir, s.items, s.n, meta, options);
    close_state(&s);
    return status;
}

enum dtx_status dtx_state_load(struct dtx_engine *engine, const char *path, bool weights_only)
{
    struct state s;
    struct dtx_comm *world = dtx_engine_mesh(engine)->world;
    enum dtx_status status = open_state(engine, true, weights_only, &s);
    if (status == DTX_OK)
        status = dtx_engine_settle(engine); /* nobody writes what is loaded */
    status = dtx_comm_agree(world, status);
    if (status == DTX_OK)
        status = dtx_ckpt_load(s.ctx, world, path, s.items, s.n);
    if (status == DTX_OK)
        status = copy_items(&s, true);
    close_state(&s);
    DTX_TRY(s.ctx, status);
    if (DTX_MUTANT(weights_not_refreshed))
        return DTX_OK;
    return dtx_params_refresh(dtx_engine_params(engine), dtx_engine_queue(engine));
}
