/*
 * How the blocks are cut into the pipeline's parts: `stages`·chunks of them, part c·stages + s is chunk c of stage s.
 * The embedding belongs to the first part, the head to the last. Pure functions, the same on every rank.
 */
#ifndef DTX_TRAINER_SPLIT_H
#define DTX_TRAINER_SPLIT_H

#include "trainer/config.h"

/* Blocks of each part from "3,5,4,4": true when the text is `parts` numbers whose sum is `layers` and no part but the
 * first and the last has none. counts may be NULL. */
bool dtx_split_parse(const char *layout, int parts, int64_t layers, int64_t *counts);
/* counts[parts]: by the layout where there is one; else each block goes to the part that costs least so far, the
 * earlier one of equals. A block costs its FLOPs when a query sees `keys` keys; by FLOPs the embedding and the head
 * count too, evenly they cost nothing. */
void dtx_split_blocks(const struct dtx_model_config *model, const struct dtx_split *split, int parts, double keys,
                      int64_t *counts);

#endif
