#include "trainer/layer.h"

#include <stdio.h>

#include "kernels/base/mutant.h"

/* Gradients have a wider range than weights and activations. */
static enum dtx_fp8 gradient_kind(bool fp8)
{
    if (DTX_MUTANT(fp8_backward_forgotten))
        return DTX_FP8_NONE;
    return fp8 ? DTX_FP8_E5M2 : DTX_FP8_NONE;
}

enum dtx_status dtx_linear(struct dtx_env *env, bool fp8, const struct dtx_tensor *x, const struct dtx_tensor *w,
                           const struct dtx_tensor *y)
{
    struct dtx_matmul_args args = {
        .a = *x, .b = *w, .c = *y, .transpose_b = true, .fp8 = fp8 ? DTX_FP8_E4M3 : DTX_FP8_NONE, .work = env->work};
    return dtx_matmul(env->queue, &args);
}

enum dtx_status dtx_linear_input(struct dtx_env *env, bool fp8, const struct dtx_tensor *dy, const struct dtx_tensor *w,
                                 const struct dtx_tensor *dx, bool accumulate)
{
    struct dtx_matmul_args args = {
        .a = *dy, .b = *w, .c = *dx, .accumulate = accumulate, .fp8 = gradient_kind(fp8), .work = env->work};
    return dtx_matmul(env->queue, &args);
}

enum dtx_status dtx_linear_weight(struct dtx_env *env, bool fp8, const struct dtx_tensor *dy,
                                  const struct dtx_tensor *x, const struct dtx_tensor *dw)
{
    struct dtx_matmul_args args = {.a = *dy,
                                   .b = *x,
                                   .c = *dw,
                                   .transpose_a = true,
                                   .accumulate = true,
                                   .fp8 = gradient_kind(fp8),
                                   .work = env->work};
    return dtx_matmul(env->queue, &args);
}

size_t dtx_linear_work_bytes(struct dtx_env *env, bool fp8, int64_t rows, int64_t k, int64_t m)
{
    struct dtx_tensor x = dtx_tensor_2d(NULL, env->act, rows, k), y = dtx_tensor_2d(NULL, env->act, rows, m);
    struct dtx_tensor w = dtx_tensor_2d(NULL, env->act, m, k), wide = dtx_tensor_2d(NULL, env->master, rows, k);
    struct dtx_tensor dw = dtx_tensor_2d(NULL, env->master, m, k);
    enum dtx_fp8 kind = gradient_kind(fp8);
    struct dtx_matmul_args forward = {.a = x, .b = w, .c = y, .transpose_b = true, .fp8 = kind};
    struct dtx_matmul_args input = {.a = y, .b = w, .c = wide, .accumulate = true, .fp8 = kind};
    struct dtx_matmul_args weight = {.a = y, .b = x, .c = dw, .transpose_a = true, .accumulate = true, .fp8 = kind};
    size_t f = dtx_matmul_work_bytes(env->queue, &forward), i = dtx_matmul_work_bytes(env->queue, &input);
    size_t w_bytes = dtx_matmul_work_bytes(env->queue, &weight);
    size_t most = f > i ? f : i;
    return most > w_bytes ? most : w_bytes;
}

int64_t dtx_rows_held(const struct dtx_env *env, int64_t rows)
{
    return env->sequence ? rows / env->mesh->size[DTX_AXIS_TP] : rows;
}

struct dtx_tensor dtx_rows_own(const struct dtx_env *env, const struct dtx_tensor *all)
{
    int64_t held = dtx_rows_held(env, all->dim[0]);
    return dtx_tensor_rows(all, env->sequence ? held * env->mesh->rank[DTX_AXIS_TP] : 0, held);
}

int64_t dtx_piece_first(const struct dtx_env *env, int rank, int piece)
{
    int chunk = piece == 0 ? rank : 2 * env->mesh->size[DTX_AXIS_CP] - 1 - rank;
    return env->pieces == 1 ? 0 : chunk * env->max_piece;
}

enum dtx_status dtx_rows_gather(struct dtx_env *env, const struct dtx_tensor *own, const struct dtx_tensor *into,
                                struct dtx_tensor *all)
{
    *all = env->sequence ? dtx_tensor_rows(into, 0, own->dim[0] * env->mesh->size[DTX_AXIS_TP]) : *own;
    if (!env->sequence || DTX_MUTANT(rows_not_gathered))
        return DTX_OK;
    return dtx_comm_all_gather(env->mesh->axis[DTX_AXIS_TP], env->queue, own, all);
}

enum dtx_status dtx_rows_keep(struct dtx_env *env, double scale, const struct dtx_tensor *own,
                              const struct dtx_tensor *all)
{
    struct dtx_tensor scaled = dtx_rows_own(env, all), unused;
    if (env->sequence && (scale == 1 || DTX_MUTANT(transfer_scale_lost_with_sequence)))
        return dtx_rows_gather(env, own, all, &unused);
    DTX_TRY(env->ctx, dtx_add_scaled(env, scale, own, NULL, &scaled));
    return env->sequence ? dtx_rows_gather(env, &scaled, all, &unused) : DTX_OK;
}

enum dtx_status dtx_rows_sum(struct dtx_env *env, const struct dtx_tensor *partial, struct dtx_tensor *own)
{
    struct dtx_comm *tp = env->mesh->axis[DTX_AXIS_TP];
    *own = dtx_rows_own(env, partial);
    if (env->sequence && !DTX_MUTANT(rows_of_next_rank))
        return dtx_comm_reduce_scatter_sum(tp, env->queue, partial, own);
    if (env->sequence)
        *own = dtx_tensor_rows(partial, own->dim[0] * ((tp->rank + 1) % tp->size), own->dim[0]);
    return dtx_comm_all_reduce_sum(tp, env->queue, partial);
}

enum dtx_status dtx_add_to(struct dtx_env *env, const struct dtx_tensor *x, const struct dtx_tensor *y,
                           const struct dtx_tensor *z)
{
    return dtx_add_scaled(env, 1.0, x, y, z);
}

double dtx_branch_backward(const struct dtx_env *env)
{
    return DTX_MUTANT(transfer_branch_backward_forgotten) ? 1.0 : dtx_transfer_branch(&env->model->transfer);
}

enum dtx_status dtx_add_scaled(struct dtx_env *env, double scale, const struct dtx_tensor *x,
                               const struct dtx_tensor *y, const struct dtx_tensor *z)
{
    struct dtx_add_args args = {.x = *x, .z = *z, .alpha = scale};
    if (y)
        args.y = *y;
    return dtx_add(env->queue, &args);
}

enum dtx_status dtx_norm(struct dtx_env *env, double scale, const struct dtx_tensor *x, const struct dtx_param *gain,
                         const struct dtx_tensor *y, const struct dtx_tensor *rstd)
{
    struct dtx_rmsnorm_fwd_args args = {.x = *x,
                                        .gain = gain->weight,
                                        .y = *y,
                                        .rstd = dtx_tensor_1d(rstd->data, rstd->dtype, x->dim[0]),
                                        .eps = env->model->norm_eps,
                                        .out_scale = scale};
    return dtx_rmsnorm_fwd(env->queue, &args);
}

enum dtx_status dtx_norm_backward(struct dtx_env *env, double scale, const struct dtx_tensor *dy,
                                  const struct dtx_tensor *x, const struct dtx_param *gain,
                                  const struct dtx_tensor *rstd, const struct dtx_tensor *narrow,
                                  const struct dtx_tensor *residual, const struct dtx_tensor *dx)
{
    struct dtx_tensor rounded = *dy;
    if (env->act != env->master) {
        rounded = dtx_saved_rows(narrow, dy->dim[0]);
        DTX_TRY(env->ctx, dtx_add_to(env, dy, NULL, &rounded));
    }
    struct dtx_rmsnorm_bwd_args args = {.dy = rounded,
                                        .x = *x,
                                        .gain = gain->weight,
                                        .rstd = dtx_tensor_1d(rstd->data, rstd->dtype, x->dim[0]),
                                        .dx = *dx,
                                        .dgain = gain->grad,
                                        .out_scale = scale,
                                        .work = env->work};
    if (residual)
        args.residual = *residual;
    return dtx_rmsnorm_bwd(env->queue, &args);
}

size_t dtx_norm_work_bytes(struct dtx_env *env, int64_t rows, int64_t width)
{
    struct dtx_tensor x = dtx_tensor_2d(NULL, env->act, rows, width), v = dtx_tensor_1d(NULL, env->master, width);
    struct dtx_rmsnorm_bwd_args args = {
        .dy = x, .x = x, .gain = v, .rstd = dtx_tensor_1d(NULL, env->master, rows), .residual = x, .dx = x, .dgain = v};
    return dtx_rmsnorm_bwd_work_bytes(env->queue, &args);
}

struct dtx_tensor dtx_saved_rows(const struct dtx_tensor *saved, int64_t rows)
{
    return dtx_tensor_rows(saved, 0, rows);
}

struct dtx_param_row dtx_row_matrix(const struct dtx_env *env, enum dtx_weight_class class, const char *name,
                                    int64_t out, int64_t in, int split_dim, int stage, double std)
{
    struct dtx_param_row row = {.ndim = 2,
                                .shape = {out, in},
                                .stage = stage,
                                .tied_stage = -1,
                                .init = DTX_INIT_NORMAL,
                                .std = std,
                                .lr_mult = 1.0,
                                .eps_mult = 1.0,
                                .decay_mult = 1.0,
                                .decay = true};
    if (split_dim >= 0)
        row.place = (struct dtx_placement){DTX_SPLIT, split_dim, 1};
    snprintf(row.name, sizeof row.name, "%s", name);
    dtx_transfer_row(&env->model->transfer, class, &row);
    return row;
}

struct dtx_param_row dtx_row_vector(const struct dtx_env *env, enum dtx_weight_class class, const char *name, int64_t n,
                                    int stage)
{
    struct dtx_param_row row = {.ndim = 1,
                                .shape = {n, 1},
                                .stage = stage,
                                .tied_stage = -1,
                                .init = DTX_INIT_ONES,
                                .lr_mult = 1.0,
                                .eps_mult = 1.0,
                                .decay_mult = 1.0,
                                .master_only = true};
    snprintf(row.name, sizeof row.name, "%s", name);
    dtx_transfer_row(&env->model->transfer, class, &row);
    return row;
}

struct dtx_param_row dtx_row_gain(const struct dtx_env *env, enum dtx_weight_class class, const char *name, int stage)
{
    struct dtx_param_row row = dtx_row_vector(env, class, name, env->model->width, stage);
    row.grad_partial = env->sequence && !DTX_MUTANT(gain_grad_not_summed);
    return row;
}
