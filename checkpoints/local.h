/*
 * The local tier: frequent checkpoints on the nodes' own disks. Each rank writes what it holds to a file of its node,
 * and a rank of the next node keeps a copy: what one node's disk loses, its neighbour has. The node after the last is
 * the first. A checkpoint is there as long as every rank's file is on some node's disk, whole; its boxes reach the
 * ranks that need them through the network. The files are dtx's own (README.md), not HDF5.
 *
 *   DIR/dtx-<id of the run>/<node>/step-00001000/rank-00003      of the node's ranks, and of the node before
 *
 * The run's id lies in the durable tier's folder (.local-id), so that nothing of another run is taken for this one's.
 */
#ifndef DTX_CHECKPOINTS_LOCAL_H
#define DTX_CHECKPOINTS_LOCAL_H

#include "checkpoints/index.h"

struct dtx_ckpt_local;

struct dtx_ckpt_local_options {
    const char *dir;     /* on every node's own disk */
    const char *durable; /* the durable tier's folder, which root sees; it must exist */
    const char *node;    /* name of this rank's node: ranks with one name share a disk */
};

/* fresh: a new run, which gets a new id. What cannot be done with the folders is told when a save fails. Collective
 * over world. */
enum dtx_status dtx_ckpt_local_open(struct dtx_ctx *ctx, struct dtx_comm *world,
                                    const struct dtx_ckpt_local_options *options, bool fresh,
                                    struct dtx_ckpt_local **out);
void dtx_ckpt_local_close(struct dtx_ckpt_local *local); /* not collective; accepts NULL */
int dtx_ckpt_local_nodes(const struct dtx_ckpt_local *local);
/* Root: the durable tier has a checkpoint of this place in the sequence: what is saved here from now on is newer. */
void dtx_ckpt_local_after(struct dtx_ckpt_local *local, int64_t sequence);
/* Writes a checkpoint; the one before stays as well, older ones go. comm: of the same ranks as world. Items as for
 * dtx_ckpt_save, with `data`. After a failure what was begun is removed. Collective over comm. */
enum dtx_status dtx_ckpt_local_save(struct dtx_ctx *ctx, struct dtx_comm *comm, struct dtx_ckpt_local *local,
                                    const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                                    struct dtx_ckpt_saved *saved);

/* The newest complete checkpoint that is newer than place `sequence` of the durable tier (−1: than nothing); every byte
 * is verified. *found false: none; newer ones that are not complete, and disks that fail, are told of and no failure.
 * `folder` is this node's: for dtx_ckpt_index_load. Free the index. Collective over world. */
enum dtx_status dtx_ckpt_local_find(struct dtx_ctx *ctx, struct dtx_comm *world,
                                    const struct dtx_ckpt_local_options *options, int64_t sequence, bool *found,
                                    struct dtx_ckpt_index *index, char *folder, size_t folder_bytes);

#endif
