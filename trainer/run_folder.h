/*
 * The folder of a run, held by rank 0: made and checked before the first step, locked against a second dtx while the
 * run lives, so that no run writes over another one's metrics or checkpoints. Not collective.
 */
#ifndef DTX_TRAINER_RUN_FOLDER_H
#define DTX_TRAINER_RUN_FOLDER_H

#include "kernels/base/status.h"

struct dtx_run_folder {
    int locks[2]; /* descriptors: run folder, checkpoint folder; −1: none */
};

/* Makes both folders, locks them, writes RUN/config.yaml. resumed_from: the checkpoint that is continued, or
 * checkpoint_dir for one of its local tier, or NULL. attempt_before: without a checkpoint, the number of the attempt
 * whose metrics move to RUN/logs when the run begins again; −1: then a run that is there is refused.
 * DTX_E_CONFIG: another dtx is running here; a new run would write over one that is there; metrics of another run than
 * the checkpoint's are there; or the folders cannot be made or written to. */
enum dtx_status dtx_run_folder_open(struct dtx_ctx *ctx, const char *run_dir, const char *checkpoint_dir,
                                    const char *resumed_from, const char *config, int64_t attempt_before,
                                    struct dtx_run_folder *out);
/* Whether a run that cannot start may say so in RUN/status: nobody is at work in the folder, and the checkpoint that
 * was to be continued (NULL: none was found) is this folder's own. */
bool dtx_run_folder_idle(const char *run_dir, const char *checkpoint_dir, const char *resumed_from);
void dtx_run_folder_close(struct dtx_run_folder *folder); /* accepts a zeroed one */

#endif
