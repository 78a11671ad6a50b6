#include "trainer/sums.h"

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl.h"
#include "trainer/attn.h"

int64_t dtx_key_columns(const struct dtx_engine_config *config)
{
    struct dtx_attn_shape shape;
    config->model.attention->shape(&config->model, &shape);
    return shape.k_heads * config->model.head_dim / config->mesh[DTX_AXIS_TP];
}

int64_t dtx_value_columns(const struct dtx_engine_config *config)
{
    struct dtx_attn_shape shape;
    config->model.attention->shape(&config->model, &shape);
    return shape.v_heads * shape.v_width / config->mesh[DTX_AXIS_TP];
}

static void add_sum(const struct dtx_backend *backend, struct dtx_sums *s, enum dtx_sums_over over, int64_t n,
                    enum dtx_dtype dtype)
{
    size_t bytes = dtx_comm_nccl_work_bytes(backend, s->ranks[over], n, dtype);
    s->bytes[over] = bytes > s->bytes[over] ? bytes : s->bytes[over];
}

void dtx_sums_find(const struct dtx_backend *backend, const struct dtx_engine_config *config,
                   const struct dtx_params *p, const struct dtx_env *env, const struct dtx_mesh *mesh,
                   struct dtx_sums *out)
{
    const int *size = mesh->size;
    int data = dtx_mesh_data_size(mesh);
    int64_t rows = env->max_rows;
    struct dtx_sums s = {.ranks = {size[DTX_AXIS_TP], size[DTX_AXIS_CP], size[DTX_AXIS_PP], data, data, 1}};
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        if (item->held && item->row.tied_stage >= 0 && item->row.tied_stage != item->row.stage) {
            s.ranks[DTX_SUMS_TIED] = 2;
            add_sum(backend, &s, DTX_SUMS_TIED, item->count, env->master);
        }
        if (item->held && item->row.grad_partial)
            add_sum(backend, &s, DTX_SUMS_TENSOR, item->count, env->master);
    }
    for (int i = 0; i < p->n_buckets; i++)
        add_sum(backend, &s, DTX_SUMS_GRADS, p->bucket[i].count, env->master);
    add_sum(backend, &s, DTX_SUMS_TENSOR, rows * config->model.width, env->master);
    add_sum(backend, &s, DTX_SUMS_TENSOR, p->n, DTX_F64);
    add_sum(backend, &s, DTX_SUMS_STAGES, p->n, DTX_F64);
    add_sum(backend, &s, DTX_SUMS_STAGES, config->model.attention->lambda ? config->model.layers : 0, env->master);
    add_sum(backend, &s, DTX_SUMS_DATA, 2, DTX_F64);
    if (!config->ring)
        add_sum(backend, &s, DTX_SUMS_CONTEXT,
                rows * size[DTX_AXIS_CP] * dtx_max64(dtx_key_columns(config), dtx_value_columns(config)), env->master);
    *out = s;
}

enum dtx_status dtx_sums_prepare(const struct dtx_sums *sums, const struct dtx_mesh *mesh)
{
    struct dtx_comm *of[DTX_SUMS] = {[DTX_SUMS_TENSOR] = mesh->axis[DTX_AXIS_TP],
                                     [DTX_SUMS_CONTEXT] = mesh->axis[DTX_AXIS_CP],
                                     [DTX_SUMS_STAGES] = mesh->axis[DTX_AXIS_PP],
                                     [DTX_SUMS_DATA] = mesh->data,
                                     [DTX_SUMS_GRADS] = mesh->grads,
                                     [DTX_SUMS_TIED] = mesh->tied};
    for (int i = 0; i < DTX_SUMS; i++)
        if (sums->bytes[i] && !DTX_MUTANT(sums_taken_late))
            DTX_TRY(of[i]->ctx, dtx_comm_nccl_prepare(of[i], sums->bytes[i]));
    return DTX_OK;
}
