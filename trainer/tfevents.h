/*
 * TensorBoard event files: TFRecord frames (length, masked CRC-32C, bytes, masked CRC-32C) around protobuf messages
 * `Event`, written by hand since three message types are all it takes.
 *
 * A file belongs to one attempt of a run; its name sorts after those already in the folder, since readers take files in
 * the order of names. It opens with a session start at `first_step`, which makes readers drop what earlier attempts
 * recorded from that step on. One append per event; a frame that could not be written whole is cut off again.
 * Not thread-safe, not collective.
 */
#ifndef DTX_TRAINER_TFEVENTS_H
#define DTX_TRAINER_TFEVENTS_H

#include "kernels/base/status.h"

struct dtx_tfevents;

struct dtx_scalar {
    char tag[40]; /* "train/loss" */
    double value; /* stored as float; may be NaN */
};

/* Creates `folder` (its parent must exist) and a new file in it. */
enum dtx_status dtx_tfevents_open(struct dtx_ctx *ctx, const char *folder, int64_t first_step,
                                  struct dtx_tfevents **out);
/* One event with all scalars of a step. */
enum dtx_status dtx_tfevents_write(struct dtx_ctx *ctx, struct dtx_tfevents *events, double wall_time, int64_t step,
                                   const struct dtx_scalar *scalars, int n);
/* Accepts NULL. */
enum dtx_status dtx_tfevents_close(struct dtx_ctx *ctx, struct dtx_tfevents *events);

/* CRC-32C (Castagnoli, reflected, 0x82F63B78); `crc` is 0 or the sum of what came before. */
uint32_t dtx_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
