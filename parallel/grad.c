#include "parallel/grad.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum dtx_status dtx_grads_create(struct dtx_params *p, struct dtx_grads *out)
{
    int64_t largest = 1;
    for (int i = 0; i < p->n; i++)
        if (p->item[i].held)
            largest = dtx_max64(largest, p->item[i].count);
    memset(out, 0, sizeof *out);
    out->params = p;
    out->blocks = dtx_tensor_1d(NULL, DTX_F64, dtx_div_up(largest, 1024));
    out->sums = dtx_tensor_1d(NULL, DTX_F64, p->n);
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &out->blocks));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &out->sums));
    void *host;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, p->n, sizeof(double), &host));
    out->host_sums = host;
    return DTX_OK;
}

void dtx_grads_free(struct dtx_grads *g)
{
    if (g->params) {
        dtx_tensor_free(g->params->backend, &g->blocks);
        dtx_tensor_free(g->params->backend, &g->sums);
    }
    dtx_mem_free(g->host_sums);
    memset(g, 0, sizeof *g);
}

enum dtx_status dtx_grads_zero(struct dtx_grads *g, struct dtx_queue *queue)
{
    DTX_TRY(g->params->ctx, dtx_tensor_zero(queue, &g->params->flat_grad));
    return dtx_tensor_zero(queue, &g->params->flat_tied);
}

/* grad = embedding's + head's, in that order: locally, or between first (rank 0) and last stage. */
static enum dtx_status sum_tied(struct dtx_params *p, struct dtx_queue *queue, struct dtx_param *item)
{
    if (item->row.tied_stage < 0 || DTX_MUTANT(tied_gradient_not_summed))
        return DTX_OK;
    if (item->grad_tied.data) {
        struct dtx_add_args args = {.x = item->grad, .y = item->grad_tied, .z = item->grad, .alpha = 1.0};
        return dtx_add(queue, &args);
    }
    return dtx_comm_all_reduce_sum(p->mesh->tied, queue, &item->grad);
}

static bool partial(const struct dtx_param *item)
{
    if (DTX_MUTANT(lambda_grad_not_summed) && strstr(item->row.name, "lambda"))
        return false;
    if (DTX_MUTANT(subnorm_grad_not_summed) && strstr(item->row.name, "subnorm"))
        return false;
    return item->row.grad_partial;
}

enum dtx_status dtx_grads_reduce(struct dtx_grads *g, struct dtx_queue *queue)
{
    struct dtx_params *p = g->params;
    for (int i = 0; i < p->n; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held)
            continue;
        DTX_TRY(p->ctx, sum_tied(p, queue, item));
        if (partial(item))
            DTX_TRY(p->ctx, dtx_comm_all_reduce_sum(p->mesh->axis[DTX_AXIS_TP], queue, &item->grad));
    }
    if (DTX_MUTANT(dp_gradient_not_summed))
        return DTX_OK;
    return dtx_comm_all_reduce_sum(p->mesh->axis[DTX_AXIS_DP], queue, &p->flat_grad);
}

/* Does this rank's copy of the row enter the norm? One stage of a tied weight, one tensor rank of a replicated one. */
static bool counts_in_norm(const struct dtx_params *p, const struct dtx_param *item)
{
    if (!item->held)
        return false;
    if (item->row.stage != p->mesh->rank[DTX_AXIS_PP] && !DTX_MUTANT(tied_counted_twice_in_norm))
        return false;
    return item->row.place.kind == DTX_SPLIT || p->mesh->rank[DTX_AXIS_TP] == 0 ||
           (DTX_MUTANT(replicated_counted_tp_times_in_norm));
}

enum dtx_status dtx_grads_norm(struct dtx_grads *g, struct dtx_queue *queue, double *norm)
{
    struct dtx_params *p = g->params;
    DTX_TRY(p->ctx, dtx_tensor_zero(queue, &g->sums));
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        if (!counts_in_norm(p, item))
            continue;
        struct dtx_sqnorm_args args = {.x = dtx_tensor_1d(item->grad.data, item->grad.dtype, item->count),
                                       .blocks = g->blocks,
                                       .sum = dtx_tensor_rows(&g->sums, i, 1)};
        args.blocks.dim[0] = dtx_div_up(item->count, 1024);
        DTX_TRY(p->ctx, dtx_sqnorm(queue, &args));
    }
    /* Over tp the cut rows add up in rank order; over pp each entry has one non-zero addend, so it is exact. */
    DTX_TRY(p->ctx, dtx_comm_all_reduce_sum(p->mesh->axis[DTX_AXIS_TP], queue, &g->sums));
    DTX_TRY(p->ctx, dtx_comm_all_reduce_sum(p->mesh->axis[DTX_AXIS_PP], queue, &g->sums));
    DTX_TRY(p->ctx, dtx_tensor_get(queue, &g->sums, g->host_sums));
    double total = 0;
    for (int i = 0; i < p->n; i++)
        total += g->host_sums[i];
    *norm = sqrt(total);
    return DTX_OK;
}

enum dtx_status dtx_grads_square_sum(struct dtx_grads *g, struct dtx_queue *queue, const struct dtx_tensor *x,
                                     double *sum)
{
    int64_t n = dtx_tensor_count(x);
    struct dtx_sqnorm_args args = {
        .x = dtx_tensor_1d(x->data, x->dtype, n), .blocks = g->blocks, .sum = dtx_tensor_rows(&g->sums, 0, 1)};
    args.blocks.dim[0] = dtx_div_up(n, 1024);
    DTX_TRY(g->params->ctx, dtx_sqnorm(queue, &args));
    return dtx_tensor_get(queue, &args.sum, sum);
}
