/*
 * One stage of the model: its layers, and the activations of every slot. Runs forward and backward of one micro-batch.
 */
#ifndef DTX_TRAINER_MODEL_H
#define DTX_TRAINER_MODEL_H

#include "trainer/layer.h"

struct dtx_model;

/* Adds the rows of all layers of all stages to env->params, the same on every rank, and keeps this stage's layers.
 * Blocks are spread evenly; the first stages take the remainder. */
enum dtx_status dtx_model_declare(struct dtx_env *env, struct dtx_model **out);
/* Buffers for `slots` micro-batches of env->max_rows rows; also env->work, wide, gathered and rope. After
 * dtx_params_allocate. */
enum dtx_status dtx_model_allocate(struct dtx_model *model, int slots);
/* Bytes that dtx_model_allocate takes from the backend, by env->recompute; env->params must be allocated. */
size_t dtx_model_bytes(const struct dtx_model *model, int slots);
void dtx_model_free(struct dtx_model *model);
/* in: the held rows [m,D] from the previous stage (absent on the first); out: for the next (absent on the last).
 * Collective over tp. */
enum dtx_status dtx_model_forward(struct dtx_model *model, int slot, const struct dtx_tensor *in,
                                  const struct dtx_tensor *out);
enum dtx_status dtx_model_backward(struct dtx_model *model, int slot, const struct dtx_tensor *dout,
                                   const struct dtx_tensor *din);
/* λ of this stage's layers into out (master [layers of the whole model]); the other entries are left as they are. */
enum dtx_status dtx_model_lambda(struct dtx_model *model, const struct dtx_tensor *out);
/* Model FLOPs of one token's forward pass through the whole model when a query sees `keys` keys (training: 3 times). */
double dtx_model_flops(const struct dtx_model_config *config, double keys);
/* First block of a stage; of stage + 1: one past its last. */
int64_t dtx_model_first_block(int64_t layers, int stage, int stages);

#endif
