#include "parallel/grad.h"

#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { BLOCK = DTX_PARAM_ALIGN };

static void shape_tensors(const struct dtx_params *p, struct dtx_grads *out)
{
    int64_t whole = 0;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < p->n_buckets; i++)
        *(p->bucket[i].cut ? &out->cut_blocks : &whole) += p->bucket[i].own_count / BLOCK;
    int64_t blocks = out->cut_blocks * dtx_mesh_data_size(p->mesh) + whole;
    out->blocks = dtx_tensor_1d(NULL, DTX_F64, blocks);
    out->sums = dtx_tensor_1d(NULL, DTX_F64, p->n);
    out->sum = dtx_tensor_1d(NULL, DTX_F64, 1);
}

size_t dtx_grads_bytes(const struct dtx_params *p)
{
    struct dtx_grads shapes;
    shape_tensors(p, &shapes);
    return dtx_tensor_alloc_bytes(&shapes.blocks) + dtx_tensor_alloc_bytes(&shapes.sums) +
           dtx_tensor_alloc_bytes(&shapes.sum);
}

enum dtx_status dtx_grads_create(struct dtx_params *p, struct dtx_grads *out)
{
    shape_tensors(p, out);
    out->params = p;
    int64_t blocks = out->blocks.dim[0];
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &out->blocks));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &out->sums));
    DTX_TRY(p->ctx, dtx_tensor_alloc(p->backend, &out->sum));
    void *host;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, blocks + p->n, sizeof(double), &host));
    out->host_blocks = host;
    out->host_sums = out->host_blocks + blocks;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, p->n_buckets, sizeof *out->bucket, &host));
    out->bucket = host;
    for (int i = 0; i < p->n; i++)
        if (p->item[i].held && p->item[i].row.tied_stage >= 0 && p->item[i].row.tied_stage != p->item[i].row.stage)
            out->bucket[p->item[i].bucket].late = true;
    return DTX_OK;
}

void dtx_grads_expect(struct dtx_grads *g, int row)
{
    g->bucket[g->params->item[row].bucket].uses++;
}

void dtx_grads_free(struct dtx_grads *g)
{
    if (g->params) {
        dtx_tensor_free(g->params->backend, &g->blocks);
        dtx_tensor_free(g->params->backend, &g->sums);
        dtx_tensor_free(g->params->backend, &g->sum);
    }
    dtx_mem_free(g->host_blocks);
    dtx_mem_free(g->bucket);
    memset(g, 0, sizeof *g);
}

enum dtx_status dtx_grads_zero(struct dtx_grads *g, struct dtx_queue *queue)
{
    for (int i = 0; i < g->params->n_buckets; i++) {
        g->bucket[i].missing = g->bucket[i].uses;
        g->bucket[i].started = g->bucket[i].summed = false;
        g->bucket[i].event = (struct dtx_event){0};
    }
    for (int s = 0; s < DTX_PARAM_SLOTS; s++)
        g->in_slot[s] = -1;
    if (DTX_MUTANT(gradient_not_zeroed))
        return DTX_OK;
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

/* Steps 1 and 2 for the rows of one bucket. */
static enum dtx_status complete_rows(struct dtx_params *p, struct dtx_queue *queue, int bucket)
{
    for (int i = p->bucket[bucket].first_row; i < p->bucket[bucket].end_row; i++) {
        struct dtx_param *item = &p->item[i];
        if (!item->held || item->bucket != bucket)
            continue;
        DTX_TRY(p->ctx, sum_tied(p, queue, item));
        if (partial(item))
            DTX_TRY(p->ctx, dtx_comm_all_reduce_sum(p->mesh->axis[DTX_AXIS_TP], queue, &item->grad));
    }
    return DTX_OK;
}

/* Everything that happens to one bucket's gradients, once they are complete; step 3 may still be under way then. */
static enum dtx_status start_bucket(struct dtx_grads *g, struct dtx_queue *queue, int bucket)
{
    struct dtx_params *p = g->params;
    const struct dtx_bucket *b = &p->bucket[bucket];
    struct dtx_event *event = &g->bucket[bucket].event;
    g->bucket[bucket].started = true;
    if (!DTX_MUTANT(tied_sum_after_reduction))
        DTX_TRY(p->ctx, complete_rows(p, queue, bucket));
    if (DTX_MUTANT(dp_gradient_not_summed) || (DTX_MUTANT(bucket_not_reduced) && bucket == p->n_buckets - 1))
        return DTX_OK;
    struct dtx_tensor whole = dtx_flat_range(&p->flat_grad, b->grad, b->count),
                      own = dtx_flat_range(&p->flat_grad, b->grad + b->own - b->offset, b->own_count);
    if (b->cut && DTX_MUTANT(bucket_boundary_shifted)) {
        own.dim[0] -= own.dim[0] > BLOCK ? BLOCK : 0;
        whole.dim[0] = own.dim[0] * p->mesh->grads->size;
    }
    struct dtx_comm *ranks = DTX_MUTANT(context_gradient_not_summed) ? p->mesh->axis[DTX_AXIS_DP] : p->mesh->grads;
    DTX_TRY(p->ctx, b->cut ? dtx_comm_start_reduce_scatter_sum(ranks, queue, &whole, &own, event)
                           : dtx_comm_start_all_reduce_sum(ranks, queue, &whole, event));
    if (!DTX_MUTANT(tied_sum_after_reduction))
        return DTX_OK;
    DTX_TRY(p->ctx, dtx_event_wait(event));
    return complete_rows(p, queue, bucket);
}

/* Waits for a bucket's reduction; a streamed one's sum is added to those of earlier micro-batches. */
static enum dtx_status finish_bucket(struct dtx_grads *g, struct dtx_queue *queue, int bucket)
{
    struct dtx_params *p = g->params;
    struct dtx_grad_bucket *state = &g->bucket[bucket];
    const struct dtx_bucket *b = &p->bucket[bucket];
    DTX_TRY(p->ctx, dtx_event_wait(&state->event));
    state->event = (struct dtx_event){0};
    if (!b->streamed)
        return DTX_OK;
    struct dtx_add_args args = {.x = dtx_flat_range(&p->flat_grad, b->grad + b->own - b->offset, b->own_count),
                                .z = dtx_bucket_reduced(p, b),
                                .alpha = 1.0};
    if (state->summed && !DTX_MUTANT(micro_batch_sum_overwritten)) {
        args.y = args.x;
        args.x = args.z; /* the earlier ones' sum is the first addend */
    }
    state->summed = true;
    state->started = false;
    return dtx_add(queue, &args);
}

/* Empties a slot, whose bucket's reduction was started. */
static enum dtx_status empty_slot(struct dtx_grads *g, struct dtx_queue *queue, int slot)
{
    int bucket = g->in_slot[slot];
    if (bucket < 0)
        return DTX_OK;
    if (!g->bucket[bucket].started)
        return dtx_fail(g->params->ctx, DTX_E_INTERNAL,
                        "bucket %d of the gradients is not complete: %d rows are missing", bucket,
                        g->bucket[bucket].missing);
    g->in_slot[slot] = -1;
    return finish_bucket(g, queue, bucket);
}

enum dtx_status dtx_grads_open(struct dtx_grads *g, struct dtx_queue *queue, int row)
{
    int bucket = g->params->item[row].bucket;
    const struct dtx_bucket *b = &g->params->bucket[bucket];
    if (!b->streamed || (g->in_slot[b->slot] == bucket && !g->bucket[bucket].started))
        return DTX_OK;
    DTX_TRY(g->params->ctx, empty_slot(g, queue, b->slot));
    g->in_slot[b->slot] = bucket;
    g->bucket[bucket].missing = g->bucket[bucket].uses;
    struct dtx_tensor slot = dtx_flat_range(&g->params->flat_grad, b->grad, b->count);
    return DTX_MUTANT(gradient_slot_not_zeroed) ? DTX_OK : dtx_tensor_zero(queue, &slot);
}

enum dtx_status dtx_grads_done(struct dtx_grads *g, struct dtx_queue *queue, int row, bool last)
{
    int bucket = g->params->item[row].bucket;
    struct dtx_grad_bucket *state = &g->bucket[bucket];
    if (!last && !g->params->bucket[bucket].streamed)
        return DTX_OK;
    state->missing--;
    bool ready = state->missing == DTX_MUTANT(bucket_started_early) && !state->late && !state->started;
    return ready ? start_bucket(g, queue, bucket) : DTX_OK;
}

enum dtx_status dtx_grads_reduce(struct dtx_grads *g, struct dtx_queue *queue)
{
    struct dtx_params *p = g->params;
    for (int b = p->n_buckets - 1; b >= 0; b--)
        if (!g->bucket[b].started && !p->bucket[b].streamed)
            DTX_TRY(p->ctx, start_bucket(g, queue, b));
    for (int s = 0; s < DTX_PARAM_SLOTS; s++)
        DTX_TRY(p->ctx, empty_slot(g, queue, s));
    for (int b = p->n_buckets - 1; b >= 0; b--)
        if (!p->bucket[b].streamed)
            DTX_TRY(p->ctx, finish_bucket(g, queue, b));
    return DTX_OK;
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

/* Where a bucket's first block lies in g->blocks, with all the data ranks' pieces one after another; its pieces. */
static int64_t block_at(const struct dtx_grads *g, const struct dtx_bucket *b, int data_rank)
{
    int64_t others = (int64_t)(dtx_mesh_data_size(g->params->mesh) - 1) * g->cut_blocks;
    return b->shard / BLOCK + (b->cut ? data_rank * g->cut_blocks : others);
}

/* Sums of squares of all blocks of the reduced gradients, those of other data ranks too. */
static enum dtx_status sum_blocks(struct dtx_grads *g, struct dtx_queue *queue)
{
    struct dtx_params *p = g->params;
    int rank = dtx_mesh_data_rank(p->mesh);
    for (int i = 0; i < p->n_buckets; i++) {
        const struct dtx_bucket *b = &p->bucket[i];
        struct dtx_sqnorm_args args = {.x = dtx_bucket_reduced(p, b),
                                       .blocks = dtx_flat_range(&g->blocks, block_at(g, b, rank), b->own_count / BLOCK),
                                       .sum = g->sum};
        DTX_TRY(p->ctx, dtx_sqnorm(queue, &args));
    }
    if (g->cut_blocks && !DTX_MUTANT(norm_of_own_piece_only)) {
        struct dtx_tensor own = dtx_flat_range(&g->blocks, rank * g->cut_blocks, g->cut_blocks),
                          all = dtx_flat_range(&g->blocks, 0, dtx_mesh_data_size(p->mesh) * g->cut_blocks);
        DTX_TRY(p->ctx, dtx_comm_all_gather(p->mesh->grads, queue, &own, &all));
    }
    return dtx_tensor_get(queue, &g->blocks, g->host_blocks);
}

/* A row's blocks, added in its order, wherever the pieces' edges lie. */
static double sum_row(const struct dtx_grads *g, const struct dtx_param *item)
{
    const struct dtx_bucket *b = &g->params->bucket[item->bucket];
    int64_t piece = b->own_count / BLOCK, first = (item->offset - b->offset) / BLOCK;
    double sum = 0;
    for (int64_t i = first; i < first + dtx_div_up(item->count, BLOCK); i++)
        sum += g->host_blocks[block_at(g, b, (int)(i / piece)) + i % piece];
    return sum;
}

enum dtx_status dtx_grads_norm(struct dtx_grads *g, struct dtx_queue *queue, double *norm)
{
    struct dtx_params *p = g->params;
    DTX_TRY(p->ctx, sum_blocks(g, queue));
    for (int i = 0; i < p->n; i++)
        g->host_sums[i] = counts_in_norm(p, &p->item[i]) ? sum_row(g, &p->item[i]) : 0.0;
    DTX_TRY(p->ctx, dtx_tensor_set(queue, &g->sums, g->host_sums));
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

void dtx_grads_row_squares(const struct dtx_grads *g, double *whole, double *here)
{
    const struct dtx_params *p = g->params;
    for (int i = 0; i < p->n; i++) {
        whole[i] = g->host_sums[i];
        here[i] = p->item[i].held ? sum_row(g, &p->item[i]) : 0;
    }
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
