/*
 * Shard files: one contiguous dataset per box, "<array>/<number of the box>", with the attributes whole, global and
 * checksum. HDF5 lays the file out; the bytes are written and read at their offsets without it. Not collective.
 */
#ifndef DTX_CHECKPOINTS_SHARD_FILE_H
#define DTX_CHECKPOINTS_SHARD_FILE_H

#include "checkpoints/ahead.h"
#include "checkpoints/disk.h"
#include "checkpoints/h5.h"
#include "checkpoints/layout.h"
#include "checkpoints/manifest.h"
#include "kernels/base/meter.h"

/* The dataset of entries[i] of a sorted table: the array's name and the box's number among the array's boxes. */
void dtx_ckpt_box_name(const struct dtx_ckpt_entry *entries, int64_t i, char out[DTX_CKPT_NAME + 24]);
/* Lays a file out in memory with all boxes of `shard` and fills in the entries' offsets. Nothing is on the disk yet:
 * the boxes' bytes are written there, then dtx_ckpt_shard_end puts HDF5's structures and the entries' checksums around
 * them. On failure `out` is empty. */
enum dtx_status dtx_ckpt_shard_begin(struct dtx_ctx *ctx, const char *path, struct dtx_ckpt_entry *entries, int64_t n,
                                     int shard, struct dtx_h5_out *out);
/* `fd` is left open and not synced; `out` is empty afterwards, whatever happened. */
enum dtx_status dtx_ckpt_shard_end(struct dtx_ctx *ctx, const char *path, int fd, const struct dtx_ckpt_entry *entries,
                                   int64_t n, int shard, struct dtx_h5_out *out);
/* Reads the whole file once: compares the checksums of all boxes and gives size and checksum of the file. direct: past
 * the page cache. `meter` (or NULL) counts the bytes of boxes. */
enum dtx_status dtx_ckpt_shard_check(struct dtx_ctx *ctx, const char *path, const struct dtx_ckpt_entry *entries,
                                     int64_t n, int shard, bool direct, struct dtx_meter *meter, int64_t *bytes,
                                     uint64_t *hash);
/* Takes a box piece by piece, as it is read and before its checksum is known: `bytes` of it from byte `at` on. */
struct dtx_ckpt_sink {
    enum dtx_status (*take)(void *self, int64_t at, int64_t bytes, const void *data);
    void *self;
    int64_t piece_bytes;
};
/* Reads one box into `data` (entry->bytes bytes; with a sink its piece_bytes) and compares its checksum. */
enum dtx_status dtx_ckpt_box_read(struct dtx_ctx *ctx, int fd, const char *path, const struct dtx_ckpt_entry *entry,
                                  void *data, const struct dtx_ckpt_sink *sink);

/* Reads boxes of one checkpoint folder, with one shard open at a time. */
struct dtx_ckpt_reader {
    const char *folder;
    int shard, fd;            /* of the last box; fd -1: none is open */
    bool local;               /* the files are those of the local tier */
    char path[DTX_DISK_PATH]; /* of that shard */
    struct dtx_ahead *ahead;  /* of dtx_ckpt_reader_plan */
};
void dtx_ckpt_reader_open(struct dtx_ckpt_reader *reader, const char *folder);
/* sink: NULL or where the pieces go. */
enum dtx_status dtx_ckpt_reader_box(struct dtx_ctx *ctx, struct dtx_ckpt_reader *reader,
                                    const struct dtx_ckpt_entry *entry, void *data, const struct dtx_ckpt_sink *sink);
/* From here on the boxes entries[list[0..n)] are read, in that order and no other; a thread reads ahead. */
enum dtx_status dtx_ckpt_reader_plan(struct dtx_ctx *ctx, struct dtx_ckpt_reader *reader,
                                     const struct dtx_ckpt_entry *entries, const int64_t *list, int64_t n);
void dtx_ckpt_reader_close(struct dtx_ckpt_reader *reader);

#endif
