/*
 * Unicode's normal forms (data by utf8proc, order of marks by a stable sort: linear for any text). Text must be valid
 * UTF-8. Nothing here is shared: a struct dtx_normal_scratch belongs to one thread.
 */
#ifndef DTX_DATA_NORMALIZE_H
#define DTX_DATA_NORMALIZE_H

#include "data/buffer.h"
#include "data/unicode.h"

enum dtx_normal_form { DTX_NFC, DTX_NFD, DTX_NFKC, DTX_NFKD };

struct dtx_normal_scratch {
    struct dtx_ids codes, sorted;
};

/* Length of a prefix of text[n] that the form leaves as it is; n: nothing is to be done. */
int64_t dtx_normal_prefix(const struct dtx_unicode *u, enum dtx_normal_form form, const char *text, int64_t n);
/* Appends text[n] in the normal form. */
enum dtx_status dtx_normalize(struct dtx_ctx *ctx, const struct dtx_unicode *u, enum dtx_normal_form form,
                              const char *text, int64_t n, struct dtx_normal_scratch *scratch, struct dtx_bytes *out);
void dtx_normal_scratch_free(struct dtx_normal_scratch *scratch);

#endif
