/*
 * Sources copied into Megatron pairs, whole documents at a time, in bounded memory: any format in, one or several pairs
 * out. Documents come from a source's index, else from its separator; a source with neither is one document. Nothing
 * has its final name before its pair is complete; existing pairs are refused, not replaced. Not collective.
 */
#ifndef DTX_DATA_REWRITE_H
#define DTX_DATA_REWRITE_H

#include "data/source.h"

struct dtx_meter;

/* Ids are written as u16 when vocab > 0 is below 65,500, or when it is 0 and all types read have 16 bits at most; else
 * as i32. */
struct dtx_rewrite {
    struct dtx_source *const *sources;
    int n_sources;
    int64_t vocab;
    struct dtx_meter *meter; /* told the bytes read; NULL: nobody */
};

struct dtx_rewrite_part {
    int64_t documents, tokens;
};

/* All sources, in order, into PREFIX.bin and PREFIX.idx. */
enum dtx_status dtx_rewrite_merge(struct dtx_ctx *ctx, const struct dtx_rewrite *r, const char *prefix,
                                  struct dtx_rewrite_part *out);
/* The first source into n pairs PREFIX-00000-of-00003 …: document d goes to the first part whose end, counted in tokens
 * of the source, lies behind the document's first token; a source without documents is cut exactly there. ends[n]:
 * ascending, the last one the number of tokens. */
enum dtx_status dtx_rewrite_split(struct dtx_ctx *ctx, const struct dtx_rewrite *r, const char *prefix,
                                  const int64_t *ends, int n, struct dtx_rewrite_part *out);
enum { DTX_REWRITE_MOST_PARTS = 99999, DTX_REWRITE_PATH = 4096 };
/* The prefix of part k of n. */
void dtx_rewrite_name(const char *prefix, int k, int n, char out[DTX_REWRITE_PATH]);

#endif
