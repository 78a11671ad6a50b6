#include "parallel/param.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

enum dtx_status dtx_params_create(struct dtx_ctx *ctx, struct dtx_params *params)
{
    memset(params, 0, sizeof *params);
    params->ctx = ctx;
    return DTX_OK;
}

void dtx_params_free(struct dtx_params *p)
{
    if (p->backend) {
        dtx_tensor_free(p->backend, &p->flat_weight);
        dtx_tensor_free(p->backend, &p->flat_master);
        dtx_tensor_free(p->backend, &p->flat_grad);
        dtx_tensor_free(p->backend, &p->flat_tied);
        dtx_tensor_free(p->backend, &p->flat_sum);
        for (int s = 0; s < DTX_PARAM_STATES; s++)
            dtx_tensor_free(p->backend, &p->flat_state[s]);
    }
    dtx_mem_free(p->item);
    dtx_mem_free(p->bucket);
    memset(p, 0, sizeof *p);
}

enum dtx_status dtx_params_add(struct dtx_params *p, const struct dtx_param_row *row, int *index)
{
    void *grown;
    DTX_TRY(p->ctx, dtx_mem_grow(p->ctx, p->item, p->n, sizeof *p->item, &p->capacity, &grown));
    p->item = grown;
    p->item[p->n] = (struct dtx_param){.row = *row};
    *index = p->n++;
    return DTX_OK;
}

struct dtx_tensor dtx_flat_range(const struct dtx_tensor *flat, int64_t first, int64_t count)
{
    char *data = flat->data ? (char *)flat->data + first * (int64_t)dtx_dtype_bytes(flat->dtype) : NULL;
    return dtx_tensor_1d(data, flat->dtype, count);
}

struct dtx_tensor dtx_param_part(const struct dtx_param *item, const struct dtx_tensor *whole)
{
    return dtx_flat_range(whole, item->part_first, item->part_count);
}

/* A row that begins at element `first` of a flat buffer, in its local shape. */
static struct dtx_tensor row_view(const struct dtx_tensor *flat, int64_t first, const struct dtx_param *item)
{
    void *base = dtx_flat_range(flat, first, 0).data;
    return item->row.ndim == 1 ? dtx_tensor_1d(base, flat->dtype, item->local[0])
                               : dtx_tensor_2d(base, flat->dtype, item->local[0], item->local[1]);
}

static bool holds_both_uses(const struct dtx_param_row *row)
{
    return row->tied_stage >= 0 && row->tied_stage == row->stage;
}

/* Which rows are held, and their local shapes; elements of the head's own gradients. */
static int64_t shape_rows(struct dtx_params *p, const struct dtx_mesh *mesh)
{
    int stage = mesh->rank[DTX_AXIS_PP];
    int64_t tied = 0;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        item->held = item->row.stage == stage || item->row.tied_stage == stage;
        int64_t local[DTX_MAX_DIMS];
        dtx_shard_shape(&item->row.place, item->row.ndim, item->row.shape, item->row.padded, mesh->size[DTX_AXIS_TP],
                        local);
        item->local[0] = local[0];
        item->local[1] = item->row.ndim == 2 ? local[1] : 1;
        item->count = item->local[0] * item->local[1];
        item->cut = p->zero && dtx_mesh_data_size(mesh) > 1 && !item->row.master_only;
        if (item->held && holds_both_uses(&item->row))
            tied += item->count;
    }
    return tied;
}

/* Gradients that live in a slot: of rows that are cut and whole after their layer's backward pass. */
static bool is_streamed(const struct dtx_params *p, const struct dtx_param *item)
{
    return p->zero == 2 && item->cut && item->row.tied_stage < 0 && !item->row.grad_partial;
}

/* Pads a bucket to equal pieces and says which one is this rank's. */
static void close_bucket(struct dtx_params *p, const struct dtx_mesh *mesh, struct dtx_bucket *b)
{
    int64_t ranks = b->cut ? dtx_mesh_data_size(mesh) : 1;
    b->own_count = dtx_round_up(dtx_div_up(b->count, ranks), DTX_PARAM_ALIGN);
    b->count = ranks * b->own_count;
    b->own = b->offset + (b->cut ? dtx_mesh_data_rank(mesh) * b->own_count : 0);
    b->shard = p->shard;
    p->flat += b->count;
    p->shard += b->own_count;
}

/* Elements that row i and, streamed, its layer's rows behind it take. */
static int64_t room_of(const struct dtx_params *p, int i, bool streamed)
{
    int64_t room = dtx_round_up(p->item[i].count, DTX_PARAM_ALIGN);
    for (int k = i + 1; streamed && k < p->n && p->item[k].row.layer == p->item[i].row.layer; k++)
        if (p->item[k].held && is_streamed(p, &p->item[k]))
            room += dtx_round_up(p->item[k].count, DTX_PARAM_ALIGN);
    return room;
}

/* Does row i begin another bucket? A streamed one ends with a layer, and where the next is another chunk's. */
static bool begins_bucket(const struct dtx_params *p, const struct dtx_bucket *b, int i, int64_t most)
{
    bool full = most && b->count + room_of(p, i, b->streamed) > most;
    int last = p->item[b->end_row - 1].row.layer, layer = p->item[i].row.layer;
    return b->streamed && layer == last ? false : full || (b->streamed && layer > last + 1);
}

/* Puts the held rows that are cut (or those that are not), streamed or not, into buckets, behind what is there. */
static void fill_buckets(struct dtx_params *p, const struct dtx_mesh *mesh, bool cut, bool streamed, int64_t most)
{
    struct dtx_bucket *b = NULL;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held || item->cut != cut || is_streamed(p, item) != streamed)
            continue;
        int64_t room = dtx_round_up(item->count, DTX_PARAM_ALIGN);
        if (b && begins_bucket(p, b, i, most)) {
            close_bucket(p, mesh, b);
            b = NULL;
        }
        if (!b) {
            b = &p->bucket[p->n_buckets++];
            *b = (struct dtx_bucket){.cut = cut, .streamed = streamed, .first_row = i, .offset = p->flat};
        }
        item->bucket = (int)(b - p->bucket);
        item->offset = b->offset + b->count;
        b->count += room;
        b->end_row = i + 1;
    }
    if (b)
        close_bucket(p, mesh, b);
}

/* The range of a row that lies in this rank's piece of its bucket. */
static void find_part(struct dtx_param *item, const struct dtx_bucket *b)
{
    int64_t end = dtx_min64(b->own + b->own_count - item->offset, item->count);
    if (DTX_MUTANT(part_runs_into_next_row) && item->cut)
        end = b->own + b->own_count - item->offset;
    item->part_first = dtx_min64(dtx_max64(b->own - item->offset, 0), item->count);
    item->part_count = dtx_max64(end - item->part_first, 0);
}

/* Places of the buckets' gradients and of the sums that are kept: slots first, as long as the longest bucket that uses
 * them; buckets take turns, as backward comes to them. Returns the length of flat_grad; *sum: that of flat_sum. */
static int64_t place_gradients(struct dtx_params *p, int64_t *sum)
{
    int64_t slot[DTX_PARAM_SLOTS] = {0}, at[DTX_PARAM_SLOTS], length = 0;
    int turn = 0;
    *sum = 0;
    for (int i = p->n_buckets - 1; i >= 0; i--) {
        struct dtx_bucket *b = &p->bucket[i];
        if (!b->streamed)
            continue;
        b->slot = turn++ % DTX_PARAM_SLOTS;
        b->sum = *sum;
        *sum += b->own_count;
        slot[b->slot] = dtx_max64(slot[b->slot], b->count);
    }
    for (int s = 0; s < DTX_PARAM_SLOTS; s++) {
        at[s] = length;
        length += slot[s];
    }
    for (int i = 0; i < p->n_buckets; i++) {
        struct dtx_bucket *b = &p->bucket[i];
        b->grad = b->streamed ? at[b->slot] : length;
        length += b->streamed ? 0 : b->count;
    }
    return length;
}

static void shape_buffers(struct dtx_params *p, enum dtx_dtype act, int64_t tied)
{
    enum dtx_dtype master = dtx_dtype_master(act);
    int64_t sum, gradients = place_gradients(p, &sum);
    p->flat_weight = dtx_tensor_1d(NULL, act, p->wide ? 0 : p->flat);
    p->flat_master = dtx_tensor_1d(NULL, master, p->wide ? p->flat : p->shard);
    p->flat_grad = dtx_tensor_1d(NULL, master, gradients);
    p->flat_sum = dtx_tensor_1d(NULL, master, sum);
    p->flat_tied = dtx_tensor_1d(NULL, master, tied);
    for (int s = 0; s < DTX_PARAM_STATES; s++)
        p->flat_state[s] = dtx_tensor_1d(NULL, master, p->shard);
}

static enum dtx_status allocate_buffers(struct dtx_params *p)
{
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_weight));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_master));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_grad));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_tied));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_sum));
    for (int s = 0; s < DTX_PARAM_STATES; s++)
        DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &p->flat_state[s]));
    return DTX_OK;
}

struct dtx_tensor dtx_bucket_reduced(const struct dtx_params *p, const struct dtx_bucket *b)
{
    return b->streamed ? dtx_flat_range(&p->flat_sum, b->sum, b->own_count)
                       : dtx_flat_range(&p->flat_grad, b->grad + b->own - b->offset, b->own_count);
}

/* Points a held row's tensors into the buffers. */
static void place_row(struct dtx_params *p, struct dtx_param *item)
{
    const struct dtx_bucket *b = &p->bucket[item->bucket];
    find_part(item, b);
    int64_t flat = item->offset + item->part_first, shard = b->shard + flat - b->own;
    struct dtx_tensor reduced = dtx_bucket_reduced(p, b);
    item->grad = row_view(&p->flat_grad, b->grad + item->offset - b->offset, item);
    item->reduced = dtx_flat_range(&reduced, flat - b->own, item->part_count);
    item->master = dtx_flat_range(&p->flat_master, p->wide ? flat : shard, item->part_count);
    for (int s = 0; s < DTX_PARAM_STATES; s++)
        item->state[s] = dtx_flat_range(&p->flat_state[s], shard, item->part_count);
    if (p->wide)
        item->weight = row_view(&p->flat_master, item->offset, item);
    else if (item->row.master_only)
        item->weight = row_view(&p->flat_master, shard, item); /* never cut: the part is the row */
    else
        item->weight = row_view(&p->flat_weight, item->offset, item);
    if (holds_both_uses(&item->row)) {
        item->grad_tied = item->grad;
        item->grad_tied.data = p->flat_tied.data; /* one tied weight at most: the embedding */
    }
}

/* Before the buffers are allocated: their dtypes and shapes. */
static void place_rows(struct dtx_params *p)
{
    for (int i = 0; i < p->n; i++)
        if (p->item[i].held)
            place_row(p, &p->item[i]);
}

enum dtx_status dtx_params_layout(struct dtx_params *p, const struct dtx_mesh *mesh, enum dtx_dtype act)
{
    enum dtx_dtype master = dtx_dtype_master(act);
    void *buckets;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, dtx_max64(p->n, 1), sizeof *p->bucket, &buckets));
    p->bucket = buckets;
    p->mesh = mesh;
    p->wide = act == master;
    int64_t tied = shape_rows(p, mesh), most = p->bucket_bytes / (int64_t)dtx_dtype_bytes(master);
    fill_buckets(p, mesh, true, false, most);
    fill_buckets(p, mesh, true, true, most);
    fill_buckets(p, mesh, false, false, most);
    shape_buffers(p, act, tied);
    place_rows(p);
    return DTX_OK;
}

enum dtx_status dtx_params_allocate(struct dtx_params *p, struct dtx_backend *backend, const struct dtx_mesh *mesh,
                                    enum dtx_dtype act)
{
    DTX_TRY(p->ctx, dtx_params_layout(p, mesh, act));
    p->backend = backend;
    DTX_TRY(p->ctx, allocate_buffers(p));
    place_rows(p);
    return DTX_OK;
}

/* Whole-array values of one box, in the rows `values` (doubles) that it has its local offsets in. */
static void fill_box(const struct dtx_param *item, const struct dtx_box *box, uint64_t key, double *values)
{
    const struct dtx_param_row *row = &item->row;
    int64_t columns = row->ndim == 2 ? row->shape[1] : 1, local_columns = item->local[1];
    int64_t extent1 = row->ndim == 2 ? box->extent[1] : 1;
    for (int64_t r = 0; r < box->extent[0]; r++)
        for (int64_t c = 0; c < extent1; c++) {
            int64_t global_c = row->ndim == 2 ? box->global[1] + c : 0,
                    local_c = row->ndim == 2 ? box->local[1] + c : 0;
            int64_t global = (box->global[0] + r) * columns + global_c;
            if (DTX_MUTANT(init_depends_on_mesh))
                global = (box->local[0] + r) * local_columns + local_c;
            values[(box->local[0] + r) * local_columns + local_c] =
                row->init == DTX_INIT_ONES ? 1.0 : row->std * dtx_rng_normal(key, (uint64_t)global);
        }
}

/* Only of this data rank's part: with ZeRO the others make theirs. */
static enum dtx_status init_item(struct dtx_params *p, struct dtx_queue *queue, struct dtx_param *item, uint64_t seed,
                                 double *values)
{
    const struct dtx_mesh *mesh = p->mesh;
    struct dtx_box boxes[DTX_MAX_BOXES];
    struct dtx_shard_rows rows;
    int n = dtx_shard_range_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                                  mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], item->part_first, item->part_count,
                                  &rows, boxes);
    int64_t count = rows.skip + item->part_count;
    memset(values, 0, (size_t)count * sizeof *values);
    uint64_t key = dtx_rng_key(seed, item->row.name);
    for (int i = 0; i < n; i++)
        fill_box(item, &boxes[i], key, values);
    if (item->master.dtype == DTX_F32)
        for (int64_t i = 0; i < count; i++) { /* in place: float i never lies behind double i */
            float narrow = (float)values[i];
            memcpy((char *)values + (size_t)i * sizeof narrow, &narrow, sizeof narrow);
        }
    return dtx_tensor_set(queue, &item->master,
                          (char *)values + (DTX_MUTANT(init_part_shifted) ? 0 : rows.skip) *
                                               (int64_t)dtx_dtype_bytes(item->master.dtype));
}

enum dtx_status dtx_params_init(struct dtx_params *p, struct dtx_queue *queue, uint64_t seed)
{
    int64_t largest = 1;
    for (int i = 0; i < p->n; i++)
        if (p->item[i].held)
            largest = dtx_max64(largest, p->item[i].count);
    void *values;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, largest, sizeof(double), &values));
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < p->n && status == DTX_OK; i++)
        if (p->item[i].held && p->item[i].part_count > 0)
            status = init_item(p, queue, &p->item[i], seed, values);
    dtx_mem_free(values);
    DTX_TRY(p->ctx, status);
    return dtx_params_refresh(p, queue);
}

enum dtx_status dtx_params_refresh(struct dtx_params *p, struct dtx_queue *queue)
{
    DTX_TRY(p->ctx, dtx_params_settle(p));
    for (int i = 0; i < p->n_buckets && !p->wide; i++) {
        const struct dtx_bucket *b = &p->bucket[i];
        struct dtx_add_args args = {.x = dtx_flat_range(&p->flat_master, b->shard, b->own_count),
                                    .z = dtx_flat_range(&p->flat_weight, b->own, b->own_count),
                                    .alpha = 1.0,
                                    .stochastic = p->stochastic && !DTX_MUTANT(refresh_rounds_to_nearest)};
        DTX_TRY(p->ctx, dtx_add(queue, &args));
    }
    DTX_TRY(p->ctx, dtx_params_gather(p, queue));
    return dtx_params_settle(p);
}

enum dtx_status dtx_params_gather(struct dtx_params *p, struct dtx_queue *queue)
{
    const struct dtx_tensor *flat = p->wide ? &p->flat_master : &p->flat_weight;
    for (int i = 0; i < p->n_buckets; i++) {
        struct dtx_bucket *b = &p->bucket[i];
        if (!b->cut || (DTX_MUTANT(stale_weights_after_update) && i == 0))
            continue;
        struct dtx_tensor own = dtx_flat_range(flat, b->own, b->own_count),
                          whole = dtx_flat_range(flat, b->offset, b->count);
        DTX_TRY(p->ctx, dtx_comm_start_all_gather(p->mesh->grads, queue, &own, &whole, &b->arrival));
    }
    return DTX_OK;
}

static enum dtx_status receive(struct dtx_bucket *b)
{
    struct dtx_event event = b->arrival;
    b->arrival = (struct dtx_event){0};
    return dtx_event_wait(&event);
}

bool dtx_params_missing(const struct dtx_params *p, int row)
{
    return p->item[row].held && p->bucket[p->item[row].bucket].arrival.comm;
}

enum dtx_status dtx_params_need(struct dtx_params *p, int row)
{
    bool missing = dtx_params_missing(p, row) && !DTX_MUTANT(weights_not_awaited);
    return missing ? receive(&p->bucket[p->item[row].bucket]) : DTX_OK;
}

enum dtx_status dtx_params_settle(struct dtx_params *p)
{
    for (int i = 0; i < p->n_buckets; i++)
        DTX_TRY(p->ctx, receive(&p->bucket[i]));
    return DTX_OK;
}

struct dtx_params_bytes dtx_params_memory(const struct dtx_params *p)
{
    size_t masters = dtx_tensor_alloc_bytes(&p->flat_master);
    struct dtx_params_bytes bytes = {.weights = dtx_tensor_alloc_bytes(&p->flat_weight) + (p->wide ? masters : 0),
                                     .gradients = dtx_tensor_alloc_bytes(&p->flat_grad) +
                                                  dtx_tensor_alloc_bytes(&p->flat_tied) +
                                                  dtx_tensor_alloc_bytes(&p->flat_sum),
                                     .masters = p->wide ? 0 : masters};
    for (int s = 0; s < DTX_PARAM_STATES; s++)
        bytes.states += dtx_tensor_alloc_bytes(&p->flat_state[s]);
    return bytes;
}

int64_t dtx_params_total(const struct dtx_params *p)
{
    int64_t total = 0;
    for (int i = 0; i < p->n; i++)
        total += p->item[i].row.shape[0] * (p->item[i].row.ndim == 2 ? p->item[i].row.shape[1] : 1);
    return total;
}

struct dtx_param *dtx_params_find(struct dtx_params *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->item[i].row.name, name) == 0)
            return &p->item[i];
    return NULL;
}
