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
        for (int s = 0; s < DTX_PARAM_STATES; s++)
            dtx_tensor_free(p->backend, &p->flat_state[s]);
    }
    dtx_mem_free(p->item);
    memset(p, 0, sizeof *p);
}

enum dtx_status dtx_params_add(struct dtx_params *p, const struct dtx_param_row *row, int *index)
{
    if (p->n == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 64;
        void *grown;
        DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, capacity, sizeof *p->item, &grown));
        if (p->n)
            memcpy(grown, p->item, (size_t)p->n * sizeof *p->item);
        dtx_mem_free(p->item);
        p->item = grown;
        p->capacity = capacity;
    }
    p->item[p->n] = (struct dtx_param){.row = *row};
    *index = p->n++;
    return DTX_OK;
}

/* A view of one row in a flat buffer, in the row's local shape. */
static struct dtx_tensor row_view(const struct dtx_tensor *flat, const struct dtx_param *item)
{
    char *base = (char *)flat->data + (size_t)item->offset * dtx_dtype_bytes(flat->dtype);
    return item->row.ndim == 1 ? dtx_tensor_1d(base, flat->dtype, item->local[0])
                               : dtx_tensor_2d(base, flat->dtype, item->local[0], item->local[1]);
}

static bool holds_both_uses(const struct dtx_param_row *row)
{
    return row->tied_stage >= 0 && row->tied_stage == row->stage;
}

/* Places of the held rows in the flat buffers; the lengths of the buffers. */
static void lay_out(struct dtx_params *p, const struct dtx_mesh *mesh, int64_t *flat, int64_t *tied)
{
    int stage = mesh->rank[DTX_AXIS_PP];
    *flat = *tied = 0;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        item->held = item->row.stage == stage || item->row.tied_stage == stage;
        int64_t local[DTX_MAX_DIMS];
        dtx_shard_shape(&item->row.place, item->row.ndim, item->row.shape, item->row.padded, mesh->size[DTX_AXIS_TP],
                        local);
        item->local[0] = local[0];
        item->local[1] = item->row.ndim == 2 ? local[1] : 1;
        item->count = item->local[0] * item->local[1];
        if (!item->held)
            continue;
        item->offset = *flat;
        *flat += dtx_round_up(item->count, DTX_PARAM_ALIGN);
        if (holds_both_uses(&item->row))
            *tied += item->count;
    }
}

enum dtx_status dtx_params_allocate(struct dtx_params *p, struct dtx_backend *backend, const struct dtx_mesh *mesh,
                                    enum dtx_dtype act)
{
    enum dtx_dtype master = dtx_dtype_master(act);
    int64_t flat, tied;
    lay_out(p, mesh, &flat, &tied);
    p->backend = backend;
    p->mesh = mesh;
    p->flat_weight = dtx_tensor_1d(NULL, act, act == master ? 0 : flat);
    p->flat_master = dtx_tensor_1d(NULL, master, flat);
    p->flat_grad = dtx_tensor_1d(NULL, master, flat);
    p->flat_tied = dtx_tensor_1d(NULL, master, tied);
    DTX_TRY(p->ctx, dtx_tensor_alloc(backend, &p->flat_weight));
    DTX_TRY(p->ctx, dtx_tensor_alloc(backend, &p->flat_master));
    DTX_TRY(p->ctx, dtx_tensor_alloc(backend, &p->flat_grad));
    DTX_TRY(p->ctx, dtx_tensor_alloc(backend, &p->flat_tied));
    for (int s = 0; s < DTX_PARAM_STATES; s++) {
        p->flat_state[s] = dtx_tensor_1d(NULL, master, flat);
        DTX_TRY(p->ctx, dtx_tensor_alloc(backend, &p->flat_state[s]));
    }
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held)
            continue;
        item->master = row_view(&p->flat_master, item);
        item->grad = row_view(&p->flat_grad, item);
        item->weight = act == master || item->row.master_only ? item->master : row_view(&p->flat_weight, item);
        for (int s = 0; s < DTX_PARAM_STATES; s++)
            item->state[s] = row_view(&p->flat_state[s], item);
        if (holds_both_uses(&item->row)) {
            item->grad_tied = item->grad;
            item->grad_tied.data = p->flat_tied.data; /* one tied weight at most: the embedding */
        }
    }
    return DTX_OK;
}

/* Whole-array values of one box, in the local array `values` (doubles). */
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

static enum dtx_status init_item(struct dtx_params *p, struct dtx_queue *queue, struct dtx_param *item, uint64_t seed,
                                 double *values)
{
    const struct dtx_mesh *mesh = p->mesh;
    struct dtx_box boxes[DTX_MAX_BOXES];
    int n = dtx_shard_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                            mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], boxes);
    memset(values, 0, (size_t)item->count * sizeof *values);
    uint64_t key = dtx_rng_key(seed, item->row.name);
    for (int i = 0; i < n; i++)
        fill_box(item, &boxes[i], key, values);
    if (item->master.dtype == DTX_F32)
        for (int64_t i = 0; i < item->count; i++) { /* in place: float i never lies behind double i */
            float narrow = (float)values[i];
            memcpy((char *)values + (size_t)i * sizeof narrow, &narrow, sizeof narrow);
        }
    return dtx_tensor_set(queue, &item->master, values);
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
        if (p->item[i].held)
            status = init_item(p, queue, &p->item[i], seed, values);
    dtx_mem_free(values);
    DTX_TRY(p->ctx, status);
    return dtx_params_refresh(p, queue);
}

enum dtx_status dtx_params_refresh(struct dtx_params *p, struct dtx_queue *queue)
{
    if (p->flat_weight.dim[0] == 0)
        return DTX_OK;
    struct dtx_add_args args = {.x = p->flat_master, .z = p->flat_weight, .alpha = 1.0};
    return dtx_add(queue, &args);
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
