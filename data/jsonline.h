/* JSON lines: the document in one line. */
#ifndef DTX_DATA_JSONLINE_H
#define DTX_DATA_JSONLINE_H

#include "data/buffer.h"

enum { DTX_JSONLINE_WHY = 160 };

/* Appends the string under `field` of the object in line[n] to `text`. A line that has none leaves text as it was and
 * says in why[] what is wrong (else why is empty); only lack of memory fails. Of several such fields the last one
 * counts. Invalid UTF-8 is replaced first, by one U+FFFD for each maximal invalid part, and so is half a pair of
 * surrogates
 * (\ud800); *invalid grows by their number. Safe on several threads. */
enum dtx_status dtx_jsonline_text(struct dtx_ctx *ctx, const char *line, int64_t n, const char *field,
                                  struct dtx_bytes *text, int64_t *invalid, char why[DTX_JSONLINE_WHY]);

#endif
