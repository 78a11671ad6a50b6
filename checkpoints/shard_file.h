/*
 * Shard files: one contiguous dataset per box, "<array>/<number of the box>", with the attributes whole, global and
 * checksum. HDF5 lays the file out; the bytes are then written and read at their offsets without it, so that several
 * ranks may fill one file. Not collective.
 */
#ifndef DTX_CHECKPOINTS_SHARD_FILE_H
#define DTX_CHECKPOINTS_SHARD_FILE_H

#include "checkpoints/layout.h"
#include "checkpoints/manifest.h"

/* The dataset of entries[i] of a sorted table: the array's name and the box's number among the array's boxes. */
void dtx_ckpt_box_name(const struct dtx_ckpt_entry *entries, int64_t i, char out[DTX_CKPT_NAME + 24]);
/* Makes the file with all boxes of `shard`, still without their bytes, and fills in the entries' offsets. */
enum dtx_status dtx_ckpt_shard_create(struct dtx_ctx *ctx, const char *path, struct dtx_ckpt_entry *entries, int64_t n,
                                      int shard);
/* Reads the whole file once: compares the checksums of all boxes and gives size and checksum of the file. */
enum dtx_status dtx_ckpt_shard_check(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_entry *entries,
                                     int64_t n, int shard, int64_t *bytes, uint64_t *hash);
/* Reads one box into `data` (entry->bytes bytes) and compares its checksum. */
enum dtx_status dtx_ckpt_box_read(struct dtx_ctx *ctx, int fd, const char *path, const struct dtx_ckpt_entry *entry,
                                  void *data);

#endif
