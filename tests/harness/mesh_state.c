#include "tests/harness/mesh_state.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

static const char kinds[] = {'w', '0', '1'}; /* as dtx_test_gather calls them */

static int64_t elements(const struct dtx_param_row *row)
{
    return row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
}

void mesh_state_gather(struct dtx_comm *world, struct dtx_engine *engine, struct mesh_state *out)
{
    int64_t at = 0;
    out->n = 0;
    if (engine) {
        struct dtx_params *params = dtx_engine_params(engine);
        out->n = (int64_t)sizeof kinds * dtx_params_total(params);
        out->values = malloc((size_t)out->n * sizeof(double));
        for (size_t k = 0; k < sizeof kinds; k++)
            for (int i = 0; i < params->n; i++) {
                CHECK_OK(world, dtx_test_gather(engine, i, kinds[k], out->values + at));
                at += elements(&params->item[i].row);
            }
    }
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, &out->n, sizeof out->n, 0));
    if (!engine)
        out->values = malloc((size_t)out->n * sizeof(double));
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, out->values, out->n * (int64_t)sizeof(double), 0));
}

static double element(const struct dtx_tensor *t, int64_t i)
{
    if (t->dtype == DTX_F64)
        return ((const double *)t->data)[i];
    return t->dtype == DTX_F32 ? ((const float *)t->data)[i] : dtx_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Elements of a tensor (CPU memory) that are not what `whole` says; padding must be zero. The tensor is the range of
 * the local array from element `first` on. */
static int64_t differences(const struct dtx_mesh *mesh, const struct dtx_param *item, const struct dtx_tensor *t,
                           int64_t first, const double *whole)
{
    struct dtx_box boxes[DTX_MAX_BOXES];
    int64_t columns = item->row.ndim == 2 ? item->row.shape[1] : 1, different = 0, seen = 0;
    int64_t count = dtx_tensor_count(t);
    int n = dtx_shard_boxes(&item->row.place, item->row.ndim, item->row.shape, item->row.padded,
                            mesh->rank[DTX_AXIS_TP], mesh->size[DTX_AXIS_TP], boxes);
    for (int b = 0; b < n; b++) {
        const struct dtx_box *box = &boxes[b];
        int64_t width = item->row.ndim == 2 ? box->extent[1] : 1;
        for (int64_t r = 0; r < box->extent[0]; r++)
            for (int64_t c = 0; c < width; c++) {
                int64_t from = (box->global[0] + r) * columns + (item->row.ndim == 2 ? box->global[1] : 0) + c;
                int64_t to = (box->local[0] + r) * item->local[1] + (item->row.ndim == 2 ? box->local[1] : 0) + c;
                double wanted =
                    t->dtype == DTX_BF16 ? dtx_bf16_to_f32(dtx_f32_to_bf16((float)whole[from])) : whole[from];
                if (to < first || to >= first + count)
                    continue;
                seen++;
                different += element(t, to - first) != wanted;
            }
    }
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; i++)
        zeros += element(t, i) == 0;
    return different + (zeros < count - seen); /* what no box covers is zero */
}

void mesh_state_compare(struct dtx_comm *world, struct dtx_engine *engine, const struct mesh_state *whole,
                        const char *title)
{
    if (!engine)
        return;
    struct dtx_params *params = dtx_engine_params(engine);
    const struct dtx_mesh *mesh = dtx_engine_mesh(engine);
    int64_t total = dtx_params_total(params), at = 0;
    for (int i = 0; i < params->n; i++) {
        const struct dtx_param *item = &params->item[i];
        if (item->held) {
            int64_t wrong = differences(mesh, item, &item->master, item->part_first, whole->values + at);
            wrong += differences(mesh, item, &item->weight, 0, whole->values + at);
            for (int k = 0; k < 2; k++)
                wrong +=
                    differences(mesh, item, &item->state[k], item->part_first, whole->values + (k + 1) * total + at);
            CHECK_THAT(world, wrong == 0, "%s, loaded on tp%d pp%d dp%d cp%d ZeRO %d: %s has %lld wrong numbers", title,
                       mesh->size[DTX_AXIS_TP], mesh->size[DTX_AXIS_PP], mesh->size[DTX_AXIS_DP],
                       mesh->size[DTX_AXIS_CP], params->zero, item->row.name, (long long)wrong);
        }
        at += elements(&item->row);
    }
}
