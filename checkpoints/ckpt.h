/*
 * Checkpoints: whole arrays under global names, written in boxes to HDF5 shards, presented whole by the index file
 * checkpoint.h5 through virtual datasets (checkpoints/README.md has the format). Any mesh loads any mesh's checkpoint:
 * loading asks for boxes, and that is all resharding is.
 *
 * A save becomes visible by one rename after everything is on disk and read back: a kill at any instant leaves the
 * previous checkpoint or the new one. One thread per process makes all HDF5 calls. All ranks see one file system.
 * Collective over `world` unless said otherwise; on failure every rank returns the same status.
 */
#ifndef DTX_CHECKPOINTS_CKPT_H
#define DTX_CHECKPOINTS_CKPT_H

#include "parallel/comm.h"
#include "parallel/shard.h"

enum { DTX_CKPT_NAME = 128 };

/* One rank's part of one array. `data` is host memory of the local array. A save may have a `read` instead, which makes
 * the bytes of any box of the local array, dense; it is called once for each box. A load may have a `write` instead,
 * which takes them; box->local says where they belong. */
struct dtx_ckpt_item {
    char name[DTX_CKPT_NAME];      /* "/model/layers.07.attn.q" */
    char otherwise[DTX_CKPT_NAME]; /* load: the array to take where there is none of that name; "": it must be there */
    enum dtx_dtype dtype;          /* of memory and of the file (loading converts nothing: must match) */
    int ndim;                      /* 1..DTX_MAX_DIMS */
    int64_t whole[DTX_MAX_DIMS];   /* shape of the whole array, without padding */
    int64_t local[DTX_MAX_DIMS];   /* shape of the local array, with padding */
    int n_boxes;
    struct dtx_box boxes[DTX_MAX_BOXES];
    bool writer; /* this rank writes the boxes (each element has exactly one writer over all ranks: checked) */
    void *data;
    enum dtx_status (*read)(struct dtx_ctx *ctx, void *source, const struct dtx_box *box, void *dense);
    enum dtx_status (*write)(struct dtx_ctx *ctx, void *source, const struct dtx_box *box, const void *dense);
    void *source; /* of read and write */
};

/* Scalars and texts kept with the state; the index carries them as attributes (long text as a dataset). */
struct dtx_ckpt_meta {
    int64_t step, tokens, samples; /* optimizer steps done; target tokens seen; samples consumed (the data position) */
    uint64_t seed;
    int mesh[4]; /* tp, dp, pp, cp of the writer */
    char isa[32], program[32];
    double best_heldout; /* lowest held-out loss so far; NaN when none */
    double heldout;      /* held-out loss of this very step; NaN when it was not measured */
    char origin[256];    /* where weights alone come from ("imported from …"); "": a run, with all its state */
    /* Owned by whoever filled them (load: dtx_ckpt_meta_free). */
    char *config; /* resolved options as YAML */
    char *ledger; /* what was consumed of the data, in words of data/; "" or NULL: not known */
    char *health; /* what the watch over losses remembers, in words of trainer/health.h; the same */
};

/* What a save that went well has to tell. */
struct dtx_ckpt_saved {
    char folder[4096];
    int64_t step, bytes;
    int64_t sequence; /* its place among the saves of that folder; root's */
    int shards;
    double seconds;
    char warning[512]; /* why older checkpoints stay that should go; "": they went */
};

/* Zeros mean the defaults. */
struct dtx_ckpt_save_options {
    int keep;                     /* newest complete checkpoints kept; 0: all */
    int64_t keep_every;           /* and those of steps that are multiples of this; 0: none of them */
    int keep_best;                /* and so many with the lowest held-out loss of their step */
    struct dtx_ckpt_saved *saved; /* takes the report on success; NULL: it is logged */
    int max_shards;               /* 1..256, default 256; with more ranks, writers gather from their neighbours */
    bool beside;                  /* something computes meanwhile: boxes bypass the page cache, slower and gentler */
    int64_t box_bytes;            /* longer boxes are cut, or earlier, so that shards come out equal; default 64 MiB */
};

/* Writes DIR/step-XXXXXXXX, making DIR where it is missing; a checkpoint of the same step is replaced. Logs "saved"
 * only when it is durable. Removes complete checkpoints that no `keep` asks for, never the one just written. On failure
 * the earlier checkpoints are untouched and the caller may go on. */
enum dtx_status dtx_ckpt_save(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir,
                              const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                              const struct dtx_ckpt_save_options *options);
/* "saved …", by root. Not collective. */
void dtx_ckpt_saved_log(const struct dtx_ctx *ctx, const struct dtx_ckpt_saved *saved);
/* A search for the checkpoint to load: zero to begin with, equal on all ranks. */
struct dtx_ckpt_search {
    bool single;           /* the user named one checkpoint: there is no other */
    int n;                 /* so many there are, good ones or not; 0 when nothing was found */
    int64_t sequence;      /* of what was found last */
    int64_t before;        /* what was saved from here on is passed over; 0: nothing yet */
    enum dtx_status fault; /* of the last one passed over, in words `why` */
    char why[512];
};
/* Resolves what a user gives to one checkpoint folder, the same on all ranks: "latest" (in `dir`), a folder of
 * checkpoints, or a checkpoint's own folder, as it stands or below `dir`. Its list of files and its index are good, and
 * its shards have their sizes; their bytes are verified when they are loaded. Among several, an incomplete or damaged
 * newest one is passed over, said aloud; a checkpoint named by itself is refused instead. Called again after
 * dtx_ckpt_pass_over it gives the one before. DTX_E_CONFIG: there is none at all. DTX_E_UNSUPPORTED: one has a newer
 * format. Else the last one's fault. */
enum dtx_status dtx_ckpt_find(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir, const char *what,
                              struct dtx_ckpt_search *search, char *path, size_t path_bytes);
/* Loading what was found has failed with `status`, the same on all ranks. True when that is damage and an earlier
 * checkpoint may do: said aloud, the report taken back, and the search stands before this one. */
bool dtx_ckpt_pass_over(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_ckpt_search *search, const char *path,
                        enum dtx_status status);
/* Reads scalars and configuration of one checkpoint folder. Root reads, all get it. */
enum dtx_status dtx_ckpt_load_meta(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                                   struct dtx_ckpt_meta *meta);
void dtx_ckpt_meta_free(struct dtx_ckpt_meta *meta); /* its texts; safe twice */
/* Fills every item's boxes (padding is left as it is). Each stored box that anybody needs is read once, by one of the
 * ranks that need it, its checksum compared, and given to the others. A missing array, another shape or dtype is
 * refused by name before anything is read. After a failure the boxes hold anything: load into memory that does not
 * matter yet. */
enum dtx_status dtx_ckpt_load(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path,
                              struct dtx_ckpt_item *items, int n_items);

#endif
