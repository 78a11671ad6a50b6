/*
 * The index checkpoint.h5: attributes (scalars), /config (text), /boxes (the table of layout.h) and one virtual dataset
 * per array that presents it whole.
 */
#ifndef DTX_CHECKPOINTS_INDEX_H
#define DTX_CHECKPOINTS_INDEX_H

#include "checkpoints/layout.h"
#include "checkpoints/manifest.h"
#include "kernels/base/meter.h"

struct dtx_ckpt_index {
    struct dtx_ckpt_manifest manifest;
    struct dtx_ckpt_meta meta; /* meta.config is owned by the index */
    struct dtx_ckpt_entry *entries;
    int64_t n;
    /* Where the files are not all in one folder for all ranks (local.h): [rank][n_files], 1: can read that file; NULL:
     * everybody can read everything. */
    uint8_t *readers;
    int n_files;
};

/* Writes the file, synced. entries: sorted, checked, with offsets and checksums. Not collective. */
enum dtx_status dtx_ckpt_index_write(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_meta *meta,
                                     const struct dtx_ckpt_entry *entries, int64_t n);
/* Reads and checks a checkpoint folder's manifest and index: every file is there with its size, the index has its
 * checksum, the table covers every array once. The bytes of the shards are not looked at. Not collective. */
enum dtx_status dtx_ckpt_index_read(struct dtx_ctx *ctx, const char *folder, struct dtx_ckpt_index *out);
/* The same: root reads, every rank gets it. Collective over world. */
enum dtx_status dtx_ckpt_index_open(struct dtx_ctx *ctx, struct dtx_comm *world, const char *folder,
                                    struct dtx_ckpt_index *out);
/* Verifies every byte of the shards; `meter` (or NULL) counts them. Not collective. */
enum dtx_status dtx_ckpt_index_verify(struct dtx_ctx *ctx, const char *folder, const struct dtx_ckpt_index *index,
                                      struct dtx_meter *meter);
/* Fills the items' boxes from an open index (dtx_ckpt_load has the rest of the promise). Collective over world; NULL:
 * for this rank alone. */
enum dtx_status dtx_ckpt_index_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *folder,
                                    const struct dtx_ckpt_index *index, struct dtx_ckpt_item *items, int n_items);
/* The entries of one weight, "layers.07.attn.q": of its master where there is one, else of what the layers use.
 * [*first, *first + the count returned); 0 when there is none. */
int64_t dtx_ckpt_index_weight(const struct dtx_ckpt_index *index, const char *weight, int64_t *first);
int64_t dtx_ckpt_index_bytes(const struct dtx_ckpt_index *index); /* of all boxes */
void dtx_ckpt_index_free(struct dtx_ckpt_index *index);

#endif
