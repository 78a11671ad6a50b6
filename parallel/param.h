/*
 * The table of weights: one row per weight of the whole model, the same rows in the same order on every rank. A row
 * drives allocation, initial values, sharding, decay, optimizer state and the names in checkpoints.
 *
 * Each rank holds the rows of its stage, cut by the row's placement over the tensor axis. Gradients and weights lie in
 * flat buffers of whole rows, each starting at a multiple of DTX_PARAM_ALIGN elements (the gaps are zero). A flat
 * buffer is made of buckets: runs of rows in table order, of about bucket_bytes of gradients.
 *
 * "Data ranks" here are all that hold the same weights, dp × cp of them (mesh->data).
 * With `zero` (ZeRO-1) and several data ranks the buckets of matrices are cut into equal pieces, one for each data
 * rank, multiples of DTX_PARAM_ALIGN: masters and optimizer states exist only for this rank's pieces, and weights are
 * gathered after each update. A piece may begin and end within a row; a row lies in one bucket, so its part in a piece
 * is one range. Rows that are used in the master dtype (gains, λ: less than a thousandth of a model) stay whole
 * everywhere, in buckets behind those that are cut, and every data rank makes the same update of them.
 *
 * With `zero` 2 gradients are cut too: those of most buckets live in one of two slots from a layer's backward pass to
 * the reduction, once a micro-batch, and only this rank's piece of their sum is kept (grad.h). Such a bucket is made of
 * whole layers. A tied weight and rows that are not cut keep whole gradients.
 */
#ifndef DTX_PARALLEL_PARAM_H
#define DTX_PARALLEL_PARAM_H

#include "parallel/comm_queue.h"
#include "parallel/mesh.h"
#include "parallel/shard.h"

enum { DTX_PARAM_ALIGN = 1024, DTX_PARAM_STATES = 2, DTX_PARAM_NAME = 64, DTX_PARAM_SLOTS = 2 };
enum dtx_init { DTX_INIT_NORMAL, DTX_INIT_ONES };

struct dtx_param_row {
    char name[DTX_PARAM_NAME]; /* "layers.07.attn.q" */
    int ndim;
    int64_t shape[2];           /* whole, without padding */
    int64_t padded;             /* of the split dimension: whole size with padding, 0 = none */
    struct dtx_placement place; /* of the weight, over tp */
    bool grad_partial;          /* each tensor rank has only its heads' or rows' part of the gradient: sum over tp */
    bool master_only;           /* used in the master dtype (gains, λ): no copy in the activation dtype */
    int layer;                  /* of the model, that declares it: gradients of a layer's rows are made together */
    int stage, tied_stage;      /* stage that holds it; a second stage that holds a copy (tied head), or −1 */
    enum dtx_init init;
    double std; /* of NORMAL */
    bool decay;
    double lr_mult, eps_mult, decay_mult; /* of the run's learning rate, epsilon, decay (parallel/transfer.h) */
};

struct dtx_param {
    struct dtx_param_row row;
    bool held;                       /* by this rank's stage */
    int64_t local[2], offset, count; /* local shape with padding; place in the flat buffers; elements */
    int bucket;
    bool cut;                       /* over the data ranks */
    int64_t part_first, part_count; /* elements of the local row that this rank updates: all of them when not cut */
    struct dtx_tensor weight;       /* [local] what layers read: act dtype, or the master itself */
    struct dtx_tensor grad;         /* [local]; what backward adds to */
    struct dtx_tensor reduced;      /* [part_count]: after the reduction this rank's part of the sum */
    struct dtx_tensor grad_tied;    /* the head's own buffer where one stage holds both uses; else absent */
    struct dtx_tensor master, state[DTX_PARAM_STATES]; /* [part_count] */
};

struct dtx_bucket {
    bool cut;
    bool streamed;          /* zero 2: gradients lie in a slot, are reduced once a micro-batch, and their sum is kept */
    int first_row, end_row; /* its rows are those of [first_row, end_row) that say so */
    int64_t offset, count;  /* in the flat buffers of whole rows, with padding */
    int64_t own, own_count; /* this rank's piece there; all of it when not cut */
    int64_t shard;          /* where that piece lies in the buffers of masters and states */
    int64_t grad;           /* where the bucket lies in flat_grad; streamed: its slot's place */
    int64_t sum;            /* streamed: where this rank's piece lies in flat_sum */
    int slot;               /* streamed */
    struct dtx_event arrival; /* of the other ranks' pieces of the weights */
};

struct dtx_params {
    struct dtx_ctx *ctx;
    struct dtx_backend *backend;
    bool stochastic; /* how masters are rounded to weights (kernels/round.h); else to nearest */
    const struct dtx_mesh *mesh;
    int n;
    int64_t capacity;
    struct dtx_param *item;
    int zero;             /* 1: masters and states are cut, 2: gradients too; set before allocation */
    int64_t bucket_bytes; /* of gradients; 0: one bucket; set before allocation */
    int n_buckets;
    struct dtx_bucket *bucket; /* in the order of the flat buffers */
    int64_t flat, shard;       /* elements of whole rows; of this rank's pieces */
    bool wide;                 /* weights and masters have one dtype and one buffer, flat_master [flat] */
    struct dtx_tensor flat_weight, flat_grad; /* [flat]; flat_weight [0] when wide; flat_grad with zero 2 smaller */
    struct dtx_tensor flat_sum;               /* zero 2: [pieces of the streamed buckets], else [0] */
    struct dtx_tensor flat_master, flat_state[DTX_PARAM_STATES]; /* [shard]; flat_master [flat] when wide */
    struct dtx_tensor flat_tied;
};

enum dtx_status dtx_params_create(struct dtx_ctx *ctx, struct dtx_params *params);
void dtx_params_free(struct dtx_params *params);
/* Adds a row; its index, the same on all ranks, goes to *index. Pointers to items are invalid until allocation. */
enum dtx_status dtx_params_add(struct dtx_params *params, const struct dtx_param_row *row, int *index);
/* Which rows this rank (mesh->rank) holds, local shapes, buckets and the shapes of the flat buffers: all that counts
 * bytes, without allocating (dtx_params_memory, layers' saved tensors and workspace). mesh's communicators are not
 * used; it must outlive params. */
enum dtx_status dtx_params_layout(struct dtx_params *params, const struct dtx_mesh *mesh, enum dtx_dtype act);
/* dtx_params_layout, and allocates what this rank holds, all zero. Not collective. */
enum dtx_status dtx_params_allocate(struct dtx_params *params, struct dtx_backend *backend, const struct dtx_mesh *mesh,
                                    enum dtx_dtype act);
/* Initial values: a pure function of (seed, name, index in the whole array). Collective over mesh->data. */
enum dtx_status dtx_params_init(struct dtx_params *params, struct dtx_queue *queue, uint64_t seed);
/* weight = master rounded, for all rows (after loading masters), gathered. Collective over mesh->data. */
enum dtx_status dtx_params_refresh(struct dtx_params *params, struct dtx_queue *queue);
/* After an update of this rank's parts: starts to gather the other ranks' pieces of all weights, in table order.
 * Collective over mesh->data. */
enum dtx_status dtx_params_gather(struct dtx_params *params, struct dtx_queue *queue);
/* Until all ranks' pieces of a row's weight (of all weights) are here. Not collective. */
enum dtx_status dtx_params_need(struct dtx_params *params, int row);
bool dtx_params_missing(const struct dtx_params *params, int row); /* may need wait for it? */
enum dtx_status dtx_params_settle(struct dtx_params *params);
/* This rank's piece of a bucket's summed gradients. */
struct dtx_tensor dtx_bucket_reduced(const struct dtx_params *params, const struct dtx_bucket *bucket);
/* This rank's part of a whole row (weight or grad), as [part_count]. */
struct dtx_tensor dtx_param_part(const struct dtx_param *item, const struct dtx_tensor *whole);
/* `count` elements of a flat buffer. */
struct dtx_tensor dtx_flat_range(const struct dtx_tensor *flat, int64_t first, int64_t count);
/* Bytes allocated on this rank, or that would be after dtx_params_layout; masters 0 where they are the weights. */
struct dtx_params_bytes {
    size_t weights, gradients, masters, states;
};
struct dtx_params_bytes dtx_params_memory(const struct dtx_params *params);
/* Elements of the whole model, each row once, without padding. */
int64_t dtx_params_total(const struct dtx_params *params);
/* NULL when there is none. */
struct dtx_param *dtx_params_find(struct dtx_params *params, const char *name);

#endif
