/*
 * One stage of the model: the layers of its chunks, activation slots and gradient slots, each of which any chunk can
 * use. Runs a schedule's steps: forward of one micro-batch through one chunk, backward whole or in two parts.
 */
#ifndef DTX_TRAINER_MODEL_H
#define DTX_TRAINER_MODEL_H

#include "parallel/schedule.h"
#include "trainer/layer.h"

struct dtx_model;

/* Adds the rows of all layers of all stages to env->params, the same on every rank, and keeps this stage's layers.
 * env->split says how blocks are spread over the parts. */
enum dtx_status dtx_model_declare(struct dtx_env *env, struct dtx_model **out);
/* Buffers for `slots` micro-batches of env->max_rows rows and for `kept` between the two parts of their backward (0: it
 * is never split); also env->work, wide, gathered and rope. After dtx_params_allocate. */
enum dtx_status dtx_model_allocate(struct dtx_model *model, int slots, int kept);
/* Bytes that dtx_model_allocate takes from the backend, by env->recompute; env->params must be laid out. */
size_t dtx_model_bytes(const struct dtx_model *model, int slots, int kept);
/* The same by cause: activation slots; gradient slots; workspace of operations; what all micro-batches share. */
struct dtx_model_bytes {
    size_t slots, kept, work, shared;
};
struct dtx_model_bytes dtx_model_memory(const struct dtx_model *model, int slots, int kept);
/* Tells env->grads which rows each layer adds to. After dtx_grads_create. */
void dtx_model_expect_gradients(const struct dtx_model *model);
void dtx_model_free(struct dtx_model *model);
/* Each layer waits for its own weights before its forward pass, and after its backward pass says which gradients are
 * complete. in: the held rows [m,D] from the part before (absent on the first); out: for the part after (absent on the
 * last). Collective over tp, like the other steps. */
enum dtx_status dtx_model_forward(struct dtx_model *model, const struct dtx_step *step, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out);
/* Would a forward pass through the chunk wait for weights? Not collective. */
bool dtx_model_waits(const struct dtx_model *model, int chunk);
enum dtx_status dtx_model_backward(struct dtx_model *model, const struct dtx_step *step, const struct dtx_tensor *dout,
                                   const struct dtx_tensor *din);
/* The same work in two steps, layer by layer in the same order; what the second needs waits in step->keep. */
enum dtx_status dtx_model_backward_input(struct dtx_model *model, const struct dtx_step *step,
                                         const struct dtx_tensor *dout, const struct dtx_tensor *din);
enum dtx_status dtx_model_backward_weight(struct dtx_model *model, const struct dtx_step *step);
/* λ of this stage's layers into out (master [layers of the whole model]); the other entries are left as they are. */
enum dtx_status dtx_model_lambda(struct dtx_model *model, const struct dtx_tensor *out);
/* What the latest forward pass through slot 0 left in a layer, [rows, columns]: its input ("x"), or a tensor that it
 * keeps by the name in its list; no data where there is none. Layers of this stage count from 0, the embedding first.
 */
struct dtx_tensor dtx_model_activation(const struct dtx_model *model, int layer, const char *name);
/* Weights of the whole model, tied ones once, from the table alone: nothing is allocated. On any mesh the same. */
enum dtx_status dtx_model_count(struct dtx_ctx *ctx, const struct dtx_model_config *config, const struct dtx_mesh *mesh,
                                int64_t *out);
/* Model FLOPs of one token's forward pass through the whole model when a query sees `keys` keys (training: 3 times). */
double dtx_model_flops(const struct dtx_model_config *config, double keys);

#endif
