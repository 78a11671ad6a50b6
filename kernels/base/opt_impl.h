/* What the files of the options share: opt.c (keys, faults, values), opt_value.c (one value from text), opt_load.c
 * (YAML, variables, flags), opt_text.c (YAML and help out). */
#ifndef DTX_KERNELS_BASE_OPT_IMPL_H
#define DTX_KERNELS_BASE_OPT_IMPL_H

#include "kernels/base/opt.h"

enum { DTX_OPT_KEY_LENGTH = 64, DTX_OPT_REASON_LENGTH = 256 };

struct opt_value {
    const struct dtx_opt_row *row;
    enum dtx_opt_source source;
    char *from; /* "flag --parallel.tp", "run.yaml:3"; NULL for a default */
    char *text; /* canonical: two values are equal when their texts are */
    int64_t integer;
    double real;
    bool boolean;
};

struct dtx_opt {
    int n_values;
    struct opt_value *values; /* in table order */
    int n_faults;
    char **faults;
    bool out_of_memory; /* met where no status can be returned; dtx_opt_check reports it */
};

struct opt_value *dtx_opt_find(const struct dtx_opt *opt, const char *key);
/* The known key that `key` was probably meant to be, or NULL. */
const char *dtx_opt_nearest(const struct dtx_opt *opt, const char *key);
int dtx_opt_distance(const char *a, const char *b);
/* Fills integer, real, boolean of `value` and `canonical` (of `size` bytes; numbers and truths only). On failure
 * `reason` says what the text must be. */
bool dtx_opt_parse_value(const struct dtx_opt_row *row, const char *text, struct opt_value *value, char *canonical,
                         size_t size, char reason[DTX_OPT_REASON_LENGTH]);
/* true, false, yes, no, on, off. */
bool dtx_opt_parse_bool(const char *text, bool *out);

#endif
