/* Between the files of the local tier: one rank's file, and which ranks share a node. Not collective unless said. */
#ifndef DTX_CHECKPOINTS_LOCAL_FILE_H
#define DTX_CHECKPOINTS_LOCAL_FILE_H

#include "checkpoints/disk.h"
#include "checkpoints/local.h"

enum { DTX_LOCAL_FORMAT = 1, DTX_LOCAL_ALIGN = 4096 };

/* The file begins with this, then n_entries rows of struct dtx_ckpt_entry, configuration, ledger and health (each with
 * its zero), zeros up to a multiple of DTX_LOCAL_ALIGN, the boxes. The machine's own bytes: it is read by the nodes
 * that wrote it. */
struct dtx_local_head {
    char magic[8]; /* "dtxlocal" */
    uint32_t format;
    int32_t rank, size; /* of the world that saved */
    int32_t mesh[4];
    uint32_t unused;
    int64_t step, after; /* after: place in the durable tier's sequence that this is newer than */
    double time;         /* of root's clock when the save began: orders those of one `after` */
    uint64_t id;         /* of the save, the same in the files of all ranks */
    int64_t n_entries, texts_bytes, data_at, file_bytes;
    int64_t tokens, samples;
    uint64_t seed;
    double best_heldout, heldout;
    char isa[32], program[32];
    uint64_t checksum; /* of all before data_at, with 0 here */
};

/* "rank-00003" */
void dtx_local_name(int rank, char out[32]);
/* Writes FOLDER/.rank-XXXXX, synced. head: all but n_entries, texts_bytes, data_at, file_bytes, checksum; of
 * `texts` config, ledger and health are written. */
enum dtx_status dtx_local_write(struct dtx_ctx *ctx, const char *path, struct dtx_local_head *head,
                                const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *texts);
/* Reads and checks all before the boxes. entries: NULL, or allocated; texts: NULL, or its texts are. */
enum dtx_status dtx_local_read(struct dtx_ctx *ctx, const char *path, struct dtx_local_head *head,
                               struct dtx_ckpt_entry **entries, struct dtx_ckpt_meta *texts);
/* Reads the whole file and compares all checksums. */
enum dtx_status dtx_local_verify(struct dtx_ctx *ctx, const char *path);

/* Which ranks share a node. */
struct dtx_local_nodes {
    int size, rank, n;
    int *node;  /* [size]: of each rank; numbered by their lowest ranks */
    int *place; /* [size]: number among the ranks of its node */
    int *ranks; /* [n]: of each node */
};
/* Collective over world. */
enum dtx_status dtx_local_nodes_find(struct dtx_ctx *ctx, struct dtx_comm *world, const char *name,
                                     struct dtx_local_nodes *out);
void dtx_local_nodes_free(struct dtx_local_nodes *nodes);
/* Who keeps the copy of a rank's file: a rank of the next node; −1: there is one node alone. */
int dtx_local_partner(const struct dtx_local_nodes *nodes, int rank);
/* DIR/dtx-ID/NODE of this run, on all ranks; *there false: the run has no id yet, and `make` was not asked for.
 * Collective over world. */
enum dtx_status dtx_local_folder(struct dtx_ctx *ctx, struct dtx_comm *world,
                                 const struct dtx_ckpt_local_options *options, bool make, bool *there,
                                 char folder[DTX_DISK_PATH]);

#endif
