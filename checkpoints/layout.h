/*
 * The table of stored boxes: which piece of which array lies where in which shard. The same struct is gathered from the
 * writers, stored in the index and sent to the readers. Nothing here touches files or communicates.
 */
#ifndef DTX_CHECKPOINTS_LAYOUT_H
#define DTX_CHECKPOINTS_LAYOUT_H

#include "checkpoints/ckpt.h"

enum { DTX_CKPT_FORMAT = 1, DTX_CKPT_SHARDS = 256, DTX_CKPT_BOX_BYTES = 64 << 20 };

/* One stored box. `writer` and `part` are known while saving only. */
struct dtx_ckpt_entry {
    char name[DTX_CKPT_NAME];
    char dtype[8]; /* "bf16" */
    int32_t ndim, shard;
    int64_t whole[DTX_MAX_DIMS], global[DTX_MAX_DIMS], extent[DTX_MAX_DIMS]; /* unused dimensions are 0 */
    int64_t offset;                                                          /* of the box's bytes in its shard file */
    int64_t bytes;
    uint64_t checksum; /* xxh3 of those bytes */
    int32_t writer;    /* world rank */
    int32_t part;      /* the writer's number of this box */
};

/* "shard-00012.h5" */
void dtx_ckpt_shard_name(int shard, char out[32]);

/* A box of more than `limit` bytes is cut into pieces: ranges of the outermost dimension whose rows fit, further out
 * one index at a time. Their number, and piece i. */
int64_t dtx_ckpt_pieces(const struct dtx_box *box, int ndim, size_t element_bytes, int64_t limit);
void dtx_ckpt_piece(const struct dtx_box *box, int ndim, size_t element_bytes, int64_t limit, int64_t i,
                    struct dtx_box *out);
int64_t dtx_ckpt_box_count(const struct dtx_box *box, int ndim); /* elements */

/* Sorts by name, then by offset in the whole array. */
void dtx_ckpt_sort(struct dtx_ckpt_entry *entries, int64_t n);
/* For a sorted table: the entries of one array, [*first, *first + the count returned); 0 when there is none. */
int64_t dtx_ckpt_lookup(const struct dtx_ckpt_entry *entries, int64_t n, const char *name, int64_t *first);
/* Entries from `first` on that have its name. */
int64_t dtx_ckpt_run(const struct dtx_ckpt_entry *entries, int64_t n, int64_t first);
int64_t dtx_ckpt_longest(const struct dtx_ckpt_entry *entries, int64_t n); /* bytes of the longest box, at least 1 */
/* Refuses a sorted table in which a field makes no sense or an array is not covered exactly once. `where` leads the
 * message. */
enum dtx_status dtx_ckpt_check_table(struct dtx_ctx *ctx, const char *where, const struct dtx_ckpt_entry *entries,
                                     int64_t n, int n_shards);
/* Boxes are cut at this many bytes so that shards can be balanced: a twentieth of a shard, but no less than 1 MiB and
 * no more than `limit`. total: of all boxes. */
int64_t dtx_ckpt_cut(int64_t total, int n_shards, int64_t limit);
/* Distributes the boxes over at most min(max_shards, the ranks that have any) shards of equal bytes, in the order of
 * the ranks that have them: each shard's bytes differ from the mean by at most one box. Returns the number of shards;
 * leaders[0 … that): the rank that writes it, each another one and in the middle of those whose boxes it gets. */
enum dtx_status dtx_ckpt_assign_shards(struct dtx_ctx *ctx, struct dtx_ckpt_entry *entries, int64_t n, int world_size,
                                       int max_shards, int leaders[DTX_CKPT_SHARDS], int *n_shards);

#endif
