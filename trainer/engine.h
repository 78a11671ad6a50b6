/*
 * The engine: a model on a mesh that takes steps. It knows nothing of files, data sources or time: the loop above gives
 * it batches and a learning rate. Every function is collective over the mesh unless it says otherwise.
 */
#ifndef DTX_TRAINER_ENGINE_H
#define DTX_TRAINER_ENGINE_H

#include "parallel/grad.h"
#include "parallel/replica.h"
#include "trainer/config.h"
#include "trainer/model.h"

struct dtx_engine;

/* One data rank's part of a step, host memory: `sequences` rows of `length` tokens, sequences =
 * micro_batches·micro_batch; the same on all context ranks, each of which takes its chunks. targets: next tokens, −1 =
 * none. doc_start: position of the first token of each token's document, or NULL. */
struct dtx_engine_batch {
    const int32_t *tokens, *targets, *doc_start;
};

struct dtx_step_result {
    double loss;      /* mean over the global batch's targets */
    double grad_norm; /* before clipping */
    double clip;      /* factor applied, 1 when not clipped */
    int64_t targets;  /* of the global batch */
    bool skipped;     /* nothing is updated, on any rank: of dtx_engine_step where norm or loss is not finite */
};

/* world: borrowed; the product of config->mesh must be its size. The backend is borrowed too. Weights are initialised
 * from config->seed. */
enum dtx_status dtx_engine_create(struct dtx_ctx *ctx, const struct dtx_engine_config *config, struct dtx_comm *world,
                                  struct dtx_backend *backend, struct dtx_engine **out);
void dtx_engine_free(struct dtx_engine *engine);

/* Forward, backward, reduction and norm; the gradients stay in the table (tests read them). */
enum dtx_status dtx_engine_gradients(struct dtx_engine *engine, const struct dtx_engine_batch *batch,
                                     struct dtx_step_result *result);
/* Clipping and the optimizer, with the gradients of the table. `step` counts from 1. With ZeRO other ranks' pieces of
 * the weights may still be on their way afterwards: the engine's own functions wait for what they use. */
enum dtx_status dtx_engine_update(struct dtx_engine *engine, int64_t step, double lr,
                                  const struct dtx_step_result *result);
/* Both, unless loss or norm is not finite. */
enum dtx_status dtx_engine_step(struct dtx_engine *engine, const struct dtx_engine_batch *batch, int64_t step,
                                double lr, struct dtx_step_result *result);
/* All weights are here: before others read the table's weights or count bytes. Not collective. */
enum dtx_status dtx_engine_settle(struct dtx_engine *engine);
/* Ends the engine's threads, whatever they do, and leaves all else alone: for a rank that is about to end the job after
 * a failure (dtx_comm_finish), instead of dtx_engine_free. Not collective. Accepts NULL. */
void dtx_engine_halt(struct dtx_engine *engine);
/* Loss only, by the current weights: summed over the mesh, not divided. */
enum dtx_status dtx_engine_evaluate(struct dtx_engine *engine, const struct dtx_engine_batch *batch, double *loss_sum,
                                    int64_t *targets);
/* Next-token logits of one sequence with a key/value cache: feeds n new tokens (host) at position `first`; writes the
 * last token's logits (host, vocab of them). One rank only; first + n ≤ length. */
enum dtx_status dtx_engine_logits(struct dtx_engine *engine, const int32_t *tokens, int64_t first, int64_t n,
                                  double *logits);
/* What dtx_engine_logits left in a layer (trainer/model.h) as `room` doubles at most; *n: how many there are. f32 and
 * f64 only. */
enum dtx_status dtx_engine_activation(struct dtx_engine *engine, int layer, const char *name, double *out, int64_t room,
                                      int64_t *n);
/* Are all weights, masters and optimizer states of all ranks finite? Waits for the queue. */
enum dtx_status dtx_engine_finite(struct dtx_engine *engine, bool *finite);
/* Are weights, masters and optimizer states alike on all ranks that hold copies? Waits for the queue. */
enum dtx_status dtx_engine_replicas(struct dtx_engine *engine, struct dtx_replica_report *report);
/* λ per layer of the whole model (host, model.layers of them); *n = 0 where the variant has none. */
enum dtx_status dtx_engine_lambda(struct dtx_engine *engine, double *lambda, int *n);

/* For those who only count: env and rows of one rank of a mesh (mesh->size and rank; no communicators), as
 * dtx_engine_create makes them, and the layers of its stage. queue: of any backend, for the workspace that its
 * operations ask for. config, mesh, queue, env and params must outlive the model. Then dtx_params_layout. */
enum dtx_status dtx_engine_declare(struct dtx_ctx *ctx, const struct dtx_engine_config *config,
                                   const struct dtx_mesh *mesh, struct dtx_queue *queue, struct dtx_params *params,
                                   struct dtx_env *env, struct dtx_model **model);
/* Bytes that the engine itself takes from the backend: a step's batch, losses, small results. config->mesh counts. */
size_t dtx_engine_batch_bytes(const struct dtx_engine_config *config);

/* Not collective. */
struct dtx_params *dtx_engine_params(struct dtx_engine *engine);
const struct dtx_mesh *dtx_engine_mesh(const struct dtx_engine *engine);
struct dtx_queue *dtx_engine_queue(struct dtx_engine *engine);
/* Of the last step's gradients, before clipping: dtx_grads_row_squares. */
void dtx_engine_row_squares(const struct dtx_engine *engine, double *whole, double *here);
const struct dtx_engine_config *dtx_engine_config_of(const struct dtx_engine *engine);
/* With cuda.graphs: passes run operation by operation all the same, for who looks at single ones. */
void dtx_engine_plain(struct dtx_engine *engine, bool plain);
/* Graphs recorded, and their launches so far; 0 without cuda.graphs. */
void dtx_engine_graphs(const struct dtx_engine *engine, int64_t *made, int64_t *launched);
/* Bytes of this rank's activations and of what they are computed with. */
size_t dtx_engine_activation_bytes(const struct dtx_engine *engine);
/* Model FLOPs of one training step of the whole mesh, causal attention (K = (length + 1)/2). */
double dtx_engine_step_flops(const struct dtx_engine_config *config);

#endif
