/*
 * The files of a stream and the part of each that is read: training text or the held-out documents at its end. Not
 * collective.
 */
#ifndef DTX_DATA_PARTS_H
#define DTX_DATA_PARTS_H

#include "data/source.h"

struct dtx_part {
    struct dtx_source *source;
    const char *path;
    int64_t first, tokens; /* of the file */
    uint64_t id;           /* made of tokens at both ends and their number: the same wherever the file lies */
};

struct dtx_parts_config {
    struct dtx_source_config source;
    double heldout;
    bool use_heldout, identify; /* identify: read both ends for the id, else it is 0 */
};

enum dtx_status dtx_part_open(struct dtx_ctx *ctx, const struct dtx_parts_config *config, const char *path,
                              struct dtx_part *out);
void dtx_part_close(struct dtx_part *part);

#endif
