/*
 * Layers: what a stage is made of. A layer has a forward pass and a backward pass in two parts, input and weight,
 * written by hand. Tensors that must live from forward to backward are a declared list, given to the layer per
 * activation slot. Forward has no side effect but its outputs, so it may run twice.
 *
 * Both backward parts run once per micro-batch, each in ascending order of micro-batches. The weight part may come much
 * later than the input part, after other micro-batches and layers: then all that it reads lies in the activation slot
 * (DTX_SAVED_WEIGHT) or in the gradient slot of this micro-batch (DTX_SAVED_GRADIENT), and nowhere else.
 *
 * Shapes: n = b·t rows; the residual stream is [m,D] of the activation dtype. With tensor parallelism every layer works
 * on its own heads, ffn columns or vocabulary rows of all n rows; sums over the tensor axis are made in fp32 before
 * rounding. With sequence parallelism (env->sequence) tensor rank r holds rows [r·m, (r + 1)·m), m = n/tp, of the
 * stream, and norms work on these; else m = n. n must be a multiple of tp then.
 *
 * With context parallelism (context ranks, cp > 1) a rank has two pieces of every sequence, chunks r and 2·cp − 1 − r
 * of 2·cp equal ones: the first piece of all sequences, then the second, so that each is one array. To all layers they
 * are b = 2·(micro-batch) sequences of t = length/(2·cp) rows; only attention and RoPE ask where a piece begins.
 */
#ifndef DTX_TRAINER_LAYER_H
#define DTX_TRAINER_LAYER_H

#include "parallel/grad.h"
#include "trainer/config.h"

/* What all layers of a rank share. */
struct dtx_env {
    struct dtx_ctx *ctx;
    struct dtx_queue *queue;
    const struct dtx_mesh *mesh;
    struct dtx_params *params;
    struct dtx_grads *grads; /* NULL: nothing is trained (who only counts) */
    const struct dtx_model_config *model;
    struct dtx_recompute_config recompute;
    struct dtx_split split; /* of the blocks into the pipeline's parts */
    enum dtx_dtype act, master;
    int64_t max_rows, max_length; /* rows that buffers hold on this rank; positions of a whole sequence */
    int64_t max_piece;            /* positions of one piece: max_length, or a chunk of it */
    int pieces;                   /* of each sequence on this rank: 1, or 2 with context parallelism */
    bool ring;                    /* how context ranks exchange keys and values (trainer/context.h) */

    /* The current pass. */
    int64_t batch, length; /* b and t of this pass, b·t ≤ max_rows */
    int64_t first;         /* position of each sequence's first row; > 0 only when generating with a cache (b = 1) */
    bool fp8;              /* the products of attention's and FFN's matrices round their operands to 8 bits */
    bool sequence;         /* rows of the residual stream are cut over the tensor axis; fixed at the start */
    bool last;             /* the step's last micro-batch: gradients that this pass adds to are complete then */
    bool training;         /* false: the head computes the loss in its forward pass, and no backward follows */
    struct dtx_tensor tokens, targets, doc_start; /* i32 [b·t], [b·t], [b,t]; doc_start absent: one document a row */
    struct dtx_tensor loss;                       /* f64 [b·t]: where the head writes this pass's losses */
    struct dtx_tensor logits; /* master [b·t, V/tp] or absent: where the head leaves them (no training) */

    struct dtx_tensor rope;       /* master [max_length, d] */
    struct dtx_tensor loss_scale; /* master [1]: 1 / target tokens of the global batch */
    struct dtx_tensor work;       /* u8: workspace of operations, the largest any layer asked for */
    struct dtx_tensor wide;       /* master [max_rows, D]: partial sums on their way to the tensor axis */
    struct dtx_tensor gathered;   /* act [max_rows, D]: all ranks' rows of a norm's output; absent without sequence */
};

enum dtx_saved_need {
    DTX_SAVED_INPUT = 1,     /* backward_input reads it */
    DTX_SAVED_WEIGHT = 2,    /* backward_weight reads it */
    DTX_SAVED_RECOMPUTE = 4, /* forward can make it again from the layer's input */
    DTX_SAVED_GRADIENT = 8,  /* made by backward_input for backward_weight: only a gradient slot holds it */
    DTX_SAVED_SCRATCH = 16   /* made and read within one call: memory that all layers share */
};

struct dtx_saved {
    const char *name;
    enum dtx_dtype dtype;
    int64_t rows, columns; /* allocated as [rows, columns] */
    int need;
};
enum { DTX_MAX_SAVED = 24 };

struct dtx_layer;

struct dtx_layer_table {
    const char *name;
    /* Tensors to keep; returns their number. */
    int (*saved)(const struct dtx_layer *layer, struct dtx_saved out[DTX_MAX_SAVED]);
    /* Workspace that the layer's operations need at most. */
    size_t (*work_bytes)(const struct dtx_layer *layer);
    /* x: [m,D], NULL for the embedding; y: [m,D], NULL for the head. x stays untouched until backward_input. y NULL in
     * another layer: only what backward needs is wanted (recomputation). */
    enum dtx_status (*forward)(const struct dtx_layer *layer, struct dtx_tensor *saved, const struct dtx_tensor *x,
                               const struct dtx_tensor *y);
    /* dy: NULL for the head; dx: NULL for the embedding. Also adds the gradients of gains and λ, which are by-products.
     */
    enum dtx_status (*backward_input)(const struct dtx_layer *layer, struct dtx_tensor *saved,
                                      const struct dtx_tensor *x, const struct dtx_tensor *dy,
                                      const struct dtx_tensor *dx);
    /* Adds the matrices' gradients. */
    enum dtx_status (*backward_weight)(const struct dtx_layer *layer, struct dtx_tensor *saved);
    /* Model FLOPs of the forward pass of one row that sees `keys` keys, whole model (all tensor ranks). */
    double (*flops)(const struct dtx_model_config *model, double keys);
};

struct dtx_layer {
    const struct dtx_layer_table *table;
    struct dtx_env *env;
    int index;                          /* of the block, from 0 */
    int param[16];                      /* rows of the table, in the order the layer declared them */
    int first_row, end_row, shared_row; /* rows that it declared; another layer's that it uses too, −1: none */
    double lambda_init;                 /* attention */
};

extern const struct dtx_layer_table dtx_embed_layer, dtx_attn_layer, dtx_ffn_layer, dtx_head_layer;

/* Adds the rows of one layer; fills table, index and param. stage: where it lives. */
enum dtx_status dtx_embed_declare(struct dtx_env *env, int stage, int head_stage, struct dtx_layer *out);
enum dtx_status dtx_attn_declare(struct dtx_env *env, int index, int stage, struct dtx_layer *out);
enum dtx_status dtx_ffn_declare(struct dtx_env *env, int index, int stage, struct dtx_layer *out);
/* embed_param: the embedding's row, used again when tied. */
enum dtx_status dtx_head_declare(struct dtx_env *env, int stage, int embed_param, struct dtx_layer *out);

/* The parameter a layer declared as its i-th. */
static inline struct dtx_param *dtx_layer_param(const struct dtx_layer *layer, int i)
{
    return &layer->env->params->item[layer->param[i]];
}

/* Small helpers that every layer uses (layer.c). */

/* y = x·Wᵀ: x [n,k], w [m,k], y [n,m] of act or master dtype; accumulate adds. */
enum dtx_status dtx_linear(struct dtx_env *env, bool fp8, const struct dtx_tensor *x, const struct dtx_tensor *w,
                           const struct dtx_tensor *y);
/* dx (+)= dy·W: dy [n,m]; dx [n,k] master. */
enum dtx_status dtx_linear_input(struct dtx_env *env, bool fp8, const struct dtx_tensor *dy, const struct dtx_tensor *w,
                                 const struct dtx_tensor *dx, bool accumulate);
/* dw += dyᵀ·x. */
enum dtx_status dtx_linear_weight(struct dtx_env *env, bool fp8, const struct dtx_tensor *dy,
                                  const struct dtx_tensor *x, const struct dtx_tensor *dw);
size_t dtx_linear_work_bytes(struct dtx_env *env, bool fp8, int64_t rows, int64_t k, int64_t m);
/* m: how many of n rows of the residual stream this rank holds. */
int64_t dtx_rows_held(const struct dtx_env *env, int64_t rows);
/* Those rows of a tensor of n rows. */
struct dtx_tensor dtx_rows_own(const struct dtx_env *env, const struct dtx_tensor *all);
/* own [m,w] of every tensor rank one after another: *all, which is the first n rows of `into`, or without sequence
 * parallelism own itself. own may be dtx_rows_own of into. Collective over tp. */
enum dtx_status dtx_rows_gather(struct dtx_env *env, const struct dtx_tensor *own, const struct dtx_tensor *into,
                                struct dtx_tensor *all);
/* all [n,w] = scale · the ranks' own [m,w], a copy in either case. Collective over tp. */
enum dtx_status dtx_rows_keep(struct dtx_env *env, double scale, const struct dtx_tensor *own,
                              const struct dtx_tensor *all);
/* Sums a partial product [n,w] over the tensor axis, in rank order and in place: *own [m,w], this rank's rows of the
 * sum. Collective over tp. */
enum dtx_status dtx_rows_sum(struct dtx_env *env, const struct dtx_tensor *partial, struct dtx_tensor *own);
/* The first position of a context rank's piece (0 without context parallelism); rank: env's own or another. */
int64_t dtx_piece_first(const struct dtx_env *env, int rank, int piece);
/* y = scale·RMSNorm(x)·gain; rstd keeps one number a row. */
enum dtx_status dtx_norm(struct dtx_env *env, double scale, const struct dtx_tensor *x, const struct dtx_param *gain,
                         const struct dtx_tensor *y, const struct dtx_tensor *rstd);
/* dx = residual + backward of the norm from dy (master [n,D]; `narrow` holds it in the activation dtype where that is
 * another one); residual may be NULL. Adds the gain's gradient. */
enum dtx_status dtx_norm_backward(struct dtx_env *env, double scale, const struct dtx_tensor *dy,
                                  const struct dtx_tensor *x, const struct dtx_param *gain,
                                  const struct dtx_tensor *rstd, const struct dtx_tensor *narrow,
                                  const struct dtx_tensor *residual, const struct dtx_tensor *dx);
size_t dtx_norm_work_bytes(struct dtx_env *env, int64_t rows, int64_t width);
/* z = x + y (scale·x + y) rounded to z's dtype (y may be NULL). */
enum dtx_status dtx_add_to(struct dtx_env *env, const struct dtx_tensor *x, const struct dtx_tensor *y,
                           const struct dtx_tensor *z);
enum dtx_status dtx_add_scaled(struct dtx_env *env, double scale, const struct dtx_tensor *x,
                               const struct dtx_tensor *y, const struct dtx_tensor *z);
/* The factor of what a block's half adds to the stream, on its gradient's way in. */
double dtx_branch_backward(const struct dtx_env *env);
/* The first rows of a saved tensor as [rows, columns]. */
struct dtx_tensor dtx_saved_rows(const struct dtx_tensor *saved, int64_t rows);
/* A row for the table, scaled by env->model->transfer: matrix split over tp along `dim` (−1: replicated). */
struct dtx_param_row dtx_row_matrix(const struct dtx_env *env, enum dtx_weight_class class, const char *name,
                                    int64_t out, int64_t in, int split_dim, int stage, double std);
struct dtx_param_row dtx_row_vector(const struct dtx_env *env, enum dtx_weight_class class, const char *name, int64_t n,
                                    int stage);
/* A norm's gain over the model's width; with sequence parallelism each rank has its rows' part of the gradient. */
struct dtx_param_row dtx_row_gain(const struct dtx_env *env, enum dtx_weight_class class, const char *name, int stage);

#endif
