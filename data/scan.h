/*
 * The well-known patterns by hand: each function gives the end of the piece that starts at `at` < n in text (valid
 * UTF-8), as the pattern would, in time linear in the text. What the pattern means stands in scan.c.
 */
#ifndef DTX_DATA_SCAN_H
#define DTX_DATA_SCAN_H

#include "data/unicode.h"

enum dtx_scan {
    DTX_SCAN_GPT2,
    DTX_SCAN_CL100K, /* tiktoken's; differs from Llama 3's in white space at the end of the text */
    DTX_SCAN_LLAMA3,
    DTX_SCAN_QWEN2,
    DTX_SCAN_O200K,
    DTX_SCANS
};

typedef int64_t (*dtx_scanner)(const struct dtx_unicode *u, const char *text, int64_t n, int64_t at);

dtx_scanner dtx_scan_function(enum dtx_scan scan);
/* The pattern as regular expression, in the spelling of tokenizer.json, or of tiktoken for its own. */
const char *dtx_scan_pattern(enum dtx_scan scan);

#endif
