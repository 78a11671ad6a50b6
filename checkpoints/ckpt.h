/*
 * Checkpoints: whole arrays under global names, written in boxes to HDF5 shards, presented whole by the index file
 * checkpoint.h5 through virtual datasets (checkpoints/README.md has the format). Any mesh loads any mesh's checkpoint:
 * loading asks for boxes, and that is all resharding is.
 *
 * A save becomes visible by one rename after everything is on disk: a kill at any instant leaves the previous
 * checkpoint or the new one. One thread per process makes all HDF5 calls. Collective over `world` unless said
 * otherwise.
 */
#ifndef DTX_CHECKPOINTS_CKPT_H
#define DTX_CHECKPOINTS_CKPT_H

#include "parallel/comm.h"
#include "parallel/shard.h"

/* One rank's part of one array. `data` is host memory of the local array. */
struct dtx_ckpt_item {
    char name[128];       /* "/model/layers.07.attn.q" */
    enum dtx_dtype dtype; /* of memory and, on saving, of the file (loading converts nothing: must match) */
    int ndim;
    int64_t whole[DTX_MAX_DIMS]; /* shape of the whole array, without padding */
    int64_t local[DTX_MAX_DIMS]; /* shape of the local array, with padding */
    int n_boxes;
    struct dtx_box boxes[DTX_MAX_BOXES];
    bool writer; /* this rank writes the boxes (each element has exactly one writer over all ranks) */
    void *data;
};

/* Scalars and texts kept with the state; the index carries them as attributes (long text as a dataset). */
struct dtx_ckpt_meta {
    int64_t step, tokens, samples; /* optimizer steps done; target tokens seen; samples consumed (the data position) */
    uint64_t seed;
    int mesh[3]; /* tp, dp, pp of the writer */
    char isa[32], program[32];
    double best_heldout; /* lowest held-out loss so far; NaN when none */
    char *config;        /* resolved options as YAML; owned by whoever filled it (load: free with dtx_mem_free) */
};

/* Writes DIR/step-XXXXXXXX. Logs "saved" only when it is durable. Keeps the newest `keep` complete checkpoints (0:
 * all); never deletes the last good one. */
enum dtx_status dtx_ckpt_save(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir,
                              const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                              int keep);
/* Resolves what a user gives ("latest", a checkpoint folder, or a folder of checkpoints) against `dir` to one complete
 * checkpoint folder, the same on all ranks; an incomplete or damaged newest one is passed over, said aloud. */
enum dtx_status dtx_ckpt_find(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir, const char *what,
                              char *path, size_t path_bytes);
/* Reads scalars and configuration of one checkpoint folder. Root reads, all get it. */
enum dtx_status dtx_ckpt_load_meta(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                                   struct dtx_ckpt_meta *meta);
/* Fills every item's boxes (padding is left as it is). Checksums are verified. A missing array, another shape or dtype
 * is refused by name. Reads only the bytes that the boxes need. */
enum dtx_status dtx_ckpt_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                              struct dtx_ckpt_item *items, int n_items);

#endif
