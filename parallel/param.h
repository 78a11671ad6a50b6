/*
 * The table of weights: one row per weight of the whole model, the same rows in the same order on every rank. A row
 * drives allocation, initial values, sharding, decay, optimizer state and the names in checkpoints.
 *
 * Each rank holds the rows of its stage, cut by the row's placement over the tensor axis. Masters, gradients and each
 * optimizer state lie in one flat buffer of the master dtype, rows in table order, each starting at a multiple of
 * DTX_PARAM_ALIGN elements (the gaps are zero).
 */
#ifndef DTX_PARALLEL_PARAM_H
#define DTX_PARALLEL_PARAM_H

#include "parallel/mesh.h"
#include "parallel/shard.h"

enum { DTX_PARAM_ALIGN = 1024, DTX_PARAM_STATES = 2, DTX_PARAM_NAME = 64 };
enum dtx_init { DTX_INIT_NORMAL, DTX_INIT_ONES };

struct dtx_param_row {
    char name[DTX_PARAM_NAME]; /* "layers.07.attn.q" */
    int ndim;
    int64_t shape[2];           /* whole, without padding */
    int64_t padded;             /* of the split dimension: whole size with padding, 0 = none */
    struct dtx_placement place; /* of the weight, over tp */
    bool grad_partial;          /* each tensor rank has only its heads' or rows' part of the gradient: sum over tp */
    bool master_only;           /* used in the master dtype (gains, λ): no copy in the activation dtype */
    int stage, tied_stage;      /* stage that holds it; a second stage that holds a copy (tied head), or −1 */
    enum dtx_init init;
    double std; /* of NORMAL */
    double lr_mult;
    bool decay;
};

struct dtx_param {
    struct dtx_param_row row;
    bool held;                       /* by this rank's stage */
    int64_t local[2], offset, count; /* local shape with padding; place in the flat buffers; elements */
    struct dtx_tensor weight;        /* what layers read: act dtype, or the master itself for master_only */
    struct dtx_tensor master, grad;
    struct dtx_tensor grad_tied; /* the head's own buffer where one stage holds both uses; else absent */
    struct dtx_tensor state[DTX_PARAM_STATES];
};

struct dtx_params {
    struct dtx_ctx *ctx;
    struct dtx_backend *backend;
    const struct dtx_mesh *mesh;
    int n, capacity;
    struct dtx_param *item;
    struct dtx_tensor flat_weight, flat_master, flat_grad, flat_tied, flat_state[DTX_PARAM_STATES];
};

enum dtx_status dtx_params_create(struct dtx_ctx *ctx, struct dtx_params *params);
void dtx_params_free(struct dtx_params *params);
/* Adds a row; its index, the same on all ranks, goes to *index. Pointers to items are invalid until allocation. */
enum dtx_status dtx_params_add(struct dtx_params *params, const struct dtx_param_row *row, int *index);
/* Allocates what this rank holds, all zero. Not collective. */
enum dtx_status dtx_params_allocate(struct dtx_params *params, struct dtx_backend *backend, const struct dtx_mesh *mesh,
                                    enum dtx_dtype act);
/* Initial values: a pure function of (seed, name, index in the whole array). Not collective. */
enum dtx_status dtx_params_init(struct dtx_params *params, struct dtx_queue *queue, uint64_t seed);
/* weight = master rounded, for all rows (after loading masters). */
enum dtx_status dtx_params_refresh(struct dtx_params *params, struct dtx_queue *queue);
/* Elements of the whole model, each row once, without padding. */
int64_t dtx_params_total(const struct dtx_params *params);
/* NULL when there is none. */
struct dtx_param *dtx_params_find(struct dtx_params *params, const char *name);

#endif
