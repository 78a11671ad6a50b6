#include "trainer/state.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/optim.h"

/* Ranks that hold the same elements. What of it is theirs lies one after another, in the order of the list, and each
 * copy's rank writes an equal piece of that, cut between rows: less than a row more or less than the mean. */
struct copies {
    int n, rank; /* how many, and which of them this one is */
    int64_t total, before;
};
enum { CUT = 1, WHOLE = 2, KINDS = 4 }; /* bits: cut over the data ranks; held whole by all tensor ranks */

/* Fills a list of items; without an engine their shapes only. */
struct list {
    struct dtx_ctx *ctx;
    struct dtx_params *params;
    const struct dtx_mesh *mesh;
    const struct dtx_optim_variant *optim;
    struct dtx_state *state;
    bool counting; /* of a save: only the totals of `copies` */
    struct copies copies[KINDS];
};

static void set_copies(struct list *list)
{
    const struct dtx_mesh *m = list->mesh;
    for (int kind = 0; kind < KINDS; kind++) {
        int data = kind & CUT ? 1 : dtx_mesh_data_size(m), tensor = kind & WHOLE ? m->size[DTX_AXIS_TP] : 1;
        int data_rank = data > 1 ? dtx_mesh_data_rank(m) : 0, tensor_rank = tensor > 1 ? m->rank[DTX_AXIS_TP] : 0;
        list->copies[kind] = (struct copies){.n = data * tensor, .rank = data_rank * tensor + tensor_rank};
    }
}

/* Where piece `rank` of `c` begins within the part, as an element of the local array: the beginning of a row. */
static int64_t piece_begin(const struct copies *c, int rank, const struct dtx_param *p, int64_t element_bytes)
{
    int64_t row = p->row.ndim == 2 ? p->local[1] : 1;
    int64_t place = c->total / c->n * rank + c->total % c->n * rank / c->n - c->before; /* in bytes */
    int64_t first = p->part_first + dtx_max64(0, place) / element_bytes;
    return dtx_min64(dtx_max64(first / row * row, p->part_first), p->part_first + p->part_count);
}

/* The elements that this rank writes of its part. */
static void choose_range(struct list *list, const struct dtx_param *p, enum dtx_dtype dtype, int64_t *first,
                         int64_t *count)
{
    int64_t bytes = (int64_t)dtx_dtype_bytes(dtype);
    struct copies *c = &list->copies[(p->cut ? CUT : 0) | (p->row.place.kind == DTX_SPLIT ? 0 : WHOLE)];
    *first = p->part_first;
    *count = 0;
    if (p->row.stage != list->mesh->rank[DTX_AXIS_PP])
        return;
    if (list->counting) {
        c->total += p->part_count * bytes;
        return;
    }
    int64_t begin = c->rank == 0 ? p->part_first : piece_begin(c, c->rank, p, bytes);
    int64_t end = c->rank == c->n - 1 ? p->part_first + p->part_count : piece_begin(c, c->rank + 1, p, bytes);
    c->before += p->part_count * bytes;
    if (DTX_MUTANT(first_replica_saves_all)) {
        begin = p->part_first;
        end = c->rank == 0 ? p->part_first + p->part_count : begin;
    }
    if (!p->cut || !DTX_MUTANT(pieces_of_other_ranks_not_saved) || dtx_mesh_data_rank(list->mesh) == 0) {
        *first = begin;
        *count = end - begin;
    }
}

/* This rank's part of one tensor of one weight as an item, or what it writes of that: the rows that the range touches.
 */
static void add_item(struct list *list, const char *group, const struct dtx_param *p, const struct dtx_tensor *part,
                     bool loading)
{
    const struct dtx_mesh *mesh = list->mesh;
    struct dtx_state *s = list->state;
    struct dtx_shard_rows rows;
    int64_t first = p->part_first, count = p->part_count;
    if (!loading)
        choose_range(list, p, part->dtype, &first, &count);
    if (list->counting || count == 0)
        return;
    struct dtx_ckpt_item *item = &s->items[s->n];
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "/%s/%s", group, p->row.name);
    item->dtype = part->dtype;
    item->ndim = p->row.ndim;
    item->n_boxes =
        dtx_shard_range_boxes(&p->row.place, p->row.ndim, p->row.shape, p->row.padded, mesh->rank[DTX_AXIS_TP],
                              mesh->size[DTX_AXIS_TP], first, count, &rows, item->boxes);
    for (int i = 0; i < item->ndim; i++) {
        item->whole[i] = p->row.shape[i];
        item->local[i] = rows.shape[i];
    }
    item->writer = !loading;
    if (item->n_boxes == 0)
        return;
    s->skip[s->n] = rows.skip;
    char *data = part->data;
    size_t before = (size_t)(first - p->part_first) * dtx_dtype_bytes(part->dtype);
    s->tensors[s->n++] = dtx_tensor_1d(data ? data + before : NULL, part->dtype, count);
}

static void add_items(struct list *list, bool loading, bool weights_only)
{
    struct dtx_params *p = list->params;
    const struct dtx_optim_variant *optim = list->optim;
    struct dtx_state *s = list->state;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held ||
            (loading && DTX_MUTANT(tied_copy_not_loaded) && item->row.stage != list->mesh->rank[DTX_AXIS_PP]))
            continue;
        bool rounded = item->weight.dtype != item->master.dtype;
        int before = s->n;
        struct dtx_tensor weight = dtx_param_part(item, &item->weight);
        if (weights_only) {
            add_item(list, "optimizer/master", item, rounded ? &item->master : &weight, loading);
            if (s->n > before && !DTX_MUTANT(init_needs_masters))
                snprintf(s->items[before].otherwise, DTX_CKPT_NAME, "/model/%s", item->row.name);
            continue;
        }
        if (!(loading && rounded) || DTX_MUTANT(master_not_loaded))
            add_item(list, "model", item, &weight, loading);
        if (rounded && !(loading && DTX_MUTANT(master_not_loaded)))
            add_item(list, "optimizer/master", item, &item->master, loading);
        for (int k = 0; k < optim->n_states - DTX_MUTANT(second_moment_not_kept); k++) {
            char group[64];
            snprintf(group, sizeof group, "optimizer/%s", optim->states[k]);
            add_item(list, group, item, &item->state[k], loading);
        }
    }
}

static enum dtx_status list_items(struct list *list, bool loading, bool weights_only)
{
    struct dtx_params *p = list->params;
    const struct dtx_optim_variant *optim = list->optim;
    struct dtx_state *s = list->state;
    int64_t capacity = (int64_t)p->n * (2 + optim->n_states);
    void *memory;
    DTX_TRY(list->ctx, dtx_mem_alloc(list->ctx, capacity, sizeof *s->items, &memory));
    s->items = memory;
    DTX_TRY(list->ctx, dtx_mem_alloc(list->ctx, capacity, sizeof *s->tensors, &memory));
    s->tensors = memory;
    DTX_TRY(list->ctx, dtx_mem_alloc(list->ctx, capacity, sizeof *s->skip, &memory));
    s->skip = memory;
    set_copies(list);
    list->counting = !loading;
    if (list->counting)
        add_items(list, loading, weights_only);
    list->counting = false;
    add_items(list, loading, weights_only);
    return DTX_OK;
}

static enum dtx_status open_state(struct dtx_engine *engine, bool loading, bool weights_only, struct dtx_state *s)
{
    struct list list = {.ctx = dtx_engine_params(engine)->ctx,
                        .params = dtx_engine_params(engine),
                        .mesh = dtx_engine_mesh(engine),
                        .optim = dtx_engine_config_of(engine)->optim.variant,
                        .state = s};
    *s = (struct dtx_state){.engine = engine, .ctx = list.ctx};
    return list_items(&list, loading, weights_only);
}

enum dtx_status dtx_state_open(struct dtx_engine *engine, struct dtx_state *out)
{
    enum dtx_status status = open_state(engine, false, false, out);
    if (status != DTX_OK)
        dtx_state_close(out);
    return status;
}

void dtx_state_close(struct dtx_state *s)
{
    dtx_mem_free(s->items);
    dtx_mem_free(s->tensors);
    dtx_mem_free(s->skip);
    *s = (struct dtx_state){0};
}

enum dtx_status dtx_state_bytes(struct dtx_ctx *ctx, struct dtx_params *params, const struct dtx_mesh *mesh,
                                const struct dtx_optim_variant *optim, size_t *bytes)
{
    struct dtx_state s = {0};
    struct list list = {.ctx = ctx, .params = params, .mesh = mesh, .optim = optim, .state = &s};
    enum dtx_status status = list_items(&list, false, false);
    if (status == DTX_OK)
        *bytes = dtx_ckpt_staging_bytes(s.items, s.n);
    dtx_state_close(&s);
    return status;
}

static enum dtx_status copy_items(struct dtx_state *s)
{
    struct dtx_queue *queue = dtx_engine_queue(s->engine);
    for (int i = 0; i < s->n; i++) {
        char *host = (char *)s->items[i].data + s->skip[i] * (int64_t)dtx_dtype_bytes(s->items[i].dtype);
        DTX_TRY(s->ctx, dtx_tensor_get(queue, &s->tensors[i], host));
    }
    return DTX_OK;
}

enum dtx_status dtx_state_snapshot(struct dtx_state *s, struct dtx_ckpt_staging *staging)
{
    DTX_TRY(s->ctx, dtx_ckpt_staging_place(staging, s->items, s->n));
    DTX_TRY(s->ctx, dtx_engine_settle(s->engine));
    if (!DTX_MUTANT(snapshot_not_copied))
        return copy_items(s);
    for (int i = 0; i < s->n; i++) /* host memory on the CPU: the writer reads what training changes */
        s->items[i].data = (char *)s->tensors[i].data - s->skip[i] * (int64_t)dtx_dtype_bytes(s->items[i].dtype);
    return DTX_OK;
}

enum dtx_status dtx_state_save(struct dtx_engine *engine, const char *dir, const struct dtx_ckpt_meta *meta,
                               const struct dtx_ckpt_save_options *options)
{
    struct dtx_comm *world = dtx_engine_mesh(engine)->world;
    struct dtx_ckpt_staging *staging = NULL;
    struct dtx_ckpt_saved saved;
    struct dtx_state s;
    DTX_TRY(world->ctx, dtx_comm_agree(world, dtx_state_open(engine, &s)));
    enum dtx_status status = dtx_ckpt_staging_open(s.ctx, world, dtx_engine_queue(engine)->backend,
                                                   dtx_ckpt_staging_bytes(s.items, s.n), false, 0, &staging);
    if (status == DTX_OK)
        status = dtx_comm_agree(world, dtx_state_snapshot(&s, staging));
    if (status == DTX_OK) {
        dtx_ckpt_staging_start(staging, dir, NULL, s.items, s.n, meta, options);
        status = dtx_ckpt_staging_finish(staging, &saved);
    }
    dtx_ckpt_staging_close(staging);
    dtx_state_close(&s);
    return status;
}

/* Where the boxes of an item go: a tensor, which holds the elements of the item's rows from `skip` on. */
struct target {
    struct dtx_queue *queue;
    const struct dtx_tensor *tensor;
    int64_t skip, row; /* row: elements */
    bool matrix;
};

static enum dtx_status write_box(struct dtx_ctx *ctx, void *source, const struct dtx_box *box, const void *dense)
{
    const struct target *t = source;
    int64_t bytes = (int64_t)dtx_dtype_bytes(t->tensor->dtype), width = t->matrix ? box->extent[1] : 1;
    int64_t at = box->local[0] * t->row + (t->matrix ? box->local[1] : 0) - t->skip, runs = box->extent[0];
    if (width == t->row) { /* whole rows are one run */
        width *= runs;
        runs = 1;
    }
    for (int64_t r = 0; r < runs; r++) {
        struct dtx_tensor run =
            dtx_tensor_1d((char *)t->tensor->data + (at + r * t->row) * bytes, t->tensor->dtype, width);
        DTX_TRY(ctx, dtx_tensor_set(t->queue, &run, (const char *)dense + r * width * bytes));
    }
    return DTX_OK;
}

/* Every item goes straight to its tensor. */
static enum dtx_status set_targets(struct dtx_state *s, struct target **out)
{
    void *memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, s->n, sizeof **out, &memory));
    *out = memory;
    for (int i = 0; i < s->n; i++) {
        struct dtx_ckpt_item *item = &s->items[i];
        struct target *t = &(*out)[i];
        t->queue = dtx_engine_queue(s->engine);
        t->tensor = &s->tensors[i];
        t->skip = s->skip[i];
        t->matrix = item->ndim == 2;
        t->row = t->matrix ? item->local[1] : 1;
        item->write = write_box;
        item->source = t;
    }
    return DTX_OK;
}

enum dtx_status dtx_state_load(struct dtx_engine *engine, const char *path, const struct dtx_ckpt_index *local,
                               bool weights_only)
{
    struct dtx_state s;
    struct dtx_comm *world = dtx_engine_mesh(engine)->world;
    struct target *targets = NULL;
    enum dtx_status status = open_state(engine, true, weights_only, &s);
    if (status == DTX_OK)
        status = set_targets(&s, &targets);
    if (status == DTX_OK)
        status = dtx_engine_settle(engine); /* nobody writes what is loaded */
    status = dtx_comm_agree(world, status);
    if (status == DTX_OK)
        status = local ? dtx_ckpt_index_load(s.ctx, world, path, local, s.items, s.n)
                       : dtx_ckpt_load(s.ctx, world, path, s.items, s.n);
    dtx_mem_free(targets);
    dtx_state_close(&s);
    DTX_TRY(world->ctx, status);
    if (DTX_MUTANT(weights_not_refreshed))
        return DTX_OK;
    return dtx_params_refresh(dtx_engine_params(engine), dtx_engine_queue(engine));
}
