/*
 * A save beside whatever the rank does: its arrays are copied to a buffer, and a thread of the rank writes from there,
 * over a communicator of its own. The buffer is made once. One save is under way at a time; its file is what lay in the
 * buffer when it was started. Without the thread a save is done inside dtx_ckpt_staging_start; the file is the same.
 *
 *   dtx_ckpt_staging_place(s, items, n); copy each item's array to items[i].data;     (the rank stops so long)
 *   dtx_ckpt_staging_start(s, dir, NULL, items, n, &meta, &options);                  (it goes on)
 *   … until dtx_ckpt_staging_finish(s, &saved)
 *
 * All functions belong to the thread that opened it. While the thread lives it alone calls HDF5.
 */
#ifndef DTX_CHECKPOINTS_STAGING_H
#define DTX_CHECKPOINTS_STAGING_H

#include "checkpoints/local.h"

struct dtx_ckpt_staging;

/* Bytes of the buffer that takes the local arrays of these items. */
size_t dtx_ckpt_staging_bytes(const struct dtx_ckpt_item *items, int n_items);
/* bytes: of the buffer, host memory of `backend` (NULL: ordinary memory), whose copies are fast; timeout: seconds after
 * which a rank that waits for others in a save counts as hanging (0: never), since disks may be slow. Collective over
 * world. */
enum dtx_status dtx_ckpt_staging_open(struct dtx_ctx *ctx, struct dtx_comm *world, struct dtx_backend *backend,
                                      size_t bytes, bool thread, double timeout, struct dtx_ckpt_staging **out);
/* Sets the items' `data` to their places in the buffer. No save may be under way. Not collective. */
enum dtx_status dtx_ckpt_staging_place(struct dtx_ckpt_staging *s, struct dtx_ckpt_item *items, int n_items);
/* Begins to write DIR/step-XXXXXXXX or, with `local` not NULL, a checkpoint of that tier. Items (data and all), dir and
 * the texts of meta stay as they are until the end; meta and options are copied. Collective over world. */
void dtx_ckpt_staging_start(struct dtx_ckpt_staging *s, const char *dir, struct dtx_ckpt_local *local,
                            const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                            const struct dtx_ckpt_save_options *options);
/* A save was started and not yet finished by dtx_ckpt_staging_finish. Not collective. */
bool dtx_ckpt_staging_busy(const struct dtx_ckpt_staging *s);
/* This rank's thread has nothing more to do for it: the other ranks' may have. Not collective. */
bool dtx_ckpt_staging_done(struct dtx_ckpt_staging *s);
/* Waits for the save that is under way; its status, the same on all ranks, and on success its report. Nobody has logged
 * anything. Not collective, but all ranks' saves end together. */
enum dtx_status dtx_ckpt_staging_finish(struct dtx_ckpt_staging *s, struct dtx_ckpt_saved *saved);
/* Waits for what is under way and frees all. Collective over world. Accepts NULL. */
void dtx_ckpt_staging_close(struct dtx_ckpt_staging *s);
/* Instead of close, for a rank that will end the job after a failure (dtx_comm_finish): gives what is under way up to
 * `seconds` to end, then stops it; that checkpoint is not published. With one rank it always ends. True: the thread is
 * no more; with several ranks buffer and communicator stay until the process ends. Not collective. Accepts NULL. */
bool dtx_ckpt_staging_halt(struct dtx_ckpt_staging *s, double seconds);

#endif
