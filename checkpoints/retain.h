/*
 * A folder of checkpoints: what lies in it, in which order, and what is removed. Names: step-00001000; hidden ones are
 * .new-… (being written), .old-… (being replaced), .gone-… (being removed). Nothing here communicates: root calls it.
 */
#ifndef DTX_CHECKPOINTS_RETAIN_H
#define DTX_CHECKPOINTS_RETAIN_H

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "kernels/base/status.h"

struct dtx_ckpt_place {
    char name[48]; /* of the folder */
    int64_t step;
    int64_t sequence;       /* from the manifest; -1 when that cannot be read */
    enum dtx_status status; /* of reading the manifest and finding the files */
    char why[512];          /* what is wrong with it */
};

/* "step-00001000" with a prefix ("", ".new-", …). */
void dtx_ckpt_folder_name(const char *prefix, int64_t step, char out[48]);
/* Is `name` the folder name of a step behind `prefix`? */
bool dtx_ckpt_folder_step(const char *name, const char *prefix, int64_t *step);
/* Calls `visit` for every entry of a folder until one fails. */
enum dtx_status dtx_ckpt_each_entry(struct dtx_ctx *ctx, const char *dir,
                                    enum dtx_status (*visit)(struct dtx_ctx *ctx, void *self, const char *name),
                                    void *self);
/* All checkpoints of a folder, complete ones first, newest (greatest sequence) first; then incomplete ones by step,
 * from the highest. A folder that is being replaced counts where its successor is not there. Free with dtx_mem_free. */
enum dtx_status dtx_ckpt_list(struct dtx_ctx *ctx, const char *dir, struct dtx_ckpt_place **out, int *n);
/* Greater than that of every checkpoint; by a million saves when one cannot be read just now but may be later. */
int64_t dtx_ckpt_next_sequence(const struct dtx_ckpt_place *places, int n);
/* Puts back what a killed save left half replaced; removes what it left half written or half removed. */
enum dtx_status dtx_ckpt_tidy(struct dtx_ctx *ctx, const char *dir);
/* Removes complete checkpoints but the newest `keep` (0: none is removed), those whose step is a multiple of
 * keep_every, and the keep_best ones of the lowest held-out losses (of equal ones the newer). Incomplete ones are left
 * alone. */
enum dtx_status dtx_ckpt_retain(struct dtx_ctx *ctx, const char *dir, const struct dtx_ckpt_save_options *options);

#endif
