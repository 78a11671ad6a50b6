/*
 * Checkpoints out of dtx, into it, and several into one. One process; the target appears by one rename when it is
 * complete and on disk, and an existing one is refused unless `force`. Weights only: masters where there are any.
 */
#ifndef DTX_CHECKPOINTS_CONVERT_H
#define DTX_CHECKPOINTS_CONVERT_H

#include "checkpoints/format.h"

/* Writes job's checkpoint in that format as the folder `out`; job->folder, index and model are filled in here. */
enum dtx_status dtx_ckpt_export(struct dtx_ctx *ctx, const struct dtx_ckpt_format *format, struct dtx_ckpt_export *job,
                                const char *out, bool force);
/* Writes OUT/step-00000000 from a folder of another format. */
enum dtx_status dtx_ckpt_import(struct dtx_ctx *ctx, const struct dtx_ckpt_format *format, const char *folder,
                                const char *out, bool force);
/* Writes OUT/step-<the highest step>: the mean of each weight over n checkpoints, summed in fp64. */
enum dtx_status dtx_ckpt_average(struct dtx_ctx *ctx, const char *const *checkpoints, int n, const char *out,
                                 bool force);

#endif
